"""Plans as text: where each run directory is, and what differs from CI."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_tasks.errors import some
from ci_tasks.records import PlanEntry
from ci_tasks.report.layout import columns, paragraph
from ci_tasks.report.table import deviations


def describe(plans: Sequence[PlanEntry], width: int | None = None) -> list[str]:
    """One line a plan, of which there is at least one; then what is missing on the host, then the deviations."""
    head = ("ROW", "GPUS", "RUN BY HAND")
    directory = plans[0].run_dir.rpartition("/")[0]
    body = [(p.row, str(p.gpus), f"bash {shlex.quote(p.run_dir.rpartition('/')[2] + '/run.sh')}") for p in plans]
    lacking = _lacking(plans)
    secrets = sorted({name for p in plans for name in p.secrets})
    lines = [f"cd {shlex.quote(directory)}", "", *columns(body, width, head=head, names=[0])]
    if secrets:
        lines += ["", f"Secrets, from the environment: {', '.join(secrets)}"]
    if lacking:
        lines += ["", "Cannot run here:", *(part for line in lacking for part in paragraph(line, width, "  "))]
    return [*lines, "", *deviations(plans, width)]


def _lacking(plans: Sequence[PlanEntry]) -> list[str]:
    """What is missing, a line for each kind of it with the rows that lack it."""
    rows_by_problem: dict[str, list[str]] = {}
    for p in plans:
        if p.lacks:
            rows_by_problem.setdefault(f"{p.host} lacks {'; '.join(p.lacks)}", []).append(p.row)
    return [
        f"{some(rows, 2) if len(rows) < len(plans) or len(rows) == 1 else 'all rows'}: {what}"
        for what, rows in rows_by_problem.items()
    ]
