"""Token folders say what is in them; windows depend on nothing but seed and index."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from farspan.data.packing import RandomWindows, TokenFile, pack

DOCUMENTS = [[0, 5, 6], [0], [0, 7, 8, 9], [0, 65535]]
FLAT = [0, 5, 6, 0, 0, 7, 8, 9, 0, 65535]


def vocabulary(entries: int) -> PreTrainedTokenizerFast:
    model = models.WordLevel({str(i): i for i in range(entries)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), bos_token="0")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return vocabulary(2**16)


def encoded() -> Iterator[NDArray[np.uint32]]:
    return (np.array(ids, dtype=np.uint32) for ids in DOCUMENTS)


def packed(folder: Path, tokenizer: PreTrainedTokenizerFast, **options: Any) -> TokenFile:
    return pack(encoded(), tokenizer, folder, split="train", corpus_sha256="c" * 64, **options)


def test_tokens_and_documents_come_back(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    file = packed(tmp_path / "t", tokenizer)
    assert file.tokens.tolist() == FLAT
    assert len(file) == 10
    assert file.documents.tolist() == [0, 3, 4, 8, 10]
    assert (tmp_path / "t" / "tokens.bin").read_bytes() == np.array(FLAT, dtype="<u2").tobytes()
    expected = {"dtype": "uint16", "tokens": 10, "documents": 4, "split": "train", "corpus_sha256": "c" * 64}
    assert expected.items() <= file.meta.items()
    assert len(file.meta["tokenizer_sha256"]) == len(file.meta["tokens_sha256"]) == 64


def test_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    file = packed(tmp_path / "t", vocabulary(2**16 + 1))
    assert (file.meta["dtype"], file.tokens.tolist()) == ("uint32", FLAT)


@pytest.mark.parametrize("limit", [1, 3, 5, 10, 99])
def test_limit_ends_the_tokens_exactly(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, limit: int) -> None:
    file = packed(tmp_path / "t", tokenizer, max_tokens=limit)
    assert file.tokens.tolist() == FLAT[:limit]
    assert file.documents[-1] == len(file) == min(limit, 10)
    assert (file.tokens[file.documents[:-1]] == 0).all()


def test_progress_ends_at_the_total(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    seen: list[tuple[Any, ...]] = []
    packed(tmp_path / "t", tokenizer, max_tokens=7, progress=lambda *event: seen.append(event))
    assert seen[-1] == ("train", 7, 7)


def test_interrupted_packing_leaves_no_folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    def interrupted() -> Iterator[NDArray[np.uint32]]:
        yield from encoded()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(interrupted(), tokenizer, tmp_path / "t", split="train", corpus_sha256="c")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert packed(tmp_path / "t", tokenizer).tokens.tolist() == FLAT


@pytest.mark.parametrize(("limit", "message"), [(0, "max_tokens should be at least 1"), (None, "no documents")])
def test_nothing_to_pack_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, limit: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pack([], tokenizer, tmp_path / "t", split="heldout", corpus_sha256="c", max_tokens=limit)
    assert not (tmp_path / "t").exists()


def change_meta(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **values}))

    return change


def shorten(folder: Path) -> None:
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shorten, r"tokens\.bin should be 20 bytes long, it is 18"),
        (change_meta(tokens=9), r"tokens\.bin should be 18 bytes long, it is 20"),
        (change_meta(dtype="uint32"), r"tokens\.bin should be 40 bytes long"),
        (change_meta(dtype="float64"), "no valid dtype"),
        (change_meta(documents=5), r"documents\.npy"),
        (lambda folder: (folder / "meta.json").write_text("{}"), "no valid dtype, tokens"),
        (lambda folder: (folder / "meta.json").write_text("{"), "not a whole token folder"),
        (lambda folder: (folder / "meta.json").unlink(), "not a whole token folder"),
        (lambda folder: (folder / "documents.npy").unlink(), "not a whole token folder"),
        (lambda folder: (folder / "documents.npy").write_bytes(b"x"), "not a whole token folder"),
    ],
    ids=[
        *("short", "tokens", "width", "dtype", "documents", "empty meta", "broken meta", "no meta"),
        *("no documents", "broken documents"),
    ],
)
def test_damaged_folder_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, damage: Callable[[Path], None], message: str
) -> None:
    packed(tmp_path / "t", tokenizer)
    damage(tmp_path / "t")
    with pytest.raises(ValueError, match=message):
        TokenFile(tmp_path / "t")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> TokenFile:
    """Token i is i, so that a window shows where it starts."""
    documents = np.arange(1000, dtype=np.uint32).reshape(10, 100)
    folder = tmp_path_factory.mktemp("tokens") / "t"
    return pack(documents, tokenizer, folder, split="train", corpus_sha256="c")


def test_window_is_a_stretch_of_the_file(counted: TokenFile) -> None:
    windows = RandomWindows(counted, length=63, seed=1, count=50)
    for i in range(50):
        window, start = windows[i], windows.start(i)
        assert window["input_ids"].dtype == torch.int64
        assert window["input_ids"].tolist() == list(range(start, start + 63))
        assert torch.equal(window["labels"], window["input_ids"])


def test_starts_are_fixed_for_ever(counted: TokenFile) -> None:
    # A change here would give every stored run other data than it was trained on.
    assert [RandomWindows(counted, 63, seed=7, count=5).start(i) for i in range(5)] == [
        683,
        753,
        229,
        173,
        325,
    ]


def test_start_depends_on_seed_and_index_alone(counted: TokenFile) -> None:
    def starts(seed: int, count: int) -> list[int]:
        windows = RandomWindows(counted, length=63, seed=seed, count=count)
        return [windows.start(i) for i in reversed(range(count))][::-1]

    assert starts(3, 100) == starts(3, 200)[:100]
    assert sum(a == b for a, b in zip(starts(3, 100), starts(4, 100), strict=True)) < 5
    assert sum(a == b for a, b in zip(starts(3, 100)[1:], starts(4, 100), strict=False)) < 5


def test_every_start_is_equally_likely(counted: TokenFile) -> None:
    windows = RandomWindows(counted, length=991, seed=0, count=20_000)
    counts = np.bincount([windows.start(i) for i in range(20_000)], minlength=10)
    assert len(counts) == 10
    assert abs(counts - 2000).max() < 5 * (20_000 * 0.1 * 0.9) ** 0.5


def test_batches_do_not_depend_on_workers_or_batch_size(counted: TokenFile) -> None:
    windows = RandomWindows(counted, length=63, seed=5, count=24)
    alone = torch.stack([windows[i]["input_ids"] for i in range(24)])
    for workers, batch_size in ((0, 5), (2, 4)):
        loader = DataLoader(windows, batch_size=batch_size, num_workers=workers)
        assert torch.equal(torch.cat([batch["input_ids"] for batch in loader]), alone)


def test_copy_for_another_process_carries_no_tokens(counted: TokenFile) -> None:
    content = pickle.dumps(RandomWindows(counted, length=63, seed=5, count=8))
    assert len(content) < 1000
    copy = pickle.loads(content)
    assert copy.token_file.tokens.tolist() == counted.tokens.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1001, 0, 1), "length should lie between 2 and the 1000 tokens there are, got 1001"),
        ((1, 0, 1), "length should lie between 2 and"),
        ((10, -1, 1), "seed should lie between 0 and"),
        ((10, 2**64, 1), "seed should lie between 0 and"),
        ((10, 0, 0), "count should be at least 1"),
    ],
    ids=["long", "short", "negative seed", "large seed", "none"],
)
def test_windows_that_cannot_be_are_refused(counted: TokenFile, arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomWindows(counted, *arguments)


def test_longest_window_is_the_whole_file_and_no_index_wraps(counted: TokenFile) -> None:
    windows = RandomWindows(counted, length=1000, seed=2**64 - 1, count=3)
    assert len(windows) == 3
    assert windows[2]["input_ids"].tolist() == list(range(1000))
    for index in (3, -1):
        with pytest.raises(IndexError, match="index should lie between 0 and 2"):
            windows[index]
