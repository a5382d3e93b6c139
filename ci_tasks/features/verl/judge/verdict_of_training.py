"""One training against its pass criteria: what was asked for and what its log shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.features.verl.judge.failure_stages import (
    CONSTRUCTION,
    FailureLocation,
    Stage,
    locate_failure,
    stage_of_reason,
)
from ci_tasks.features.verl.judge.learning_signal import TREND, Criterion, learning
from ci_tasks.features.verl.judge.log_records import Metrics, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import Settings, equals_requested, parse_override
from ci_tasks.features.verl.levels.levels import SETTINGS, LevelRequest, Training
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, PASS, SKIPPED

LEARNING_LEVEL = 5
_WIDE = ("COMMON_TP", "COMMON_PP", "COMMON_CP", "COMMON_EP", "INFER_TP")
_NAMES: Mapping[str, str] = {dotted: name for name, dotted in SETTINGS.items()}
_REWARD_PATH = "RM_MODEL_PATH"
_STOPPED = ("blocked", "lost", "cancelled")


@dataclass(frozen=True)
class RunEnd:
    """How the run ended, from its own record: its status and the reason for it; `log_error` says why the log is not
    whole, "" where it is."""

    status: str
    reason: str = ""
    log_error: str = ""

    @property
    def stopped(self) -> bool:
        """Whether something other than the job ended it, or kept it from running."""
        return self.status in _STOPPED


@dataclass(frozen=True)
class TrainingVerdict:
    """`status` is Pass, Fail, Blocked or Skipped; `text` the evidence or what was missed. `stage` is where it failed;
    `environment` says that its failure is none of the Bridge's."""

    training: Training
    status: str
    text: str
    facts: TrainingFacts | None = None
    stage: Stage | None = None
    constructed: bool = False
    checks: tuple[Criterion, ...] = field(default_factory=tuple)


def judge_training(
    training: Training,
    facts: TrainingFacts | None,
    request: LevelRequest,
    ended: RunEnd,
    baseline: Metrics | None = None,
) -> TrainingVerdict:
    """The status of one training. One that did not begin is Skipped, for a reason that the caller knows better."""
    if facts is None:
        return TrainingVerdict(training, SKIPPED, "it did not begin")
    if facts.exit_code is None and ended.stopped:
        return _stopped(training, facts, ended)
    if facts.exit_code != 0:
        return _failed(training, facts, request, ended)
    checks = _learning(training, facts, baseline) if training.level == LEARNING_LEVEL else ()
    missed = [
        *missed_criteria(training, facts, request),
        *(f"{check.name}: {check.evidence}" for check in checks if _bad(check)),
    ]
    if missed:
        return TrainingVerdict(training, FAIL, "; ".join(missed), facts, constructed=True, checks=checks)
    return TrainingVerdict(training, PASS, _passed(training, facts, checks), facts, constructed=True, checks=checks)


def missed_criteria(training: Training, facts: TrainingFacts, request: LevelRequest) -> list[str]:
    """What the log does not show of what a useful pass has, each with what it shows instead."""
    missed = [*mismatches(training, facts.settings), *not_through_bridge(facts.settings)]
    return [*dict.fromkeys(missed), *_steps(training, facts), *_level_criteria(training, facts, request)]


def not_through_bridge(settings: Settings) -> list[str]:
    """Where the run went past Megatron-Bridge, whoever asked for that: such a run shows nothing of it."""
    actor, critic = SETTINGS["VANILLA_MBRIDGE"], SETTINGS["VALUE_VANILLA_MBRIDGE"]
    needed = [(SETTINGS["USE_MBRIDGE"], "True"), (actor, "False")]
    if settings.get("algorithm.adv_estimator") == "gae":
        needed.append((critic, "False"))
    wrong = [(dotted, need) for dotted, need in needed if not equals_requested(need, settings.get(dotted))]
    if not settings.resolved or not wrong:
        return []
    return [_differs(dotted, need, settings.get(dotted)) for dotted, need in wrong]


def mismatches(training: Training, settings: Settings) -> list[str]:
    """Settings that were asked for and did not become what was asked."""
    if not settings.resolved:
        return ["the log does not show verl's resolved settings, and the command alone is not trusted"]
    differences = []
    for dotted, requested in expected(training).items():
        resolved = settings.get(dotted)
        if not equals_requested(requested, resolved):
            differences.append(_differs(dotted, requested, resolved))
    return differences


def expected(training: Training) -> dict[str, str]:
    """Setting → value, of the variables and of plain overrides: Hydra takes the last one said."""
    overrides = (pair for pair in map(parse_override, training.overrides) if pair)
    plain = {dotted: value for dotted, value in overrides if not set("[]{}$,") & set(value)}
    return {**training.expected, **plain}


def shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _differs(dotted: str, requested: str, resolved: Any) -> str:
    name = _NAMES.get(dotted, dotted)
    text = f"{name}={shown(resolved)} in the resolved settings"
    return f"{text} ({dotted}), not {requested}" if name != dotted else f"{text}, not {requested}"


