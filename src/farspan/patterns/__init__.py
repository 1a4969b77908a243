"""Static rules: which keys a query reads, decided before the text is seen. Each returns a support for one layer."""

from farspan.patterns import schedules
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.matching import match
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.window import sliding_window

__all__ = ["fibonacci", "match", "powers", "powers_grown", "schedules", "sliding_window"]
