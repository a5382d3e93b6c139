"""`run`, `remote`, `plan` and `retry`: the story of a label.

prepare   rows, hosts, the code and the plans                prepare.py
install   the steps that rows share, on each host            here, or in the hosts' threads of prepare.py
execute   rows are placed, started, polled, retried, ended   execute.py
judge     what a run directory shows, as a status            results.judge_run
record    record.json, the history, the closing table        results.runs, print_results
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Event, Plan
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status_if_readable, write_record
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import UsageError, counted, short
from ci_tasks.hosts.executor import OpenExecutor, PreparedRow, TakeSnapshot, open_executor, take_host_snapshot
from ci_tasks.planning.checkout_files import defines_tests
from ci_tasks.planning.planner import failed_step, retry_plan
from ci_tasks.records import CANCELLED, PASSED, RUNNING, VACUOUS, BatchResult, PlanEntry, together
from ci_tasks.report.results import advice_without_gpu_host, batch_result
from ci_tasks.results import store
from ci_tasks.results.history import durations
from ci_tasks.results.load import find_one, load_record
from ci_tasks.results.runs import events_of, is_over
from ci_tasks.results.store import write_phase
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context
from ci_tasks.run.events import (
    EventStream,
    EventView,
    ProgressView,
    RunEnded,
    RunPrepared,
    now,
    open_journal,
    resumable,
)
from ci_tasks.run.execute import run_rows
from ci_tasks.run.find_rows import find_rows, list_jobs, why_no_rows
from ci_tasks.run.prepare import HostSession, PreparedBatch, RowPlanner, prepare, print_override_warnings
from ci_tasks.run.progress import open_view, print_results
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select


def run(
    source: CheckoutSource, config: Config, label: str, requests: Sequence[RunRequest], options: ExecutionOptions
) -> BatchResult:
    """Run the rows that `label` means, of one label or of several, and end with one truthful table. For rows that
    continue without the client, it says how to attach to them."""
    results = in_turn(requests, lambda request: execute_label(source, config, request, options))
    if not (ended := [result for result in results if result.status != RUNNING]):
        return results[-1] if results else together("", [])
    whole = together(label if len(requests) > 1 else ended[0].id, ended)
    resumes = ["the same command with `--resume` goes on with the cancelled rows"] * (whole.status == CANCELLED)
    return print_results(whole, [*advice_without_gpu_host(whole.runs, config), *resumes])


def in_turn(requests: Sequence[RunRequest], execute: Callable[[RunRequest], BatchResult | None]) -> list[BatchResult]:
    """The results of those that have rows. After one that was cancelled the others do not start, which is printed."""
    results = list[BatchResult]()
    for request in requests:
        if results and results[-1].status == CANCELLED:
            print(f"not started: {', '.join(request.rows)} of {request.label} on {request.host}")
        elif result := execute(request):
            results.append(result)
    return results


def execute_label(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    options: ExecutionOptions = ExecutionOptions(),
    *,
    open_executor: OpenExecutor = open_executor,
    take_snapshot: TakeSnapshot = take_host_snapshot,
    view: ProgressView | None = None,
) -> BatchResult | None:
    """Prepare, place, execute, judge and record a label's rows; `view` shows how they stand. None if there is no row,
    which is printed."""
    if options.detach and len(config.select_hosts(request.host)) > 1:
        message = f"--detach takes one host, but {request.host} has several"
        hint = "without it, you may close the terminal at any time: `--resume` continues with all rows"
        raise UsageError(message, hint=hint)
    if view is None:  # of a trial, each run would say it
        print_override_warnings(config, source)
    journal = resumable(request.label, str(source.path), request.only, request.rows) if options.resume else None
    asked = source.asked_key(config, request)
    if journal:
        if journal.asked.asked not in ("", asked):
            message = f"{journal.batch.id} was started with another workflow, image, override or value"
            raise UsageError(message, hint="repeat its options, such as --test, and overrides, or run the label again")
        request = replace(request, rows=journal.asked.rows, only=None)
    with closing(prepare(source, config, request, open_executor, take_snapshot, journal)) as ready:
        if not ready.rows:
            shutil.rmtree(ready.batch.path, ignore_errors=True)
            print_no_rows(source, request)
            return None
        batch, checkout = ready.batch, ready.checkout
        if journal and journal.asked.tree != checkout.tree:
            trees = f"tree {short(journal.asked.tree)} then, {short(checkout.tree)} now"
            message = f"the checkout is not what {batch.id} runs: {trees}"
            hint = "restore it (git stash), or run the label again; `--last-failed` runs the rows that did not pass"
            raise UsageError(message, hint=hint)
        if view is None:
            count = counted(len(ready.rows), "row")
            print(f"run {batch.id}: {count} of {checkout.title}, tree {short(checkout.tree)}", flush=True)
            title, runs = f"{request.label} on {request.host}", [row.run for row in ready.planned_rows.values()]
            view = open_view(title, runs, detach=options.detach)
        with closing(open_journal(batch)) as written, closing(EventView(view, written, options.events)) as events:
            rows, code = tuple(row.row for row in ready.rows), (checkout.commit, checkout.tree, str(batch.path))
            what = (batch.id, request.label, request.host, rows, *code)
            events.write(RunPrepared(now(), *what, checkout=checkout.path, asked=asked))
            result = _execute(ready, options, events)
            if result.exit_code is not None:
                events.write(RunEnded(now(), result.id, result.status, result.exit_code))
    if result.status == RUNNING:
        print(f"{batch.id}: the rows continue on {request.host}; `ci-tasks attach {batch.id}` follows them")
    return result


def print_no_rows(source: CheckoutSource, request: RunRequest) -> None:
    """Say why the label has no row."""
    print(f"{VACUOUS}: {why_no_rows(source, request.label, request.base)}; nothing ran, so nothing is shown")


def _execute(ready: PreparedBatch, options: ExecutionOptions, view: EventView) -> BatchResult:
    """The rows together, without records of detached rows that continue."""
    names = [session.name for session in ready.sessions]
    history = durations(ready.rows[0].label, names if len(names) == 1 else ())
    if not ready.threads and ready.planner:
        _install(ready, ready.planner, view, is_first=not history)
    write_phase(ready.batch.path, "running")
    ready.interrupts.leave_on_hangup()
    with ready.threads.running() if ready.threads else nullcontext():
        executions = run_rows(ready, options, view, history)
    records = [execution.record for execution in executions if execution.record is not None]
    if len(records) == len(executions):
        runs = zip(records, executions, strict=True)
        return batch_result(ready.batch.id, records, {record.id: each.run.path for record, each in runs if each.run})
    left = [each.attempt.prepared.run if each.attempt else each.run for each in executions]
    going_on = {f"{ready.batch.id}.{os.path.basename(run.path)}": run.path for run in left if run}
    return BatchResult(ready.batch.id, RUNNING, directories=going_on)


def _install(ready: PreparedBatch, planner: RowPlanner, view: EventView, *, is_first: bool) -> None:
    """The install steps that rows share, on the only host; what the first ones may cost comes before. What ends them
    ends the rows that have not started."""
    session = ready.sessions[0]
    try:
        write_phase(ready.batch.path, "installing")
        setups = planner.setups(session, ready.planned_rows.values())
        if setups and is_first:
            view.print_message("first run of this label: its steps may download packages, with torch some gigabytes")
        ready.interrupts.allow()
        if problem := session.executor.run_install_steps(setups, view.print_message):
            session.unusable_reason = planner.install_problem(problem)
        ready.interrupts.defer()
    except KeyboardInterrupt:
        ready.interrupts.defer()
        if not ready.interrupts.count:
            raise


def changed_runs(source: CheckoutSource, request: RunRequest) -> list[RunRequest]:
    """A run for each CPU label on this machine, then one of the job for changed tests on the host of `request`; which
    test runs where is printed. Raises UnknownName."""
    found = find_rows(source, request.label, event_context(source), request.base)
    tests = {row.test for row in found.rows}
    here = [row for row in list_jobs(source) if row.test in tests and row.gpus == 0 and row.image is None]
    there = [row for row in found.rows if row.test not in {row.test for row in here}]
    chosen = select([*here, *there], request.only, request.label) if found.rows else []
    if not chosen:
        print_no_rows(source, request)
    runs = []
    for label in dict.fromkeys(row.label for row in chosen):
        rows = tuple(row.row for row in chosen if row.label == label)
        run = replace(request, label=label, rows=rows, only=None)
        is_here = any(row.label == label for row in here)
        runs.append(replace(run, host="local", image=None, prefetch=False) if is_here else run)
        print(f"changed: {', '.join(rows)} of {label} on {runs[-1].host}", flush=True)
    if unlisted := [row.row for row in chosen if row in there and row.gpus == 0]:
        print(f"in no CPU label's matrix, so in CI's container: {', '.join(unlisted)}", flush=True)
    return runs


def plan(source: CheckoutSource, config: Config, request: RunRequest, *, makes_on_host: bool = True) -> list[PlanEntry]:
    """Write the run directories that `run` would execute, with their checkouts; `makes_on_host`: on another host
    there too. Returns their plans."""
    if len(config.select_hosts(request.host)) > 1:
        why = "rows are assigned to hosts when GPUs are free"
        raise UsageError(f"plan takes one host, but {request.host} has several: {why}", hint="name one of them")
    print_override_warnings(config, source)
    ready = prepare(source, config, request, open_executor, only_plans=True)
    ready.interrupts.restore()
    if not ready.rows:
        shutil.rmtree(ready.batch.path, ignore_errors=True)
    rows = list(ready.planned_rows.values())
    session = ready.sessions[0]
    with closing(session.executor) as executor:
        if makes_on_host or session.spec.kind == "local":
            executor.prepare_manual_run(rows)
    return [PlanEntry(**vars(row.plan), run_dir=row.run.path, lacks=session.missing_for(row.row)) for row in rows]


# -- `retry` -----------------------------------------------------------------------------------------------------------


def retry(name: str, *, keep: bool, events: EventStream | None = None) -> BatchResult:
    """Run the failed step of a kept run and the steps after it again, in its workspace, with the current working tree.
    It is a run of its own: see ci_tasks.planning.planner. The agent brings the kept workspace to the new tree before it
    starts."""
    from ci_tasks.run.attach import host_of_run

    id, run = _kept_run(name)
    remote = read_remote(run)
    before = replace(read_plan(run), script=Path(run.script).read_text(encoding="utf-8", errors="surrogateescape"))
    spec = host_of_run(remote) if remote else HostSpec(name=before.host, kind="local", env=dict(before.host_env))
    with closing(open_executor(spec)) as executor:
        batch, session = store.new_batch(before.label), HostSession(executor, is_ready=True)
        try:
            row = _planned(before, session, batch, remote.directory if remote else run.path, events_of(run))
        except BaseException:
            shutil.rmtree(batch.path, ignore_errors=True)
            raise
        tree, step = row.plan.checkout.tree, row.plan.retry.step if row.plan.retry else 0
        same = "no file changed, so the same tree runs again" if tree == before.checkout.tree else ""
        print(f"run {row.plan.id}: {id} again from step {step} on {before.host}; {same or f'tree {short(tree)}'}")
        ready = PreparedBatch(batch, (row.row,), (session,), None, row.plan.checkout, planned_rows={0: row})
        ready.interrupts.defer()
        try:
            with closing(EventView(open_view(row.row.row, [row.run]), events)) as view:
                (execution,) = run_rows(ready, ExecutionOptions(), view, {})
        finally:
            ready.interrupts.restore()
        status = read_status_if_readable(row.run)
        records = [execution.record] if execution.record else []
        result = print_results(batch_result(batch.id, records, {row.plan.id: row.run.path}))
        if status.kept is None and status.exists and not keep:
            for line in executor.release_retried(row):
                print(f"left: {line}")
            _forget_kept(id)
        return result


def _planned(before: Plan, session: HostSession, batch: store.Batch, kept: str, events: Sequence[Event]) -> PreparedRow:
    """The rest of a run that was kept in the directory `kept` of its host, after these `events`."""
    code, run = take_host_snapshot(Path(before.checkout.path), None), batch.run_dir(1)
    session.executor.use(batch, code)
    checkout = replace(code.checkout, path=before.checkout.path, sample=before.checkout.sample)
    there, step = session.executor.paths(run).run, failed_step(before, events)
    plan = retry_plan(before, id=batch.run_id(1), run_dir=there, earlier_dir=kept, step=step, checkout=checkout)
    test = code.read_file(before.test) if before.test else None
    plan = replace(plan, defines_tests=defines_tests(test or ""))
    session.executor.write_plan(run, plan)
    same = {name: getattr(plan, name) for name in ("label", "job", "row", "test", "args", "image", "env")}
    row = Row(**same, gpus=0, trigger=None, runner="", timeout_minutes=plan.timeout_minutes)
    return PreparedRow(row, plan, run, None)


def _kept_run(name: str) -> tuple[str, RunDir]:
    """The run that is meant: of several the one that was kept. Raises UsageError."""
    kept = [(id, run) for id, run in store.find(name) if read_status_if_readable(run).kept is not None]
    id, run = kept[0] if len(kept) == 1 else find_one(name)
    remote, status, plan = read_remote(run), read_status_if_readable(run), read_plan(run)
    checkout, words = plan.checkout, ["--host", plan.host or "local", plan.label, "--only", plan.row, "--keep"]
    code = [*(() if checkout.sample else ("--repo", checkout.path)), *(("--rev", checkout.rev) if checkout.rev else ())]
    row = shlex.join(["ci-tasks", "remote", *code, *words])
    why, hint = "", f"run the whole row again: `{row}`"
    if not checkout.sample and not os.path.isdir(checkout.path):
        hint = "run the row in another checkout with --keep"
    if remote is not None and remote.adopted:
        why, hint = "was started from another machine", "retry it there: this machine does not have its script"
    elif remote is not None and remote.kind == "slurm":
        why = "ran on Slurm, and its allocation ended, so its workspace is gone"
    elif status.exists and not is_over(run):
        why, hint = "has not ended", f"`ci-tasks attach {id}` waits for it, `ci-tasks cancel {id}` ends it"
    elif status.kept is None and load_record(run).status == PASSED:
        why = "passed: it has no failed step to run again"
    elif status.kept is None:
        why = "was not kept: use --keep, which keeps failed runs"
    elif checkout.overlays or checkout.rev:
        why = f"ran {f'at {checkout.rev}' if checkout.rev else 'with overlays'}; `retry` runs the working tree"
    elif not os.path.isdir(checkout.path):
        why = f"belongs to {checkout.path}, which no longer exists"
    if why:
        raise UsageError(f"{id} {why}", hint=hint)
    return id, run


def _forget_kept(id: str) -> None:
    """Nothing is left of the run, and of the runs that it continued, if they are known here."""
    while id:
        try:
            ((_, run),) = store.find(id)
        except UsageError:  # `clean` has removed it
            return
        status = read_status_if_readable(run)
        write_record(run.status, replace(status, kept=None, sequence=status.sequence + 1))
        id = read_plan(run).retry_of
