"""Documents as one flat, memory-mapped row of tokens, and fixed-length windows of it.

A token folder holds
- `tokens.bin`: token ids one after the other, little endian, uint16 if the vocabulary fits in it, else
  uint32;
- `documents.npy`: int64 `[documents + 1]`, the offset at which each document begins, and the number of
  tokens last;
- `meta.json`: dtype, tokens, documents, split, vocab_size, boundary_id, corpus_sha256, tokenizer_sha256,
  tokens_sha256.

Every document begins with the boundary token. Train and held-out are two folders, so no window can cross
from one to the other.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import LongTensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from farspan.data.files import build_once, write_json_atomic
from farspan.data.tokenizer import boundary_id, tokenizer_sha256

Progress = Callable[[str, int, "int | None"], None]

_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_META = ("dtype", "tokens", "documents", "tokenizer_sha256", "corpus_sha256", "split")


class TokenFile:
    """A token folder, opened for reading.

    Attributes:
        path: The folder.
        meta: `meta.json`.
        tokens: All token ids, `[tokens]`, memory-mapped.
        documents: int64 `[documents + 1]`, document i is `tokens[documents[i]:documents[i + 1]]`.

    Raises:
        ValueError: A file is missing, or their sizes disagree.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.meta: dict[str, Any] = json.loads((self.path / "meta.json").read_text(encoding="utf-8"))
            missing = [key for key in _META if key not in self.meta]
            if missing or self.meta["dtype"] not in _DTYPES:
                raise ValueError(f"meta.json has no valid {', '.join(missing) or 'dtype'}")
            dtype = _DTYPES[self.meta["dtype"]]
            expected, found = self.meta["tokens"] * dtype.itemsize, (self.path / "tokens.bin").stat().st_size
            if found != expected or found == 0:
                raise ValueError(f"tokens.bin should be {expected} bytes long, it is {found}")
            self.tokens: NDArray[Any] = np.memmap(self.path / "tokens.bin", dtype=dtype, mode="r")
            self.documents: NDArray[np.int64] = np.load(self.path / "documents.npy", allow_pickle=False)
            ends = (self.documents[0], self.documents[-1], len(self.documents))
            if ends != (0, self.meta["tokens"], self.meta["documents"] + 1):
                raise ValueError(f"documents.npy begins, ends and counts {ends}, not as meta.json says")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path} is not a whole token folder: {error}") from error

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def __reduce__(self) -> tuple[type[TokenFile], tuple[Path]]:
        # Otherwise a memory map is copied, all of it, to every data-loader worker that is not forked.
        return TokenFile, (self.path,)


class RandomWindows(Dataset[dict[str, LongTensor]]):
    """`count` windows of `length` tokens, starting anywhere with equal chance, drawn with replacement.

    Where window i starts depends on `seed`, i and the number of tokens alone. Two models with the same seed
    see the same windows in the same order whatever the batch size, the workers or the number of processes,
    and a run that resumes at window i needs no other state. Read them in order, without a shuffling
    sampler. A window can span documents.

    Item i is `{"input_ids": int64 [length], "labels": the same tensor}`; causal language models shift the
    labels themselves.

    Raises:
        ValueError: An argument is out of range, or `length` exceeds the number of tokens.
    """

    def __init__(self, token_file: TokenFile, length: int, seed: int, count: int) -> None:
        if not 2 <= length <= len(token_file):
            raise ValueError(f"length should lie between 2 and the {len(token_file)} tokens there are, got {length}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed should lie between 0 and 2**64 - 1, got {seed}")
        if count < 1:
            raise ValueError(f"count should be at least 1, got {count}")
        self.token_file, self.length, self.seed, self.count = token_file, length, seed, count

    def __len__(self) -> int:
        return self.count

    def start(self, index: int) -> int:
        """Offset of the first token of window `index`."""
        if not 0 <= index < self.count:
            raise IndexError(f"index should lie between 0 and {self.count - 1}, got {index}")
        # A hash as a counter-based generator: a microsecond, and the same on every platform and version.
        # Scaling 64 random bits down by multiplication favours no start by more than starts / 2**64.
        counter = self.seed.to_bytes(8, "little") + int(index).to_bytes(8, "little")
        drawn = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
        return drawn * (len(self.token_file) - self.length + 1) >> 64

    def __getitem__(self, index: int) -> dict[str, LongTensor]:
        start = self.start(index)
        window = torch.from_numpy(self.token_file.tokens[start : start + self.length].astype(np.int64))
        return {"input_ids": window, "labels": window}  # type: ignore[dict-item]


def pack(
    encoded: Iterable[NDArray[np.uint32]],
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    split: str,
    corpus_sha256: str,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> TokenFile:
    """Write the documents of `encode_documents` into a token folder, or open the folder if it exists.

    Streams: memory holds one document, and 8 bytes for each one written. The folder appears when it is
    complete.

    Args:
        encoded: Token ids of each document, boundary token first.
        tokenizer: The tokenizer that made them; decides the dtype and is recorded.
        folder: Where to write.
        split: `"train"` or `"heldout"`, recorded.
        corpus_sha256: Hash of the corpus, recorded.
        max_tokens: Stop there, in the middle of a document if need be. Default: all.
        progress: Called with `(split, tokens so far, max_tokens)` several times a second.

    Raises:
        ValueError: There are no documents, or `max_tokens` is below 1.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens should be at least 1, got {max_tokens}")
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    name = "uint16" if vocab_size <= 2**16 else "uint32"

    def build(scratch: Path) -> None:
        digest, starts, total, shown = hashlib.sha256(), array("q"), 0, 0.0
        with open(scratch / "tokens.bin", "wb") as file:
            for document in encoded:
                starts.append(total)
                room = None if max_tokens is None else max_tokens - total
                data = document[:room].astype(_DTYPES[name]).tobytes()
                file.write(data)
                digest.update(data)
                total += len(data) // _DTYPES[name].itemsize
                if progress is not None and time.monotonic() - shown > 0.1:
                    progress(split, total, max_tokens)
                    shown = time.monotonic()
                if total == max_tokens:
                    break
        if total == 0:
            raise ValueError(f"the {split} split has no documents to pack")
        np.save(scratch / "documents.npy", np.array([*starts, total], dtype=np.int64), allow_pickle=False)
        meta = {
            "dtype": name,
            "tokens": total,
            "documents": len(starts),
            "split": split,
            "vocab_size": vocab_size,
            "boundary_id": boundary_id(tokenizer),
            "corpus_sha256": corpus_sha256,
            "tokenizer_sha256": tokenizer_sha256(tokenizer),
            "tokens_sha256": digest.hexdigest(),
        }
        write_json_atomic(scratch / "meta.json", meta)
        if progress is not None:
            progress(split, total, max_tokens)

    return TokenFile(build_once(folder, build))
