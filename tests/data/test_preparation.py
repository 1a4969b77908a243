"""Nothing held out is trained on (F34), and a run that is killed, or not alone, harms nothing (F35)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from farspan.data import (
    Mixture,
    Prepared,
    RandomWindows,
    Source,
    TokenFile,
    load_mixture,
    open_corpus,
    prepare,
)
from farspan.data.tokenizer import train_bpe, wrap

VOCAB = 270

pytestmark = pytest.mark.filterwarnings("ignore:the text supports:UserWarning")


def marked_folder(folder: Path, count: int = 10) -> Path:
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"<{i}> some words of document <{i}> " * 5)
    return folder


def marks(file: TokenFile, data: Prepared) -> set[str]:
    return set(re.findall(r"<(\d+)>", data.tokenizer.decode(file.tokens.tolist())))


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix != ".lock"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marked_folder(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Prepared:
    return prepare(folder, VOCAB, tmp_path_factory.mktemp("cache"))


def test_f34_no_document_is_on_both_sides_and_none_is_lost(data: Prepared) -> None:
    train, heldout = marks(data.train, data), marks(data.heldout, data)
    assert train
    assert heldout
    assert not train & heldout
    assert train | heldout == {str(i) for i in range(10)}
    assert data.train.meta["documents"] + data.heldout.meta["documents"] == 10
    assert (data.train.meta["split"], data.heldout.meta["split"]) == ("train", "heldout")


def test_f34_no_training_window_shows_held_out_text(data: Prepared) -> None:
    heldout = marks(data.heldout, data)
    for seed in (0, 1):
        windows = RandomWindows(data.train, length=64, seed=seed, count=200)
        text = "\n".join(data.tokenizer.decode(windows[i]["input_ids"]) for i in range(200))
        assert not set(re.findall(r"<(\d+)>", text)) & heldout


def test_f34_split_and_batches_do_not_depend_on_workers_or_seed(data: Prepared, folder: Path, tmp_path: Path) -> None:
    again = prepare(folder, VOCAB, tmp_path)
    assert again.train.meta == data.train.meta
    assert again.heldout.meta == data.heldout.meta
    windows = RandomWindows(again.train, length=64, seed=3, count=8)
    batches = [
        torch.cat([batch["input_ids"] for batch in DataLoader(windows, batch_size=4, num_workers=workers)])
        for workers in (0, 2)
    ]
    assert torch.equal(*batches)


def test_copies_of_held_out_documents_are_not_trained_on(data: Prepared, tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "texts")
    for i in range(10):
        (folder / f"copy{i}.txt").write_bytes((folder / f"{i}.txt").read_bytes() + b"\r\n")
    both = prepare(folder, VOCAB, tmp_path / "cache")
    assert both.train.meta["documents"] + both.heldout.meta["documents"] == 20
    assert marks(both.heldout, both) == marks(data.heldout, data)
    assert not marks(both.train, both) & marks(both.heldout, both)


def test_tokenizer_sees_the_train_split_only(tmp_path: Path) -> None:
    words = {a + b + a + b: f"{a}{b}{a}{b} " * 50 for a in "bcdfgh" for b in "aeiou"}
    (tmp_path / "texts").mkdir()
    for word, text in words.items():
        (tmp_path / "texts" / f"{word}.txt").write_text(text)
    data = prepare(tmp_path / "texts", 2000, tmp_path / "cache")
    learned = {word for word in words if f"\u0120{word}" in data.tokenizer.get_vocab()}
    assert learned == set(data.tokenizer.decode(data.train.tokens.tolist(), skip_special_tokens=True).split())
    assert 0 < len(learned) < len(words)


def test_second_call_reads_the_cache_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    events: list[tuple[Any, ...]] = []
    first = prepare(folder, VOCAB, tmp_path, progress=lambda *event: events.append(event))
    assert {stage for stage, *_ in events} == {"tokenizer", "train", "heldout"}
    before = snapshot(tmp_path)
    events.clear()
    second = prepare(folder, VOCAB, tmp_path, progress=lambda *event: events.append(event))
    assert snapshot(tmp_path) == before
    assert not events
    assert (second.train.meta, second.tokenizer_sha256) == (first.train.meta, first.tokenizer_sha256)


def test_changed_text_or_setting_is_prepared_anew(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "texts")
    first = prepare(folder, VOCAB, tmp_path / "cache")
    half = prepare(folder, VOCAB, tmp_path / "cache", heldout_fraction=0.5)
    assert half.heldout.meta["documents"] > first.heldout.meta["documents"]
    assert len(list((tmp_path / "cache" / "tokenizers").glob("[!.]*"))) == 2, "other text to learn from"
    short = prepare(folder, VOCAB, tmp_path / "cache", max_train_tokens=100)
    assert len(short.train) == 100
    assert len(short.heldout) == 11, "100 * 0.1 / 0.9"
    assert len(prepare(folder, VOCAB, tmp_path / "cache", max_heldout_tokens=7).heldout) == 7
    (folder / "10.txt").write_text("new")
    changed = prepare(folder, VOCAB, tmp_path / "cache")
    assert changed.corpus_sha256 != first.corpus_sha256
    assert len(changed.train) + len(changed.heldout) > len(first.train) + len(first.heldout)


def test_given_tokenizer_is_used_and_recorded(folder: Path, tmp_path: Path) -> None:
    own = wrap(train_bpe(["some words of document "] * 9, 265))
    data = prepare(folder, None, tmp_path, tokenizer=own)
    assert data.tokenizer is own
    assert data.train.meta["tokenizer_sha256"] == data.tokenizer_sha256
    assert not (tmp_path / "tokenizers").exists()


def test_altered_tokenizer_in_the_cache_is_refused(folder: Path, tmp_path: Path) -> None:
    prepare(folder, VOCAB, tmp_path)
    (file,) = (tmp_path / "tokenizers").glob("*/tokenizer.json")
    content = json.loads(file.read_text())
    content["pre_tokenizer"]["add_prefix_space"] = True
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not the one once saved there"):
        prepare(folder, VOCAB, tmp_path)


def test_corpora_are_opened_by_name(tmp_path: Path) -> None:
    source = Source(path=tmp_path)
    assert open_corpus(source) is source
    assert open_corpus("python-stdlib") == Source(embedded="python-stdlib")
    assert open_corpus(str(tmp_path)) == source
    assert isinstance(open_corpus("fibonacci-paper"), Mixture)
    with pytest.raises(ValueError, match=r"corpus 'nowhere' is neither one of python-stdlib, .* nor a file"):
        open_corpus("nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": None}, "either vocab_size or tokenizer"),
        ({"heldout_fraction": 1.0, "max_train_tokens": 5}, "heldout_fraction should lie between 0 and 1"),
        ({"max_train_tokens": 0}, "max_tokens should be at least 1"),
        ({"vocab_size": 100}, "vocab_size should be at least 257"),
        ({"corpus": "fibonacci-paper"}, "max_train_tokens should be given for a mixture"),
        ({"corpus": Source(hub="owner/name")}, "max_train_tokens should be given for a mixture"),
    ],
    ids=["no vocabulary", "fraction", "tokens", "vocabulary", "mixture", "hub"],
)
def test_bad_arguments_are_refused(folder: Path, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(**{"corpus": folder, "vocab_size": VOCAB, "cache_dir": tmp_path, **arguments})


def paper_files(folder: Path) -> dict[str, Path]:
    """A small local file for each source of the paper's mixture, with the hub's fields."""
    rows: dict[str, list[dict[str, Any]]] = {
        "fineweb-edu": [{"text": f"web page {i} " * 9, "id": "u", "score": 3.1} for i in range(300)],
        "wikipedia": [{"id": i, "url": "u", "title": "t", "text": f"article {i} " * 7} for i in range(300)],
        "tinystories": [{"text": f"story {i} once " * 4} for i in range(300)],
        "math": [{"problem": f"sum {i}?", "level": "1", "type": "a", "solution": f"it is {i}"} for i in range(9)],
        "openmathinstruct-2": [
            {"problem": f"sum {i // 4}?", "generated_solution": f"try {i}", "expected_answer": "1"} for i in range(900)
        ],
    }
    folder.mkdir()
    for name, items in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return {name: folder / f"{name}.jsonl" for name in rows}


def test_mixture_keeps_shares_of_tokens_in_both_splits_and_problems_apart(tmp_path: Path) -> None:
    mixture = load_mixture("fibonacci-paper", paper_files(tmp_path / "files"))
    data = prepare(mixture, VOCAB, tmp_path / "cache", heldout_fraction=0.2, max_train_tokens=12_000)
    assert len(data.train) == 12_000
    problems = []
    for file in (data.train, data.heldout):
        starts = file.documents
        tokens: dict[str, int] = {}
        for begin, end in pairwise(starts):
            text = data.tokenizer.decode(file.tokens[begin + 1 : end].tolist())
            kind = "maths" if text.startswith("sum") else text[:3]
            tokens[kind] = tokens.get(kind, 0) + int(end - begin)
        longest = int(np.diff(starts).max())
        for kind, share in {"web": 0.35, "art": 0.22, "sto": 0.2, "maths": 0.23}.items():
            assert abs(tokens[kind] - share * len(file)) <= (2 if kind == "maths" else 1) * longest, kind
        problems.append(set(re.findall(r"sum (\d+)\?\n", data.tokenizer.decode(file.tokens.tolist()))))
    assert problems[0]
    assert problems[1]
    assert not problems[0] & problems[1]


def test_mixture_that_runs_out_names_the_source(tmp_path: Path) -> None:
    mixture = load_mixture("fibonacci-paper", paper_files(tmp_path / "files"))
    with pytest.raises(ValueError, match=r"mixture source '(?!math').*' ran out after .* repeat = true"):
        prepare(mixture, VOCAB, tmp_path / "cache", max_train_tokens=10**6)
    assert not list((tmp_path / "cache" / "tokens").glob("[!.]*"))


PREPARE_UNTIL_KILLED = """
import faulthandler, sys, time
faulthandler.dump_traceback_later(600, exit=True)
from farspan.data import preparation as module
encode = module.encode_documents
def stuck(*arguments):
    for number, ids in enumerate(encode(*arguments)):
        yield ids
        if number == 3:
            print("in the middle", flush=True)
            time.sleep(600)
