"""Numbers and names as the reader sees them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
APPROX = "\N{ALMOST EQUAL TO}"
TIMES = "\N{MULTIPLICATION SIGN}"
THIN = "\N{NARROW NO-BREAK SPACE}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
PAIRS = "Pairs a token are the keys that a query reads, averaged over tokens and layers."


def perplexity(nll: float | None) -> str:
    """Perplexity of a mean loss in nats, with four significant digits below a thousand."""
    if nll is None or not math.isfinite(nll):
        return MISSING
    value = math.exp(min(nll, 700.0))
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def signed(value: float | None, digits: int = 3) -> str:
    """`+0.031`, with a true minus sign; a value that rounds to nothing has no sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0.0:
        return text
    return ("+" if value > 0 else MINUS) + text


def percent(ratio: float | None) -> str:
    """`+45 %` for a ratio of 1.45; one digit after the point below ten percent."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    change = 100 * (ratio - 1)
    return signed(change, 0 if abs(change) >= 9.95 else 1) + THIN + "%"


def minus(a: float | None, b: float | None) -> float | None:
    """The difference of two numbers that may be missing."""
    return None if a is None or b is None else a - b


def share(ratio: float) -> str:
    """`5 %` for 0.05."""
    return f"{100 * ratio:.0f}{THIN}%"


def change(nats: float | None) -> str:
    """A difference in nats as the change of perplexity it amounts to."""
    return percent(None if nats is None else math.exp(min(nats, 700.0)))


def interval(low: float, high: float, digits: int = 3) -> str:
    """`-0.050 to -0.036`."""
    return f"{signed(low, digits)} to {signed(high, digits)}"


def count(value: float | None) -> str:
    """`1.33 M`, `602 K`, `812`: three significant digits."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f}{THIN}{unit}"
    return f"{value:.0f}"


def integer(value: float | None) -> str:
    """`9,100`."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def keys(value: float | None) -> str:
    """Pairs per token."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def multiple(length: int, unit: int) -> str:
    """`4x` for 1024 at a training length of 256."""
    return f"{length / unit:.3g}{TIMES}"


def plural(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def joined(items: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    items = list(items)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def name(label: str) -> str:
    """The label in running text: in quotation marks where its own comma would run into the sentence."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{label}\N{RIGHT DOUBLE QUOTATION MARK}" if "," in label else label


def clipped(text: str, width: int = 26) -> str:
    """The text, cut to `width` characters with an ellipsis: labels are free text and figures are not."""
    return text if len(text) <= width else text[: width - 1].rstrip() + ELLIPSIS


def wrapped(text: str, width: int) -> str:
    """The text on at most two lines of `width` characters, and cut with an ellipsis after those."""
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder=ELLIPSIS))
