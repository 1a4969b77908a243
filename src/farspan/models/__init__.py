"""The Llama-family model that carries any rule, one per layer."""

from farspan.models.configuration import FarspanConfig
from farspan.models.modeling import FarspanForCausalLM, FarspanModel

__all__ = ["FarspanConfig", "FarspanForCausalLM", "FarspanModel"]
