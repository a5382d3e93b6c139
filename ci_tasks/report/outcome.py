"""Runs → the answer in words: the verdict as a sentence, what made rows fail, and the commands that come next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence

from ci_tasks import records as words
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import shortened
from ci_tasks.logs.causes import NOTHING, UNKNOWN
from ci_tasks.records import RunRecord

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
_LONG = 160  # characters of a cause
_MOST_NAMED = 3  # rows that a command names


@dataclass(frozen=True)
class Failure:
    """Rows that failed, or did not run, in one and the same way: their triages have one signature, or they give one
    reason. `cause` is its class in `triage --json`, "" where none is known, `reason` what a person reads."""

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
    counts = Counter(_counted(record) for record in records)
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
    order = list(_PHRASES)
    return sorted(found, key=lambda failure: (order.index(failure.status), -len(failure.records)))


def next_steps(
    names: Sequence[str], records: Sequence[RunRecord], commands: Collection[str], kept: Collection[str] = ()
) -> list[NextStep]:
    """What to type next. `names` are the runs' or their batches', `commands` those of the features here, `kept` the ids
    of failed runs whose workspace or container is still there."""
    of = {status: [record for record in records if record.status == status] for status in _PHRASES}
    steps = []
    if of[words.RUNNING] or of[words.PLANNED] or of[words.LOST]:
        steps += [NextStep(f"ci-tasks attach {name}", "Follow the rows to their end.") for name in names]
    steps += [
        NextStep(f"ci-tasks retry {id}", "After an edit: run the failed step again where the run was kept.")
        for id in [*kept][:_MOST_NAMED]
    ]
    if again := [*of[words.FAILED], *of[words.VACUOUS], *of[words.BLOCKED], *of[words.CANCELLED]]:
        steps.append(_run_again(again))
    if of[words.FAILED] and "compare" in commands:
        steps.append(NextStep(_of_row("compare", of[words.FAILED][0]), "Is it this change, or is the base broken too?"))
    elif of[words.FAILED] and "bisect" in commands:
        steps.append(NextStep(f"{_of_row('bisect', of[words.FAILED][0])} --good REV", "Find the commit that broke it."))
    if "doctor" in commands:
        hosts = _hosts(of[words.BLOCKED])
        steps += [
            NextStep(f"ci-tasks doctor --host {shlex.quote(host)}", "Check what the host lacks.") for host in hosts
        ]
    return steps or [NextStep(f"ci-tasks report {','.join(names)} --markdown", "The same for a pull request.")]


def _counted(record: RunRecord) -> str:
    return _ALLOWED if record.may_fail and record.status == words.FAILED else record.status


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
        return NextStep(f"{command} --last-failed", "Run again what did not pass in the label's last run.")
    return NextStep(
        f"{command} --only {shlex.quote(','.join(rows))} --keep",
        "Run it again, and keep what `shell` and `retry` need.",
    )


def _of_row(command: str, record: RunRecord) -> str:
    where = f" --host {shlex.quote(record.host)}" if record.host else ""
    return f"ci-tasks {command} {shlex.quote(record.label)} --only {shlex.quote(record.row)}{where}"
