"""One row of a matrix → what it covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.suites.coverage.architecture import Architecture, Read, architecture
from ci_tasks.suites.coverage.checks import Checked, checked
from ci_tasks.suites.coverage.features import disaggregated_prefill, features
from ci_tasks.suites.coverage.training import Training, trainings, written
from ci_tasks.suites.reading.values import Reading, Unresolved

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
class Facts:
    """What a row covers. `layouts` are the trainings' parallel sizes ("TP2 + CP2", "DP" for none but data parallel),
    `flags` every flag of its trainings with the values given, `holes` what of their arguments only a run would know."""

    kind: str
    checks: Checked
    model: Architecture | None = None
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
    holes: tuple[Unresolved, ...] = ()
    problem: Unresolved | None = None


def facts(reading: Reading, read: Read) -> Facts:
    """`read` gives other files of the checkout: the models' scripts."""
    started = trainings(reading)
    given = written(reading)
    checks = checked(reading, started)
    doc = " ".join(reading.doc.split("\n\n")[0].split())
    if not started:
        kind = UNREAD if reading.problem else VACUOUS if reading.entry == "none" else UNIT
        return Facts(kind, checks, tests=len(reading.tests), doc=doc, problem=reading.problem)
    name = reading.constants.get("MODEL_NAME")
    return Facts(
        kind=E2E,
        checks=checks,
        model=architecture(started[0], name if isinstance(name, str) else None, read),
        algorithms=_each(algorithm(training) for training in started),
        layouts=_each(layout(training) for training in started),
        placements=_each(placement(training) for training in started),
        pd=any(disaggregated_prefill(training, given) for training in started),
        backends=_each(backend(training) for training in started),
        features=_each(words for training in started for words in features(training, given)),
        tests=len(reading.tests),
        trainings=len(started),
        gpus=tuple(sorted({training.gpus for training in started if training.gpus is not None})),
        doc=doc,
        flags=_flags(started),
        holes=tuple(dict.fromkeys(hole for training in started for hole in reading.calls[training.call].unresolved)),
        problem=reading.problem,
    )


def algorithm(training: Training) -> str:
    """The advantage estimator; GRPO is the framework's default."""
    return training.value("--advantage-estimator", "grpo").upper().replace("_", "-")


def layout(training: Training) -> str:
    sizes = {name: training.number(flag) for name, flag in _LAYOUT.items()}
    return " + ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "DP"


def placement(training: Training) -> str:
    """Where the engines are; "" where no flag says it."""
    if "--rollout-external-engine-addrs" in training.flags:
        return EXTERNAL
    if "--colocate" in training.flags:
        return COLOCATED
    return DISAGGREGATED if "--rollout-num-gpus" in training.flags else ""


def backend(training: Training) -> str:
    return training.value("--train-backend", "megatron").lower()


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value for value in dict.fromkeys(values) if value)


def _flags(started: Sequence[Training]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, dict[str, Any]] = {}
    for training in started:
        for flag, values in training.flags.items():
            found.setdefault(flag, {})[" ".join(values)] = None
    return tuple((flag, tuple(value for value in found[flag] if value)) for flag in sorted(found))