def has_critic(facts: TrainingFacts) -> bool:
    """Whether the algorithm has a critic."""
    return bool(facts.settings.get("algorithm.adv_estimator") == "gae")


def _steps(training: Training, facts: TrainingFacts) -> Iterable[str]:
    if facts.progress is None:
        yield "no Training Progress in the log"
    elif facts.progress[0] < facts.progress[1] or facts.progress[1] != training.steps:
        yield f"Training Progress is {_of(facts.progress)}, not {training.steps}/{training.steps}"
    if training.steps not in facts.metrics:
        yield f"no metrics of global step {training.steps}"


def _level_criteria(training: Training, facts: TrainingFacts, request: LevelRequest) -> Iterable[str]:
    """The criteria of single levels."""
    if training.resumes:
        yield from _resume(training, facts)
    if training.level == 2 and facts.settings.resolved:
        sizes = [facts.settings.get(SETTINGS[name]) for name in _WIDE]
        if not any(isinstance(size, int) and size > 1 for size in sizes):
            yield "all parallel sizes resolved to 1: no evidence for distributed behavior"
    if training.level == 4:
        yield from (
            f"the feature was not seen active: no line matches {pattern!r}"
            for pattern in request.proofs
            if pattern not in facts.proofs
        )


def _resume(training: Training, facts: TrainingFacts) -> Iterable[str]:
    from_step = training.steps - 1
    if facts.scratch is not None:
        yield f"it did not resume: {facts.scratch.text!r} (line {facts.scratch.line_no})"
    elif facts.resumed_from is None:
        yield "it did not resume: no line says from which checkpoint"
    elif facts.resumed_from != from_step:
        yield f"it resumed at global step {facts.resumed_from}, not {from_step}"
    if again := [step for step in facts.metrics if 0 < step <= from_step]:
        yield f"it trained global step {again[0]} again: nothing was loaded"


def _learning(training: Training, facts: TrainingFacts, baseline: Metrics | None) -> tuple[Criterion, ...]:
    peft = not equals_requested("0", facts.settings.get(SETTINGS["LORA_RANK"]))
    return learning(facts.metrics, trainable=facts.trainable, peft=peft, critic=has_critic(facts), baseline=baseline)


def _bad(check: Criterion) -> bool:
    return check.ok is False


def _passed(training: Training, facts: TrainingFacts, checks: tuple[Criterion, ...]) -> str:
    reasons = [f"Training Progress {_of(facts.progress)}, metrics of global step {training.steps}, exit code 0"]
    if training.resumes:
        reasons.append(f"resumed at global step {facts.resumed_from}")
    reasons.extend(f"{proof.text!r} at line {proof.line_no}" for proof in facts.proofs.values() if training.level == 4)
    if training.level == LEARNING_LEVEL:
        reasons.insert(0, "learning-signal passed")
        reasons.extend(check.evidence for check in checks if check.name == TREND)
    return "; ".join(reasons)


def _stopped(training: Training, facts: TrainingFacts, ended: RunEnd) -> TrainingVerdict:
    constructed = facts.constructed()
    stage = stage_of_reason(ended.reason)
    return TrainingVerdict(training, BLOCKED, f"{ended.status}: {ended.reason}", facts, stage, constructed)


def _failed(training: Training, facts: TrainingFacts, request: LevelRequest, ended: RunEnd) -> TrainingVerdict:
    location = _locate_failure(training, facts, request)
    text = f"{_where(location)}: {_reason(facts, ended)}"
    if _completed(training, facts):
        text = f"all steps are done, but the process did not exit successfully: {_reason(facts, ended)}"
    return TrainingVerdict(
        training, BLOCKED if location.environment else FAIL, text, facts, location.stage, location.constructed
    )


def _locate_failure(training: Training, facts: TrainingFacts, request: LevelRequest) -> FailureLocation:
    line = facts.error.line_no if facts.error else None
    paths = (request.reward_model, training.env.get(_REWARD_PATH, ""))
    return locate_failure(facts.error, facts.constructed(line), paths)


def _where(location: FailureLocation) -> str:
    if location.stage.name == CONSTRUCTION:
        return f"in {CONSTRUCTION}"
    after = "after" if location.constructed else "before"
    return f"{location.stage.name}, {after} {CONSTRUCTION} began"


def _reason(facts: TrainingFacts, ended: RunEnd) -> str:
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    if facts.error is not None and facts.error.line:
        return f"{code}, line {facts.error.line_no}: {facts.error.text or facts.error.line}"
    return f"{code}; {ended.reason or 'the log does not say why'}"


def _completed(training: Training, facts: TrainingFacts) -> bool:
    return not list(_steps(training, facts))


def _of(progress: tuple[int, int] | None) -> str:
    return f"{progress[0]}/{progress[1]}" if progress else "unknown"
