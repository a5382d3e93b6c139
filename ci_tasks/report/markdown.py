"""Runs as markdown: fit for a GitHub job summary, or for a comment.

GitHub takes a megabyte a step and drops the whole summary beyond it, so the text stays below: first the lines around
failures go, then rows that passed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.errors import one_line, printable, truncated
from ci_tasks.records import PASSED, RunRecord
from ci_tasks.report.hang import hang_groups
from ci_tasks.report.outcome import verdict
from ci_tasks.report.table import (
    GPU_HEADING,
    duration_of,
    evidence_of,
    gpu_sentences,
    reason_with_attempts,
    rows_by_deviation,
)
from ci_tasks.report.triage import describe, exceptions_of

MOST = 900_000  # bytes
_SYMBOLS = {"passed": "✅", "failed": "❌", "vacuous": "⚠️", "blocked": "🚧", "cancelled": "⏹️", "lost": "❓"}
_CELL = 400
_MOST_CONTEXTS = 50
# What markdown or HTML takes for more than text: an underscore only at a word's edge, a bracket only where a link ends.
_SPECIAL = re.compile(r"[\\`*<>|~&]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|:(?=[\w+-]+:)")
_CALLS = re.compile(
    r"([@#])(?=\w)"
)  # GitHub makes links of them after it has read entities; a space of no width stops it
_NO_WIDTH = "\u200b"


def render(name: str, records: Sequence[RunRecord]) -> str:
    """The summary of the runs that `name` stands for; ends with a newline."""
    head = [f"## {cell(verdict(records))}", "", f"{cell(name)}. {_tested(records)}".rstrip(), ""]
    table, differences = [*_table(records), *_gpus(records)], _deviations(records)
    for failed in (_failures(records, context=True), _failures(records, context=False), []):
        text = "\n".join([*head, *table, *failed, *differences]) + "\n"
        if len(text.encode(errors="surrogatepass")) <= MOST:
            return text
    return _cut([*head, *_table([record for record in records if record.status != PASSED])])


def cell(text: object) -> str:
    """Text on one line that markdown leaves as it is."""
    line = truncated(one_line(str(text)), _CELL)
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", _CALLS.sub(rf"\1{_NO_WIDTH}", line))


def code(text: str) -> str:
    """Text on one line as code, whatever backticks are in it."""
    line = one_line(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"`{line}`"


def fenced(lines: Sequence[str]) -> list[str]:
    """Lines as they are, behind a fence that none of them can close."""
    longest = max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}text", *(printable(line) for line in lines), fence]


def _tested(records: Sequence[RunRecord]) -> str:
    checkouts = {(checkout.title, checkout.tree) for checkout in (r.checkout for r in records) if checkout}
    return " ".join(f"Commit `{title}`, tree `{tree[:12]}`." for title, tree in sorted(checkouts))


def _table(records: Sequence[RunRecord]) -> list[str]:
    head = ["| status | row | host | time | evidence | reason |", "|---|---|---|--:|---|---|"]
    return [*head, *(_line(record) for record in records), ""]


def _line(record: RunRecord) -> str:
    status = record.status
    cells = (
        cell(record.row),
        cell(record.host or "–"),
        duration_of(record),
        cell(evidence_of(record)),
        cell(reason_with_attempts(record)),
    )
    return f"| {_SYMBOLS.get(status, '⏳')} {status} | {' | '.join(cells)} |"


def _gpus(records: Sequence[RunRecord]) -> list[str]:
    lines = [f"- {cell(row)}: {cell(sentence)}" for row, sentence in gpu_sentences(records)]
    return [GPU_HEADING, "", *lines, ""] if lines else []


def _failures(records: Sequence[RunRecord], context: bool) -> list[str]:
    failures = [(record, record.triage) for record in records if record.status != PASSED and record.triage]
    lines: list[str] = []
    for number, (record, triage) in enumerate(failures):
        triage_lines = describe(triage)
        if (not context or number >= _MOST_CONTEXTS) and "" in triage_lines:
            triage_lines = triage_lines[: triage_lines.index("")]
        if record.hang is not None:
            triage_lines = [*hang_groups(record.hang), "", *triage_lines]
        if exceptions := exceptions_of(record):
            triage_lines = [*triage_lines, "", *(f"{kind}: {text}" for kind, text in exceptions)]
        lines += [f"<details><summary>{cell(record.row)}: {cell(triage.cause)}</summary>", ""]
        lines += [*fenced(triage_lines), "", "</details>", ""]
    return lines


def _deviations(records: Sequence[RunRecord]) -> list[str]:
    rows = rows_by_deviation(records)
    if not rows:
        return []
    every = len({record.row for record in records})
    body = [
        f"| {' | '.join(map(cell, (item.what, item.ci, item.here, item.why)))}"
        f" | {'all' if len(names) == every else f'{len(names)} of {every}'} |"
        for item, names in rows.items()
    ]
    summary = f"<details><summary>Different from CI: {len(rows)}</summary>"
    return [summary, "", "| what | CI | here | why | rows |", "|---|---|---|---|---|", *body, "", "</details>", ""]


def _cut(lines: Sequence[str]) -> str:
    kept: list[str] = []
    bytes_left = MOST - 200
    for line in lines:
        bytes_left -= len(line.encode(errors="surrogatepass")) + 1
        if bytes_left < 0:
            break
        kept.append(line)
    missing = len(lines) - len(kept)
    return "\n".join([*kept, *(["", f"{missing} further lines did not fit."] if missing else [])]) + "\n"
