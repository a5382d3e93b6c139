"""How a trial's runs are made: rows of a setting as a label's run, one after another, or each on a host of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import field, replace
from statistics import median

from ci_tasks.agent.codec import to_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import read_record
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError, printable
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues
from ci_tasks.hosts.executors import open_executor
from ci_tasks.planning.deviations import ONLY_TESTS
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, VACUOUS, RunRecord, epoch_seconds
from ci_tasks.report.live import HostProgress, RowProgress
from ci_tasks.results import store
from ci_tasks.results.history import RunQuery, search
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import RowChanged
from ci_tasks.run.label import LabelResult, execute_label
from ci_tasks.run.progress import PlainView
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.trials.pinned_tree import PinnedTree
from ci_tasks.trials.rules import MISSING, Outcome
from ci_tasks.trials.trial import TrialRun

_BLOCKED_IN_A_ROW = 3  # runs that a host blocks, after which it has to run what is known to run
_RECENT = 5  # runs by which the next one's time is estimated
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")  # from run to run, in a reason without a signature

Execute = Callable[..., LabelResult | None]  # as run.label.execute_label


@dataclass(frozen=True)
class Subject:
    """What a setting is for a run: a checkout and how its rows run. `tree` runs in place of the checkout as it is."""

    source: CheckoutSource
    request: RunRequest
    tree: PinnedTree | None = None


@dataclass
class Runner:
    """Makes the runs of a trial. `subject` gives what a setting is, or raises UsageError: there is no such row.
    `hosts`: one, or several of which each runs one setting at a time. `known_to_run` is the setting that a host has to
    run that blocks one after another; a host that blocks it too is dropped. `records` are those of the runs, by id.
    `live` shows a run as if it were the only one: its log."""

    config: Config
    subject: Callable[[str], Subject]
    hosts: Sequence[str]
    how: ExecutionOptions = ExecutionOptions()
    known_to_run: str = ""
    live: bool = False
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    execute: Execute = execute_label
    records: dict[str, RunRecord] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    streaks: dict[str, int] = field(default_factory=dict)
    pressed: int = 0

    def __call__(self, runs: Sequence[TrialRun]) -> Iterator[Outcome]:
        hosts = [host for host in self.hosts if host not in self.dropped]
        if not hosts:
            reasons = "; ".join(f"{host}: {why}" for host, why in self.dropped.items())
            hint = "`ci-tasks doctor --host NAME` says what a host lacks; the same command then goes on from here"
            raise Blocked(f"no host can run what should run: {reasons}", hint=hint)
        if len(self.hosts) == 1:
            for run in runs:
                yield from self._counted(self.run(self._checked(run, hosts[0]), hosts[0]))
            return
        pool = ThreadPoolExecutor(len(hosts), "ci-tasks trial")
        waiting = {
            pool.submit(self.run, self._checked(run, host), host, by_thread=True)
            for run, host in zip(runs, hosts, strict=False)
        }
        problem: BaseException | None = None
        try:
            while waiting:
                try:
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                except KeyboardInterrupt as pressed:
                    problem = pressed
                    self.pressed += 1
                    self.say(f"cancelling what runs ({len(waiting)}); ^C again kills it")
                    continue
                for future in ended:
                    if error := future.exception():
                        problem = problem or error
                        self.pressed = self.pressed or 1  # the others are of no use
                    else:
                        yield from self._counted(future.result())
        finally:
            self.pressed = self.pressed or len(waiting)
            pool.shutdown()
        if problem:
            raise problem

    def _checked(self, run: TrialRun, host: str) -> TrialRun:
        """The run, or that of what is known to run: is it the settings, or the host?"""
        is_in_doubt = self.known_to_run and self.streaks.get(host, 0) >= _BLOCKED_IN_A_ROW
        return replace(run, setting=self.known_to_run) if is_in_doubt else run

    def _counted(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        for one in outcomes:
            self.streaks[one.host] = 0 if one.counts or one.status == MISSING else self.streaks.get(one.host, 0) + 1
            if one.setting == self.known_to_run and self.streaks[one.host] > 1:
                self.dropped[one.host] = one.reason
                self.say(f"dropping host {one.host}: {one.reason}")
            yield one

    def run(self, run: TrialRun, host: str, *, by_thread: bool = False) -> list[Outcome]:
        """Run the rows once. Raises KeyboardInterrupt, Blocked if nothing has run before, and UsageError unless another
        setting is known to run: then the setting has no such row."""
        name = f"{run.setting[:12]} on {host}"
        view = QuietView(name, self.say, lambda: self.pressed if by_thread else 0)
        searches = bool(self.known_to_run)
        try:
            subject = self.subject(run.setting)
            fresh = subject.request.fresh_env and run.number == 1
            request = replace(subject.request, host=host, rows=run.rows or subject.request.rows, fresh_env=fresh)
            opened = subject.tree.wrap(open_executor) if subject.tree else open_executor
            seen = None if self.live else view
            done = self.execute(subject.source, self.config, request, self.how, open_executor=opened, view=seen)
        except Blocked as problem:
            if not (self.records or searches):
                raise
            return [Outcome(run.setting, row, BLOCKED, reason=problem.message, host=host) for row in run.rows]
        except UsageError as problem:
            if not searches or run.setting == self.known_to_run:
                raise
            return [Outcome(run.setting, row, MISSING, reason=problem.message, host=host) for row in run.rows]
        if view.pressed() and (done is None or any(record.status == CANCELLED for record in done.records)):
            raise KeyboardInterrupt
        if done is None:
            return [Outcome(run.setting, row, MISSING, reason=f"no row {row}", host=host) for row in run.rows]
        outcomes = []
        for record, log in zip(done.records, done.logs, strict=True):
            self.records[record.id] = record
            outcomes.append(outcome_of(run.setting, record, log))
        return outcomes

    def record(self, outcome: Outcome) -> RunRecord:
        """The record of a run, perhaps of an earlier command."""
        known = self.records.get(outcome.run)
        if known is None and outcome.run:
            found = [run for id, run in store.rows_of(store.batch_of(outcome.run)) if id == outcome.run]
            known = read_record(RunRecord, found[0].record) if found else None
        return known or RunRecord(outcome.run, "", outcome.row, outcome.host, outcome.status, outcome.reason)


def outcome_of(setting: str, record: RunRecord, log: str = "") -> Outcome:
    """What a run's record says of its setting."""
    failed = record.status in (FAILED, VACUOUS)
    attempt = record.attempts[-1] if record.attempts else None
    gpus = ",".join(map(str, sorted(attempt.gpu_ids))) if attempt else ""
    return Outcome(
        setting,
        record.row,
        FAILED if failed else record.status,
        signature=_signature(record) if failed else "",
        kind=record.triage.kind if failed and record.triage else "",
        reason=_reason(record),
        run=record.id,
        log=log,
        host=record.host or "",
        image=(attempt and attempt.image_digest) or record.environment.image or "",
        gpus=f"{attempt.node}: {gpus}" if attempt and attempt.node and gpus else gpus,
        seconds=record.timings.seconds,
        metrics={name: value for name, value in record.metrics.items() if isinstance(value, (int, float))},
    )


