"""Evaluation of causal language models: perplexity by length and position, intervals, and the copy probe."""

from farspan.evaluation.bootstrap import Interval, mean_interval
from farspan.evaluation.comparison import (
    BinComparison,
    Comparison,
    Standing,
    compare,
    compare_bins,
    rank,
)
from farspan.evaluation.length_curve import LengthCurve, length_curve, scored_from_arrays
from farspan.evaluation.perplexity import position_bins, score_tokens, summarise, token_nll
from farspan.evaluation.shift_copy import CopyAccuracy, MarkedCopy, ShiftCopy, accuracy, copy_loss
from farspan.evaluation.windows import (
    DocumentScores,
    Scored,
    Window,
    score_documents,
    score_stream,
    windows,
)

__all__ = [
    "BinComparison",
    "Comparison",
    "CopyAccuracy",
    "DocumentScores",
    "Interval",
    "LengthCurve",
    "MarkedCopy",
    "Scored",
    "ShiftCopy",
    "Standing",
    "Window",
    "accuracy",
    "compare",
    "compare_bins",
    "copy_loss",
    "length_curve",
    "mean_interval",
    "position_bins",
    "rank",
    "score_documents",
    "score_stream",
    "score_tokens",
    "scored_from_arrays",
    "summarise",
    "token_nll",
    "windows",
]
