"""The labels and row names of a workflow, and nothing else: what `nox -l` needs, at the price of few imports."""

from __future__ import annotations

from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.workflow.model import Job
from ci_tasks.workflow.suite import label_of, plain_names


def outline(source: CheckoutSource) -> dict[str, list[str]]:
    """Label → row names; none for a matrix that another job's output gives. Raises WorkflowError."""
    return {label_of(job.id): _names(source, job) for job in source.workflow.jobs.values()}


def _names(source: CheckoutSource, job: Job) -> list[str]:
    if isinstance(job.matrix, str) and "needs." in job.matrix:
        return []
    names = plain_names(label_of(job.id), job.matrix, source.suite.describe)
    if names is None:
        from ci_tasks.workflow import rows
        from ci_tasks.workflow.context import EventContext

        names = rows.names(source.workflow, job, EventContext(secrets=source.workflow.secrets), source.suite.describe)
    return names
