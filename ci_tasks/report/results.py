"""What ends a run: the table of its rows, what was odd about GPUs, what was left on hosts, and what differs from CI;
and the answer in words: the verdict as a sentence, what made rows fail, and the commands that come next."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ci_tasks import records as words
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation
from ci_tasks.errors import counted, one_line, shortened, some
from ci_tasks.logs.causes import NOTHING, UNKNOWN
from ci_tasks.records import EXIT_CODES, PASSED, Attempt, BatchResult, PlanEntry, RunRecord, epoch_seconds, overall
from ci_tasks.report.table import Table, duration, paragraph

if TYPE_CHECKING:
    from ci_tasks.config import Config

Deviating = Sequence[PlanEntry] | Sequence[RunRecord]
_MAX_CELL = 120  # characters of what CI has, and of what is here
_REPEATED = 60  # a longer reason that several rows have in turn is printed once
GPU_HEADING = "GPUs while rows ran:"
_MOST_ODDITIES = 4  # of a row's GPUs
_MAX_REASON = 500  # characters, with the path of a log and an override; the record has all of it
_WHAT_WAS_TESTED = {"code", "files unlike your disk", "files of the run", "status.json", "exit code", "retried"}
_HARMLESS = {"PYTEST_ADDOPTS", "install steps", "pull request", "changed tests", "event", "if", "node"}
_SCHEDULING = ("concurrency", "strategy.", "on.")
_ALLOWED = "allowed"  # of a failed row that does not fail CI's run
# Status → what is said of one row, and of several; what matters most comes first.
_PHRASES = {
    words.FAILED: ("failed", "failed"),
    words.VACUOUS: ("ran no test", "ran no test"),
    words.LOST: ("was lost", "were lost"),
    words.BLOCKED: ("was blocked", "were blocked"),
    words.CANCELLED: ("was cancelled", "were cancelled"),
    words.RUNNING: ("is running", "are running"),
    words.PLANNED: ("has not started", "have not started"),
    _ALLOWED: ("failed, which CI allows", "failed, which CI allows"),
    words.PASSED: ("passed", "passed"),
}
_LEAST_WAIT = 1.0  # seconds; of less the table says nothing
_LONG = 160  # characters of a cause
_LACKS = re.compile(r" lacks .*(?:\d GPUs|\b(?:docker|podman|apptainer) \()")
_MOST_NAMED = 3  # rows that a command names


def batch_result(name: str, records: Sequence[RunRecord], directories: Mapping[str, str]) -> BatchResult:
    """The rows together, each by its last attempt, which tells of the others; `directories` are the runs', by id."""
    before = {attempt.id for record in records for attempt in record.earlier}
    records = [record for record in records if record.id not in before]
    if (going := {record.status for record in records}) & {words.RUNNING, words.PLANNED}:
        status = words.PLANNED if going == {words.PLANNED} else words.RUNNING
        return BatchResult(name, status, None, tuple(records), directories)
    status = overall(statuses(records))
    return BatchResult(name, status, EXIT_CODES[status], tuple(records), directories)


def statuses(records: Sequence[RunRecord]) -> list[str]:
    """The statuses that count for the whole: a row that was ended for another's failure says nothing of its own."""
    counted = [record.counted_status for record in records if not (record.stopped and record.status == words.CANCELLED)]
    return counted or [record.status for record in records]


def table(records: Sequence[RunRecord], logs: Sequence[str], width: int | None = None) -> list[str]:
    """One line a row: status, row, its host if there are several, time, evidence, reason and what became of earlier
    attempts; then the log of each row that did not pass, and more notes on the rows."""
    several = len({record.host for record in records}) > 1
    head = ("STATUS", "ROW", *(("HOST",) if several else ()), "TIME", "EVIDENCE", "REASON")
    body = [
        (r.status, row, *((r.host or "-",) if several else ()), took(r), evidence_of(r), reason_with_attempts(r))
        for row, r in zip(rows_with_code(records), records, strict=True)
    ]
    lines = Table(reasons_once(body), head).text(width)
    ran = [(r, log) for r, log in zip(records, logs, strict=True) if r.status != PASSED and r.started_at]
    if shown := [(f"log of {r.row}:", f"{log}:{r.line_no}" if r.line_no else log) for r, log in ran]:
        lines += ["", *Table(shown).text(width)]
    if odd := [(f"  {row}:", sentence) for row, sentence in gpu_sentences(records)]:
        lines += ["", GPU_HEADING, *Table(odd).text(width)]
    return lines + left_on_hosts(records, width)


def rows_with_code(records: Sequence[RunRecord]) -> list[str]:
    """The name of each row; of runs of different code, as a comparison makes them, with its code."""
    codes = [record.checkout.title if record.checkout else "?" for record in records]
    several = len({*codes} - {"?"}) > 1
    return [f"{record.row} ({code})" if several else record.row for record, code in zip(records, codes, strict=True)]


