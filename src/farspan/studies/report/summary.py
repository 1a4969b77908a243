"""The report in Markdown: findings, claims and tables, for GitHub and for diffs."""

from __future__ import annotations

from farspan.studies.report.page import Page
from farspan.studies.report.tables.table import escape, markdown


def tables_markdown(page: Page) -> str:
    """`tables.md`."""
    lines = [f"# {escape(page.study.title)}", "", escape(page.study.description), ""]
    lines += [f"- {escape(sentence)}" for sentence in page.findings]
    lines += [f"- **{escape(warning)}**" for warning in page.warnings]
    lines += [
        "",
        " · ".join(f"{escape(name)}: {escape(value)}" for name, value in page.scale),
        "",
        escape(page.caveat),
        "",
    ]
    lines += ["## Claims", "", "| claim | verdict | numbers |", "| --- | --- | --- |"]
    for claim in page.claims:
        numbers = "<br>".join(escape(finding.text) for finding in claim.findings)
        lines.append(f"| {escape(claim.statement)} | **{claim.verdict.value}** | {numbers} |")
    parts = ["\n".join(lines) + "\n"]
    parts += [markdown(table) for table in (*page.tables, page.states, *page.provenance)]
    return "\n".join(parts)
