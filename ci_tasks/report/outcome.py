"""Runs → the answer in words: the verdict as a sentence, what made rows fail, and the commands that come next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import shortened
from ci_tasks.logs.causes import NOTHING, UNKNOWN
from ci_tasks.records import (
    BLOCKED,
    CANCELLED,
    EXIT_CODES,
    FAILED,
    LOST,
    PASSED,
    PLANNED,
    RUNNING,
    VACUOUS,
    RunRecord,
    Triage,
)

_ALLOWED = "allowed"  # of a failed row that does not fail CI's run
# Status → what is said of one row, and of several; what matters most comes first.
_PHRASES = {
    FAILED: ("failed", "failed"),
    VACUOUS: ("ran no test", "ran no test"),
    LOST: ("was lost", "were lost"),
    BLOCKED: ("was blocked", "were blocked"),
    CANCELLED: ("was cancelled", "were cancelled"),
    RUNNING: ("is running", "are running"),
    PLANNED: ("has not started", "have not started"),
    _ALLOWED: ("failed, which CI allows", "failed, which CI allows"),
    PASSED: ("passed", "passed"),
}
_LONG = 160  # characters of a cause
_MOST_NAMED = 3  # rows that a command names


@dataclass(frozen=True)
class Failure:
    """Rows that failed, or did not run, in one and the same way: their triages have one signature, or they give one
    reason."""

    records: tuple[RunRecord, ...]

    @property
    def status(self) -> str:
        return self.records[0].status

    @property
    def triage(self) -> Triage | None:
        return self.records[0].triage

    @property
    def reason(self) -> str:
        return self.records[0].reason


@dataclass(frozen=True)
class Cause:
    """Failures that triage puts down to the same thing. `name` is its class in `triage --json`, "" where none is known,
    `explanation` what a person reads."""

    status: str
    name: str
    explanation: str
    failures: tuple[Failure, ...]

    @property
    def records(self) -> list[RunRecord]:
        return [record for failure in self.failures for record in failure.records]


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


def causes(records: Sequence[RunRecord]) -> list[Cause]:
    """Why rows that ended did not pass; what matters most, and what hit most rows, first."""
    grouped: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in _failures(records):
        name = _cause_name(failure.triage)
        explanation = (failure.triage.reason if failure.triage else "") if name else _first_line(failure.reason)
        grouped.setdefault((failure.status, name, explanation), []).append(failure)
    all_causes = [Cause(*key, tuple(failures)) for key, failures in grouped.items()]
    order = list(_PHRASES)
    return sorted(all_causes, key=lambda cause: (order.index(cause.status), -len(cause.records)))


def next_steps(
    names: Sequence[str], records: Sequence[RunRecord], commands: Collection[str], kept: Collection[str] = ()
) -> list[NextStep]:
    """What to type next. `names` are the runs' or their batches', `commands` those of the features here, `kept` the ids
    of failed runs whose workspace or container is still there."""
    of = {status: [record for record in records if record.status == status] for status in _PHRASES}
    steps = []
    if of[RUNNING] or of[PLANNED] or of[LOST]:
        steps += [NextStep(f"ci-tasks attach {name}", "Follow the rows to their end.") for name in names]
    steps += [
        NextStep(f"ci-tasks retry {id}", "After an edit: run the failed step again where the run was kept.")
        for id in [*kept][:_MOST_NAMED]
    ]
    if again := [*of[FAILED], *of[VACUOUS], *of[BLOCKED], *of[CANCELLED]]:
        steps.append(_run_again(again))
    if of[FAILED] and "compare" in commands:
        steps.append(NextStep(_of_row("compare", of[FAILED][0]), "Is it this change, or is the base broken too?"))
    elif of[FAILED] and "bisect" in commands:
        steps.append(NextStep(f"{_of_row('bisect', of[FAILED][0])} --good REV", "Find the commit that broke it."))
    if "doctor" in commands:
        hosts = _hosts(of[BLOCKED])
        steps += [
            NextStep(f"ci-tasks doctor --host {shlex.quote(host)}", "Check what the host lacks.") for host in hosts
        ]
    return steps or [NextStep(f"ci-tasks report {','.join(names)} --markdown", "The same for a pull request.")]


def _counted(record: RunRecord) -> str:
    return _ALLOWED if record.may_fail and record.status == FAILED else record.status


def _phrase(status: str, count: int) -> str:
    one, several = _PHRASES.get(status, (status, status))
    return one if count == 1 else several


def _failures(records: Sequence[RunRecord]) -> list[Failure]:
    grouped: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        if record.status in EXIT_CODES and record.status != PASSED:
            key = (record.status, _cause_name(record.triage), record.signature or record.reason)
            grouped.setdefault(key, []).append(record)
    return [Failure(tuple(several)) for several in grouped.values()]


def _cause_name(triage: Triage | None) -> str:
    return triage.cause if triage and triage.cause not in (UNKNOWN, NOTHING) else ""


def _first_line(reason: str) -> str:
    return shortened(reason.strip().partition("\n")[0], _LONG) or "the log does not say why"


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
