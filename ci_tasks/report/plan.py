"""Plans as text: where each run directory is, and what differs from CI."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.report.table import columns, deviations, some


def describe(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a plan, then what is missing on the host, then the deviations."""
    if not plans:
        return ["no row to plan"]
    head = ("ROW", "GPUS", "RUN BY HAND")
    body = [(p["row"], str(p["gpus"]), f"bash {shlex.quote(p['run_dir'] + '/run.sh')}") for p in plans]
    lacking = _lacking(plans)
    secrets = sorted({name for p in plans for name in p["secrets"]})
    lines = columns([head, *body])
    if secrets:
        lines += ["", f"Secrets, from the environment: {', '.join(secrets)}"]
    if lacking:
        lines += ["", "Cannot run here:", *(f"  {line}" for line in lacking)]
    return [*lines, "", *deviations(plans)]


def _lacking(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is missing, a line for each kind of it with the rows that lack it."""
    found: dict[str, list[str]] = {}
    for p in plans:
        if p["lacks"]:
            found.setdefault(f"{p['host']} lacks {'; '.join(p['lacks'])}", []).append(p["row"])
    return [f"{some(rows)}: {what}" for what, rows in found.items()]
