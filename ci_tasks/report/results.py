"""What ends a run: the table of its rows, what was odd about GPUs, what was left on hosts, and what differs from CI."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ci_tasks.agent.records import Deviation
from ci_tasks.errors import counted, one_line, shortened, some
from ci_tasks.logs.causes import NOTHING, UNKNOWN
from ci_tasks.records import EXIT_CODES, PASSED, Attempt, Evidence, GpuUse, RunRecord, epoch_seconds
from ci_tasks.report.table import Table, duration, paragraph

_MAX_CELL = 120  # characters of what CI has, and of what is here
_REPEATED = 60  # a longer reason that several rows have in turn is printed once
GPU_HEADING = "GPUs while rows ran:"
_MOST_ODDITIES = 4  # of a row's GPUs
_MAX_REASON = 500  # characters, with the path of a log and an override; the record has all of it
_WHAT_WAS_TESTED = {"code", "files unlike your disk", "files of the run", "status.json", "exit code", "retried"}
_HARMLESS = {"PYTEST_ADDOPTS", "install steps", "pull request", "changed tests", "event", "if", "node"}
_SCHEDULING = ("concurrency", "strategy.", "on.")


class Deviating(Protocol):
    @property
    def row(self) -> str: ...

    @property
    def deviations(self) -> Sequence[Deviation]: ...


def table(records: Sequence[RunRecord], logs: Sequence[str], width: int | None = None) -> list[str]:
    """One line a row: status, row, where there are several its host, time, evidence, reason and what became of earlier
    attempts; then the log of each row that did not pass, and what else is to be said of the rows."""
    several = len({record.host for record in records}) > 1
    head = ("STATUS", "ROW", *(("HOST",) if several else ()), "TIME", "EVIDENCE", "REASON")
    body = [
        (r.status, r.row, *((r.host or "-",) if several else ()), took(r), evidence_of(r), reason_with_attempts(r))
        for r in records
    ]
    lines = Table(reasons_once(body), head).text(width)
    shown = [(r, log) for r, log in zip(records, logs, strict=True) if r.status != PASSED and r.started_at]
    if shown:
        lines += [
            "",
            *Table([(f"log of {r.row}:", f"{log}:{r.line_no}" if r.line_no else log) for r, log in shown]).text(width),
        ]
    for part in (gpu_oddities(records, width), left_on_hosts(records, width)):
        lines += ["", *part] if part else []
    return lines


def gpu_oddities(records: Sequence[RunRecord], width: int | None = None) -> list[str]:
    """The lines of `gpu_sentences` under their heading; none where there are no sentences."""
    body = [(f"  {row}:", sentence) for row, sentence in gpu_sentences(records)]
    return [GPU_HEADING, *Table(body).text(width)] if body else []


def gpu_sentences(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """With its row, what was odd about the GPUs while it ran, and of a row that did not pass, when they were not
    sampled."""
    return [
        (record.row, sentence)
        for record in records
        if record.gpu_use is not None
        for sentence in _of_gpus(record.gpu_use, failed=record.status != PASSED)
    ]


def _of_gpus(use: GpuUse, *, failed: bool) -> list[str]:
    shown = [*use.oddities[:_MOST_ODDITIES]]
    more = len(use.oddities) - len(shown)
    shown += [f"and {more} more, see `ci-tasks report --html`"] if more else []
    return [*shown, *(use.not_seen[:_MOST_ODDITIES] if failed else [])]


def left_on_hosts(records: Sequence[RunRecord], width: int | None = None) -> list[str]:
    """What could not be removed or collected at the end of a run, with its host and row."""
    attempts = [(record, attempt) for record in records for attempt in record.attempts if attempt.left]
    body = [
        (f"  {attempt.host or 'local'}:", f"{record.row}: {one_line(line)}")
        for record, attempt in attempts
        for line in attempt.left
    ]
    if not body:
        return []
    hosts = list(dict.fromkeys(attempt.host or "local" for _, attempt in attempts))
    commands = ", ".join(f"`ci-tasks clean --host {host}`" for host in hosts)
    return [f"Left at the end ({commands}):", *Table(body).text(width)]


def cause_and_reason(record: RunRecord) -> str:
    """The cause of a row that did not pass, as far as one is known, and the line that says so."""
    has_cause = record.cause not in (None, UNKNOWN, NOTHING)
    reason = one_line(record.reason)
    return f"{record.cause}: {reason}" if has_cause and reason else reason


def attempts(record: RunRecord) -> str:
    """`attempt 2; blocked on h100a: no space left` of a row that needed several, or what a retry continues."""
    if record.retry_of:
        return f"retry of {record.retry_of}"
    if not record.earlier:
        return ""
    return "; ".join([f"attempt {len(record.attempts)}", *map(_ended, record.earlier)])


def _ended(attempt: Attempt) -> str:
    where = f" on {attempt.host}" if attempt.host else ""
    reason = f": {_short(attempt.reason)}" if attempt.reason else ""
    return f"{attempt.status}{where}{reason}"


def reason_with_attempts(record: RunRecord) -> str:
    reason, before = shortened(cause_and_reason(record), _MAX_REASON), shortened(attempts(record), _MAX_REASON)
    return f"{reason} ({before})" if reason and before else reason or before


def evidence_of(record: RunRecord) -> str:
    """That a script ran shows something only where it ran to a good end."""
    weak = record.evidence.kind in ("script", "set-up") and record.status != PASSED
    return "-" if weak else evidence(record.evidence)


def reasons_once(body: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A long reason that the row above has too, such as what a machine lacks, is not said again."""
    above = ["", *(line[-1] for line in body)]
    return [
        (*line[:-1], "as above" if len(line[-1]) > _REPEATED and line[-1] == before else line[-1])
        for line, before in zip(body, above, strict=False)
    ]