def gpu_sentences(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """With its row, what was odd about the GPUs while it ran, and of a row that did not pass, when they were not
    sampled."""
    sentences: list[tuple[str, str]] = []
    for record in records:
        if (use := record.gpu_use) is not None:
            shown, more = [*use.oddities[:_MOST_ODDITIES]], len(use.oddities) - _MOST_ODDITIES
            shown += [f"and {more} more, see `ci-tasks report --html`"] if more > 0 else []
            shown += use.not_seen[:_MOST_ODDITIES] if record.status != PASSED else []
            sentences += [(record.row, sentence) for sentence in shown]
    return sentences


def left_on_hosts(records: Sequence[RunRecord], width: int | None = None) -> list[str]:
    """What could not be removed or collected at the end of a run, with its host and row."""
    attempts = [(record, attempt) for record in records for attempt in record.attempts if attempt.left]
    body = [(f"  {a.host or 'local'}:", f"{r.row}: {one_line(line)}") for r, a in attempts for line in a.left]
    if not body:
        return []
    hosts = list(dict.fromkeys(attempt.host or "local" for _, attempt in attempts))
    commands = ", ".join(f"`ci-tasks clean --host {host}`" for host in hosts)
    return ["", f"Left at the end ({commands}):", *Table(body).text(width)]


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
    return f"{attempt.status}{where}" + (f": {_short(attempt.reason)}" if attempt.reason else "")


def reason_with_attempts(record: RunRecord) -> str:
    reason, before = shortened(cause_and_reason(record), _MAX_REASON), shortened(attempts(record), _MAX_REASON)
    return f"{reason} ({before})" if reason and before else reason or before


def reasons_once(body: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A long reason that the row above has too, such as what a machine lacks, is not said again."""
    above = ["", *(line[-1] for line in body)]
    return [
        (*line[:-1], "as above" if len(line[-1]) > _REPEATED and line[-1] == before else line[-1])
        for line, before in zip(body, above, strict=False)
    ]


def summary(records: Sequence[RunRecord]) -> str:
    """`48 passed, 8 vacuous` for the last line: what passed first, then what went wrong in the order of STATUSES."""
    counts = {status: sum(record.status == status for record in records) for status in words.STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no row ran"


def deviations(
    records: Deviating, width: int | None = None, known: Collection[Deviation] = (), more: str = ""
) -> list[str]:
    """What differs from CI, a line each: differences that all rows share once, others with their rows. `known` ones are
    only counted; `more` is the command that lists them."""
    rows = rows_by_deviation(records)
    all_rows = len({record.row for record in records})
    body = [
        (
            f"  {_short(item.what)}:",
            f"{_short(item.ci)} → {_short(item.here)}; {one_line(item.why)}"
            + ("" if len(names) == all_rows else f" [{some(names, 2)}]"),
        )
        for item, names in rows.items()
        if item not in known
    ]
    lines = ["Different from CI (CI → here; why):", *Table(body).text(width)] if body else []
    if as_before := len(rows) - len(body):
        lines += paragraph(f"Same differences from CI as in the last run: {as_before}; `{more}` lists them", width)
    return lines


def rows_by_deviation(records: Deviating) -> dict[Deviation, list[str]]:
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


def evidence_of(record: RunRecord) -> str:
    """That a script ran shows something only if it ended well."""
    counts, parts = record.evidence, list[str]()
    if counts.kind in ("script", "set-up") and record.status != PASSED:
        return "-"
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
    """How long it ran, and how long it waited before that."""
    seconds, queued = record.timings.seconds, record.timings.queued or 0.0
    waited = f" (waited {duration(queued)})" if queued >= _LEAST_WAIT else ""
    return "-" if seconds is None else f"{duration(max(0.0, seconds - queued))}{waited}"


def _short(text: str) -> str:
    return shortened(one_line(text), _MAX_CELL)


def wall_time(records: Sequence[RunRecord]) -> list[str]:
    """The line below the table of a run of several rows, if one has GPUs, earlier attempts included."""
    every = [attempt for record in records for attempt in record.attempts]
    times = [(epoch_seconds(attempt.started_at), epoch_seconds(attempt.ended_at)) for attempt in every]
    spans = [(start, end) for start, end in times if start is not None and end is not None and end >= start]
    if len(records) < 2 or not spans or not any(record.gpus for record in records):
        return []
    return [f"Wall time: {duration(max(end for _, end in spans) - min(start for start, _ in spans))}"]


# -- the answer in words ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """Rows that failed, or did not run, in one and the same way: their triages have one signature, or they give one
    reason. `cause` is its class in `triage --json`, "" if none is known, `reason` what a person reads."""

    status: str
    cause: str
    reason: str
    records: tuple[RunRecord, ...]


@dataclass(frozen=True)
class NextStep:
    command: str
    purpose: str


def verdict(records: Sequence[RunRecord]) -> str:
    """`3 of 10 rows failed, 1 was blocked, 6 passed`."""
    counts = Counter(_ALLOWED if one.may_fail and one.status == words.FAILED else one.status for one in records)
    ordered = [(word, counts[word]) for word in dict.fromkeys((*_PHRASES, *counts)) if counts[word]]
    if not ordered:
        return "No row ran"
    (first, count), *others = ordered
    if len(records) == 1:
        return f"{records[0].row} {_phrase(first, 1)}"
    noun = "rows" if len({record.row for record in records}) == len(records) else "runs"
    if not others:
        return f"All {count} {noun} {_phrase(first, count)}"
    rest = [f"{number} {_phrase(word, number)}" for word, number in others]
    return ", ".join([f"{count} of {len(records)} {noun} {_phrase(first, count)}", *rest])


def failures(records: Sequence[RunRecord]) -> list[Failure]:
    """Why rows that ended did not pass; what matters most, and what hit most rows, first."""
    grouped: dict[tuple[str, str, str], list[RunRecord]] = {}
    for record in records:
        if record.status in words.EXIT_CODES and record.status != words.PASSED:
            cause = record.cause if record.cause not in (None, UNKNOWN, NOTHING) else ""
            grouped.setdefault((record.status, cause or "", record.signature or record.reason), []).append(record)
    found = []
    for (status, cause, _), alike in grouped.items():
        reason = alike[0].triage.reason if cause and alike[0].triage else alike[0].reason.strip().partition("\n")[0]
        found.append(Failure(status, cause, shortened(reason, _LONG) or "the log does not say why", tuple(alike)))
    return sorted(found, key=lambda failure: (list(_PHRASES).index(failure.status), -len(failure.records)))


def next_steps(names: Sequence[str], records: Sequence[RunRecord], kept: Collection[str] = ()) -> list[NextStep]:
    """What to type next. `names` are the runs' or their batches', `kept` the ids of failed runs whose workspace or
    container is still there."""
    of = {status: [record for record in records if record.status == status] for status in _PHRASES}
    steps = []
    if of[words.RUNNING] or of[words.PLANNED] or of[words.LOST]:
        steps += [NextStep(f"ci-tasks attach {name}", "Follow the rows to their end.") for name in names]
    steps += [
        NextStep(f"ci-tasks retry {id}", "After an edit: run the failed step again in the kept run.")
        for id in [*kept][:_MOST_NAMED]
    ]
    if again := [*of[words.FAILED], *of[words.VACUOUS], *of[words.BLOCKED], *of[words.CANCELLED]]:
        steps.append(_run_again(again))
    if failed := of[words.FAILED]:
        where = f" --host {shlex.quote(failed[0].host)}" if failed[0].host else ""
        command = f"ci-tasks compare {shlex.quote(failed[0].label)} --only {shlex.quote(failed[0].row)}{where}"
        steps.append(NextStep(command, "Is it this change, or is the base broken too?"))
    hosts = _hosts(of[words.BLOCKED])
    steps += [NextStep(f"ci-tasks doctor --host {shlex.quote(host)}", "Check what the host lacks.") for host in hosts]
    return steps or [NextStep(f"ci-tasks report {','.join(names)} --markdown", "The same for a pull request.")]


def _phrase(status: str, count: int) -> str:
    one, several = _PHRASES.get(status, (status, status))
    return one if count == 1 else several


def _hosts(records: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(record.host or "local" for record in records))


def _run_again(records: Sequence[RunRecord]) -> NextStep:
    label, hosts = records[0].label, ",".join(_hosts(records))
    command = f"ci-tasks remote --host {shlex.quote(hosts)} {shlex.quote(label)}"
    rows = list(dict.fromkeys(record.row for record in records if record.label == label))
    if len(rows) > _MOST_NAMED or any("," in row for row in rows):
        return NextStep(f"{command} --last-failed", "Run again the rows that did not pass in the label's last run.")
    command += f" --only {shlex.quote(','.join(rows))} --keep"
    return NextStep(command, "Run it again, and keep its container and workspace for `shell` and `retry`.")


def advice_without_gpu_host(records: Sequence[RunRecord], config: Config) -> list[str]:
    """How to add a host, if rows were blocked for what this machine lacks, and there is no other one."""
    from ci_tasks.config import how_to_add  # reads YAML, which looking at runs does not need

    lacks = any(record.status == words.BLOCKED and _LACKS.search(record.reason) for record in records)
    return [how_to_add()] if lacks and not config.has_gpu_hosts else []
