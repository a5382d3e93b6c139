"""Times of a run by this machine's clock. A host writes its own, which may be wrong by an hour or a year."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.records import Event, Status
from ci_tasks.agent.run_directory import RunDir, read_remote, read_status


def clock_ahead(run: RunDir) -> float:
    """How many seconds the clock that the run's times are from is ahead of ours."""
    try:
        remote = read_remote(run)
    except (OSError, RecordError):
        return 0.0
    return remote.clock_ahead if remote is not None else 0.0


def local_status(run: RunDir) -> Status:
    """status.json with times by our clock."""
    status, ahead = read_status(run), clock_ahead(run)
    if not ahead:
        return status
    times = (status.started_at, status.heartbeat_at, status.ended_at)
    started, heartbeat, ended = (None if moment is None else moment - ahead for moment in times)
    return replace(status, started_at=started, heartbeat_at=heartbeat, ended_at=ended)


def local_events(run: RunDir, events: Iterable[Event]) -> list[Event]:
    """The events with times by our clock."""
    ahead = clock_ahead(run)
    return [replace(event, t=event.t - ahead) if ahead else event for event in events]


def seconds_since_start(run: RunDir) -> float | None:
    """None for a run that has not started."""
    started = local_status(run).started_at
    return None if started is None else max(0.0, time.time() - started)