def summary(records: Sequence[RunRecord]) -> str:
    """`48 passed, 8 vacuous` for the last line: what passed first, then what went wrong in the order of EXIT_CODES."""
    counts = {status: sum(record.status == status for record in records) for status in EXIT_CODES}
    text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return text or "no row ran"


def deviations(
    records: Sequence[Deviating], width: int | None = None, known: Collection[Deviation] = (), more: str = ""
) -> list[str]:
    """What differs from CI, a line each: differences that all rows share once, others with their rows. `known` ones are
    only counted; `more` is the command that lists them."""
    rows = rows_by_deviation(records)
    all_rows = len({record.row for record in records})
    body = [
        (
            f"  {_short(item.what)}:",
            f"{_short(item.ci)} → {_short(item.here)}; {one_line(item.why)}{_of(names, all_rows)}",
        )
        for item, names in rows.items()
        if item not in known
    ]
    lines = ["Different from CI (CI → here; why):", *Table(body).text(width)] if body else []
    if as_before := len(rows) - len(body):
        lines += paragraph(f"Different from CI as in the last run: {as_before}; `{more}` lists them", width)
    return lines


def rows_by_deviation(records: Sequence[Deviating]) -> dict[Deviation, list[str]]:
    """What differs from CI with the rows that have it: what can change a result first, else as recorded. Rows that
    never began have none."""
    rows: dict[Deviation, dict[str, None]] = {}
    for record in records:
        if isinstance(record, RunRecord) and not record.started_at:
            continue
        for item in record.deviations:
            rows.setdefault(item, {})[record.row] = None
    return {item: [*rows[item]] for item in sorted(rows, key=_rank)}


def _rank(deviation: Deviation) -> int:
    """0 of what was tested and whether it can be believed, 2 of what says when a row runs and not what it does."""
    if deviation.what in _WHAT_WAS_TESTED:
        return 0
    return 2 if deviation.what in _HARMLESS or deviation.what.startswith(_SCHEDULING) else 1


def evidence(counts: Evidence) -> str:
    parts = []
    if counts.kind in ("junit", "pytest", "unittest"):
        parts.append(counted(counts.tests, "test"))
    if counts.failures:
        parts.append(f"{counts.failures} failed")
    if counts.skipped:
        parts.append(f"{counts.skipped} skipped")
    if counts.steps:
        parts.append(counted(counts.steps, "metric line"))
    if counts.kind == "script":
        parts.append("script, no tests")
    return ", ".join(parts) or "-"


def took(record: RunRecord) -> str:
    return "-" if record.timings.seconds is None else duration(record.timings.seconds)


def _short(text: str) -> str:
    return shortened(one_line(text), _MAX_CELL)


def _of(rows: Sequence[str], all_rows: int) -> str:
    """Which rows a difference is about, unless it is about all."""
    return "" if len(rows) == all_rows else f" [{some(rows, 2)}]"


def wall_time(records: Sequence[RunRecord]) -> list[str]:
    """The line below the table of a run of several rows of which one has GPUs, earlier attempts included."""
    times = [
        (epoch_seconds(attempt.started_at), epoch_seconds(attempt.ended_at))
        for record in records
        for attempt in record.attempts
    ]
    spans = [(start, end) for start, end in times if start is not None and end is not None and end >= start]
    if len(records) < 2 or not spans or not any(record.gpus for record in records):
        return []
    return [f"Wall time: {duration(max(end for _, end in spans) - min(start for start, _ in spans))}"]
