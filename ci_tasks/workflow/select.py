"""Which job a label means, and which rows `--only` chooses."""

from __future__ import annotations

from ci_tasks.errors import UnknownName
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.naming import label_of, matches_job
from ci_tasks.workflow.rows import trigger_of


def job_of(workflow: Workflow, label: str) -> Job:
    """The job of a label, or of a job's full name. Raises UnknownName."""
    for job in workflow.jobs.values():
        if matches_job(label, job.id):
            return job
    labels = [label_of(name) for name in workflow.jobs]
    triggers = [trigger for job in workflow.jobs.values() if (trigger := trigger_of(workflow, job))]
    raise UnknownName("label", label, labels, where=workflow.path, aliases=[*workflow.jobs, *triggers])


def select(rows: list[Row], only: str | None, label: str) -> list[Row]:
    """The rows whose name has one of `only`'s parts in it, which commas divide. UnknownName for a part of none."""
    parts = [part.strip() for part in (only or "").split(",") if part.strip()]
    for part in parts:
        if not any(part in row.row for row in rows):
            raise UnknownName("row", part, [row.row for row in rows], where=f"label {label}")
    return [row for row in rows if not parts or any(part in row.row for part in parts)]
