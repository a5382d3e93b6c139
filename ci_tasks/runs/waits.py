"""How long a run waited for GPUs and host-wide locks that others held, before its job or in it: by events.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ci_tasks.runner.layout import RunDir

_LARGEST = 1 << 22  # bytes; the job can write there too
_FAR = 1e12  # seconds since 1970; no clock says so
_BEGINS = "waiting"
_ENDS = ("gpus", "step", "cancelled", "timeout", "ended")


def queued(run: RunDir) -> float | None:
    """Seconds; 0 where nothing kept it waiting, None where its events do not say."""
    try:
        with open(run.events, "rb") as source:
            return waited(source.read(_LARGEST).splitlines())
    except OSError:
        return None


def waited(lines: Iterable[bytes]) -> float | None:
    """The sum of all waits in the lines of an events.jsonl. One ends with what it was for, or with the run."""
    begun, since, total = False, None, 0.0
    for event in map(_event, lines):
        name, at = event.get("event"), event.get("t")
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 < at < _FAR:
            continue
        begun = begun or name == "started"
        if name == _BEGINS:
            since = at if since is None else since
        elif since is not None and name in _ENDS:
            total, since = total + max(0.0, at - since), None
    return round(total, 3) if begun and since is None else None


def _event(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
