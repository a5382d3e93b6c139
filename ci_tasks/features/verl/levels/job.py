"""A level as a job of a workflow, so that it is planned, sent, run and recorded as every CI job is."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.levels.levels import LevelRequest, Training
from ci_tasks.features.verl.levels.script import render
from ci_tasks.workflow.model import Container, Job, Step, Workflow

LABEL = "verl"
STEP = "verl"
_OPTIONS = "--privileged --network host --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864"


@dataclass(frozen=True)
class LevelJobOptions:
    """`image` is None where nobody names one; `volumes` are `HOST:CONTAINER` directories of data. `simulated` is for a
    host that simulates, `contained` for one that runs the job in a container."""

    image: str | None
    volumes: tuple[str, ...]
    minutes: float
    simulated: bool
    contained: bool


def workflow(request: LevelRequest, trainings: Sequence[Training], options: LevelJobOptions) -> Workflow:
    container = Container(options.image, _OPTIONS, volumes=options.volumes) if options.image else None
    script = render(request, trainings, simulated=options.simulated, contained=options.contained)
    job = Job(
        id=LABEL,
        line=1,
        runs_on="self-hosted",
        matrix={"info": [{"num_gpus": request.gpus, "level": f"level {request.level}"}]},
        container=container,
        steps=(
            Step("trees", 1, uses="actions/checkout@v4"),
            Step(STEP, 2, run=script, shell="bash {0}"),
        ),
        timeout_minutes=options.minutes,
    )
    return Workflow(path=f"verl level {request.level}", name="verl end-to-end", jobs={LABEL: job})
