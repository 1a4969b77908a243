"""What came out, in a few sentences made from the numbers; and the scale at which it came out."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.studies.report import words
from farspan.studies.report.claims import Claim, Verdict
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.results import PROBES, Study
from farspan.studies.report.rows import ProbeRow, Row, evaluated_lengths


def scale(study: Study, rows: Sequence[Row], probes: Sequence[ProbeRow]) -> list[tuple[str, str]]:
    """Facts that say how far the results may be carried: name and value."""
    facts = []
    if rows:
        parameters = [p for row in rows if (p := row.mean("parameters")) is not None]
        lengths = sorted({n for row in rows for n in row.lengths}) or [rows[0].train_length]
        tokens = sorted({n for row in rows for n in row.train_tokens})
        scored = [e["tokens"] for row in rows for e in row.entries("disjoint", row.train_length)]
        facts += [
            ("models", str(len(rows))),
            ("parameters", _range(parameters)),
            ("training tokens each", _range(tokens)),
            ("trained at", f"{rows[0].train_length:,} tokens"),
            ("tested up to", f"{lengths[-1]:,} tokens"),
            ("held-out tokens", f"{scored[0]:,}" if scored else words.MISSING),
            ("seeds a model", _range([len(row.seeds) for row in rows])),
        ]
    if probes:
        distances = {d for row in probes for d in row.accuracy}
        cells = [cell for cell in study.of_task(*PROBES) if cell.finished]
        steps = [cell.result["steps"] for cell in cells if cell.result.get("steps") is not None]
        facts += [
            (
                "copy probe",
                f"{words.plural(len(cells), 'trained model')}, {words.plural(len(distances), 'distance')}",
            ),
            ("layers", words.joined([str(depth) for depth in sorted({row.depth for row in probes})])),
            ("training steps", _range(steps)),
        ]
    return facts


def caveat(rows: Sequence[Row]) -> str:
    """What the intervals cover, and what the numbers must not be compared with."""
    if not rows:
        return "Accuracies are means over seeds where there are several; claims take each distance as one observation."
    only_here = (
        "Perplexities compare only within this study: same tokenizer, same held-out tokens, same training budget."
    )
    if all(len(row.seeds) == 1 for row in rows):
        return (
            "One seed a model: intervals cover the sampling of held-out tokens only, not the variance between "
            "training seeds, which may be larger. No interval is corrected for the number of comparisons. "
            f"{only_here}"
        )
    return (
        "Where two models share several seeds, intervals cover both the sampling of held-out tokens and the variance "
        "between training seeds; with a single seed they cover token sampling only, not seed variance. No interval "
        f"is corrected for the number of comparisons. {only_here}"
    )


def warnings(rows: Sequence[Row]) -> list[str]:
    """What makes rows of this study unfit to compare."""
    found = []
    budgets = sorted({n for row in rows for n in row.train_tokens})
    if len(budgets) > 1:
        found.append(
            f"Training budgets differ ({words.joined([f'{n:,}' for n in budgets])} tokens): perplexities across them "
            "do not compare, and no difference across them is judged."
        )
    lengths = sorted({row.train_length for row in rows})
    if len(lengths) > 1:
        found.append(
            f"Training lengths differ ({words.joined([f'{n:,}' for n in lengths])}); multiples refer to "
            f"{rows[0].train_length:,}."
        )
    scored = sorted({e["tokens"] for row in rows for e in row.entries("disjoint", row.train_length)})
    if len(scored) > 1:
        found.append(f"Held-out texts differ in length ({words.joined([f'{n:,}' for n in scored])} tokens).")
    return found


def findings(rows: list[Row], probes: list[ProbeRow], claims: list[Claim], comparer: Comparer) -> list[str]:
    """A sentence each: the best at the training length, what happens beyond it, the probe, the claims."""
    sentences: list[str] = []
    if rows:
        sentences += _best(rows, comparer) + _beyond(rows, comparer)
    if probes:
        sentences.append(_probe(probes))
    counts = [(verdict, sum(c.verdict is verdict for c in claims)) for verdict in Verdict]
    said = words.joined([f"{n} {_COUNTED[v][n != 1]}" for v, n in counts if n])
    sentences.append(f"Of {words.plural(len(claims), 'claim')} put to these data, {said}.")
    return sentences


_COUNTED = {
    Verdict.SHOWS: ("shows", "show"),
    Verdict.NOT: ("does not show", "do not show"),
    Verdict.UNDECIDED: ("is undecided at this scale", "are undecided at this scale"),
    Verdict.UNTESTED: ("cannot be tested", "cannot be tested"),
}


def _best(rows: list[Row], comparer: Comparer) -> list[str]:
    train, longest = rows[0].train_length, evaluated_lengths(rows)[-1]
    places = {train: f"At the training length ({train:,} tokens)"}
    places.setdefault(longest, f"At {longest:,} tokens")
    sentences = [s for length, where in places.items() if (s := _lowest(rows, comparer, length, where))]
    return [f"{sentence} {words.PAIRS}" if i == 0 else sentence for i, sentence in enumerate(sentences)]


def _lowest(rows: list[Row], comparer: Comparer, length: int, where: str) -> str:
    """Which row is lowest at a length, which tie with it, and where dense attention (or the best sparse row) stands."""
    places = comparer.places(rows, "disjoint", length)
    if not places:
        return ""
    by_label = {row.label: row for row in rows}

    def said(label: str) -> str:
        row = by_label[label]
        value, pairs = words.perplexity(row.nll("disjoint", length)), words.keys(row.pairs(length))
        return f"{value} ({pairs} pairs a token)"

    def named(label: str) -> str:
        return f"{words.name(label)} {said(label)}"

    leader, *tied = places[0].labels
    rest = [by_label[label] for place in places[1:] for label in place.labels]
    sentence = f"{where} {words.name(leader)} has the lowest perplexity, {said(leader)}"
    if tied:
        sentence += f"; {words.joined([named(t) for t in tied])} {'ties' if len(tied) == 1 else 'tie'} with it"
    if by_label[leader].family != "dense":
        sentence += "".join(f"; {words.name(r.label)} reaches {said(r.label)}" for r in rest if r.family == "dense")
    elif not tied and rest:
        sentence += f"; the lowest of the sparse models is {named(rest[0].label)}"
    return f"{sentence}."


def _beyond(rows: list[Row], comparer: Comparer) -> list[str]:
    shifts = []
    for row in rows:
        try:
            shifts.append((comparer.beyond(row).difference, row))
        except NotComparable:
            continue
    parts = [f"{words.name(row.label)} {words.change(shift)}" for shift, row in shifts if row.family == "dense"]
    sparse = sorted((shift, words.name(row.label)) for shift, row in shifts if row.family != "dense")
    if sparse:
        (low, first), (high, last) = sparse[0], sparse[-1]
        if words.change(low) == words.change(high):
            parts.append(f"{first if len(sparse) == 1 else 'every sparse model'} {words.change(low)}")
        else:
            parts.append(f"the sparse models from {words.change(low)} ({first}) to {words.change(high)} ({last})")
    return [f"Text beyond the training length changes perplexity by: {'; '.join(parts)}."] if parts else []


def _probe(probes: list[ProbeRow]) -> str:
    deepest = max(row.depth for row in probes)
    rows = [row for row in probes if row.depth == deepest]
    counts = [f"{words.name(row.label)} {len(row.solved())} of {len(row.accuracy)}" for row in rows]
    return f"Distances copied with more than 90 % accuracy at depth {deepest}: {', '.join(counts)}."


def _range(values: Sequence[float]) -> str:
    if not values:
        return words.MISSING
    low, high = words.count(min(values)), words.count(max(values))
    return low if low == high else f"{low} to {high}"
