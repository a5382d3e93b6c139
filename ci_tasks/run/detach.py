"""`--detach`: every row is started where it is to run, and goes on by itself. The locks on the host say which waits for
which."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ci_tasks.agent.run_directory import read_status_if_readable
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.records import BLOCKED, CANCELLED, RunRecord
from ci_tasks.results.runs import record_not_started
from ci_tasks.run.events import ProgressView
from ci_tasks.run.execute import why_blocked
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.progress import running_row_progress

_POLL_SECONDS = 0.05
_STANDING_SECONDS = 2.0  # seconds after the start of the last row for which it is waited whether the rows wait


def start_detached(ready: PreparedBatch, view: ProgressView) -> list[RunRecord]:
    """Start every row of the one host and let it go on by itself. Returns the records of all rows where one of them
    could not start, or ^C came before all had; then those that could are ended again."""
    rows = [ready.planned_rows[position] for position in range(len(ready.rows))]
    problems = {row.plan.id: why_blocked(row) for row in rows if row.missing}
    started: list[PreparedRow] = []
    executor, all_started_at = ready.sessions[0].executor, time.monotonic()
    status, others = BLOCKED, "another row of the command could not begin"
    try:
        for row in rows if not problems else ():
            ready.interrupts.check()
            started.append(row)
            executor.start(row)
        while started:
            ready.interrupts.check()
            states = [executor.poll(row) for row in started]
            problems = {row.plan.id: state.aborted[1] for row, state in zip(rows, states, strict=True) if state.aborted}
            if problems or (all(state.has_started for state in states) and _is_known(started, all_started_at)):
                break
            all_started_at = all_started_at if all(state.has_started for state in states) else time.monotonic()
            view.update([running_row_progress(row.plan.row, row.run, 0.0, executor.poll(row).note) for row in rows])
            executor.wait(_POLL_SECONDS)
    except KeyboardInterrupt:
        status, others = CANCELLED, "cancelled before all rows had begun"
    else:
        if not problems:
            executor.detach()
            return []
    _cancel_started(ready, started, view)
    return [record_not_started(row.run, status, problems.get(row.plan.id, others)) for row in rows]


def _cancel_started(ready: PreparedBatch, started: Sequence[PreparedRow], view: ProgressView) -> None:
    """End what was started, and wait until it has; a further ^C kills it, and one more leaves it."""
    executor, interrupts = ready.sessions[0].executor, ready.interrupts
    view.print_message(f"cancelling the rows that have started ({len(started)})")
    for kill in (False, True, True):
        count = interrupts.count
        executor.cancel(started, kill=kill)
        while interrupts.count == count:
            if all(executor.poll(row).is_over for row in started):
                return
            executor.wait(_POLL_SECONDS)


def _is_known(rows: Sequence[PreparedRow], all_started_at: float) -> bool:
    """Whether each row is known to run or to wait, or that takes too long to say."""
    is_late = time.monotonic() > all_started_at + _STANDING_SECONDS
    return is_late or all(read_status_if_readable(row.run).phase != "starting" for row in rows)


def detached_lines(rows: Sequence[PreparedRow]) -> list[str]:
    """Which of the rows run, and what the others wait for."""
    lines = []
    for row in rows:
        status = read_status_if_readable(row.run)
        waits = f"waits: {'; '.join(status.waiting)}"
        lines.append(
            f"  {row.plan.row} {waits if status.waiting else 'runs' if status.phase == 'running' else 'starts'}"
        )
    return lines
