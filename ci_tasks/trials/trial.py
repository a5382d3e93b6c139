"""The loop of every trial: ask the rule, run, write the journal, go on until each row has its verdict; and how its runs
are made.

    with Trial("compare", {"base": tree, "yours": tree}, rows, perform) as trial:
        trial.run(lambda row, known: AB("base", "yours"))
    trial.verdicts, trial.outcomes

The journal is a file of JSON lines: what was asked, then each outcome. The outcomes alone decide what comes next, so
the same trial continues by reading those that say something of the code. Its name is made of what was asked, trees and
images included: the same words find it again, and another tree begins another one. Runs are made on pinned trees, rows
of a setting as a label's run, one after another on one host.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from ci_tasks import safe_output
from ci_tasks.agent.codec import RecordError, encode, from_json, masked_record
from ci_tasks.agent.files import pieces_of, try_lock
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import RunDir, read_record
from ci_tasks.checkout.snapshot import Snapshot, materialize
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError, counted
from ci_tasks.hosts.executor import take_host_snapshot, temporary_checkout
from ci_tasks.logs.causes import DEPENDENCY
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, BatchResult, RunRecord
from ci_tasks.report.table import duration
from ci_tasks.resources import make_home
from ci_tasks.results import store
from ci_tasks.results.history import expected_seconds
from ci_tasks.results.verdict import missed_tests
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context
from ci_tasks.run.events import RowChanged
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.interrupts import noticed
from ci_tasks.run.label import execute_label
from ci_tasks.run.progress import PlainView
from ci_tasks.trials import report
from ci_tasks.trials.rules import MISSING, Outcome, TrialRule, TrialVerdict, with_own_lacks
from ci_tasks.trials.words import CANCELLED
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

_BLOCKED_IN_A_ROW = 3  # runs, after which the host has to run what is known to run
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")  # from run to run, in a reason without a signature

Execute = Callable[..., BatchResult | None]  # as run.label.execute_label


@dataclass(frozen=True)
class TrialRun:
    """Rows to run in a setting. `number` is one more than the runs of the setting that counted."""

    setting: str
    rows: tuple[str, ...]
    number: int = 1


Perform = Callable[[TrialRun], Iterable[Outcome]]
"""Runs the rows, and gives each outcome as it comes. A host that cannot be reached blocks a run.
KeyboardInterrupt ends the trial after the outcomes that were given."""
RuleOfRow = Callable[[str], TrialRule]


class Trial:
    """`settings` are what is compared or searched, by key, each with what it is pinned to; `more` is what else makes
    two trials one. `name` is how a line calls a setting. `resume`: continue with the journal, else start again."""

    def __init__(
        self,
        question: str,
        settings: Mapping[str, str],
        rows: Sequence[str],
        perform: Perform,
        *,
        more: Mapping[str, str] | None = None,
        resume: bool = True,
        name: Callable[[str], str] = str,
    ) -> None:
        asked = {"question": question, "settings": settings, "rows": rows, "more": more or {}}
        self._asked = safe_output.masked(json.dumps(asked, sort_keys=True)).encode()
        self.question, self.settings, self.rows = question, settings, list(rows)
        self.perform, self.resume, self.name = perform, resume, name
        self.outcomes: list[Outcome] = []
        self.verdicts: dict[str, TrialVerdict] = {}
        self.is_interrupted = False

    def __enter__(self) -> Trial:
        """Read the journal. Raises UsageError if another command has it, or if it cannot be read."""
        directory = make_home() / "trials"
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{self._name()}.jsonl"
        self._file = open(self.path, "a+b")
        try:
            if try_lock(self._file.fileno()) is False:
                message = f"another command runs this {self.question}"
                raise UsageError(message, hint="`ci-tasks runs` shows how far it is; start this one when it has ended")
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def run(self, rule: RuleOfRow, until: Callable[[], bool] = lambda: False) -> None:
        """Run until each row has its verdict, or `until` ends it. ^C ends it with the result so far."""
        for number, outcome in enumerate(self.outcomes, 1):
            self._say(number, outcome)
        if self.outcomes:
            print(f"continuing after {counted(len(self.outcomes), 'run')} so far ({self.path})", flush=True)
        with noticed() as interrupted:
            try:
                while not until() and (runs := self._wanted(rule)):
                    before = len(self.outcomes)
                    for run in runs:
                        for outcome in self.perform(run):
                            self._add(outcome)
                        if interrupted():
                            raise KeyboardInterrupt
                    if len(self.outcomes) == before:
                        break
            except KeyboardInterrupt:
                self.is_interrupted = True

    def of_row(self, row: str) -> list[Outcome]:
        """What is known of a row, oldest first."""
        return with_own_lacks([one for one in self.outcomes if one.row == row])

    def verdict(self, row: str) -> TrialVerdict:
        """The row's verdict; that it was interrupted, if it has none."""
        return self.verdicts.get(row) or TrialVerdict(CANCELLED, f"interrupted; {self.how_to_continue}")

    @property
    def how_to_continue(self) -> str:
        return f"the same command {'' if self.resume else 'without --fresh '}continues from here"

    def _wanted(self, rule: RuleOfRow) -> list[TrialRun]:
        """The next runs, runs of one setting together: its tree is sent once for all rows."""
        rows_of: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        for row in self.rows:
            if row in self.verdicts:
                continue
            known = self.of_row(row)
            what = rule(row).next(known)
            if isinstance(what, TrialVerdict):
                self.verdicts[row] = what
                continue
            for setting in what:
                rows_of.setdefault(setting, []).append(row)
                numbers.setdefault(setting, 1 + sum(one.setting == setting and one.counts for one in known))
        return [TrialRun(setting, tuple(rows), numbers[setting]) for setting, rows in rows_of.items()]

    # the journal

    def _name(self) -> str:
        words = "-".join([self.question, *self.rows[:1]])
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", words)[:60].strip("-.")
        return f"{slug}-{hashlib.sha256(self._asked).hexdigest()[:12]}"

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read() if self.resume else b""
        whole, newline, _ = text.rpartition(b"\n")
        try:
            head, *entries = whole.split(b"\n") if newline else [b""]
            if head not in (b"", self._asked):
                raise RecordError(self.path.name, "", "it belongs to another trial")
            outcomes = (from_json(Outcome, entry, where=self.path.name) for entry in entries)
            # What says nothing of the code is run again: the environment may be repaired by now.
            self.outcomes = [one for one in outcomes if one.counts or one.status == MISSING]
        except RecordError as error:
            hint = "--fresh starts over, without it"
            raise UsageError(f"{self.path} is not a trial's file: {error}", hint=hint) from None
        self._file.truncate(len(whole + newline))  # without a line that was being written when its program was killed
        if not head:
            self._write(self._asked)

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        masked = masked_record(outcome, safe_output.secret_values())
        self._write(json.dumps(encode(masked, versioned=False)).encode())
        self._say(len(self.outcomes), outcome)

    def _say(self, number: int, one: Outcome) -> None:
        setting = f"{self.name(one.setting)}  " if len(self.settings) > 1 else ""
        print(report.line(number, one, f"{setting}{one.row}"), flush=True)

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


