"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Plan
from ci_tasks.checkout.repository import find_repository
from ci_tasks.checkout.snapshot import large_untracked_files
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UnknownName, UsageError, printable, some
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, PreparedRow
from ci_tasks.planning.containers import LOCK_DIR_ENV
from ci_tasks.planning.planner import check_row
from ci_tasks.planning.steps import override_warnings
from ci_tasks.results import store
from ci_tasks.results.batch_state import write_phase
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.events import BatchJournal
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.host_sessions import HostSessions, gather_facts
from ci_tasks.run.interrupts import Interrupts
from ci_tasks.run.request import RunRequest
from ci_tasks.run.row_plans import RowPlanner, sorted_setups
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

_MOST_SHOWN = 5  # tests or files that are named


class Planner(Protocol):
    """Plans rows when they are given to hosts: see ci_tasks.run.row_plans.RowPlanner."""

    def plan_row(self, row: Row, session: HostSession, number: int) -> PreparedRow: ...
    def exclusive(self, row: Row, session: HostSession) -> tuple[str, ...]: ...
    def image_of(self, row: Row) -> str | None: ...
    def install_problem(self, problem: str) -> str: ...


@dataclass(frozen=True)
class PreparedBatch:
    """All rows of one command, and the hosts that take part. With one host it is clear where each row runs:
    `planned_rows` are the plans, by the row's position, and `setups` the install steps that they share. `threads` make
    several hosts ready. `journal` is that of the earlier command which this one resumes."""

    batch: Batch
    rows: tuple[Row, ...]
    sessions: tuple[HostSession, ...]
    planner: Planner
    checkout: Checkout
    threads: HostSessions | None = None
    setups: Sequence[Plan] = ()
    planned_rows: dict[int, PreparedRow] = field(default_factory=dict)
    journal: BatchJournal | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    @property
    def host_gpus(self) -> dict[str, int]:
        """Host → GPUs, of the hosts that answered and have no scheduler of their own."""
        return {each.name: each.facts.gpus for each in self.sessions if each.facts and not each.executor.has_scheduler}

    def close(self) -> None:
        self.interrupts.restore()
        for session in self.sessions:
            session.executor.close()
        write_phase(self.batch.path, "ended")


def prepare(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    open_executor: OpenExecutor,
    journal: BatchJournal | None = None,
    *,
    only_plans: bool = False,
) -> PreparedBatch:
    """Find every row that was asked for, or those of an earlier command, and its hosts. Leaves nothing where it
    raises, but for what an earlier command left. When it returns, ^C is deferred until the batch is closed. With
    `only_plans` nobody will run the rows."""
    specs = config.select_hosts(request.host)
    print_override_warnings(config, source)
    _check_home_outside_checkout(source)
    if source.rev is None:
        announce_large_files(source.path)
    with ExitStack() as undo:
        executors = []
        for spec in specs:  # connections are being made while the rows are found
            executors.append(open_executor(spec))
            undo.callback(executors[-1].close)
        event = event_context(source)
        found = find_rows(source, request.label, event, request.base, run_needs=request.run_needs)
        rows = _with_tests(_select_rows(found.rows, request), source.given.tests, request.label)
        for row in rows:
            check_row(source.workflow, found.job, row)
        _check_given_gpus(found.rows, source)
        batch = journal.batch if journal else store.new_batch(request.label, request.out)
        undo.callback(_give_back, batch, journal)
        if not only_plans:
            write_phase(batch.path, "preparing")
        code = _record_tree(executors, source, request, batch)
        _check_tests_exist(rows, code)
        found = replace(found, context=replace(found.context, sha=code.checkout.commit))
        # Whether the checkout's lock script keeps simulated GPUs' locks away from the real ones.
        simulates = any(LOCK_DIR_ENV in text for text in code.read_files(source.suite.lock_scripts, ".py"))
        planner = RowPlanner(source, config, request, found, batch, rows, code, request.by_runner or simulates)
        sessions = tuple(map(HostSession, executors))
        planned, setups = dict[int, PreparedRow](), list[Plan]()
        if len(sessions) == 1 and rows:
            _make_ready(sessions[0], planner)
            if journal is None:
                planned = {at: planner.plan_row(row, sessions[0], at + 1) for at, row in enumerate(rows)}
                setups = sorted_setups(row.setup for row in planned.values() if not row.missing)
            else:
                setups = planner.setups(sessions[0])
        ready = PreparedBatch(
            batch,
            tuple(rows),
            sessions,
            planner,
            planner.checkout,
            threads=HostSessions(sessions, planner) if len(sessions) > 1 else None,
            setups=setups,
            planned_rows=planned,
            journal=journal,
        )
        ready.interrupts.defer()
        undo.pop_all()
    return ready


