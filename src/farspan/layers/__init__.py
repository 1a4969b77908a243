"""Attention modules with parameters of their own."""

from farspan.layers.learned_spacing import LearnedSpacing

__all__ = ["LearnedSpacing"]
