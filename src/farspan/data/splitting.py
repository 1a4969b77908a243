"""The split into train and held-out: by document, decided by the document alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from farspan.data.corpora import Document

Side = Literal["train", "heldout"]


def split_key(document: Document) -> bytes:
    """SHA-256 of the document's group (default: its text), runs of whitespace taken as one space.

    Hashing the content and not the id keeps copies of a document on one side, whatever they are called,
    whichever source they come from and however their lines end. Documents that are only similar can still
    part.
    """
    text = document.text if document.group is None else document.group
    return hashlib.sha256(" ".join(text.split()).encode("utf-8")).digest()


@dataclass(frozen=True)
class SplitRule:
    """Which side a document is on, by its content alone: order, workers, seeds, neighbours do not matter.

    Attributes:
        fraction: Share of distinct documents held out, in expectation: those whose key, read as a number in
            [0, 1), is below.
        moved: Keys that change sides (see `split_rule`).
    """

    fraction: float
    moved: frozenset[bytes] = frozenset()

    def side(self, document: Document) -> Side:
        """`"train"` or `"heldout"`."""
        key = split_key(document)
        low = int.from_bytes(key[:8], "big") / 2**64 < self.fraction
        return "heldout" if low != (key in self.moved) else "train"

    def select(self, documents: Iterable[Document], side: Side) -> Iterator[Document]:
        """The documents on one side, in their order."""
        return (document for document in documents if self.side(document) == side)


def split_rule(sources: Sequence[tuple[str, Callable[[], Iterator[Document]]]], fraction: float) -> SplitRule:
    """The rule for `fraction`, with both sides of every source non-empty.

    A source is read only until both sides have been seen. If it ends before that, which happens to small
    ones, the document with the lowest key is moved to the held-out side (with the highest key, to the train
    side); in this one case a document added later may take its place.

    Args:
        sources: Name and a function that starts a pass over the documents, for each source.
        fraction: Share to hold out, between 0 and 1.

    Raises:
        ValueError: `fraction` is out of range, or a source has no two different documents.
    """
    check_fraction(fraction)
    plain = SplitRule(fraction)
    moved: set[bytes] = set()
    for name, documents in sources:
        sides, keys = _scan(plain, documents())
        if len(sides) == 2:
            continue
        if len(keys) < 2:
            raise ValueError(
                f"corpus {name} has one distinct document; to be split by document into train and held-out "
                "it needs at least two"
            )
        moved.add(min(keys) if "train" in sides else max(keys))
    rule = SplitRule(fraction, frozenset(moved))
    for name, documents in sources if moved else ():
        if len(_scan(rule, documents())[0]) < 2:
            raise ValueError(f"corpus {name} shares too many of its few documents with others to be split")
    return rule


def check_fraction(fraction: float) -> None:
    """Raise `ValueError` unless `fraction` is a share that can be held out."""
    if not 0 < fraction < 1:
        raise ValueError(f"heldout_fraction should lie between 0 and 1, both excluded, got {fraction}")


def _scan(rule: SplitRule, documents: Iterable[Document]) -> tuple[set[Side], set[bytes]]:
    sides: set[Side] = set()
    keys: set[bytes] = set()
    for document in documents:
        sides.add(rule.side(document))
        keys.add(split_key(document))
        if len(sides) == 2:
            break
    return sides, keys
