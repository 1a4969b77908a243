"""Documents come out as they lie in files, in one order, or not at all."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from farspan.data.corpora import Document, Source

TEXTS = ["first\r\ndocument", "  second \U0001f600 ", "third\n"]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_format_gives_the_same_texts(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [{"body": text, "other": 1} for text in TEXTS])
    documents = list(Source(path=path, template="{body}").documents())
    assert [document.text for document in documents] == TEXTS
    first = 0 if name.endswith("parquet") else 1
    assert [document.id for document in documents] == [f"{name}:{first + i}" for i in range(3)]


def test_folder_is_read_in_sorted_order_one_document_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in zip(["b.txt", "sub/a.txt", "a.txt"], TEXTS, strict=True):
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "notes.bin").write_bytes(b"\xff")
    assert list(Source(path=tmp_path).documents()) == [
        Document("a.txt", TEXTS[2]),
        Document("b.txt", TEXTS[0]),
        Document("sub/a.txt", TEXTS[1]),
    ]


def test_template_joins_fields_and_split_by_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "1 + 1?", "solution": "2", "level": 3}])
    source = Source(path=path, template="{problem}\n\n{solution}", split_by="{problem}")
    assert list(source.documents()) == [Document("a.jsonl:1", "1 + 1?\n\n2", "1 + 1?")]


def test_blank_documents_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": text} for text in ["", " \n", "x"]])
    assert [document.text for document in Source(path=path).documents()] == ["x"]


def bad_cases(folder: Path) -> dict[str, tuple[Source, str]]:
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 1000)[:-10])
    (folder / "broken.jsonl").write_text('{"text": "x"}\n{"text": \n')
    (folder / "list.jsonl").write_text('["x"]\n')
    (folder / "surrogate.jsonl").write_text('{"text": "\\ud800"}\n')
    (folder / "not.parquet").write_text("x")
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.txt").write_text("\n")
    (folder / "a.csv").write_text("x")
    (folder / "bare").mkdir()
    write(folder / "body.jsonl", [{"body": "x", "n": 1}])
    write(folder / "body.parquet", [{"body": "x", "n": 1}])
    write(folder / "null.jsonl", [{"text": None}])
    field = r"body\.{} has no field 'text', only body, n"
    return {
        "missing": (Source(path=folder / "none.txt"), r"none\.txt does not exist"),
        "extension": (Source(path=folder / "a.csv"), r"a\.csv should end in one of \.txt, \.jsonl"),
        "bare folder": (Source(path=folder / "bare"), "bare holds no file that ends in"),
        "no rows": (Source(path=folder / "empty.jsonl"), r"empty\.jsonl' holds no documents"),
        "blank": (Source(path=folder / "blank.txt"), "holds no documents"),
        "not utf-8": (Source(path=folder / "latin.txt"), r"latin\.txt is not UTF-8"),
        "cut gzip": (Source(path=folder / "cut.jsonl.gz"), r"cut\.jsonl\.gz, line \d+: not a JSON object"),
        "broken json": (Source(path=folder / "broken.jsonl"), r"broken\.jsonl, line 2: not a JSON object"),
        "not an object": (Source(path=folder / "list.jsonl"), r"list\.jsonl, line 1: .* got list"),
        "surrogate": (Source(path=folder / "surrogate.jsonl"), r"surrogate\.jsonl:1: half a surrogate"),
        "not parquet": (Source(path=folder / "not.parquet"), r"not\.parquet is not a parquet file"),
        "json field": (Source(path=folder / "body.jsonl"), field.format("jsonl:1")),
        "parquet field": (Source(path=folder / "body.parquet"), field.format("parquet")),
        "null field": (Source(path=folder / "null.jsonl"), "field 'text' should be text, got NoneType"),
    }


@pytest.mark.parametrize(
    "case",
    [
        *("missing", "extension", "bare folder", "no rows", "blank", "not utf-8", "cut gzip", "broken json"),
        *("not an object", "surrogate", "not parquet", "json field", "parquet field", "null field"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, case: str) -> None:
    source, message = bad_cases(tmp_path)[case]
    with pytest.raises(ValueError, match=message):
        list(source.documents())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of embedded, path and hub"),
        ({"path": "a", "hub": "b"}, "exactly one of embedded, path and hub"),
        ({"path": "a", "config": "c"}, "config means something for a hub dataset only"),
        ({"path": "a", "template": "text"}, "at least one field in braces"),
        ({"path": "a", "template": "{text.__class__}"}, "plain field names"),
        ({"path": "a", "split_by": "{text!r}"}, "plain field names"),
        ({"hub": "../folder/name"}, "pattern"),
        ({"path": "a", "field": "b"}, "Extra inputs"),
    ],
    ids=lambda value: ",".join(value) or "nothing" if isinstance(value, dict) else "",
)
def test_source_refuses_what_it_cannot_mean(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(**arguments)


def test_hash_follows_content_and_not_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("x")
    one, two = Source(path=tmp_path / "one"), Source(path=tmp_path / "two")
    assert one.sha256() == two.sha256()
    assert one.sha256() != Source(path=tmp_path / "one", split_by="{text}").sha256()
    (tmp_path / "two" / "a.txt").write_text("y")
    assert one.sha256() != two.sha256()
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "b.txt")
    (tmp_path / "two" / "b.txt").write_text("x")
    assert one.sha256() != two.sha256()


def test_stdlib_is_this_pythons_own_library() -> None:
    source = Source(embedded="python-stdlib")
    documents = list(source.documents())
    ids = [document.id for document in documents]
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py"} <= set(ids)
    assert len(ids) == len(set(ids)) > 300
    assert all(document.id.endswith(".py") and not document.text.isspace() for document in documents)
    foreign = {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data"}
    assert not [name for name in ids if foreign & set(name.split("/"))]
    assert documents == list(source.documents())
    assert ids[:50] != sorted(ids)[:50], "a prefix should be a sample, not the start of the alphabet"
    assert source.sha256() == Source(embedded="python-stdlib").sha256()


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the hub: rows that tell their configuration, and a list of the calls made."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(hub: str, config: str | None, **options: Any) -> list[dict[str, str]]:
        calls.append((hub, config, options))
        if config == "missing":
            raise ValueError("BuilderConfig 'missing' not found")
        return [{"text": f"{config} {i}"} for i in range(2)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_hub_dataset_is_pinned_streamed_and_read_config_after_config(fake_hub: list[tuple[Any, ...]]) -> None:
    commit = "0" * 40
    source = Source(hub="owner/name", config=("x", "y"), split="train_1M", revision=commit)
    assert [document.text for document in source.documents()] == ["x 0", "x 1", "y 0", "y 1"]
    assert next(source.documents()).id == "owner/name/x/train_1M:0"
    options = {"split": "train_1M", "revision": commit, "streaming": True}
    assert fake_hub[:2] == [("owner/name", "x", options), ("owner/name", "y", options)]
    assert not source.bounded
    assert source.sha256() != Source(hub="owner/name", config=("x", "y"), revision=commit).sha256()


def test_hub_faults_are_named(fake_hub: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'owner/name', config 'missing', split 'train' cannot be opened"):
        list(Source(hub="owner/name", config="missing", revision="0" * 40).documents())

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", offline)
    with pytest.raises(ValueError, match=r"dataset 'owner/name' is at \(no network\).*as revision"):
        Source(hub="owner/name").sha256()
