"""Plans as text: where each run directory is, and what differs from CI."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_tasks.records import PlannedRun
from ci_tasks.report.table import columns, deviations, some


def describe(plans: Sequence[PlannedRun]) -> list[str]:
    """One line a plan, then what is missing on the host, then the deviations."""
    if not plans:
        return ["no row to plan"]
    head = ("ROW", "GPUS", "RUN BY HAND")
    body = [(p.plan.row, str(p.plan.gpus), f"bash {shlex.quote(p.run_dir + '/run.sh')}") for p in plans]
    lacking = _lacking(plans)
    secrets = sorted({name for p in plans for name in p.plan.secrets})
    lines = columns([head, *body])
    if secrets:
        lines += ["", f"Secrets, from the environment: {', '.join(secrets)}"]
    if lacking:
        lines += ["", "Cannot run here:", *(f"  {line}" for line in lacking)]
    return [*lines, "", *deviations([p.plan for p in plans])]


def _lacking(plans: Sequence[PlannedRun]) -> list[str]:
    """What is missing, a line for each kind of it with the rows that lack it."""
    rows_by_problem: dict[str, list[str]] = {}
    for p in plans:
        if p.lacks:
            rows_by_problem.setdefault(f"{p.plan.host} lacks {'; '.join(p.lacks)}", []).append(p.plan.row)
    return [f"{some(rows)}: {what}" for what, rows in rows_by_problem.items()]
