"""One training of a side, as values that are compared: its settings, curves, memory, and where its loggers wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from statistics import fmean
from typing import Any

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.comparison.sequential_test import Points
from ci_tasks.features.verl.judge.hooked_training import RoleSettings, hooked_training, with_hooks
from ci_tasks.features.verl.judge.learning_signal import series
from ci_tasks.features.verl.judge.log_records import RunFacts
from ci_tasks.features.verl.judge.process_evidence import evidence_of
from ci_tasks.features.verl.levels.levels import Training
from ci_tasks.records import RunRecord

BASE, CANDIDATE = "base", "candidate"
REWARDS = ("critic/rewards/mean", "critic/score/mean")
STEP_SECONDS = ("perf/time_per_step", "timing_s/step")
_GIB = 1 << 30
_LINK = re.compile(
    rb"(https?://[^\s\x1b\"'<>]{1,300}/runs/[\w-]{1,100})"
    rb"|Saving tensorboard log to ([^\s\x1b]{1,300}?)\.?(?:[\s\x1b]|$)"
    rb"|saved locally in (?:\x1b\[\d+m)*([^\s\x1b]{1,300}/offline-run-[\w-]{1,100})"
)


@dataclass(frozen=True)
class ObservedRun:
    """`result` and `why` are those of the level's own summary; `completed` says that the last training reached its last
    step and exit code 0. `settings` are the resolved ones by training and dotted name, None where one was not seen;
    `roles` are those that workers were given, by training and role, as far as the probe noted them.
    `memory` is the peak in GiB by rank. `image` is the digest of the
    image that ran, "" where none was seen."""

    side: str
    pair: int
    id: str
    directory: str
    result: str
    why: str
    completed: bool
    settings: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    curves: Mapping[str, Points] = field(default_factory=dict)
    memory: Mapping[int, float] = field(default_factory=dict)
    image: str = ""
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def reward(self) -> Points:
        return next((self.curves[name] for name in REWARDS if name in self.curves), ())

    @property
    def step_seconds(self) -> float | None:
        """The mean, without the first step, which compiles and warms up."""
        points = next((self.curves[name] for name in STEP_SECONDS if name in self.curves), ())
        values = [value for _, value in points][1:]
        return fmean(values) if values else None


def observe(
    side: str,
    pair: int,
    record: RunRecord,
    directory: str,
    outcome: tuple[str, str],
    facts: RunFacts,
    evidence: RunEvidence | None,
    last: Training,
    links: Iterable[str],
    seen_as: str = "",
    image: str = "",
) -> ObservedRun:
    """`outcome` are the result and the sentence of the level's summary, `last` is the training whose curves count.
    What the probe's hook noted comes before what the log says. `seen_as` is the run's directory as the job saw it."""
    noted = {name: evidence_of(evidence, training) for name, training in facts.trainings.items()}
    trainings = {name: with_hooks(training, noted[name]) for name, training in facts.trainings.items()}
    training = trainings.get(last.name)
    metrics = training.metrics if training else {}
    return ObservedRun(
        side=side,
        pair=pair,
        id=record.id,
        directory=directory,
        result=outcome[0],
        why=outcome[1],
        completed=training is not None and training.exit_code == 0 and max(metrics, default=0) >= last.steps,
        settings={
            name: flatten(seen.settings.values, seen_as) if seen.settings.resolved else None
            for name, seen in trainings.items()
        },
        roles={
            f"{name}, {role}": values
            for name, seen in noted.items()
            for role, values in _by_role(hooked_training(seen).roles, seen_as).items()
        },
        curves={name: points for name in (*REWARDS, *STEP_SECONDS) if (points := tuple(series(metrics, name)))},
        memory=_memory(record),
        image=image,
        gpus=tuple(sorted(gpu.name for gpu in record.environment.gpus)),
        links=tuple(dict.fromkeys(links)),
    )


def flatten(settings: Mapping[str, Any], directory: str, above: str = "") -> dict[str, str]:
    """Each setting by its dotted name, without the run's own directory, which is another for every run."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, directory, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = _without_directory(repr(value), directory)
    return flat


def _by_role(roles: Iterable[RoleSettings], directory: str) -> dict[str, dict[str, str]]:
    """What every process of a role was given; where they differ, all of it."""
    values: dict[str, dict[str, set[str]]] = {}
    for role in roles:
        for name, value in flatten(role.values, directory).items():
            values.setdefault(role.role, {}).setdefault(name, set()).add(value)
    return {role: {name: " | ".join(sorted(seen)) for name, seen in of.items()} for role, of in values.items()}


def links_of(line: bytes) -> list[str]:
    """Pages of wandb, or the directory of one that is offline, and TensorBoard's directories, that a line names."""
    return ["".join(place.decode("utf-8", "replace") for place in places) for places in _LINK.findall(line)]


def _without_directory(text: str, directory: str) -> str:
    """The directory may be named by way of a link, or from its mount in a container, so its last parts tell it."""
    run = "/".join(directory.rstrip("/").split("/")[-2:])
    return re.sub(rf"[^\s'\"]*{re.escape(run)}(?=[/'\"])", "RUN", text) if run else text


def _memory(record: RunRecord) -> dict[int, float]:
    peaks: dict[int, float] = {}
    for one in record.probe.memory if record.probe else ():
        if one.rank is not None:
            peaks[one.rank] = max(peaks.get(one.rank, 0.0), one.allocated / _GIB)
    return peaks