# -- how runs are made -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PinnedTree:
    """The tree, and a clone of it, with its origin/main."""

    checkout: Checkout
    directory: Path

    def take(self, *which: Any) -> Snapshot:
        """The checkout itself, as long as it is the same: the host was sent most of it before."""
        code = take_host_snapshot(*which)
        if (code.checkout.commit, code.checkout.tree) == (self.checkout.commit, self.checkout.tree):
            return code
        return replace(take_host_snapshot(self.directory, self.checkout.commit), checkout=self.checkout)


@contextmanager
def pinned(source: CheckoutSource, base: str | None) -> Iterator[PinnedTree]:
    """What `source` is now, for as long as the block lasts. Raises CheckoutError."""
    with temporary_checkout() as clone:
        overlays = source.given.overlays
        yield PinnedTree(materialize(source.path, clone, rev=source.rev, base=base, overlays=overlays), clone)


def rows_named(source: CheckoutSource, label: str, only: str | None, base: str | None = None) -> list[Row]:
    """The rows that `only` means. Raises UnknownName."""
    return select(find_rows(source, label, event_context(source), base).rows, only, label)


def cost(runs: int, label: str, hosts: Sequence[str], rows: Sequence[str]) -> str:
    """How many runs, and how long they may take by earlier runs of the rows."""
    seconds = expected_seconds(label, hosts, rows)
    if seconds is None:
        return f"{counted(runs, 'run')}; no earlier run says how long each takes"
    at_once = "" if len(rows) == 1 else " if all rows run at once"
    return f"{counted(runs, 'run')}, about {duration(seconds)} each with set-up{at_once}: {duration(runs * seconds)}"


@dataclass(frozen=True)
class Subject:
    """What a setting is for a run: a checkout and how its rows run. `tree` runs in place of the checkout as it is."""

    source: CheckoutSource
    request: RunRequest
    tree: PinnedTree | None = None


