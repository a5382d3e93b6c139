"""The table that ends a run, the table of jobs, and the deviations from CI, as plain text with aligned columns.

Plain text serves a terminal, a log and a pasted comment alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.errors import printable
from ci_tasks.model import EXIT_CODES, PASSED, Row

Record = Mapping[str, Any]
_SHORT = 58


def columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells as text with aligned columns, two spaces between them; the last column is not padded."""
    lines = [[printable(cell) for cell in line] for line in lines]
    widths = [
        max(_width(line[at]) for line in lines if at < len(line)) for at in range(max(map(len, lines), default=0))
    ]
    return [
        "  ".join(
            cell + " " * (widths[at] - _width(cell)) if at < len(line) - 1 else cell for at, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]


def results(records: Sequence[Record], logs: Sequence[str]) -> list[str]:
    """One line a row: status, row, where there are several its host, time, evidence, reason and what became of earlier
    attempts; then the log of each row that did not pass."""
    hosts = len({record.get("host") for record in records}) > 1
    head = ("STATUS", "ROW", *(("HOST",) if hosts else ()), "TIME", "EVIDENCE", "REASON")
    body = [
        (r["status"], r["row"], *((str(r.get("host") or "-"),) if hosts else ()), took(r), evidence_of(r), told(r))
        for r in records
    ]
    lines = columns([head, *_reasons_once(body)])
    shown = [(r, log) for r, log in zip(records, logs, strict=True) if r["status"] != PASSED and r["started_at"]]
    if shown:
        lines += ["", *columns([(f"log of {r['row']}:", f"{log}{_at(r)}") for r, log in shown])]
    return lines


def why(record: Record) -> str:
    """The cause of a row that did not pass, as far as one is known, and the line that says so."""
    found = record.get("triage") or {}
    known = found.get("cause") not in (None, "unknown", "pass")
    return (
        f"{found['cause']}: {one_line(record['reason'])}"
        if known and record["reason"]
        else one_line(record["reason"] or "")
    )


def attempts(record: Record) -> str:
    """`attempt 2; blocked on h100a: no space left` of a row that needed several; "" of others."""
    earlier = record.get("earlier") or ()
    number = max(int(record.get("attempt") or 1), len(earlier) + 1)
    if number < 2:
        return ""
    return "; ".join([f"attempt {number}", *map(_earlier, earlier)])


def _earlier(one: Mapping[str, Any]) -> str:
    where = f" on {one['host']}" if one.get("host") else ""
    reason = f": {_short(one['reason'])}" if one.get("reason") else ""
    return f"{one.get('status', '')}{where}{reason}"


def told(record: Record) -> str:
    """The reason, and what went before."""
    reason, before = why(record), attempts(record)
    return f"{reason} ({before})" if reason and before else reason or before


def _at(record: Record) -> str:
    """Where in the log the line is, as editors open it."""
    found = record.get("triage") or {}
    return f":{found['line_no']}" if found.get("line_no") else ""


def evidence_of(record: Record) -> str:
    """That a script ran shows something only where it ran to a good end."""
    weak = record["evidence"]["kind"] == "script" and record["status"] != PASSED
    return "-" if weak else evidence(record["evidence"])


def _reasons_once(body: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A long reason that the row above has too, such as what a machine lacks, is not said again."""
    above = ["", *(line[-1] for line in body)]
    return [
        (*line[:-1], "as above" if len(line[-1]) > _SHORT and line[-1] == before else line[-1])
        for line, before in zip(body, above, strict=False)
    ]


def summary(records: Sequence[Record]) -> str:
    """`48 passed, 8 vacuous` for the last line: what passed first, then what went wrong in the order of EXIT_CODES."""
    counts = {status: sum(record["status"] == status for record in records) for status in EXIT_CODES}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return said or "no row ran"


def deviations(records: Sequence[Record]) -> list[str]:
    """What differs from CI, a line each: differences that all rows share once, others with their rows."""
    found: dict[tuple[str, str, str, str], dict[str, None]] = {}  # difference → rows, in order
    for record in records:
        for item in record["deviations"]:
            key = (item["what"], item["ci"], item["here"], item["why"])
            found.setdefault(key, {})[record["row"]] = None
    if not found:
        return []
    all_rows = len({record["row"] for record in records})
    body = [
        (f"{_short(what)}:", f"{_short(ci)} → {_short(here)}; {one_line(why)}{_of(rows, all_rows)}")
        for (what, ci, here, why), rows in found.items()
    ]
    return ["Different from CI (CI → here; why):", *(f"  {line}" for line in columns(body))]


def jobs(rows: Sequence[Row]) -> list[str]:
    """The rows of a workflow, one line each."""
    head = ("LABEL", "ROW", "GPUS", "TRIGGER", "RUNNER", "IMAGE")
    body = [
        (
            row.label,
            row.row if row.dynamic is None else f"(decided by {row.dynamic})",
            "-" if row.gpus is None else str(row.gpus),
            row.trigger or "always",
            row.runner,
            row.image or "-",
        )
        for row in rows
    ]
    return columns([head, *body])


def evidence(found: Mapping[str, Any]) -> str:
    """What shows that something ran, in a few words."""
    parts = []
    if found["kind"] in ("junit", "pytest", "unittest"):
        parts.append(f"{found['tests']} test{'' if found['tests'] == 1 else 's'}")
    if found["failures"]:
        parts.append(f"{found['failures']} failed")
    if found["skipped"]:
        parts.append(f"{found['skipped']} skipped")
    if found["steps"]:
        parts.append(f"{found['steps']} metric line{'' if found['steps'] == 1 else 's'}")
    if found["kind"] == "script":
        parts.append("script ran")
    return ", ".join(parts) or "-"


def took(record: Record) -> str:
    seconds = record["timings"]["seconds"]
    if seconds is None:
        return "-"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def one_line(text: str) -> str:
    """Scripts and messages of several lines would break the table."""
    return " ".join(text.split())


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _SHORT else line[: _SHORT - 1] + "…"


def _of(rows: Mapping[str, None], all_rows: int) -> str:
    """Which rows a difference is about, unless it is about all."""
    return "" if len(rows) == all_rows else f" [{some([*rows])}]"


def some(names: Sequence[str]) -> str:
    """A list of names that stays short."""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _width(text: str) -> int:
    """Terminal cells: East Asian wide characters take two, accents that join the letter before them none."""
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
