"""From a corpus to two token files and a tokenizer, kept in a cache: the one function most callers need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from farspan.data.corpora import Document, Source
from farspan.data.files import build_once, sha256_json, write_json_atomic
from farspan.data.mixtures import (
    Mixture,
    MixtureSource,
    interleave,
    load_mixture,
    shipped_mixtures,
    training_passes,
)
from farspan.data.packing import Progress, TokenFile, pack
from farspan.data.splitting import Side, SplitRule, check_fraction, split_rule
from farspan.data.tokenizer import RECIPE, encode_documents, tokenizer_sha256, train_bpe, training_text, wrap

Corpus = Source | Mixture


@dataclass(frozen=True)
class Prepared:
    """What training and evaluation read.

    Attributes:
        train: Tokens of the train split.
        heldout: Tokens of the held-out split; shares no document with `train`.
        tokenizer: The tokenizer of both.
        corpus_sha256: Hash of what the documents are made from.
        tokenizer_sha256: Hash of the tokenizer.
    """

    train: TokenFile
    heldout: TokenFile
    tokenizer: PreTrainedTokenizerFast
    corpus_sha256: str
    tokenizer_sha256: str


def open_corpus(spec: str | Path | Corpus) -> Corpus:
    """The corpus that `spec` names.

    Args:
        spec: `"python-stdlib"`, a shipped mixture, a mixture file (`.toml`), or a path that a `Source` can
            read.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(spec, Source | Mixture):
        return spec
    if str(spec) == "python-stdlib":
        return Source(embedded="python-stdlib")
    if str(spec) in shipped_mixtures() or str(spec).endswith(".toml"):
        return load_mixture(spec)
    if Path(spec).exists():
        return Source(path=Path(spec))
    named = ", ".join(["python-stdlib", *shipped_mixtures()])
    raise ValueError(f"corpus {str(spec)!r} is neither one of {named} nor a file or folder that exists")


