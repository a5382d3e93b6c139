"""What the probe and its hook for verl noted from inside a training: the first source of evidence, before text. Pure.

`ci_tasks.features.verl.probe_hook` writes the records. Sources of the facts: verl's `utils/tracking.py`,
`utils/checkpoint`, `utils/megatron_utils.py` and workers, Megatron-Bridge's `models/model_provider.py`, `peft/base.py`
and `models/conversion/auto_bridge.py`, Megatron-core's `parallel_state.py`. `bench/verl_hooks.py` says which of these
names a revision has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.settings import Settings
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, Failure, TrainingFacts
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.logs.lines import visible
from ci_tasks.results.probe_evidence import hook_records

HOOK = "verl"
PROVIDES = "ModelProviderMixin.provide_distributed_model"
R = TypeVar("R")
_ENDINGS = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")  # how a process is told to end
# The role that a worker's class has → where its settings are in the whole configuration. A worker changes some of its
# own later, batch sizes for instance; it does not change these.
_PREFIXES = {"critic": "critic.", "reward_model": "reward_model.", "reward": "", "ref": "actor_rollout_ref."}
_KEPT = (".megatron.", ".lora.", "rollout.name", "rollout.tensor_model_parallel_size")


@dataclass(frozen=True)
class HookedModule:
    """Which of the names that the hook wants `module` has. What is `missing` cannot be seen at this revision."""

    module: str
    found: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoleConfig:
    """One section of the resolved configuration as a role of the training was given it: `role` is `trainer` for the
    whole, else the worker's (actor_rollout, ref, critic, reward_model, rollout_server, sft …), `training_worker` for an
    engine of an actor or a reference model, `provider` for the fields of Bridge's provider when it built the model.
    `settings` are dotted names from the top of what the role was given, so that those of an actor begin with `actor.`
    or `model.`; `owner` is the class that got them; `section` is "" for settings outside of sections."""

    role: str
    owner: str = ""
    section: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltModel:
    """A model as it was built on one rank. `provider` is the class of Bridge's provider, "" where another builds it.
    `wrappers` are the classes from the outermost in (DistributedDataParallel, Float16Module …), `model` that of the
    model itself. `parameters` and `trainable` count this rank's elements; -1 is not known. `adapters` are the classes
    of layers that adapt others (LoRALinear, DoRALinear …), with how many there are."""

    source: str
    provider: str = ""
    wrappers: tuple[str, ...] = ()
    model: str = ""
    parameters: int = -1
    trainable: int = -1
    adapters: Mapping[str, int] = field(default_factory=dict)

    @property
    def wrapper(self) -> str:
        """The one for data parallelism; "" for a model that has none, such as a reference."""
        kinds = (FSDP if "FullyShard" in name or "FSDP" in name else name for name in self.wrappers)
        return next(({"DistributedDataParallel": DDP}.get(name, name) for name in kinds if name in _WRAPPERS), "")


_WRAPPERS = (FSDP, "DistributedDataParallel")


@dataclass(frozen=True)
class AppliedPeft:
    """A PEFT method of Bridge that was applied to a model: `method` is its class (LoRA, DoRA, CanonicalLoRA)."""

    method: str


@dataclass(frozen=True)
class ParallelSizes:
    """The sizes of Megatron-core's groups on one rank, after they were made: None where it does not say."""

    rank: int = 0
    world: int = 1
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    data: int | None = None


@dataclass(frozen=True)
class StepMetrics:
    """What verl's own logger was given for a step; a value that is not finite is a text (`nan`, `inf`)."""

    step: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedFiles:
    """Files under `path` after one of `what` (checkpoint, adapter, hf) was written there: relative name → bytes. `step`
    is None where the writer was not told. `rank` is None where the process has none. `error` is what it raised."""

    what: str
    path: str
    step: int | None = None
    rank: int | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that a rank was told to read: the files that were there, and what it raised, "" for nothing."""

    path: str
    rank: int | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


KINDS: Mapping[str, type] = {
    "hooked": HookedModule,
    "config": RoleConfig,
    "model": BuiltModel,
    "peft": AppliedPeft,
    "sizes": ParallelSizes,
    "metrics": StepMetrics,
    "saved": SavedFiles,
    "loaded": LoadedCheckpoint,
}


@dataclass(frozen=True)
class RoleSettings:
    """What a worker was given, by the names of the whole configuration."""

    role: str
    process: str
    values: Mapping[str, Any]


def noted(evidence: RunEvidence | None, record: type[R]) -> Iterator[tuple[ProcessEvidence, R]]:
    """What processes noted of one kind of record, each with the process. Nothing where there is no evidence."""
    kind = next(name for name, known in KINDS.items() if known is record)
    if evidence is not None:
        yield from hook_records(evidence, HOOK, kind, record)


def evidence_of(evidence: RunEvidence | None, facts: TrainingFacts) -> RunEvidence | None:
    """That of the processes that started while the training ran; None where it is not known, or when that was."""
    if evidence is None or facts.began_at is None:
        return None
    begun, until = facts.began_at, facts.ended_at if facts.ended_at is not None else math.inf
    processes = tuple(process for process in evidence.processes if begun <= process.started_at <= until)
    return replace(evidence, processes=processes)


def with_hooks(facts: TrainingFacts, evidence: RunEvidence | None) -> TrainingFacts:
    """The facts with what was noted of settings, metrics and exceptions. What the hook did not note stays as the log
    has it."""
    given: dict[str, Any] = {}
    place = ""
    for process, config in noted(evidence, RoleConfig):
        if config.role == "trainer":  # what it is given is the whole configuration
            given |= config.settings
            place = place or f"{config.owner}, {process_name(process)}"
    settings = Settings({**facts.settings.values, **given}, place or facts.settings.place)
    metrics = {step: dict(values) for step, values in facts.metrics.items()}
    for _, step in noted(evidence, StepMetrics):
        numbers = {name: float(value) for name, value in step.values.items() if _is_number(value)}
        metrics.setdefault(step.step, {}).update(numbers)
    readable = {name for values in metrics.values() for name in values}
    unreadable = {name: place for name, place in facts.unreadable.items() if evidence is None or name not in readable}
    failures = (*facts.failures, *_noted_failures(evidence))
    return replace(facts, settings=settings, metrics=metrics, unreadable=unreadable, failures=failures)


def role_settings(evidence: RunEvidence | None) -> tuple[RoleSettings, ...]:
    """Those of the configuration that a role's own workers were given."""
    found = []
    for process, config in noted(evidence, RoleConfig):
        prefix = "actor_rollout_ref." if "actor" in config.role else _PREFIXES.get(config.role)
        values = {f"{prefix}{name}": value for name, value in config.settings.items()}
        kept = {name: value for name, value in values.items() if any(part in name for part in _KEPT)}
        if prefix is not None and kept:
            found.append(RoleSettings(config.role, process_name(process), kept))
    return tuple(found)


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
    """The exceptions that processes noted, whether or not anybody handled them."""
    for process, failure in uncaught_exceptions(evidence) if evidence else ():
        first = failure.chain[0]
        if first.type.rpartition(".")[2] in _ENDINGS:
            continue
        frames = tuple(f"{frame.file}:{frame.function}" for frame in first.frames)
        text = visible(f"{first.type.removeprefix('builtins.')}: {first.message}".encode("utf-8", "replace")).strip()
        yield Failure.said(text, frames, process_name(process))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
