"""`run changed`: tests that a change touches, each where it can run.

A test that a CPU label has too runs on this machine as that label's row. The others are rows of the job for changed
tests, as in CI, and run on the host that was asked for.
"""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.config import Config
from ci_tasks.hosts.executor import OpenExecutor
from ci_tasks.records import EXIT_CODES, VACUOUS, BatchResult
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import find_rows, list_jobs, why_no_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.run.results_table import kept_lines, print_results
from ci_tasks.workflow.rows import select


def run_changed(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    options: ExecutionOptions,
    *,
    open_executor: OpenExecutor,
) -> BatchResult:
    """Run the changed tests and end with one table."""
    parts = changed_runs(source, request)
    done = [execute_label(source, config, part, options, open_executor=open_executor) for part in parts]
    results = [result for result in done if result]
    for result in results:
        if not result.records:
            print(f"{result.batch}: the rows continue; `ci-tasks attach {result.batch}` follows them")
    records = [record for result in results for record in result.records]
    logs = [log for result in results if result.records for log in result.logs]
    gpus = {host: count for result in results for host, count in result.host_gpus.items()}
    if records:
        return print_results(records, logs, request.label, gpus, kept_lines(records, logs))
    return results[-1].going_on if results else BatchResult("", VACUOUS, EXIT_CODES[VACUOUS])


def changed_runs(source: CheckoutSource, request: RunRequest) -> list[RunRequest]:
    """A run for each CPU label on this machine, then one of the job for changed tests on the host of `request`; which
    test runs where is printed. Raises UnknownName."""
    print(source.headline, flush=True)
    found = find_rows(source, request.label, event_context(source), request.base)
    for deviation in found.deviations:
        print(f"otherwise than in CI: {deviation.why}", flush=True)
    tests = {row.test for row in found.rows}
    here = [row for row in list_jobs(source) if row.test in tests and row.gpus == 0 and row.image is None]
    there = [row for row in found.rows if row.test not in {row.test for row in here}]
    chosen = select([*here, *there], request.only, request.label)
    if not chosen:
        why = why_no_rows(source, request.label, request.base)
        print(f"{VACUOUS}: {why}; nothing ran, so nothing is shown")
    runs = []
    for label in dict.fromkeys(row.label for row in chosen):
        rows = tuple(row.row for row in chosen if row.label == label)
        run = replace(request, label=label, rows=rows, only=None)
        is_here = any(row.label == label for row in here)
        runs.append(replace(run, host="local", image=None, nodes=1, prefetch=False) if is_here else run)
        print(f"changed: {', '.join(rows)} of {label} on {runs[-1].host}", flush=True)
    return runs
