"""What the probe's hook noted of a training, in the place of what its log says of the same: the first source. Pure.

What the hook did not note stays as the log has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.hook_records import (
    AppliedPeft,
    BuiltModel,
    HookedModule,
    LoadedCheckpoint,
    ParallelSizes,
    RoleConfig,
    SavedFiles,
    StepMetrics,
    noted,
)
from ci_tasks.features.verl.judge.log_records import Metrics, TrainingFacts
from ci_tasks.features.verl.judge.process_evidence import process_name
from ci_tasks.features.verl.judge.resolved_settings import Settings

DDP, FSDP = "DDP", "Megatron-FSDP"
PROVIDES = "ModelProviderMixin.provide_distributed_model"
_SIZES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
}
# The role that a worker's class has → where its settings are in the whole configuration. A worker changes some of its
# own later, batch sizes for instance; it does not change these.
_PREFIXES = {"critic": "critic.", "reward_model": "reward_model.", "reward": "", "ref": "actor_rollout_ref."}
_KEPT = (".megatron.", ".lora.", "rollout.name", "rollout.tensor_model_parallel_size")


@dataclass(frozen=True)
class RoleSettings:
    """What a worker was given, by the names of the whole configuration."""

    role: str
    process: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TrainedModel:
    """A model in a wrapper for data parallelism, on one rank."""

    wrapper: str
    process: str
    built: BuiltModel


@dataclass(frozen=True)
class BuiltSize:
    """A parallel size of Megatron's groups as they were made, each value once; `process` is one that noted it."""

    values: tuple[int, ...]
    process: str


@dataclass(frozen=True)
class HookedTraining:
    """`providers` are classes of Bridge's providers that built a model; `watches_providers` says that the hook was at
    the function by which each of them does. `sizes` are by their Megatron name. `engines` are the classes of the
    rollout's servers, each with a process that noted it."""

    models: tuple[TrainedModel, ...] = ()
    roles: tuple[RoleSettings, ...] = ()
    providers: tuple[str, ...] = ()
    watches_providers: bool = False
    engines: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[AppliedPeft, ...] = ()
    sizes: Mapping[str, BuiltSize] = field(default_factory=dict)
    saved: tuple[SavedFiles, ...] = ()
    loaded: tuple[LoadedCheckpoint, ...] = ()


def hooked_training(evidence: RunEvidence | None) -> HookedTraining:
    built = list(noted(evidence, BuiltModel))
    return HookedTraining(
        models=tuple(
            TrainedModel(wrapper, process_name(process), model)
            for process, model in built
            if (wrapper := _wrapper(model.wrappers))
        ),
        roles=tuple(_roles(noted(evidence, RoleConfig))),
        providers=tuple(sorted({model.provider for _, model in built if model.provider})),
        watches_providers=any(PROVIDES in module.found for _, module in noted(evidence, HookedModule)),
        engines={
            config.owner: process_name(process)
            for process, config in noted(evidence, RoleConfig)
            if config.role == "rollout_server" and config.owner
        },
        sizes=_sizes(noted(evidence, ParallelSizes)),
        saved=tuple(record for _, record in noted(evidence, SavedFiles)),
        loaded=tuple(record for _, record in noted(evidence, LoadedCheckpoint)),
        methods=tuple(dict.fromkeys(peft for _, peft in noted(evidence, AppliedPeft))),
    )


def with_hooks(facts: TrainingFacts, evidence: RunEvidence | None) -> TrainingFacts:
    """The facts with what the hook noted of settings and metrics."""
    return replace(
        facts,
        settings=_settings(noted(evidence, RoleConfig), facts.settings),
        metrics=_metrics(noted(evidence, StepMetrics), facts.metrics),
    )


def _settings(configs: Iterable[tuple[ProcessEvidence, RoleConfig]], printed: Settings) -> Settings:
    """Those that the trainer was given, which are the whole configuration; what was not noted is as it was printed."""
    values: dict[str, Any] = {}
    place = ""
    for process, config in configs:
        if config.role == "trainer":
            values.update(config.settings)
            place = place or f"{config.owner}, {process_name(process)}"
    if not values:
        return printed
    return Settings({**(printed.values if printed.resolved else {}), **values}, True, place)


def _roles(configs: Iterable[tuple[ProcessEvidence, RoleConfig]]) -> Iterator[RoleSettings]:
    for process, config in configs:
        prefix = "actor_rollout_ref." if "actor" in config.role else _PREFIXES.get(config.role)
        if prefix is None:
            continue
        values = {f"{prefix}{name}": value for name, value in config.settings.items()}
        kept = {name: value for name, value in values.items() if any(part in name for part in _KEPT)}
        if kept:
            yield RoleSettings(config.role, process_name(process), kept)


def _metrics(steps: Iterable[tuple[ProcessEvidence, StepMetrics]], logged: Metrics) -> Metrics:
    found = {step: dict(values) for step, values in logged.items()}
    for _, noted_step in steps:
        numbers = {name: _number(value) for name, value in noted_step.values.items()}
        found.setdefault(noted_step.step, {}).update(
            {name: number for name, number in numbers.items() if number is not None}
        )
    return found


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan if isinstance(value, str) else None


def _sizes(noted_sizes: Iterable[tuple[ProcessEvidence, ParallelSizes]]) -> dict[str, BuiltSize]:
    found: dict[str, BuiltSize] = {}
    for process, sizes in noted_sizes:
        for field_name, name in _SIZES.items():
            size = getattr(sizes, field_name)
            if size is not None:
                seen = found.get(name, BuiltSize((), process_name(process)))
                found[name] = replace(seen, values=tuple(sorted({*seen.values, size})))
    return found


def _wrapper(wrappers: Sequence[str]) -> str:
    for name in wrappers:
        if "FullyShard" in name or "FSDP" in name:
            return FSDP
        if name == "DistributedDataParallel":
            return DDP
    return ""
