"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.checkout.repository import find_repository
from ci_tasks.checkout.snapshot import large_untracked_files
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UnknownName, UsageError, printable
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, PreparedRow
from ci_tasks.planning.containers import LOCK_DIR_ENV
from ci_tasks.planning.planner import SharedSetup, check_row
from ci_tasks.planning.steps import override_warnings
from ci_tasks.results import store
from ci_tasks.results.batch_state import write_phase
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.events import BatchJournal
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.host_sessions import HostSession, gather_facts
from ci_tasks.run.interrupts import Interrupts
from ci_tasks.run.request import RunRequest
from ci_tasks.run.row_plans import RowPlanner, host_requirements, sorted_setups
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select


@dataclass(frozen=True)
class PreparedBatch:
    """All rows of one command, and the hosts that take part. `planned_rows` are the plans that there are already, by
    the row's position and in its order: with one host it is clear where each row runs. `journal` is that of the
    earlier command which this one resumes."""

    batch: Batch
    rows: tuple[Row, ...]
    sessions: tuple[HostSession, ...]
    planner: RowPlanner
    planned_rows: dict[int, PreparedRow] = field(default_factory=dict)
    journal: BatchJournal | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    @property
    def host_gpus(self) -> dict[str, int]:
        """Host → GPUs, of the hosts that answered and have no scheduler of their own."""
        return {
            session.name: session.facts.gpus
            for session in self.sessions
            if session.facts and not session.executor.has_scheduler
        }

    @property
    def checkout(self) -> Checkout:
        return self.planner.checkout(self.sessions[0])

    def setups(self) -> list[SharedSetup]:
        """The install steps that rows share on the one host. Plans that there are already need not be made again."""
        if self.planned_rows:
            return sorted_setups(row.setup for row in self.planned_rows.values() if not row.missing)
        return self.planner.setups(self.rows, self.sessions[0])

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
        announce_large_files(source.path, to_host=any(spec.kind != "local" for spec in specs))
    executors = [open_executor(spec) for spec in specs]  # connections are being made while the rows are found
    try:
        event = event_context(source)
        job_rows = find_rows(source, request.label, event, request.base, run_needs=request.run_needs)
        chosen = _select_rows(job_rows.rows, request)
        for row in chosen:
            check_row(source.workflow, job_rows.job, row)
        _check_given_gpus(job_rows.rows, source)
        batch = journal.batch if journal else store.new_batch(request.label, request.out)
        try:
            if not only_plans:
                write_phase(batch.path, "preparing")
            sessions = _open_sessions(executors, source, request, batch)
            code = sessions[0].code
            _check_tests_exist(chosen, code)
            job_rows = replace(job_rows, context=replace(job_rows.context, sha=code.checkout.commit))
            drafts = RowPlanner(source, config, request, job_rows, batch, request.by_runner or _simulates(source, code))
            ready = PreparedBatch(batch, tuple(chosen), sessions, drafts, journal=journal)
            if len(sessions) == 1 and chosen:
                _prepare_single_host(sessions[0], ready)
            ready.interrupts.defer()
            return ready
        except BaseException:
            if journal is None:
                shutil.rmtree(batch.path, ignore_errors=True)
            else:
                write_phase(batch.path, "ended")
            raise
    except BaseException:
        for executor in executors:
            executor.close()
        raise


def print_override_warnings(config: Config, source: CheckoutSource) -> None:
    for warning in override_warnings(config.overrides, source.workflow.jobs):
        print(f"ci-tasks: warning: {printable(warning)}", file=sys.stderr, flush=True)


def _open_sessions(
    executors: Sequence[Executor], source: CheckoutSource, request: RunRequest, batch: Batch
) -> tuple[HostSession, ...]:
    """The hosts, with the code that all of them get: one tree, whatever is edited meanwhile."""
    sessions: list[HostSession] = []
    for executor in executors:
        if sessions:
            executor.use_snapshot(sessions[0].code)
        overlays = source.given.overlays
        code = executor.snapshot(batch, source.path, rev=source.rev, base=request.base, overlays=overlays)
        session = HostSession(executor, code)
        if sessions and session.code.checkout.tree != sessions[0].code.checkout.tree:
            raise CheckoutError(f"{source.path} changed while it was recorded for several hosts", hint="run it again")
        sessions.append(session)
    return tuple(sessions)


def _prepare_single_host(session: HostSession, ready: PreparedBatch) -> None:
    """With one host, all rows are planned before the first begins, and what the host lacks is known. Raises Blocked."""
    requirements = host_requirements(ready.planner, ready.rows)
    session.facts = gather_facts(session, requirements)
    if requirements.before_rows:
        session.row_problems = requirements.before_rows(session, partial(print, flush=True), lambda: True)
    session.is_ready, session.activity = True, ""
    if ready.journal is None:
        for position, row in enumerate(ready.rows):
            ready.planned_rows[position] = ready.planner.plan_row(row, session, position + 1)


def _select_rows(rows: list[Row], request: RunRequest) -> list[Row]:
    if not request.rows:
        return select(rows, request.only, request.label)
    for name in request.rows:
        if all(row.row != name for row in rows):
            raise UnknownName("row", name, [row.row for row in rows], where=f"label {request.label}")
    return [row for row in rows if row.row in request.rows]


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


def _check_tests_exist(chosen: Sequence[Row], code: CodeSnapshot) -> None:
    for row in chosen:
        if row.test and code.read_file(row.test) is None:
            raise CheckoutError(
                f"row {row.row} of label {row.label} runs {row.test}, which is not in the checkout",
                hint="it is not committed, and not an untracked file either: is it ignored, or was it renamed?",
            )


def _simulates(source: CheckoutSource, code: CodeSnapshot) -> bool:
    """Whether the checkout's lock script keeps simulated GPUs' locks away from the real ones."""
    return any(LOCK_DIR_ENV in text for text in code.read_files(source.suite.lock_scripts, ".py"))


_SHOWN = 5
_HINT = "to leave them behind, add them to .gitignore or .git/info/exclude"


def announce_large_files(checkout: Path, *, to_host: bool, ask: Callable[[str], str] | None = None) -> None:
    """Print them with their sizes, and ask before they go to a host. `ask` replaces the terminal in tests. Raises
    UsageError where the answer is no."""
    files = large_untracked_files(checkout)
    if not files:
        return
    total = sum(size for _, size in files)
    print(f"large untracked files travel with the working tree, {_size(total)} in all ({_HINT}):")
    for name, size in files[:_SHOWN]:
        print(f"  {_size(size)}  {printable(name)}")
    if len(files) > _SHOWN:
        print(f"  and {len(files) - _SHOWN} more", flush=True)
    if not to_host:
        return
    if ask is None:
        if not (os.isatty(0) and os.isatty(1)):
            return
        ask = input
    if ask("send them? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was sent", hint=_HINT)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
