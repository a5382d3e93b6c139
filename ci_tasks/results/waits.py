"""How long a run waited for GPUs and host-wide locks that others held, before its job or in it: by events.jsonl."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.records import Event

_FAR = 1e12  # seconds since 1970; no clock says so
_BEGINS = "waiting"
_ENDS = ("gpus", "step", "cancelled", "timeout", "ended")


def queue_seconds(events: Iterable[Event]) -> float | None:
    """The sum of all waits in seconds; 0 where nothing kept the run waiting, None where its events do not say. A wait
    ends with what it was for, or with the run."""
    begun, since, total = False, None, 0.0
    for event in events:
        if not 0 < event.t < _FAR:
            continue
        begun = begun or event.event == "started"
        if event.event == _BEGINS:
            since = event.t if since is None else since
        elif since is not None and event.event in _ENDS:
            total, since = total + max(0.0, event.t - since), None
    return round(total, 3) if begun and since is None else None
