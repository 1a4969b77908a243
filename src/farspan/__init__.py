"""farspan: sparse attention for PyTorch, from "which keys does each query read?" to an answer with a number on it."""

from farspan import patterns
from farspan.attention import attention
from farspan.patterns import schedules
from farspan.support import Lines

__version__ = "0.1.0"
__all__ = ["Lines", "__version__", "attention", "patterns", "schedules"]
