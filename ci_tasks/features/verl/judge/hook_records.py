"""What the probe's hook for verl notes from inside a training: the first source of evidence, before text. Pure.

`ci_tasks.features.verl.probe_hook` writes them. Sources of the facts: verl's `utils/tracking.py`, `utils/checkpoint`,
`utils/megatron_utils.py` and workers, Megatron-Bridge's `models/model_provider.py`, `peft/base.py` and
`models/conversion/auto_bridge.py`, Megatron-core's `parallel_state.py`. `bench/verl_hooks.py` says which of these
names a revision has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.results.probe_evidence import hook_records

HOOK = "verl"
R = TypeVar("R")


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


def noted(evidence: RunEvidence | None, record: type[R]) -> Iterator[tuple[ProcessEvidence, R]]:
    """What processes noted of one kind of record, each with the process. Nothing where there is no evidence."""
    kind = next(name for name, known in KINDS.items() if known is record)
    if evidence is not None:
        yield from hook_records(evidence, HOOK, kind, record)
