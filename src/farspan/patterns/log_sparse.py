"""LogSparse attention: the distances are the powers of two, behind a window and once per subsequence if asked."""

from __future__ import annotations

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "all heads",
    False,
    "LogSparse Transformer, arXiv 1907.00235, section 4.2",
)


def log_sparse(length: int, local: int = 1, restart: int | None = None) -> Lines:
    """Distances 0, 1, 2, 4, 8, ... below `length`, shared by all heads; floor(log2 length) + 1 layers connect any pair.

    With the paper's local attention every query reads the nearest `local` keys, itself included, and the powers of two
    count from the last of them: `local - 1 + 2**k`. `local = 1` is the plain pattern. With its restart attention the
    past is cut, backwards from the query, into subsequences of `restart` keys, and the pattern begins anew in each; so
    it stays one of distances. The authors use both, with `local = ceil(log2(restart))`. Their code also makes early
    queries dense, which is left out here: those queries would read other keys in a longer sequence.

    Raises:
        TypeError, ValueError: `length`, `local` or `restart` < 1.
    """
    length, local = at_least("length", length, 1), at_least("local", local, 1)
    restart = length if restart is None else at_least("restart", restart, 1)
    nearest = min(local, restart, length)
    powers = (local - 1 + 2**k for k in range(length.bit_length()))
    once = [*range(nearest), *(d for d in powers if d < restart)]
    return Lines(sorted(m + d for m in range(0, length, restart) for d in once if m + d < length))
