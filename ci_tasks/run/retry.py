"""`retry`: the failed step of a kept run again, with the working tree as it is now, where the run was kept.

It is a run of its own, with the plan of the kept one: see ci_tasks.planning.planner. The agent brings the kept
workspace to the new tree before it starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Event, Plan
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status_if_readable, write_record
from ci_tasks.checkout.repository import CheckoutGit
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError, printable, some
from ci_tasks.hosts.executor import Executor, PreparedRow, start_host_snapshot
from ci_tasks.hosts.executors import open_executor
from ci_tasks.planning.planner import failed_step, retry_plan
from ci_tasks.planning.tested_files import defines_tests
from ci_tasks.records import PASSED, BatchResult, RunRecord
from ci_tasks.report.live import RowProgress
from ci_tasks.results import store
from ci_tasks.results.judge_run import judge_run
from ci_tasks.results.load import find_one, load_record
from ci_tasks.results.runs import events_of, is_over, record_not_started
from ci_tasks.run.attach import host_of_run
from ci_tasks.run.events import EventStream, EventView
from ci_tasks.run.interrupts import Interrupts
from ci_tasks.run.progress import open_view, running_row_progress
from ci_tasks.run.results_table import print_results
from ci_tasks.workflow.model import Row

_POLL_SECONDS = 0.05


def retry(name: str, *, keep: bool, events: EventStream | None = None) -> BatchResult:
    """Run the failed step of the run again, and those after it."""
    id, run = _kept_run(name)
    remote = read_remote(run)
    before = replace(read_plan(run), script=Path(run.script).read_text(encoding="utf-8", errors="surrogateescape"))
    if before.checkout.overlays:
        raise UsageError(f"{id} ran with overlays, which `retry` cannot change", hint=_run_again(before))
    source = Path(before.checkout.path)
    if not source.is_dir():
        raise UsageError(f"{source}, the checkout of {id}, is gone", hint=_run_again(before))
    spec = host_of_run(remote) if remote else HostSpec(name=before.host, kind="local", env=dict(before.host_env))
    with closing(open_executor(spec)) as executor:
        if snapshot := start_host_snapshot(source, None, None):
            executor.use_snapshot(snapshot)
        batch = store.new_batch(before.label)
        try:
            code = executor.snapshot(batch, source, rev=None, base=None)
            row = _prepared_row(before, code, executor, batch, remote.directory if remote else run.path, events_of(run))
        except BaseException:
            shutil.rmtree(batch.path, ignore_errors=True)
            raise
        print(_headline(before, row.plan, code, events_of(run)), flush=True)
        record = _run(executor, row, events)
        status = read_status_if_readable(row.run)
        result = print_results([record], [row.run.log], batch.id)
        if status.kept is not None:
            print(f"edit {source}, then `ci-tasks retry {row.plan.id}` runs it again")
        elif status.exists and not keep:
            for line in executor.release_retried(row):
                print(f"left: {line}")
            _forget_kept(id)
        return result


def _kept_run(name: str) -> tuple[str, RunDir]:
    """The run that is meant: of several the one that was kept. Raises UsageError."""
    found = store.find(name)
    kept = [(id, run) for id, run in found if read_status_if_readable(run).kept is not None]
    id, run = kept[0] if len(kept) == 1 else find_one(name)
    remote, status, plan = read_remote(run), read_status_if_readable(run), read_plan(run)
    if remote is not None and remote.adopted:
        raise UsageError(f"{id} was started from another machine", hint="retry it there: its script is not here")
    if remote is not None and remote.kind == "slurm":
        message = f"{id} ran on Slurm, and its allocation is gone, so no workspace is left to go on in"
        raise UsageError(message, hint=_run_again(plan))
    if status.exists and not is_over(run):
        follows = f"`ci-tasks attach {id}` waits for it, `ci-tasks cancel {id}` ends it"
        raise UsageError(f"{id} has not ended", hint=follows)
    if status.kept is None and load_record(run).status == PASSED:
        raise UsageError(f"{id} passed: it has no failed step to run again", hint=_run_again(plan))
    if status.kept is None:
        raise UsageError(f"{id} was not kept: only a failed run of --keep is", hint=_run_again(plan, " --keep"))
    return id, run


def _run_again(plan: Plan, more: str = "") -> str:
    command = f"ci-tasks remote --host {plan.host} {shlex.quote(plan.label)} --only {shlex.quote(plan.row)}{more}"
    return f"run the whole row again: `{command}`"


def _forget_kept(id: str) -> None:
    """Nothing is left of the run, and of those that it went on from."""
    while id:
        ((_, run),) = store.find(id)
        status = read_status_if_readable(run)
        write_record(run.status, replace(status, kept=None, sequence=status.sequence + 1))
        id = read_plan(run).retry_of


def _prepared_row(
    before: Plan, code: Snapshot, executor: Executor, batch: store.Batch, earlier_dir: str, events: list[Event]
) -> PreparedRow:
    """The row with its plan, which is written."""
    run = batch.run_dir(1)
    plan = retry_plan(
        before,
        id=batch.run_id(1),
        run_dir=executor.paths(run).run,
        earlier_dir=earlier_dir,
        step=failed_step(before, events),
        checkout=replace(code.checkout, path=before.checkout.path, sample=before.checkout.sample),
    )
    test = code.read_file(before.test) if before.test else None
    plan = replace(plan, defines_tests=defines_tests(test or ""))
    os.makedirs(run.path)
    executor.write_plan(run, plan)
    row = Row(
        label=plan.label,
        job=plan.job,
        trigger=None,
        row=plan.row,
        test=plan.test,
        args=plan.args,
        gpus=plan.gpus,
        image=plan.image,
        env=plan.env,
        runner="",
        timeout_minutes=plan.timeout_minutes,
    )
    return PreparedRow(row, plan, run, None)


def _headline(before: Plan, plan: Plan, code: Snapshot, events: list[Event]) -> str:
    assert plan.retry is not None
    names = [event.name or "" for event in events if event.event == "step"]
    at = plan.retry.step - (before.retry.step if before.retry else 1)
    step = f"step {plan.retry.step}" + (f" ({printable(names[at])})" if at < len(names) else "")
    return f"run {plan.id}: {before.id} again from {step} on {plan.host}; {_changes(before, code)}"


def _changes(before: Plan, code: Snapshot) -> str:
    """Which files differ from the run's tree, as far as git knows that here."""
    if before.checkout.tree == code.checkout.tree:
        return "nothing changed since, so the same tree runs again"
    objects = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{before.workspace}/.git/objects"}
    trees = before.checkout.tree, code.checkout.tree
    git = CheckoutGit(code.store, **objects)
    names = (git.text_or_none("diff-tree", "-r", "--name-only", "--no-renames", *trees) or "").splitlines()
    return f"changed: {printable(some(names, 3))}" if names else f"tree {code.checkout.tree[:12]}"


def _run(executor: Executor, row: PreparedRow, events: EventStream | None) -> RunRecord:
    """Start it, show its log, and judge it. ^C cancels it, a second one kills it."""
    interrupts, handled, name = Interrupts(), 0, row.row.row
    interrupts.defer()
    try:
        with closing(EventView(open_view(name, [row.run]), [events] if events else [])) as view:
            executor.start(row)
            while not (state := executor.poll(row)).is_over:
                if interrupts.count > handled:
                    handled = interrupts.count
                    executor.cancel([row], kill=handled > 1)
                for line in executor.drain_messages():
                    view.print_message(line)
                view.update([running_row_progress(name, row.run, 0.0, state.note)])
                executor.wait(_POLL_SECONDS)
            record = record_not_started(row.run, *state.aborted) if state.aborted else judge_run(row.run)
            view.update([RowProgress(name, record.status, record.timings.seconds)])
        return record
    finally:
        interrupts.restore()
