"""What the probe looks for in the run of a level."""

from __future__ import annotations

from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.suite import Suite


def matches(workflow: Workflow) -> bool:
    """Whether it is a level: `levels.job.workflow` made it."""
    from ci_tasks.features.verl.levels.job import LABEL, STEP

    job = workflow.jobs.get(LABEL)
    return job is not None and any(step.name == STEP and step.line == 2 for step in job.steps)


SUITE = Suite(
    name="verl",
    matches=matches,
    packages=("verl", "megatron.bridge", "mbridge"),
    probe_hook="ci_tasks.features.verl.probe_hook",
)
