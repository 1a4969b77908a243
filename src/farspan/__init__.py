"""farspan: sparse attention for PyTorch, from "which keys does each query read?" to a number.

Importing it registers the model type "farspan" with transformers, so that `AutoModelForCausalLM` loads what it trained.
"""

from farspan import models, patterns
from farspan.attention import attention
from farspan.models.plugin import apply
from farspan.patterns import schedules
from farspan.support import Blocks, Lines, Tokens

__version__ = "0.1.0"
__all__ = ["Blocks", "Lines", "Tokens", "__version__", "apply", "attention", "models", "patterns", "schedules"]
