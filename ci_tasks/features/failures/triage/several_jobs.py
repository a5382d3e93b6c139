"""One answer for a log, or a run, of several jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.records import BLOCKED, CANCELLED, FAILED, Triage


def together(jobs: Sequence[tuple[str, Triage]]) -> Triage:
    """The triage of the first job that failed, with all that did; those that failed in the same way are listed once."""
    if len(jobs) == 1:
        return jobs[0][1]
    failed = [pair for pair in jobs if pair[1].verdict in (FAILED, BLOCKED, CANCELLED)]
    alike: dict[str, list[tuple[str, Triage]]] = {}
    for name, found in failed:
        alike.setdefault(found.kind or name, []).append((name, found))
    listed = {", ".join(name for name, _ in pairs): _how(pairs[0][1]) for pairs in alike.values()}
    return replace((failed or jobs)[0][1], jobs=listed)


def _how(found: Triage) -> str:
    return f"{found.verdict}, {found.cause}{f': {found.text}' if found.text else ''}"
