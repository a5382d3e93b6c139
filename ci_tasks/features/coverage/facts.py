"""One row of a matrix → what it covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.architecture import ModelArchitecture, Read, architecture
from ci_tasks.features.coverage.checks import CheckSummary, checked
from ci_tasks.features.coverage.features import disaggregated_prefill, features
from ci_tasks.features.coverage.training import TrainingLaunch, trainings, written
from ci_tasks.features.recorder.records import NONE, UNKNOWN, Recording

E2E, UNIT, VACUOUS, UNREAD = "e2e", "unit", "vacuous", "unread"
COLOCATED, DISAGGREGATED, EXTERNAL = "colocated", "disaggregated", "external engines"

# Short name → Megatron's flag, in the order in which they are written.
_LAYOUT = {
    "TP": "--tensor-model-parallel-size",
    "PP": "--pipeline-model-parallel-size",
    "CP": "--context-parallel-size",
    "EP": "--expert-model-parallel-size",
    "ETP": "--expert-tensor-parallel-size",
}


@dataclass(frozen=True)
class RowFacts:
    """What a row covers. `layouts` are the trainings' parallel sizes ("TP2 + CP2", "DP" for none but data parallel),
    `flags` every flag of its trainings with the values given, `unknown` what of their arguments is not known;
    `origin` says whether the test was recorded or only read, `problem` why it is not known to its end."""

    kind: str
    checks: CheckSummary
    model: ModelArchitecture | None = None
    algorithms: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    pd: bool = False
    backends: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    tests: int = 0
    trainings: int = 0
    gpus: tuple[int, ...] = ()
    doc: str = ""
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unknown: tuple[str, ...] = ()
    origin: str = ""
    problem: str = ""


def facts(recording: Recording, read: Read) -> RowFacts:
    """`read` gives other files of the checkout: the models' scripts."""
    started = trainings(recording)
    configs = written(recording)
    checks = checked(recording, started)
    doc = " ".join(recording.doc.split("\n\n")[0].split())
    # A unit test under stubs fails like any other; what follows then is not looked for.
    entries = {training.entry for training in started} or {""}
    problem = recording.problem or "; ".join(stop.why for stop in recording.stops if stop.entry in entries)
    if not started:
        kind = UNREAD if problem else VACUOUS if recording.entry == NONE else UNIT
        tests = len(recording.tests)
        return RowFacts(kind, checks, tests=tests, doc=doc, origin=recording.origin, problem=problem)
    name = recording.constants.get("MODEL_NAME")
    return RowFacts(
        kind=E2E,
        checks=checks,
        model=architecture(started[0], name if isinstance(name, str) else None, read),
        algorithms=_each(algorithm(training) for training in started),
        layouts=_each(layout(training) for training in started),
        placements=_each(placement(training) for training in started),
        pd=any(disaggregated_prefill(training, configs) for training in started),
        backends=_each(backend(training) for training in started),
        features=_each(feature for training in started for feature in features(training, configs)),
        tests=len(recording.tests),
        trainings=len(started),
        gpus=tuple(sorted({training.gpus for training in started if training.gpus is not None})),
        doc=doc,
        flags=_flags(started),
        unknown=tuple(dict.fromkeys(part for training in started for part in _unknown(training))),
        origin=recording.origin,
        problem=problem,
    )


def _unknown(training: TrainingLaunch) -> Iterable[str]:
    return (part for values in training.flags.values() for value in values for part in UNKNOWN.findall(value))


def algorithm(training: TrainingLaunch) -> str:
    """The advantage estimator; GRPO is the framework's default."""
    return training.value("--advantage-estimator", "grpo").upper().replace("_", "-")


def layout(training: TrainingLaunch) -> str:
    sizes = {name: training.number(flag) for name, flag in _LAYOUT.items()}
    return " + ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "DP"


def placement(training: TrainingLaunch) -> str:
    """Where the engines are; "" where no flag says it."""
    if "--rollout-external-engine-addrs" in training.flags:
        return EXTERNAL
    if "--colocate" in training.flags:
        return COLOCATED
    return DISAGGREGATED if "--rollout-num-gpus" in training.flags else ""


def backend(training: TrainingLaunch) -> str:
    return training.value("--train-backend", "megatron").lower()


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value for value in dict.fromkeys(values) if value)


def _flags(started: Sequence[TrainingLaunch]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    values_by_flag: dict[str, dict[str, Any]] = {}
    for training in started:
        for flag, values in training.flags.items():
            values_by_flag.setdefault(flag, {})[" ".join(values)] = None
    return tuple((flag, tuple(value for value in values_by_flag[flag] if value)) for flag in sorted(values_by_flag))
