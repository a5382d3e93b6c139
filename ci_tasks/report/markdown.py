"""Runs as markdown: fit for a GitHub job summary, or for a comment.

GitHub takes a megabyte a step and drops the whole summary beyond it, so the text stays below: first the lines around
failures go, then rows that passed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.errors import printable
from ci_tasks.model import EXIT_CODES, PASSED
from ci_tasks.report.table import evidence_of, one_line, told, took
from ci_tasks.report.triage import describe

Record = Mapping[str, Any]
MOST = 900_000  # bytes
_SYMBOLS = {"passed": "✅", "failed": "❌", "vacuous": "⚠️", "blocked": "🚧", "cancelled": "⏹️", "lost": "❓"}
_CELL = 400
_MOST_CONTEXTS = 50
# What markdown or HTML takes for more than text: an underscore only at a word's edge, a bracket only where a link ends.
_TELLING = re.compile(r"[\\`*<>|~&]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|:(?=[\w+-]+:)")
_CALLS = re.compile(
    r"([@#])(?=\w)"
)  # GitHub makes links of them after it has read entities; a space of no width stops it
_NO_WIDTH = "\u200b"


def render(name: str, records: Sequence[Record]) -> str:
    """The summary of the runs that `name` stands for; ends with a newline."""
    head = [f"## {cell(name)}: {_counts(records)}", "", *_code(records)]
    table, differences = _table(records), _deviations(records)
    for failed in (_failures(records, context=True), _failures(records, context=False), []):
        text = "\n".join([*head, *table, *failed, *differences]) + "\n"
        if len(text.encode()) <= MOST:
            return text
    return _cut([*head, *_table([record for record in records if record["status"] != PASSED])])


def cell(text: object) -> str:
    """Text on one line that markdown leaves as it is."""
    line = one_line(printable(str(text)))
    line = line if len(line) <= _CELL else line[: _CELL - 1] + "…"
    return _TELLING.sub(lambda found: f"&#{ord(found[0])};", _CALLS.sub(rf"\1{_NO_WIDTH}", line))


def fenced(lines: Sequence[str]) -> list[str]:
    """Lines as they are, behind a fence that none of them can close."""
    longest = max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}text", *(printable(line) for line in lines), fence]


def _counts(records: Sequence[Record]) -> str:
    counts = Counter(str(record["status"]) for record in records)
    order = [*EXIT_CODES, *(word for word in counts if word not in EXIT_CODES)]
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word]) or "no row ran"


def _code(records: Sequence[Record]) -> list[str]:
    checkouts = {(one["commit"], one["tree"], len(one["dirty"])) for one in (r["checkout"] for r in records) if one}
    lines = [
        f"Commit `{commit[:12]}`{f', {dirty} uncommitted' if dirty else ''}, tree `{tree[:12]}`."
        for commit, tree, dirty in sorted(checkouts)
    ]
    return [*lines, ""] if lines else []


def _table(records: Sequence[Record]) -> list[str]:
    head = ["| status | row | host | time | evidence | reason |", "|---|---|---|--:|---|---|"]
    return [*head, *(_line(record) for record in records), ""]


def _line(record: Record) -> str:
    status = str(record["status"])
    cells = (
        cell(record["row"]),
        cell(record["host"] or "–"),
        took(record),
        cell(evidence_of(record)),
        cell(told(record)),
    )
    return f"| {_SYMBOLS.get(status, '⏳')} {status} | {' | '.join(cells)} |"


def _failures(records: Sequence[Record], context: bool) -> list[str]:
    found = [record for record in records if record["status"] != PASSED and record.get("triage")]
    lines: list[str] = []
    for number, record in enumerate(found):
        said = describe(record["triage"])
        if (not context or number >= _MOST_CONTEXTS) and "" in said:
            said = said[: said.index("")]
        lines += [f"<details><summary>{cell(record['row'])}: {cell(record['triage']['cause'])}</summary>", ""]
        lines += [*fenced(said), "", "</details>", ""]
    return lines


def _deviations(records: Sequence[Record]) -> list[str]:
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for record in records:
        for item in record["deviations"]:
            key = (item["what"], item["ci"], item["here"], item["why"])
            found.setdefault(key, {})[str(record["row"])] = None
    if not found:
        return []
    every = len({str(record["row"]) for record in records})
    body = [
        f"| {' | '.join(map(cell, key))} | {'all' if len(rows) == every else f'{len(rows)} of {every}'} |"
        for key, rows in found.items()
    ]
    summary = f"<details><summary>Different from CI: {len(found)}</summary>"
    return [summary, "", "| what | CI | here | why | rows |", "|---|---|---|---|---|", *body, "", "</details>", ""]


def _cut(lines: Sequence[str]) -> str:
    """As many lines as there is room for, and how many are missing."""
    kept: list[str] = []
    room = MOST - 200
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    missing = len(lines) - len(kept)
    return "\n".join([*kept, *(["", f"{missing} further lines did not fit."] if missing else [])]) + "\n"
