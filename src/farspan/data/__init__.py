"""Text in, tokens out: corpora, mixtures, the split, the tokenizer, token files and windows of them."""

from farspan.data.corpora import Document, Source
from farspan.data.files import cache_folder
from farspan.data.mixtures import Mixture, load_mixture, shipped_mixtures
from farspan.data.packing import RandomWindows, TokenFile, pack
from farspan.data.preparation import Prepared, open_corpus, prepare
from farspan.data.splitting import SplitRule, split_rule

__all__ = [
    "Document",
    "Mixture",
    "Prepared",
    "RandomWindows",
    "Source",
    "SplitRule",
    "TokenFile",
    "cache_folder",
    "load_mixture",
    "open_corpus",
    "pack",
    "prepare",
    "shipped_mixtures",
    "split_rule",
]
