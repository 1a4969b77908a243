"""The byte-level BPE tokenizer: trained on the train split, hashed, and applied to whole documents.

One special token, `<|endoftext|>` with id 0, stands *in front of* every document: it opens one and so
closes the one before. It is the tokenizer's bos, eos and pad token at once, and a prompt encoded with
special tokens begins with it, as documents do.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from farspan.data.corpora import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOUNDARY = "<|endoftext|>"
RECIPE = 1  # to be raised with any change to what is trained here: cached tokenizers are known by it

_BYTES_PER_ENTRY = 2048
_BATCH = 64
_PIECE = 1_000_000
# Between two words joined by one space every byte-level tokenizer in use starts a new token.
_WORD_BOUNDARY = re.compile(r"(?<=[^\W_])(?= [^\W_])")


def training_text(documents: Iterable[Document], vocab_size: int) -> Iterator[str]:
    """What a tokenizer is trained on: documents in order, until they make 2 KiB per vocabulary entry."""
    left = _BYTES_PER_ENTRY * vocab_size
    for document in documents:
        if left <= 0:
            return
        left -= len(document.text.encode("utf-8"))
        yield document.text


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE (GPT-2's pre-tokenizer, no normaliser) that gives back any text exactly.

    The result depends on the texts alone: not on hash seeds, threads or machine. It has fewer than
    `vocab_size` entries, with a warning, when the texts hold too few pairs seen twice.

    Raises:
        ValueError: `vocab_size` is below 257: 256 bytes and the boundary token.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size should be at least 257 (256 bytes, one special token), got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOUNDARY],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in _pieces(text)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOUNDARY} $A",
        pair=f"{BOUNDARY} $A {BOUNDARY} $B:1",
        special_tokens=[(BOUNDARY, tokenizer.token_to_id(BOUNDARY))],
    )
    if tokenizer.get_vocab_size() < vocab_size:
        warnings.warn(
            f"the text supports {tokenizer.get_vocab_size()} of vocab_size={vocab_size} tokenizer entries",
            stacklevel=2,
        )
    return tokenizer


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer of `train_bpe` as transformers knows it; pads on the left, for generation."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOUNDARY,
        eos_token=BOUNDARY,
        pad_token=BOUNDARY,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash of all that decides how text becomes tokens: vocabulary, merges, processing, boundary token.

    The same before and after saving, and whatever padding or truncation the last call asked for.
    """
    content = f"{boundary_id(tokenizer)}\n{_bare(tokenizer).to_str(pretty=False)}"
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def boundary_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Id of the token in front of every document: the tokenizer's bos token, or its eos if it has no bos."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError("tokenizer should have a bos or an eos token to begin documents with, it has neither")


def encode_documents(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast) -> Iterator[NDArray[np.uint32]]:
    """Token ids of each document, the boundary token first.

    A special token spelled out in a text is plain text, and no boundary. Memory is constant but for one
    document: documents are encoded in batches, and one longer than a million characters in pieces cut
    between words, which leaves the tokens of a byte-level BPE unchanged.
    """
    backend = _bare(tokenizer)
    backend.encode_special_tokens = True
    boundary = np.array([boundary_id(tokenizer)], dtype=np.uint32)
    for batch in _batches(documents):
        pieces = [list(_pieces(document.text)) for document in batch]
        encoded = iter(backend.encode_batch_fast([p for several in pieces for p in several], add_special_tokens=False))
        for several in pieces:
            ids = [np.asarray(encoding.ids, dtype=np.uint32) for encoding in islice(encoded, len(several))]
            yield np.concatenate([boundary, *ids])


def _bare(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of the inner tokenizer without what calls leave behind in it (padding, truncation)."""
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(f"tokenizer should be a fast transformers tokenizer, got {type(tokenizer).__name__}")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    return backend


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == _BATCH or characters >= _PIECE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE and (cut := _WORD_BOUNDARY.search(text, start + _PIECE)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
