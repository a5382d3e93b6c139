"""A level as a job of a workflow, so that it is planned, sent, run and recorded as every CI job is."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.model import Container, Job, Step, Workflow
from ci_tasks.suites.verl.levels import Training, Wish
from ci_tasks.suites.verl.script import render

LABEL = "verl"
STEP = "verl"
_OPTIONS = "--privileged --network host --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864"


def workflow(
    wish: Wish,
    trainings: Sequence[Training],
    image: str | None,
    *,
    volumes: Sequence[str],
    minutes: float,
    pretend: bool,
    contained: bool,
) -> Workflow:
    """`image` is None where nobody names one; `volumes` are `HOST:CONTAINER` directories of data. `pretend` is for a
    host that simulates, `contained` for one that runs the job in a container."""
    container = Container(image, _OPTIONS, volumes=tuple(volumes)) if image else None
    job = Job(
        id=LABEL,
        line=1,
        runs_on="self-hosted",
        matrix={"info": [{"num_gpus": wish.gpus, "level": f"level {wish.level}"}]},
        container=container,
        steps=(
            Step("trees", 1, uses="actions/checkout@v4"),
            Step(STEP, 2, run=render(wish, trainings, pretend=pretend, contained=contained), shell="bash {0}"),
        ),
        timeout_minutes=minutes,
    )
    return Workflow(path=f"verl level {wish.level}", name="verl end-to-end", jobs={LABEL: job})
