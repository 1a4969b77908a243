"""Pictures of patterns: in text, and with matplotlib in `drawing.figures`, which is imported where it is used."""

from farspan.patterns.drawing.text import mask_text, paths_text, reach_text, schedule_text

__all__ = ["mask_text", "paths_text", "reach_text", "schedule_text"]
