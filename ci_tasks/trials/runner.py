"""How a trial's runs are made: on pinned trees, rows of a setting as a label's run, one after another on one host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci_tasks.agent.codec import to_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import read_record
from ci_tasks.checkout.delivery import materialize
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues
from ci_tasks.hosts.executor import take_host_snapshot
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, RunRecord
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context
from ci_tasks.run.events import RowChanged
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import LabelResult, execute_label
from ci_tasks.run.progress import PlainView
from ci_tasks.trials.rules import MISSING, Outcome
from ci_tasks.trials.trial import TrialRun
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

_BLOCKED_IN_A_ROW = 3  # runs, after which the host has to run what is known to run
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")  # from run to run, in a reason without a signature

Execute = Callable[..., LabelResult | None]  # as run.label.execute_label


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
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        clone = Path(scratch, "source")
        overlays = source.given.overlays
        yield PinnedTree(materialize(source.path, clone, rev=source.rev, base=base, overlays=overlays), clone)


def rows_named(source: CheckoutSource, label: str, only: str | None) -> list[Row]:
    """The row with this very name, else those that `only` means. Raises UnknownName."""
    rows = find_rows(source, label, event_context(source), None).rows
    return [row for row in rows if row.row == only] or select(rows, only, label)


@dataclass(frozen=True)
class Subject:
    """What a setting is for a run: a checkout and how its rows run. `tree` runs in place of the checkout as it is."""

    source: CheckoutSource
    request: RunRequest
    tree: PinnedTree | None = None


@dataclass
class Runner:
    """Makes the runs of a trial. `subject` gives what a setting is, or raises UsageError: there is no such row.
    `known_to_run` is the setting that the host has to run if it blocks one after another. `records` are those of the
    runs, by id. `live` shows a run as if it were the only one: its log."""

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
            self.blocked = 0 if one.counts or one.status == MISSING else self.blocked + 1
            yield one
            if one.setting == self.known_to_run and self.blocked > 1:
                hint = f"`ci-tasks doctor --host {one.host}` says what it lacks; the same command then goes on"
                raise Blocked(f"{one.host} cannot run what should run: {one.reason}", hint=hint)

    def run(self, run: TrialRun) -> list[Outcome]:
        """Run the rows once. Raises KeyboardInterrupt, Blocked if nothing has run before, and UsageError unless another
        setting is known to run: then the setting has no such row."""
        host = ""
        try:
            subject = self.subject(run.setting)
            host = subject.request.host
            fresh = subject.request.fresh_env and run.number == 1
            request = replace(subject.request, rows=run.rows or subject.request.rows, fresh_env=fresh)
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
        self.records |= {record.id: record for record in done.records}
        return [outcome_of(run.setting, *pair) for pair in zip(done.records, done.logs, strict=True)]

    def record(self, outcome: Outcome) -> RunRecord:
        """The record of a run, perhaps of an earlier command."""
        known = self.records.get(outcome.run)
        if known is None and outcome.run:
            found = [run for id, run in store.rows_of(store.batch_of(outcome.run)) if id == outcome.run]
            known = read_record(RunRecord, found[0].record) if found else None
        return known or RunRecord(outcome.run, "", outcome.row, outcome.host, outcome.status, outcome.reason)


def outcome_of(setting: str, record: RunRecord, log: str = "") -> Outcome:
    """What a run's record says of its setting. Of a row that hung, the log's last line says nothing."""
    failed, triage = record.status in (FAILED, VACUOUS), record.triage
    signature = VACUOUS if record.status == VACUOUS else record.signature or _VARIES.sub("#", record.reason)
    hung = record.hang.reason if record.hang is not None and record.hang.outcome == "shown" else ""
    reason = hung or (triage.text or triage.line if triage else "") or record.reason
    attempt = record.attempts[-1] if record.attempts else None
    gpus = ",".join(map(str, sorted(attempt.gpu_ids))) if attempt else ""
    return Outcome(
        setting,
        record.row,
        FAILED if failed else record.status,
        signature=signature if failed else "",
        kind=triage.kind if failed and triage else "",
        reason="" if record.status == PASSED else reason,
        run=record.id,
        log=log,
        host=record.host or "",
        image=(attempt and attempt.image_digest) or record.environment.image or "",
        gpus=f"{attempt.node}: {gpus}" if attempt and attempt.node and gpus else gpus,
        seconds=record.timings.seconds,
    )


def given_key(given: GivenValues) -> dict[str, str]:
    """What tells a trial with these values from others, for its journal. Overlays are in the trees."""
    values = replace(given, sources={}, overlays=())
    return {} if values == NOTHING_GIVEN else {"given": to_json(values, versioned=False)}


class QuietView(PlainView):
    """The view of a run among others: what is unusual, and now and then that it still goes on. The trial has a line for
    each row that ended."""

    def print_row(self, event: RowChanged) -> None:
        pass
