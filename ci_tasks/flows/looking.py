"""`runs`: looking at runs that exist. The run directory is the truth; this only reads it."""

from __future__ import annotations

from typing import Any

from ci_tasks.runs import store
from ci_tasks.runs.record import load


def list_runs(limit: int) -> list[dict[str, Any]]:
    """The newest runs' records."""
    return [load(run) for _, (_, run) in zip(range(limit), store.run_dirs(), strict=False)]
