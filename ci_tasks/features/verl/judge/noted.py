"""What the probe and its hook for verl noted from inside a training: the first source of evidence, before text. Pure.

`ci_tasks.features.verl.probe_hook` writes the records. `bench/verl_hooks.py` says which of the functions that it
watches a revision of verl, Megatron-Bridge or Megatron-LM has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, Failure, TrainingFacts
from ci_tasks.logs.causes import task_exceptions, uncaught_exceptions
from ci_tasks.logs.lines import visible
from ci_tasks.results.probe_evidence import hook_records

HOOK = "verl"
PROVIDES = "ModelProviderMixin.provide_distributed_model"
_ENDINGS = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")  # how a process is told to end


@dataclass(frozen=True)
class HookedModule:
    """Which of the functions that the hook watches `module` has. What is missing cannot be seen at this revision."""

    module: str
    found: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainerConfig:
    """A section of the whole resolved configuration, by dotted name; `owner` is the class of the trainer."""

    owner: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltModel:
    """A model as it was built on one rank. `provider` is the class of Bridge's provider, "" if another builds it.
    `wrappers` are the classes from the outermost in (DistributedDataParallel, Float16Module …), `model` that of the
    model itself. `parameters` and `trainable` count this rank's elements; `layers` is how many the whole model has, 0
    if it is not known; `adapters` are the classes of layers that adapt others (LoRALinear …), with how many there are.
    """

    provider: str = ""
    wrappers: tuple[str, ...] = ()
    model: str = ""
    parameters: int = -1
    trainable: int = -1
    layers: int = 0
    adapters: Mapping[str, int] = field(default_factory=dict)

    @property
    def wrapper(self) -> str:
        """The one for data parallelism; "" for a model that has none, such as a reference."""
        for name in self.wrappers:
            if "FullyShard" in name or "FSDP" in name:
                return FSDP
            if name == "DistributedDataParallel":
                return DDP
        return ""


@dataclass(frozen=True)
class ParallelSizes:
    """The sizes of Megatron-core's groups on one rank, after they were made: None if it does not say."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None


@dataclass(frozen=True)
class StepMetrics:
    """What verl's own logger was given for a step; a value that is not finite is a text (`nan`, `inf`)."""

    step: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointFiles:
    """A checkpoint that a rank wrote (`saved`) or was told to read (`loaded`): its files after that, relative name →
    bytes, and what it raised, "" for nothing."""

    path: str
    files: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


R = TypeVar("R")


def noted(evidence: RunEvidence | None, kind: str, record: type[R]) -> Iterator[tuple[ProcessEvidence, R]]:
    """What processes noted of one kind, each with the process. Nothing without evidence."""
    if evidence is not None:
        yield from hook_records(evidence, HOOK, kind, record)


def evidence_of(evidence: RunEvidence | None, facts: TrainingFacts) -> RunEvidence | None:
    """That of the processes that started while the training ran; None if it is not known, or when that was."""
    if evidence is None or facts.began_at is None:
        return None
    begun, until = facts.began_at, facts.ended_at if facts.ended_at is not None else math.inf
    processes = tuple(process for process in evidence.processes if begun <= process.started_at <= until)
    return replace(evidence, processes=processes)


def with_hooks(facts: TrainingFacts, evidence: RunEvidence | None) -> TrainingFacts:
    """The facts with what was noted of settings, metrics and exceptions. What the hook did not note stays as the log
    has it."""
    settings, place = dict(facts.settings), facts.settings_place
    for process, config in noted(evidence, "config", TrainerConfig):
        settings |= config.settings
        place = f"{config.owner}, {process_name(process)}"
    metrics = {step: dict(values) for step, values in facts.metrics.items()}
    for _, step in noted(evidence, "metrics", StepMetrics):
        for name, value in step.values.items():
            if isinstance(value, int | float) or value in ("nan", "inf", "-inf"):
                metrics.setdefault(step.step, {})[name] = float(value)
    readable = {name for values in metrics.values() for name in values} if evidence else set()
    return replace(
        facts,
        settings=settings,
        settings_place=place,
        metrics=metrics,
        unreadable={name: where for name, where in facts.unreadable.items() if name not in readable},
        failures=(*facts.failures, *_noted_failures(evidence)),
    )


def importers(evidence: RunEvidence, package: str) -> dict[str, list[ProcessEvidence]]:
    """Where a package was imported from, as a terminal may have it → the processes that did."""
    found: dict[str, list[ProcessEvidence]] = {}
    for process in evidence.processes:
        for origin in dict.fromkeys(one.origin for one in process.imports if one.name == package and one.origin):
            found.setdefault(visible(origin.encode("utf-8", "replace")), []).append(process)
    return found


def process_name(process: ProcessEvidence) -> str:
    """`rank 3 (pid 71)`."""
    return f"rank {process.rank} (pid {process.pid})" if process.rank is not None else f"pid {process.pid}"


def _noted_failures(evidence: RunEvidence | None) -> Iterator[Failure]:
    """The exceptions that processes noted, whether or not they were handled."""
    for process, failure in (*uncaught_exceptions(evidence), *task_exceptions(evidence)) if evidence else ():
        first = failure.chain[0]
        if first.type.rpartition(".")[2] in _ENDINGS:
            continue
        frames = tuple(f"{frame.file}:{frame.function}" for frame in first.frames)
        text = visible(f"{first.type.removeprefix('builtins.')}: {first.message}".encode("utf-8", "replace")).strip()
        yield Failure.said(text, frames, process_name(process))
