"""A level as a job of a workflow, so that it is planned, sent, run and recorded as every CI job is."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.workflow.model import Container, Job, Step, Workflow
from ci_tasks.workflow.suite import Suite

LABEL = "verl"
_STEP = Step("verl", 2, shell="bash {0}")
_OPTIONS = "--privileged --network host --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864"


def workflow(
    level: int, script: str, *, gpus: int, image: str | None, volumes: tuple[str, ...], minutes: float
) -> Workflow:
    """`volumes` are `HOST:CONTAINER`."""
    job = Job(
        id=LABEL,
        line=1,
        runs_on="self-hosted",
        matrix={"info": [{"num_gpus": gpus, "level": f"level {level}"}]},
        container=Container(image, _OPTIONS, volumes=volumes) if image else None,
        steps=(Step("trees", 1, uses="actions/checkout@v4"), replace(_STEP, run=script)),
        timeout_minutes=minutes,
    )
    return Workflow(path=f"verl level {level}", name="verl end-to-end", jobs={LABEL: job})


def _is_level(workflow: Workflow) -> bool:
    job = workflow.jobs.get(LABEL)
    return job is not None and any(replace(step, run="") == replace(_STEP, run="") for step in job.steps)


SUITE = Suite(
    name="verl",
    matches=_is_level,
    packages=("verl", "megatron.bridge", "mbridge"),
    probe_hook="ci_tasks.features.verl.probe_hook",
)
