"""Supports: the set of (query, key) pairs that attention runs on, as plain validated data.

Query row `i` of `q_len` stands at position `k_len - q_len + i` (bottom-right alignment) and only ever reads keys at
positions up to its own. `distance` is query position minus key position.
"""

from farspan.support.base import LARGEST, Cost, Support
from farspan.support.entries import Blocks, Tokens
from farspan.support.lines import Lines

__all__ = ["LARGEST", "Blocks", "Cost", "Lines", "Support", "Tokens"]
