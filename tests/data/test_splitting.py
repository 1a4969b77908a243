"""F34: no document is on both sides, and both sides have some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farspan.data.corpora import Document
from farspan.data.splitting import SplitRule, split_rule


def marked(count: int, start: int = 0) -> list[Document]:
    return [Document(f"{i}.txt", f"marker{i} text") for i in range(start, start + count)]


def split(documents: list[Document], fraction: float = 0.1) -> tuple[set[str], set[str]]:
    rule = split_rule([("c", lambda: iter(documents))], fraction)
    return tuple(  # type: ignore[return-value]
        {document.id for document in rule.select(documents, side)} for side in ("train", "heldout")
    )


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(), min_size=2, unique=True), fraction=st.floats(0.001, 0.999))
def test_sides_are_disjoint_whole_and_non_empty(texts: list[str], fraction: float) -> None:
    documents = [Document(str(i), f"{i} {text}") for i, text in enumerate(texts)]
    train, heldout = split(documents, fraction)
    assert train
    assert heldout
    assert not train & heldout
    assert len(train | heldout) == len(documents)


def test_side_does_not_depend_on_order_or_other_documents() -> None:
    documents = marked(300)
    train, heldout = split(documents)
    assert split(documents[::-1]) == (train, heldout)
    more_train, more_heldout = split(documents + marked(300, start=300))
    assert train <= more_train
    assert heldout <= more_heldout


def test_share_held_out_is_the_fraction() -> None:
    rule = SplitRule(0.1)
    held_out = sum(rule.side(document) == "heldout" for document in marked(5000))
    assert abs(held_out - 500) < 5 * (5000 * 0.1 * 0.9) ** 0.5


def test_copies_stay_together() -> None:
    documents = marked(40)
    copies = [Document(f"copy of {d.id}", d.text.replace(" ", "\r\n") + "\n") for d in documents]
    rule = split_rule([("c", lambda: iter(documents + copies))], 0.5)
    assert [rule.side(document) for document in documents] == [rule.side(copy) for copy in copies]
    # With so few documents that one has to be moved, its copy moves along.
    few = [documents[0], copies[0], documents[1], copies[1]]
    for fraction in (0.001, 0.999):
        train, heldout = split(few, fraction)
        assert sorted(map(len, (train, heldout))) == [2, 2]
        assert train in ({"0.txt", "copy of 0.txt"}, {"1.txt", "copy of 1.txt"})


def test_documents_of_a_group_stay_together() -> None:
    rule = SplitRule(0.5)
    for problem in range(20):
        solutions = [Document(f"{i}", f"solution {i}", group=f"problem {problem}") for i in range(10)]
        assert len({rule.side(solution) for solution in solutions}) == 1


def test_document_moved_in_one_source_is_moved_in_all() -> None:
    small, large = marked(3), marked(400)
    rule = split_rule([("small", lambda: iter(small)), ("large", lambda: iter(large))], 0.001)
    assert {rule.side(document) for document in small} == {"train", "heldout"}
    by_source = [
        {d.text for source in (small, large) for d in rule.select(source, side)} for side in ("train", "heldout")
    ]
    assert not by_source[0] & by_source[1]


def test_what_cannot_be_split_is_refused() -> None:
    copies = [Document("a", "same"), Document("b", "same\n")]
    with pytest.raises(ValueError, match=r"corpus c has one distinct document; .* at least two"):
        split(copies)
    with pytest.raises(ValueError, match="at least two"):
        split(marked(1))
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="heldout_fraction should lie between 0 and 1"):
            split(marked(10), fraction)


def test_large_corpus_is_not_read_to_its_end() -> None:
    read: list[int] = []

    def endless() -> Iterator[Document]:
        for i in range(10**6):
            read.append(i)
            yield Document(str(i), f"text {i}")

    split_rule([("c", endless)], 0.1)
    assert len(read) < 1000
