"""A run, and a training that began in it, with everything that is known: what was asked, what the log said, and what
the probe and its hook for verl noted from inside. Pure.

`ci_tasks.features.verl.probe_hook` writes the records. `tests/features/verl/test_probe_hook.py` says which of the
functions that it watches a revision of verl, Megatron-Bridge or Megatron-LM has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple, TypeVar

from ci_tasks.agent.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.features.verl.judge.attribution import Attribution, attribute
from ci_tasks.features.verl.judge.records import Deliverable
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, DDP, FSDP, RunFacts, TrainingFacts, TrainingFailure
from ci_tasks.features.verl.levels.levels import SETTINGS, WRAPPER, LevelRequest, Training
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.logs.lines import visible
from ci_tasks.records import PASSED
from ci_tasks.results.probe_evidence import hook_records

HOOK = "verl"
PROVIDES = "ModelProviderMixin.provide_distributed_model"
_ENDINGS = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")  # how a process is told to end
MISSING: Final = object()  # the value of a setting that was not seen
_OVERRIDE = re.compile(r"^[+]{0,2}((?!hydra\.)[A-Za-z_]\w*(?:\.[\w-]+)+)=([^$]*)$")
_LIST_SIGNS = re.compile(r"[\s'\"\[\](){}]")
_NULL = ("null", "none", "~", "")
_ACTOR = "actor_rollout_ref.actor.megatron."
_OTHER_ROLES = {"REF": "actor_rollout_ref.ref.megatron.", "CRITIC": "critic.megatron."}
# What makes another training no baseline. Its other settings may be the change itself.
_OF_A_BASELINE = re.compile(
    r"(actor_rollout_ref|critic)\.model\.path|.*seed|data\.(train_files|val_files|train_batch_size|max_\w+_length)"
    r"|actor_rollout_ref\.(actor\.ppo_(mini|micro)_batch_size\w*|rollout\.(n|response_length))|reward\..*model_path"
)


# -- what the hook notes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HookedModule:
    """Which of the functions that the hook watches a module has. What is missing cannot be seen at this revision."""

    found: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltModel:
    """A model as it was built on one rank. `provider` is the class of Bridge's provider, "" if another builds it.
    `wrappers` are the classes from the outermost in (DistributedDataParallel, Float16Module …), `model` the class of
    the model itself. `parameters` and `trainable` count this rank's elements; `layers` is how many the whole model has,
    0 if it is not known; `adapters` are the classes of layers that adapt others (LoRALinear …), with how many there
    are.
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


# -- a run, and a training of it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LevelContext:
    """What a level's run was started with, kept in its directory, so that the run can be judged later. `bridge` and
    `verl` have no commit if only a log is judged; `command` repeats the run when it is pasted; `simulated`: the host
    only simulates GPUs; `remarks` are limitations that were known before; `scripts` are the texts of the trainings'
    scripts, by path."""

    request: LevelRequest
    bridge: Checkout = Checkout()
    verl: Checkout = Checkout()
    command: str = ""
    host: str = ""
    image: str = ""
    simulated: bool = False
    baseline: str = ""
    remarks: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)


class LevelRun(NamedTuple):
    """A finished run of the levels. `trainings` are the request's, in order; `status` and `reason` are the run's own;
    `root` is the Bridge checkout as the job sees it, "" if it is not known; `evidence` is what the probe saw,
    `baseline` a training to compare level 5's with; `log` is its path, "" if there is none."""

    context: LevelContext
    trainings: Sequence[Training]
    facts: RunFacts
    status: str
    reason: str = ""
    root: str = ""
    evidence: RunEvidence | None = None
    baseline: TrainingFacts | None = None
    log: str = ""
    image: str = ""
    host: str = ""

    @property
    def stopped(self) -> bool:
        """Whether something other than the job ended it, or kept it from running."""
        return self.status in ("blocked", "lost", "cancelled")

    @property
    def ending(self) -> str:
        return f"the run ended as {self.status}: {self.reason or 'its log does not say why'}"

    @property
    def checks(self) -> Deliverable:
        """The preflight's mark of the focused checks."""
        why = "not in this log: --checks-from TEXT cites them" if self.status == PASSED else f"not run: {self.ending}"
        return self.facts.preflight.get(BRIDGE_CHECKS, Deliverable(BRIDGE_CHECKS, "", why))

    @property
    def checked(self) -> bool:
        """Whether the focused checks passed. What a simulated Bridge shows is nothing either way."""
        return self.checks.status in ("pass", "cited", "simulated")

    @property
    def blocking(self) -> list[Deliverable]:
        """Marks of the preflight without which no training begins, and that are no deliverable of their own."""
        failed = (mark for mark in self.facts.preflight.values() if mark.status in ("fail", "blocked"))
        return [mark for mark in failed if mark.name not in (BRIDGE_CHECKS, "level-0")]

    @property
    def why_nothing_ran(self) -> str:
        why = "focused Bridge checks failed" if self.checks.status == "fail" else self.ending
        return next((f"{mark.name}: {mark.text}" for mark in self.blocking), why)

    def runs(self) -> Iterator[TrainingRun]:
        """The trainings that began."""
        before: TrainingRun | None = None
        for training in self.trainings:
            if facts := self.facts.trainings.get(training.name):
                evidence = evidence_of(self.evidence, facts)
                facts = replace(facts, failures=(*facts.failures, *_noted_failures(evidence)))
                before = TrainingRun(training, facts, self.root, evidence, before, self.facts.trainings.get("level 0"))
                yield before


R = TypeVar("R")


