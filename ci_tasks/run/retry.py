"""`retry`: the failed step of a kept run again, with the working tree as it is now, where the run was kept.

It is a run of its own, with the plan of the kept one: see ci_tasks.planning.planner. The agent brings the kept
workspace to the new tree before it starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Event, Plan
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status_if_readable, write_record
from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError
from ci_tasks.hosts.executor import Executor, PreparedRow, open_executor
from ci_tasks.planning.planner import failed_step, retry_plan
from ci_tasks.planning.tested_files import defines_tests
from ci_tasks.records import PASSED, BatchResult
from ci_tasks.results import store
from ci_tasks.results.load import find_one, load_record
from ci_tasks.results.runs import events_of, is_over
from ci_tasks.run.attach import host_of_run
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.events import EventStream, EventView
from ci_tasks.run.execute import run_rows
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.progress import open_view, print_results
from ci_tasks.run.row_plans import HostSession
from ci_tasks.workflow.model import Row


def retry(name: str, *, keep: bool, events: EventStream | None = None) -> BatchResult:
    """Run the failed step of the run again, and those after it."""
    id, run = _kept_run(name)
    remote = read_remote(run)
    before = replace(read_plan(run), script=Path(run.script).read_text(encoding="utf-8", errors="surrogateescape"))
    spec = host_of_run(remote) if remote else HostSpec(name=before.host, kind="local", env=dict(before.host_env))
    with closing(open_executor(spec)) as executor:
        batch = store.new_batch(before.label)
        try:
            row = _planned(before, executor, batch, remote.directory if remote else run.path, events_of(run))
        except BaseException:
            shutil.rmtree(batch.path, ignore_errors=True)
            raise
        tree, step = row.plan.checkout.tree, row.plan.retry.step if row.plan.retry else 0
        same = "nothing changed since, so the same tree runs again" if tree == before.checkout.tree else ""
        print(f"run {row.plan.id}: {id} again from step {step} on {before.host}; {same or f'tree {tree[:12]}'}")
        session = HostSession(executor, is_ready=True)
        ready = PreparedBatch(batch, (row.row,), (session,), None, row.plan.checkout, planned_rows={0: row})
        ready.interrupts.defer()
        try:
            with closing(EventView(open_view(row.row.row, [row.run]), [events] if events else [])) as view:
                (execution,) = run_rows(ready, ExecutionOptions(), view, {})
        finally:
            ready.interrupts.restore()
        status = read_status_if_readable(row.run)
        result = print_results([execution.record] if execution.record else [], [row.run.log], batch.id)
        if status.kept is not None:
            print(f"edit {before.checkout.path}, then `ci-tasks retry {row.plan.id}` runs it again")
        elif status.exists and not keep:
            for line in executor.release_retried(row):
                print(f"left: {line}")
            _forget_kept(id)
        return result


def _planned(
    before: Plan, executor: Executor, batch: store.Batch, kept_in: str, events: Sequence[Event]
) -> PreparedRow:
    """The rest of a run that was kept in the directory `kept_in` of its host, after these `events`."""
    code, run = executor.snapshot(batch, Path(before.checkout.path), rev=None), batch.run_dir(1)
    plan = retry_plan(
        before,
        id=batch.run_id(1),
        run_dir=executor.paths(run).run,
        earlier_dir=kept_in,
        step=failed_step(before, events),
        checkout=replace(code.checkout, path=before.checkout.path, sample=before.checkout.sample),
    )
    test = code.read_file(before.test) if before.test else None
    plan = replace(plan, defines_tests=defines_tests(test or ""))
    executor.write_plan(run, plan)
    same = {name: getattr(plan, name) for name in ("label", "job", "row", "test", "args", "image", "env")}
    row = Row(**same, gpus=0, trigger=None, runner="", timeout_minutes=plan.timeout_minutes)
    return PreparedRow(row, plan, run, None)


def _kept_run(name: str) -> tuple[str, RunDir]:
    """The run that is meant: of several the one that was kept. Raises UsageError."""
    kept = [(id, run) for id, run in store.find(name) if read_status_if_readable(run).kept is not None]
    id, run = kept[0] if len(kept) == 1 else find_one(name)
    remote, status, plan = read_remote(run), read_status_if_readable(run), read_plan(run)
    why, hint = "", _run_again(plan)
    if remote is not None and remote.adopted:
        why, hint = "was started from another machine", "retry it there: its script is not here"
    elif remote is not None and remote.kind == "slurm":
        why = "ran on Slurm, and its allocation is gone, so no workspace is left to go on in"
    elif status.exists and not is_over(run):
        why, hint = "has not ended", f"`ci-tasks attach {id}` waits for it, `ci-tasks cancel {id}` ends it"
    elif status.kept is None and load_record(run).status == PASSED:
        why = "passed: it has no failed step to run again"
    elif status.kept is None:
        why, hint = "was not kept: only a failed run of --keep is", _run_again(plan, " --keep")
    elif plan.checkout.overlays:
        why = "ran with overlays, which `retry` cannot change"
    elif not os.path.isdir(plan.checkout.path):
        why = f"is of {plan.checkout.path}, which is gone"
    if why:
        raise UsageError(f"{id} {why}", hint=hint)
    return id, run


def _run_again(plan: Plan, more: str = "") -> str:
    command = f"ci-tasks remote --host {plan.host} {shlex.quote(plan.label)} --only {shlex.quote(plan.row)}{more}"
    return f"run the whole row again: `{command}`"


def _forget_kept(id: str) -> None:
    """Nothing is left of the run, and of those that it went on from, as far as they are known here."""
    while id:
        try:
            ((_, run),) = store.find(id)
        except UsageError:  # `clean` has removed it
            return
        status = read_status_if_readable(run)
        write_record(run.status, replace(status, kept=None, sequence=status.sequence + 1))
        id = read_plan(run).retry_of
