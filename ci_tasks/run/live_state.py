"""How the rows and hosts of a command stand, for a view."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ci_tasks.report.live import WAITING, HostProgress, RowProgress
from ci_tasks.run.host_sessions import HostSession
from ci_tasks.run.progress_view import running_row_progress
from ci_tasks.run.row_execution import RowExecution


def row_progress(executions: Sequence[RowExecution]) -> list[RowProgress]:
    """A lane for each row, in their order."""
    return [_row_progress(execution) for execution in executions]


def host_progress(sessions: Sequence[HostSession], executions: Sequence[RowExecution]) -> list[HostProgress]:
    """A lane for each host."""
    ours = dict.fromkeys((session.name for session in sessions), 0)
    for execution in executions:
        if execution.is_running and execution.session is not None:
            ours[execution.session.name] += execution.row.needed_gpus
    return [_host_progress(session, ours[session.name]) for session in sessions]


def _row_progress(execution: RowExecution) -> RowProgress:
    name, gpus, first = execution.row.row, execution.row.needed_gpus, not execution.expected.from_history
    if execution.record is not None:
        record = execution.record
        return RowProgress(
            name,
            record.status,
            record.timings.seconds,
            record.reason,
            host=record.host or "",
            gpus=gpus,
            attempt=execution.attempt,
        )
    if execution.prepared is None or execution.session is None:
        return RowProgress(
            name, WAITING, None, execution.wait_reason, gpus=gpus, attempt=execution.attempt, first_run=first
        )
    seconds = time.monotonic() - execution.started_at
    note = execution.session.executor.poll(execution.prepared).note
    return running_row_progress(
        name,
        execution.prepared.run,
        seconds,
        note,
        host=execution.session.name,
        gpus=gpus,
        left=None if first else execution.expected.seconds - seconds,
        first_run=first,
        attempt=execution.attempt,
    )


def _host_progress(session: HostSession, ours: int) -> HostProgress:
    facts = session.facts
    is_away = bool(session.unusable_reason) or (session.is_ready and not session.executor.is_up)
    note = session.unusable_reason or session.activity or ("the link is down" if is_away else "")
    return HostProgress(
        session.name,
        None if facts is None or session.executor.has_scheduler else facts.gpus,
        held=max(0, len(session.locked_gpus) - ours),
        up=not is_away,
        note=note,
    )
