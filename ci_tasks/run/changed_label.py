"""`run changed`: tests that a change touches, each where it can run.

A test that a CPU label has too runs on this machine as that label's row. The others are rows of the job for changed
tests, as in CI, and run on the host that was asked for. What CI's own detection leaves out is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import BASE
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, counted
from ci_tasks.hosts.executor import OpenExecutor
from ci_tasks.records import BLOCKED, EXIT_CODES, FAILED, PASSED, VACUOUS, BatchResult
from ci_tasks.report.table import Table
from ci_tasks.results.history import latest
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import JobRows, find_rows, list_jobs
from ci_tasks.run.label import LabelResult, execute_label, write_junit
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.run.results_table import kept_lines, print_results, statuses
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.changed_tests import is_test
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

_LOCAL = "local"


@dataclass(frozen=True)
class ChangedRows:
    """`cpu_rows` are those of CPU labels, `rows` those of the job for changed tests that are left. `not_run` is what is
    not run here: path → reason."""

    cpu_rows: Sequence[Row]
    rows: Sequence[Row]
    not_run: Mapping[str, str]


def run_changed(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    options: ExecutionOptions,
    *,
    open_executor: OpenExecutor,
    last_failed: bool = False,
) -> BatchResult:
    """Run the changed tests and end with one table."""
    results: list[LabelResult] = []
    for part in changed_runs(source, request, last_failed=last_failed):
        if options.fail_fast and any(FAILED in statuses(result.records) for result in results):
            print(f"--fail-fast: not started: {', '.join(part.rows)}")
            continue
        result = execute_label(source, config, part, options, open_executor=open_executor)
        results += [result] if result else []
    return _end(results, request, config) if results else BatchResult("", VACUOUS, EXIT_CODES[VACUOUS])


def changed_runs(source: CheckoutSource, request: RunRequest, *, last_failed: bool = False) -> list[RunRequest]:
    """Print which changed test runs where, and which does not. Returns what is to be run: with `last_failed` only rows
    that did not pass in the last run of their label. Raises UsageError where that leaves none."""
    print(source.headline, flush=True)
    found = find_rows(source, request.label, event_context(source), request.base)
    changed = divide(found, list_jobs(source), request.only, request.label)
    for line in _overview(changed, request):
        print(line, flush=True)
    for deviation in found.deviations:
        print(f"Otherwise than in CI: {deviation.why}", flush=True)
    runs = [*parts(changed, request)]
    if not runs:
        what = "no changed test is run here" if changed.not_run else "no test file is new or modified"
        print(f"{VACUOUS}: {what} since {request.base or BASE}; nothing ran, so nothing is shown")
    if not last_failed or not runs:
        return runs
    for at, run in enumerate(runs):
        passed = {last.row for last in latest(run.label, str(source.path)) if last.status == PASSED}
        runs[at] = replace(run, rows=tuple(name for name in run.rows if name not in passed))
    if not any(run.rows for run in runs):
        raise UsageError("every changed test passed in the last run of its label", hint="run it without --last-failed")
    return [run for run in runs if run.rows]


def divide(found: JobRows, rows: Sequence[Row], only: str | None = None, label: str = "") -> ChangedRows:
    """`found` are the rows of CI's job for changed tests, `rows` those of all labels. Of these, those whose name has a
    part of `only` in it. Raises UnknownName."""
    tests = {row.test: row for row in found.rows if row.test}
    cpu_rows = [row for row in rows if (row.test in tests or row.test in found.left_out) and is_on_cpu(row)]
    on_cpu = {row.test for row in cpu_rows}
    not_run = {path: "no test by its name, though CI's detection selects it" for path in tests if not is_test(path)}
    for path in found.left_out.keys() - on_cpu:
        labels = ", ".join(dict.fromkeys(row.label for row in rows if row.test == path))
        not_run[path] = f"CI leaves it out: {found.left_out[path]}{f'; label {labels} runs it' if labels else ''}"
    left = [row for row in found.rows if row.test not in on_cpu and row.test not in not_run]
    chosen = select([*cpu_rows, *left], only, label) if only else [*cpu_rows, *left]
    return ChangedRows([row for row in cpu_rows if row in chosen], [row for row in left if row in chosen], not_run)


def is_on_cpu(row: Row) -> bool:
    """Whether any machine can run it: no GPU, and no container."""
    return row.gpus == 0 and row.image is None


def parts(changed: ChangedRows, request: RunRequest) -> Iterator[RunRequest]:
    """A run for each CPU label on this machine, then one of the job for changed tests on the host of `request`."""
    for label in dict.fromkeys(row.label for row in changed.cpu_rows):
        names = tuple(row.row for row in changed.cpu_rows if row.label == label)
        yield replace(request, label=label, rows=names, only=None, host=_LOCAL, image=None, prefetch=False)
    if changed.rows:
        yield replace(request, rows=tuple(row.row for row in changed.rows), only=None)


def _overview(changed: ChangedRows, request: RunRequest) -> Iterator[str]:
    """Every changed test with where it runs, or why it does not."""
    running = [(f"  {row.test}", f"row {row.row} of {row.label}, here") for row in changed.cpu_rows]
    for row in changed.rows:
        gpus = "GPUs unknown" if row.gpus is None else counted(row.gpus, "GPU")
        running.append((f"  {row.test}", f"row {row.row} of {row.label}, {gpus}, on {request.host}"))
    not_run = [(f"  {path}", why) for path, why in sorted(changed.not_run.items())]
    for heading, rows in ((f"Changed since {request.base or BASE}:", running), ("Changed, and not run:", not_run)):
        if rows:
            yield from (heading, *Table(rows).text(terminal_width()))


def _end(results: Sequence[LabelResult], request: RunRequest, config: Config) -> BatchResult:
    """Print one table of all parts."""
    for result in results:
        if not result.records:
            print(f"{result.batch}: the rows continue; `ci-tasks attach {result.batch}` follows them")
    ended = [result for result in results if result.records]
    if not ended:
        return results[-1].going_on
    records = [record for result in ended for record in result.records]
    logs = [log for result in ended for log in result.logs]
    also = [f"JUnit of {result.batch}: {write_junit(result)}" for result in ended if len(result.records) > 1]
    also += kept_lines(records, logs)
    blocked = [record.row for record in records if record.label == request.label and record.status == BLOCKED]
    if blocked and request.host == _LOCAL:
        host = next((name for name, spec in config.hosts.items() if spec.kind != "local"), "HOST")
        only = shlex.quote(",".join(blocked))
        also.append(f"on a host with GPUs: `ci-tasks remote --host {host} {request.label} --only {only}`")
    gpus = {host: count for result in results for host, count in result.host_gpus.items()}
    return print_results(records, logs, request.label, gpus, also)
