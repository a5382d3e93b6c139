"""A training that began, and all that is known of it: what it was asked, what its log said, and what the probe and its
hook for verl noted from inside. Pure.

`ci_tasks.features.verl.probe_hook` writes the records. `tests/features/verl/test_hook_names.py` says which of the
functions that it watches a revision of verl, Megatron-Bridge or Megatron-LM has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.attribution import Attribution, attribute
from ci_tasks.features.verl.judge.settings import MISSING, asked_settings, equals_asked
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, QuotedLine, TrainingFacts, TrainingFailure
from ci_tasks.features.verl.levels.levels import SETTINGS, LevelRequest, Training
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.logs.lines import visible
from ci_tasks.results.probe_evidence import hook_records

HOOK = "verl"
PROVIDES = "ModelProviderMixin.provide_distributed_model"
SEE_PROBE = "rerun with the probe, whose hooks show what verl does not print"
_ENDINGS = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")  # how a process is told to end


@dataclass(frozen=True)
class HookedModule:
    """Which of the functions that the hook watches a module has. What is missing cannot be seen at this revision."""

    found: tuple[str, ...] = ()


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
        if any("FullyShard" in name or "FSDP" in name for name in self.wrappers):
            return FSDP
        return DDP if "DistributedDataParallel" in self.wrappers else ""


@dataclass(frozen=True)
class ParallelSizes:
    """The sizes of Megatron-core's groups on one rank, after they were made: None if it does not say."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None


@dataclass(frozen=True)
class CheckpointFiles:
    """A checkpoint that a rank wrote (`saved`) or was told to read (`loaded`): its files after that, relative name →
    bytes, and what it raised, "" for nothing."""

    path: str
    files: Mapping[str, int] = field(default_factory=dict)
    error: str = ""

    @property
    def is_actor(self) -> bool:
        return self.path.rstrip("/").endswith("/actor")


R = TypeVar("R")


@dataclass(frozen=True)
class TrainingRun:
    """`evidence` is that of its processes, None without the probe; `root` is the Bridge checkout as the job sees it, ""
    if it is not known. `before` is the training that ran before it; `plain` are the proofs that level 0, without the
    feature, has as well."""

    training: Training
    facts: TrainingFacts
    request: LevelRequest
    root: str = ""
    evidence: RunEvidence | None = None
    before: TrainingRun | None = None
    plain: Mapping[str, QuotedLine] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, str]:
        return asked_settings(self.training)

    @property
    def has_critic(self) -> bool:
        return bool(self.setting("algorithm.adv_estimator") == "gae")

    @property
    def asks_for_lora(self) -> bool:
        rank = self.setting(SETTINGS["LORA_RANK"])
        return not equals_asked("0", self.training.env.get("LORA_RANK", "0") if rank is MISSING else rank)

    def setting(self, name: str) -> Any:
        return self.facts.settings.get(name, MISSING)

    def noted(self, kind: str, record: type[R]) -> Iterator[tuple[str, R]]:
        """What processes noted of one kind, each with the process. Nothing without evidence."""
        for process, one in hook_records(self.evidence, HOOK, kind, record) if self.evidence else ():
            yield process_name(process), one

    def models(self) -> list[tuple[str, BuiltModel]]:
        """Those in a wrapper for data parallelism, which are trained."""
        return [(process, model) for process, model in self.noted("model", BuiltModel) if model.wrapper]

    def written(self) -> list[str]:
        """Directories of the actor's checkpoints."""
        return [one.path for _, one in self.noted("saved", CheckpointFiles) if one.is_actor]

    def attribution(self) -> Attribution | None:
        """Of what ended it; None if it ended well, or nothing says why it did not."""
        error = self.facts.error
        if self.facts.exit_code == 0 and error is None:
            return None
        began = self.facts.constructed(error.line_no if error else 0)
        reward = (self.request.reward_model, self.training.env.get("RM_MODEL_PATH", ""))
        return attribute(error, began, self.root, reward)


def evidence_of(evidence: RunEvidence | None, facts: TrainingFacts) -> RunEvidence | None:
    """That of the processes that started while the training ran; None if it is not known, or when that was."""
    if evidence is None or facts.began_at is None:
        return None
    begun, until = facts.began_at, facts.ended_at if facts.ended_at is not None else math.inf
    processes = tuple(process for process in evidence.processes if begun <= process.started_at <= until)
    return replace(evidence, processes=processes)


def process_name(process: ProcessEvidence) -> str:
    """`rank 3 (pid 71)`."""
    return f"rank {process.rank} (pid {process.pid})" if process.rank is not None else f"pid {process.pid}"


def noted_failures(evidence: RunEvidence | None) -> Iterator[TrainingFailure]:
    """The exceptions that processes noted, whether or not they were handled."""
    for process, failure in uncaught_exceptions(evidence) if evidence else ():
        first = failure.chain[0]
        if first.type.rpartition(".")[2] not in _ENDINGS:
            frames = tuple(f"{frame.file}:{frame.function}" for frame in first.frames)
            text = f"{first.type.removeprefix('builtins.')}: {first.message}".encode("utf-8", "replace")
            yield TrainingFailure.said(visible(text).strip(), frames, process_name(process))
