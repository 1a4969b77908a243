"""Content rules: scores -> budget -> support."""

from farspan.selectors.protocol import Selector

__all__ = ["Selector"]