def _signature(record: RunRecord) -> str:
    """What tells this failure from another: triage's word for it, else the reason without what varies."""
    return VACUOUS if record.status == VACUOUS else record.signature or _VARIES.sub("#", record.reason)


def _reason(record: RunRecord) -> str:
    """The line that says why. Of a row that hung, the log's last line says nothing."""
    if record.status == PASSED:
        return ""
    hung = record.hang.reason if record.hang is not None and record.hang.outcome == "shown" else ""
    return hung or (record.triage.text or record.triage.line if record.triage else "") or record.reason


def given_key(given: GivenValues) -> dict[str, str]:
    """What tells a trial with these values from others, for its journal. Overlays are in the trees."""
    values = replace(given, sources={}, overlays=())
    return {} if values == NOTHING_GIVEN else {"given": to_json(values, versioned=False)}


def ran_tests(record: RunRecord, tests: Sequence[str]) -> bool:
    """Whether a run of the history ran these tests alone; without any, the whole row."""
    named = [item.here for item in record.deviations if item.why == ONLY_TESTS]
    return named == ([" ".join(tests)] if tests else [])


def expected_seconds(label: str, row: str, hosts: Sequence[str]) -> float | None:
    """How long a run of a row may take, its set-up included, by its newest runs that passed; None without one."""
    query = RunQuery(label=label, row=(row,), status=(PASSED,), host=tuple(hosts), limit=_RECENT)
    took = []
    for record in search(query):
        ended = epoch_seconds(record.ended_at)
        planned = store.planned_at(store.batch_of(record.id)) / 1e9
        if record.row == row and ended is not None and planned:
            took.append(ended - planned)
    return median(took) if took else None


class QuietView(PlainView):
    """The view of a run among others: what is unusual, and now and then that it still goes on. Its log would bury the
    lines that count. A thread hears of ^C only here: `pressed` says how often it was pressed."""

    def __init__(self, name: str, say: Callable[[str], None], pressed: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self.name, self.say, self.pressed, self.heard = name, say, pressed, pressed()

    def print_message(self, text: str) -> None:
        self._interrupt()
        self._last_message_at = time.monotonic()
        self.say(f"     {self.name}: {printable(text)}")

    def update(
        self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = (), left: float | None = None
    ) -> None:
        self._interrupt()
        super().update(rows, hosts, left)

    def print_row(self, event: RowChanged, several: bool) -> None:
        pass

    def _interrupt(self) -> None:
        if self.pressed() > self.heard:
            self.heard = self.pressed()
            raise KeyboardInterrupt
