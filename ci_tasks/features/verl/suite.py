"""verl for the core: a level as a job of a workflow, so that it is planned, sent, run and recorded as every CI job is,
and the line that verl's console logger writes for each step, `step:3 - actor/pg_loss:0.1 - …`."""

from __future__ import annotations

import re
from dataclasses import replace

from ci_tasks.registry import MetricFormat
from ci_tasks.workflow.model import Container, Job, Step, Workflow
from ci_tasks.workflow.suite import Suite

LABEL = "verl"
_TRAIN = Step("verl", 2, shell="bash {0}")
_OPTIONS = "--privileged --network host --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864"
LONGEST = 1 << 16  # characters of a line that are read: a step's metrics are several thousand
STEP = re.compile(r"(?:^|\] ?)step:(\d{1,18}) - (.*)$")
_RAY = re.compile(r"^\(([\w.:@/-]{1,80} pid=\d+(?:, ip=[\w.:]+)?)\) ?")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")  # Ray's, behind what other workers print too
_NUMBER = re.compile(r"^(?:np\.\w+\()?([-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf))\)?$", re.IGNORECASE)
_MOST_METRICS = 400


def workflow(level: int, gpus: int, script: str, image: str | None, volumes: tuple[str, ...], limit: float) -> Workflow:
    """`volumes` are `HOST:CONTAINER`."""
    job = Job(
        id=LABEL, line=1, runs_on="self-hosted", matrix={"info": [{"num_gpus": gpus, "level": f"level {level}"}]},
        container=Container(image, _OPTIONS, volumes=volumes) if image else None,
        steps=(Step("trees", 1, uses="actions/checkout@v4"), replace(_TRAIN, run=script)), timeout_minutes=limit,
    )  # fmt: skip
    return Workflow(path=f"verl level {level}", name="verl end-to-end", jobs={LABEL: job})


def _is_level(workflow: Workflow) -> bool:
    job = workflow.jobs.get(LABEL)
    return job is not None and any(replace(step, run="") == replace(_TRAIN, run="") for step in job.steps)


def of_actor(text: str) -> tuple[str, str]:
    """(who, text) of a line between what Ray puts around it; who is "" for one that has no prefix."""
    match = _RAY.match(text)
    return (match[1], _REPEATED.sub("", text[match.end() :])) if match else ("", text)


def values(pairs: str) -> dict[str, float | None]:
    """Each metric of a step; None if its value is no number."""
    found: dict[str, float | None] = {}
    for pair in pairs.split(" - ")[:_MOST_METRICS]:
        name, colon, text = pair.strip().rpartition(":")
        if colon:
            number = _NUMBER.match(text.strip())
            found[name.strip()] = float(number[1]) if number else None
    return found


def read(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The step and its metrics; None for another line."""
    from ci_tasks.logs.lines import visible  # `nox -l` loads every suite, and reads no log

    match = STEP.search(of_actor(visible(line, LONGEST))[1])
    if match is None:
        return None
    return int(match[1]), {name: value for name, value in values(match[2]).items() if value is not None}


FORMAT = MetricFormat(rb"step:\d+ - ", read)
SUITE = Suite(
    name="verl",
    matches=_is_level,
    packages=("verl", "megatron.bridge", "mbridge"),
    probe_hook="ci_tasks.features.verl.probe_hook",
)