def _give_back(batch: Batch, journal: BatchJournal | None) -> None:
    """Nothing stays of a command that never began; what an earlier one left is as it was."""
    if journal is None:
        shutil.rmtree(batch.path, ignore_errors=True)
    else:
        write_phase(batch.path, "ended")


def print_override_warnings(config: Config, source: CheckoutSource) -> None:
    for warning in override_warnings(config.overrides, source.workflow.jobs):
        print(f"ci-tasks: warning: {printable(warning)}", file=sys.stderr, flush=True)


def _record_tree(
    executors: Sequence[Executor], source: CheckoutSource, request: RunRequest, batch: Batch
) -> CodeSnapshot:
    """The code that all hosts get: one tree, whatever is edited meanwhile."""
    codes: list[CodeSnapshot] = []
    for executor in executors:
        if codes:
            executor.use_snapshot(codes[0])
        overlays = source.given.overlays
        codes.append(executor.snapshot(batch, source.path, rev=source.rev, base=request.base, overlays=overlays))
    if len({code.checkout.tree for code in codes}) > 1:
        raise CheckoutError(f"{source.path} changed while it was recorded for several hosts", hint="run it again")
    return codes[0]


def _make_ready(session: HostSession, planner: RowPlanner) -> None:
    """With one host, what it lacks is known before the first row starts. Raises Blocked."""
    session.facts = gather_facts(session, planner)
    session.row_problems = planner.before_rows(session, partial(print, flush=True), lambda: True)
    session.is_ready, session.activity = True, ""


# -- what is asked for -------------------------------------------------------------------------------------------------


def _select_rows(rows: list[Row], request: RunRequest) -> list[Row]:
    if not request.rows:
        return select(rows, request.only, request.label)
    for name in request.rows:
        if all(row.row != name for row in rows):
            raise UnknownName("row", name, [row.row for row in rows], where=f"label {request.label}")
    return [row for row in rows if row.row in request.rows]


def _with_tests(rows: list[Row], tests: Sequence[str], label: str) -> list[Row]:
    """The rows that run a file of the given tests, or may do so. Raises UsageError where none does."""
    files = [test.partition("::")[0] for test in tests]
    chosen = [row for row in rows if row.test is None or any(f"/{row.test}".endswith(f"/{file}") for file in files)]
    if tests and not chosen:
        run = ", ".join(sorted({row.test for row in rows if row.test})[:_MOST_SHOWN])
        raise UsageError(f"--test {tests[0]}: no row of {label} runs {files[0]}", hint=f"they run {run}, …")
    return chosen if tests else rows


def _check_given_gpus(rows: Sequence[Row], source: CheckoutSource) -> None:
    """`--gpus` is for what the workflow does not say. Raises UsageError where no row of the label takes so many."""
    given, counts = source.given.gpus, {row.gpus for row in rows if row.gpus is not None}
    if given is not None and counts and given not in counts:
        says = ", ".join(map(str, sorted(counts)))
        raise UsageError(f"--gpus {given}: the workflow says {says}", hint="run it without --gpus")


def _check_home_outside_checkout(source: CheckoutSource) -> None:
    """Runs kept in the checkout would be part of the next run's working tree, unless git ignores them."""
    home = store.home()
    if not home.is_relative_to(source.path):
        return
    repository = find_repository(source.path)
    if repository is None or not repository.ignores(home / "runs"):
        raise UsageError(
            f"{store.HOME_ENV} is {home}, inside the checkout, and no command writes there",
            hint="name a directory elsewhere, or have git ignore this one",
        )


def _check_tests_exist(rows: Sequence[Row], code: CodeSnapshot) -> None:
    for row in rows:
        if row.test and code.read_file(row.test) is None:
            raise CheckoutError(
                f"row {row.row} of label {row.label} runs {row.test}, which is not in the checkout",
                hint="it is not committed, and not an untracked file either: is it ignored, or was it renamed?",
            )


def announce_large_files(checkout: Path) -> None:
    """Print what large files travel with the working tree though git does not know them."""
    files = large_untracked_files(checkout)
    if files:
        names = some([printable(name) for name, _ in files], _MOST_SHOWN)
        size = sum(size for _, size in files) / 1e6
        print(f"large untracked files travel with the working tree, {size:.0f} MB in all: {names}")
        print("to leave them behind, press ^C and add them to .gitignore or .git/info/exclude", flush=True)
