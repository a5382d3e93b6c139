"""One answer for a log, or a run, of several jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.records import BLOCKED, CANCELLED, FAILED, Triage, TriagedJob


def together(jobs: Sequence[tuple[str, Triage]]) -> Triage:
    """The triage of the first job that failed, with all that did; those that failed in the same way are listed once."""
    if len(jobs) == 1:
        return jobs[0][1]
    failed = [pair for pair in jobs if pair[1].verdict in (FAILED, BLOCKED, CANCELLED)]
    alike: dict[object, list[tuple[str, Triage]]] = {}
    for name, found in failed:
        alike.setdefault(found.kind or (found.cause, name), []).append((name, found))
    listed = tuple(
        TriagedJob(
            pairs[0][0], first.verdict, first.cause, first.line_no, first.text, tuple(name for name, _ in pairs[1:])
        )
        for pairs in alike.values()
        for first in [pairs[0][1]]
    )
    return replace((failed or jobs)[0][1], jobs=listed)