@dataclass
class Runner:
    """Makes the runs of a trial. `subject` gives what a setting is, or raises UsageError: there is no such row.
    `known_to_run` is the setting that the host has to run if it blocks one after another. `records` are the runs'
    records, by id. `live` shows a run as if it were the only one: its log."""

    config: Config
    subject: Callable[[str], Subject]
    how: ExecutionOptions = ExecutionOptions()
    known_to_run: str = ""
    live: bool = False
    execute: Execute = execute_label
    records: dict[str, RunRecord] = field(default_factory=dict)
    blocked: int = 0

    def __call__(self, run: TrialRun) -> Iterator[Outcome]:
        if self.known_to_run and self.blocked >= _BLOCKED_IN_A_ROW:  # is it the settings, or the host?
            run = replace(run, setting=self.known_to_run)
        for one in self.run(run):
            self.blocked = 0 if one.counts or one.lacks or one.status == MISSING else self.blocked + 1
            yield one
            if one.setting == self.known_to_run and self.blocked > 1:
                hint = f"`ci-tasks doctor --host {one.host}` shows what it lacks; the same command then continues"
                raise Blocked(f"{one.host} cannot run the trial: {one.reason}", hint=hint)

    def run(self, run: TrialRun) -> list[Outcome]:
        """Run the rows once. Raises KeyboardInterrupt, Blocked if nothing has run before, and UsageError unless another
        setting is known to run: then the setting has no such row."""
        host = ""
        try:
            subject = self.subject(run.setting)
            host = subject.request.host
            fresh = subject.request.fresh_env and run.number == 1
            request = replace(subject.request, rows=run.rows, fresh_env=fresh)
            take = subject.tree.take if subject.tree else take_host_snapshot
            view = None if self.live else QuietView()
            done = self.execute(subject.source, self.config, request, self.how, take_snapshot=take, view=view)
        except (Blocked, UsageError) as problem:
            is_blocked, known = isinstance(problem, Blocked), self.known_to_run
            if not ((known or self.records) if is_blocked else known not in ("", run.setting)):
                raise
            status = BLOCKED if is_blocked else MISSING
            return [Outcome(run.setting, row, status, reason=problem.message, host=host) for row in run.rows]
        if done is None:  # nothing to run
            return []
        self.records |= {record.id: record for record in done.runs}
        logs = {id: RunDir(path).log for id, path in done.directories.items()}
        return [outcome_of(run.setting, record, logs.get(record.id, "")) for record in done.runs]

    def record(self, outcome: Outcome) -> RunRecord:
        """The record of a run, perhaps of an earlier command."""
        known = self.records.get(outcome.run)
        if known is None and outcome.run:
            found = [run for id, run in store.rows_of(store.batch_of(outcome.run)) if id == outcome.run]
            known = read_record(RunRecord, found[0].record) if found else None
        return known or RunRecord(outcome.run, "", outcome.row, outcome.host, outcome.status, outcome.reason)

    def not_run(self, tests: Sequence[str], outcomes: Sequence[Outcome]) -> str:
        """That one of these tests, which failed elsewhere, did not run where the row passed; "" if none is known."""
        runs = [RunDir(os.path.dirname(one.log)) for one in outcomes if one.status == PASSED and one.log and tests]
        missed = [set(missed_tests(pieces_of(run.junit), tests, pieces_of(run.log))) for run in runs]
        found = sorted(set.intersection(*missed)) if missed else []
        return f"{found[0]} did not run: skipped, deselected, expected to fail, or not there" if found else ""


def outcome_of(setting: str, record: RunRecord, log: str = "") -> Outcome:
    """What a run's record says of its setting. Of a row that hung, the log's last line says nothing."""
    failed, triage = record.status in (FAILED, VACUOUS), record.triage
    signature = VACUOUS if record.status == VACUOUS else record.signature or _VARIES.sub("#", record.reason)
    hung = record.hang.reason if record.hang is not None and record.hang.outcome == "shown" else ""
    reason = hung or (triage.text or triage.line if triage else "") or record.reason
    attempt = record.attempts[-1] if record.attempts else None
    gpus = ",".join(map(str, sorted(attempt.gpu_ids))) if attempt else ""
    gpus = f"{attempt.node}: {gpus}" if attempt and attempt.node and gpus else gpus
    known = Outcome(setting, record.row, record.status, run=record.id, log=log, host=record.host or "", gpus=gpus)
    image, passed = record.environment.image_identity, record.status == PASSED
    lacks = record.status == BLOCKED and triage is not None and triage.group == DEPENDENCY
    known = replace(known, image=image, seconds=record.timings.seconds, reason="" if passed else reason, lacks=lacks)
    if _has_no_such_test(record):
        return replace(known, status=MISSING, reason=record.reason)
    if not (failed or lacks):
        return known
    return replace(known, status=BLOCKED if lacks else FAILED, signature=signature, kind=triage.kind if triage else "")


def _has_no_such_test(record: RunRecord) -> bool:
    """Whether --test names a test that the row does not have, by what pytest found: skipped ones are there."""
    found = record.evidence
    is_empty = record.status == VACUOUS or (record.status == FAILED and found.kind in ("junit", "pytest"))
    return record.is_partial and is_empty and not (found.tests or found.failures or found.skipped)


class QuietView(PlainView):
    """The view of a run among others: what is unusual, and now and then that it still runs. The trial has a line for
    each row that ended."""

    def print_row(self, event: RowChanged) -> None:
        pass