module.encode_documents = stuck
module.prepare(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


@pytest.fixture(scope="module")
def killed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of a process with another hash seed and one thread, killed in the middle of packing."""
    cache = tmp_path_factory.mktemp("killed")
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.Popen(
        [sys.executable, "-c", PREPARE_UNTIL_KILLED, str(folder), str(VOCAB), str(cache)],
        env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "in the middle\n"
    run.kill()
    run.communicate()
    return cache


def test_tokenizer_has_the_same_bytes_with_another_hash_seed(data: Prepared, killed: Path) -> None:
    own, other = (
        {path.name: path.read_bytes() for path in cache.glob("tokenizers/[!.]*/*")}
        for cache in (data.train.path.parents[1], killed)
    )
    assert {"tokenizer.json", "tokenizer_config.json", "provenance.json"} <= own.keys()
    assert own == other


def test_kill_in_the_middle_of_packing_leaves_nothing_half_written(data: Prepared, folder: Path, killed: Path) -> None:
    assert [path.name for path in killed.glob("tokens/.*.tmp")], "it was killed too early"
    assert not list(killed.glob("tokens/[!.]*"))
    after = prepare(folder, VOCAB, killed)
    assert (after.train.meta, after.heldout.meta) == (data.train.meta, data.heldout.meta)
    assert not [path for path in killed.rglob("*") if path.suffix == ".tmp"]
