"""The labels and row names of a workflow, and nothing else: what `nox -l` needs, at the price of few imports."""

from __future__ import annotations

from ci_tasks.errors import WorkflowError
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.workflow.model import Job
from ci_tasks.workflow.suite import label_of, plain_names


def outline(source: CheckoutSource) -> dict[str, list[str]]:
    """Label → row names; none for a matrix that another job's output gives, or that has an error."""
    return {label_of(job.id): _names(source, job) for job in source.workflow.labelled}


def _names(source: CheckoutSource, job: Job) -> list[str]:
    if isinstance(job.matrix, str) and "needs." in job.matrix:
        return []
    names = None if job.call else plain_names(label_of(job.id), job.matrix, source.suite.describe)
    if names is None:
        from ci_tasks.workflow import rows
        from ci_tasks.workflow.context import EventContext

        event = EventContext(secrets=source.workflow.secrets)
        try:
            names = rows.names(source.workflow, job, event, source.suite.describe)
        except WorkflowError:
            return []  # `jobs` says why
    return names
