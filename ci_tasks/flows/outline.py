"""The labels and row names of a workflow, and nothing else: what `nox -l` needs, at the price of few imports."""

from __future__ import annotations

from ci_tasks.flows.source import Source
from ci_tasks.suites import slime
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import Situation


def outline(source: Source) -> dict[str, list[str]]:
    """Label → row names; a matrix that is not known yet has none. Raises WorkflowError."""
    known = Situation(secrets=source.workflow.secrets)
    return {
        rows.label_of(job.id): rows.names(source.workflow, job, known, slime.describe)
        for job in source.workflow.jobs.values()
    }
