"""The labels and row names of a workflow, and nothing else: what `nox -l` needs, at the price of few imports."""

from __future__ import annotations

from ci_tasks.flows.source import Source
from ci_tasks.model import Job
from ci_tasks.suites import slime
from ci_tasks.workflow.naming import label_of, plain_names


def outline(source: Source) -> dict[str, list[str]]:
    """Label → row names; none for a matrix that another job's output gives. Raises WorkflowError."""
    return {label_of(job.id): _names(source, job) for job in source.workflow.jobs.values()}


def _names(source: Source, job: Job) -> list[str]:
    if isinstance(job.matrix, str) and "needs." in job.matrix:
        return []
    found = plain_names(label_of(job.id), job.matrix, slime.describe)
    if found is None:
        from ci_tasks.workflow import rows
        from ci_tasks.workflow.context import Situation

        found = rows.names(source.workflow, job, Situation(secrets=source.workflow.secrets), slime.describe)
    return found