class TrainingRun(NamedTuple):
    """`evidence` is its processes', None without the probe; `root` is the Bridge checkout as the job sees it, "" if it
    is not known. `before` is the training that ran before it, and `plain` level 0's."""

    training: Training
    facts: TrainingFacts
    root: str = ""
    evidence: RunEvidence | None = None
    before: TrainingRun | None = None
    plain: TrainingFacts | None = None

    @property
    def asked(self) -> dict[str, str]:
        return asked_settings(self.training)

    @property
    def has_critic(self) -> bool:
        return bool(self.setting("algorithm.adv_estimator") == "gae")

    @property
    def asks_for_lora(self) -> bool:
        asked = self.training.env.get("LORA_RANK", "0")
        return not equals_asked("0", self.facts.settings.get(SETTINGS["LORA_RANK"], asked))

    def setting(self, name: str) -> Any:
        return self.facts.settings.get(name, MISSING)

    def noted(self, kind: str, record: type[R]) -> Iterator[tuple[str, R]]:
        """What processes noted of one kind, each with the process. Nothing without evidence."""
        for process, one in hook_records(self.evidence, HOOK, kind, record) if self.evidence else ():
            yield process_name(process), one

    def models(self) -> list[tuple[str, BuiltModel]]:
        """Those in a wrapper for data parallelism, which are trained."""
        return [(process, model) for process, model in self.noted("model", BuiltModel) if model.wrapper]

    def attribution(self) -> Attribution | None:
        """Of what ended it; None if it ended well, or nothing says why it did not."""
        if (error := self.facts.error) is None and self.facts.exit_code == 0:
            return None
        began = self.facts.constructed(error.line_no if error else 0)
        reward = (self.training.env.get("RM_MODEL_PATH", ""), self.asked.get("reward.reward_model.model_path", ""))
        return attribute(error, began, self.root, reward)


def evidence_of(evidence: RunEvidence | None, facts: TrainingFacts) -> RunEvidence | None:
    """The evidence of processes that started while the training ran; None if it is not known, or when that was."""
    if evidence is None or facts.began_at is None:
        return None
    begun, until = facts.began_at, math.inf if facts.ended_at is None else facts.ended_at
    return replace(evidence, processes=tuple(one for one in evidence.processes if begun <= one.started_at <= until))


def process_name(process: ProcessEvidence) -> str:
    """`rank 3 (pid 71)`."""
    return f"rank {process.rank} (pid {process.pid})" if process.rank is not None else f"pid {process.pid}"


def _noted_failures(evidence: RunEvidence | None) -> Iterator[TrainingFailure]:
    """The exceptions that processes noted, whether or not they were handled."""
    for process, failure in uncaught_exceptions(evidence) if evidence else ():
        first = failure.chain[0]
        if first.type.rpartition(".")[2] not in _ENDINGS:
            frames = tuple(f"{frame.file}:{frame.function}" for frame in first.frames)
            text = f"{first.type.removeprefix('builtins.')}: {first.message}".encode("utf-8", "replace")
            yield TrainingFailure.said(visible(text).strip(), frames, process_name(process))


# -- verl's settings by dotted name ------------------------------------------------------------------------------------


def asked_settings(training: Training) -> dict[str, str]:
    """Each setting that the training's variables and overrides ask for, in the words of a shell or of Hydra. verl's
    wrapper passes what it is given for the actor on to the reference model and the critic, if those have no variable of
    their own. Hydra takes the last value that it is given."""
    found: dict[str, str] = {}
    for name, dotted in SETTINGS.items():
        if name not in training.env:
            continue
        found[dotted] = training.env[name]
        is_wrapper = training.level != 4 or training.script == WRAPPER
        passed_on = is_wrapper and dotted.startswith(_ACTOR) and "router_replay" not in dotted
        for role, prefix in _OTHER_ROLES.items() if passed_on else ():
            own = f"{role}_{name.partition('_')[2]}" in training.env or ("VANILLA" in name and role == "CRITIC")
            if not own:
                found[prefix + dotted.removeprefix(_ACTOR)] = found[dotted]
    pairs = (_OVERRIDE.match(override) for override in training.overrides)
    return {**found, **{pair[1]: pair[2] for pair in pairs if pair}}


def equals_asked(asked: str, resolved: Any) -> bool:
    """Whether a setting has the value that was asked for in the words of a shell or of Hydra."""
    text = asked.strip().strip("'\"")
    if resolved is MISSING:
        return False
    if resolved is None:
        return text.lower() in _NULL
    if isinstance(resolved, list | tuple | dict):
        return _LIST_SIGNS.sub("", text) == _LIST_SIGNS.sub("", str(resolved))
    other = str(resolved).strip("'\"")
    try:
        return text == other or float(text) == float(other)
    except ValueError:
        return text.lower() == other.lower() and text.lower() in ("true", "false", *_NULL)


def value_text(value: Any) -> str:
    return "not in the settings" if value is MISSING else "null" if value is None else str(value)


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What of model, data, batch, response length and seed another training has otherwise, each as a line. Of a path
    its last two parts count."""

    def short(settings: Mapping[str, Any], name: str) -> str:
        return re.sub(r"[^'\",\[]*/([^/'\",]+/[^/'\",]+)", r"\1", value_text(settings.get(name, MISSING)))

    names = sorted(name for name in {*ours, *theirs} if _OF_A_BASELINE.fullmatch(name))
    pairs = {name: (short(theirs, name), short(ours, name)) for name in names}
    return [f"{name}: baseline {other}, here {own}" for name, (other, own) in pairs.items() if other != own]