def prepare(
    corpus: str | Path | Corpus,
    vocab_size: int | None,
    cache_dir: str | Path,
    heldout_fraction: float = 0.1,
    max_train_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    max_heldout_tokens: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Split a corpus by document, train a tokenizer on the train split and pack both; or find it all cached.

    The same arguments and the same text give the same bytes. Any number of processes may call this at once,
    and be killed in it: whatever is in the cache is whole. The corpus is hashed in every call, which reads
    its files once.

    Args:
        corpus: See `open_corpus`.
        vocab_size: Entries of the tokenizer to train, 257 or more. None when `tokenizer` is given.
        cache_dir: Folder for the results, made if missing; `farspan.data.cache_folder()` is the usual one.
        heldout_fraction: Share of documents to hold out.
        max_train_tokens: Pack no more than this. Needed for a mixture or a streamed hub dataset, which are
            read only so far.
        tokenizer: Use this fast tokenizer instead of training one.
        max_heldout_tokens: The same for the held-out split. Default: `max_train_tokens` times f / (1 - f),
            or all.
        progress: Called with `(stage, done, total or None)`; stages are `"tokenizer"` (0 of 1, 1 of 1),
            `"train"` and `"heldout"` (tokens).

    In a mixture each split keeps the shares by itself. A source that runs out stops training with an error
    unless it may repeat; held-out documents never repeat: that split ends when the first source does. The
    held-out split of one source alone, with the mixture's tokenizer, shares no document with the mixture's
    train split (barring sources so small that `split_rule` had to move a document).

    Raises:
        ValueError: An argument is out of range or the corpus cannot be read, split or drawn from as asked.
    """
    corpus = open_corpus(corpus)
    if (vocab_size is None) == (tokenizer is None):
        raise ValueError("either vocab_size or tokenizer should be given, and not both")
    if max_train_tokens is None and not (isinstance(corpus, Source) and corpus.bounded):
        raise ValueError("max_train_tokens should be given for a mixture and for a streamed hub dataset")
    check_fraction(heldout_fraction)
    if max_heldout_tokens is None and max_train_tokens is not None:
        max_heldout_tokens = max(1, round(max_train_tokens * heldout_fraction / (1 - heldout_fraction)))
    cache, corpus_sha256 = Path(cache_dir), corpus.sha256()
    drawing = _Drawing(corpus, heldout_fraction)
    if tokenizer is None:
        assert vocab_size is not None
        tokenizer = _cached_tokenizer(drawing, vocab_size, cache, corpus_sha256, progress)
    hashes = {"corpus_sha256": corpus_sha256, "tokenizer_sha256": tokenizer_sha256(tokenizer)}

    def packed(side: Side, max_tokens: int | None) -> TokenFile:
        key = sha256_json({**hashes, "side": side, "heldout_fraction": heldout_fraction, "max_tokens": max_tokens})
        return pack(
            drawing.encoded(side, tokenizer),
            tokenizer,
            cache / "tokens" / f"{key[:16]}-{side}",
            split=side,
            corpus_sha256=corpus_sha256,
            max_tokens=max_tokens,
            progress=progress,
        )

    return Prepared(packed("train", max_train_tokens), packed("heldout", max_heldout_tokens), tokenizer, **hashes)


class _Drawing:
    """Documents of one side of a corpus, sources interleaved; reads nothing before it is iterated over."""

    def __init__(self, corpus: Corpus, heldout_fraction: float) -> None:
        self.sources = corpus.sources if isinstance(corpus, Mixture) else (corpus,)
        self.shares = [source.weight if isinstance(source, MixtureSource) else 1.0 for source in self.sources]
        self.heldout_fraction = heldout_fraction
        self._rule: SplitRule | None = None

    def documents(self, source: Source, side: Side) -> Iterator[Document]:
        if self._rule is None:
            named = [(source.describe(), source.documents) for source in self.sources]
            self._rule = split_rule(named, self.heldout_fraction)
        yield from self._rule.select(source.documents(), side)

    def tokenizer_sample(self) -> Iterator[Document]:
        """Train documents, shares kept in bytes (there are no tokens yet), until the first source ends."""
        streams = [self.documents(source, "train") for source in self.sources]
        return interleave(streams, self.shares, lambda document: len(document.text.encode("utf-8")))

    def encoded(self, side: Side, tokenizer: PreTrainedTokenizerFast) -> Iterator[NDArray[np.uint32]]:
        """Token ids of each document, shares kept in tokens."""

        def one_pass(source: Source) -> Iterator[NDArray[np.uint32]]:
            return encode_documents(self.documents(source, side), tokenizer)

        streams = [
            training_passes(source, partial(one_pass, source))
            if side == "train" and isinstance(source, MixtureSource)
            else one_pass(source)
            for source in self.sources
        ]
        return interleave(streams, self.shares, len)


def _cached_tokenizer(
    drawing: _Drawing, vocab_size: int, cache: Path, corpus_sha256: str, progress: Progress | None
) -> PreTrainedTokenizerFast:
    made_from = {
        "corpus_sha256": corpus_sha256,
        "heldout_fraction": drawing.heldout_fraction,
        "vocab_size": vocab_size,
        "recipe": RECIPE,
    }
    folder = cache / "tokenizers" / sha256_json(made_from)[:16]

    def report(done: int) -> None:
        if progress is not None:
            progress("tokenizer", done, 1)

    def build(scratch: Path) -> None:
        report(0)
        trained = wrap(train_bpe(training_text(drawing.tokenizer_sample(), vocab_size), vocab_size))
        trained.save_pretrained(scratch)
        write_json_atomic(scratch / "provenance.json", {**made_from, "tokenizer_sha256": tokenizer_sha256(trained)})
        report(1)

    build_once(folder, build)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    recorded = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["tokenizer_sha256"]
    if tokenizer_sha256(tokenizer) != recorded:
        raise ValueError(
            f"the tokenizer in {folder} is not the one once saved there; delete the folder to train it again"
        )
    return tokenizer
