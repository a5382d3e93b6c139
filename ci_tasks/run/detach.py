"""`--detach`: every row is begun where it is to run, and goes on by itself. The locks on the hosts say which waits for
which."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.hosts.executor import Executor, PreparedRow
from ci_tasks.records import BLOCKED, CANCELLED, RunRecord
from ci_tasks.results.runs import record_not_started
from ci_tasks.run.execute import why_blocked
from ci_tasks.run.interrupts import Interrupts
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.progress import ProgressView, running_row_progress

_POLL_SECONDS = 0.05


def start_detached(ready: PreparedBatch, view: ProgressView) -> list[RunRecord]:
    """Start every row of the one host and let it go on by itself. Returns the records of all rows where one of them
    could not begin, or ^C came before all had; then those that could are ended again."""
    rows = [ready.planned_rows[position] for position in range(len(ready.rows))]
    problems = {position: why_blocked(row) for position, row in enumerate(rows) if row.missing}
    started: list[PreparedRow] = []
    executor = ready.sessions[0].executor
    status, others = BLOCKED, "another row of the command could not begin"
    try:
        if not problems:
            problems = _start_rows(rows, started, ready, view)
    except KeyboardInterrupt:
        status, others = CANCELLED, "cancelled before all rows had begun"
    else:
        if not problems:
            executor.detach()
            return []
    _cancel_started(executor, started, ready.interrupts, view)
    return [record_not_started(row.run, status, problems.get(position, others)) for position, row in enumerate(rows)]


def _start_rows(
    rows: Sequence[PreparedRow], started: list[PreparedRow], ready: PreparedBatch, view: ProgressView
) -> dict[int, str]:
    """Begin every row, noting it in `started`. Returns why, of those that could not. Raises KeyboardInterrupt."""
    executor = ready.sessions[0].executor
    for row in rows:
        ready.interrupts.check()
        started.append(row)
        executor.start(row)
    while True:
        ready.interrupts.check()
        states = [executor.poll(row) for row in rows]
        if all(state.has_started or state.aborted for state in states):
            return {position: state.aborted[1] for position, state in enumerate(states) if state.aborted}
        view.update([running_row_progress(row.plan.row, row.run, 0.0, executor.poll(row).note) for row in rows])
        executor.wait(_POLL_SECONDS)


def _cancel_started(
    executor: Executor, started: Sequence[PreparedRow], interrupts: Interrupts, view: ProgressView
) -> None:
    """End what was begun, and wait until it has; a further ^C kills it, and one more leaves it."""
    view.print_message(f"cancelling the rows that have started ({len(started)})")
    for kill in (False, True, True):
        count = interrupts.count
        executor.cancel(started, kill=kill)
        while interrupts.count == count:
            if all(executor.poll(row).is_over for row in started):
                return
            executor.wait(_POLL_SECONDS)
