"""The words of the summary around its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci_tasks.errors import truncated
from ci_tasks.features.verl.judge.failure_stages import FailureStage
from ci_tasks.features.verl.judge.learning_signal import REWARD, series
from ci_tasks.features.verl.judge.log_records import BRIDGE_CHECKS, RunFacts, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import MISSING, Settings
from ci_tasks.features.verl.judge.setting_criteria import value_text
from ci_tasks.features.verl.judge.verdict_of_training import LEARNING_LEVEL, TrainingVerdict
from ci_tasks.features.verl.levels import levels
from ci_tasks.features.verl.levels.criterion import NOT_SEEN, with_outcome
from ci_tasks.features.verl.levels.levels import LEVELS, SETTINGS, LevelRequest
from ci_tasks.features.verl.levels.summary import (
    BLOCKED,
    FAIL,
    NOT_PROVEN,
    PASS,
    SKIPPED,
    EvidenceItem,
    MetricCurve,
    Provenance,
)

NO_EVIDENCE = "this is not evidence against the Bridge change"
_WORST_FIRST = (FAIL, BLOCKED, NOT_PROVEN, SKIPPED, PASS)
_LONGEST = 400  # characters of a line that is quoted
# What the summary names of the resolved settings, in the wrapper's variables.
_NAMED = (
    ("algorithm", "ADV_ESTIMATOR"),
    ("engine", "ENGINE"),
    ("VANILLA_MBRIDGE", "VANILLA_MBRIDGE"),
    ("VALUE_VANILLA_MBRIDGE", "VALUE_VANILLA_MBRIDGE"),
    ("LORA_RANK", "LORA_RANK"),
    ("USE_MEGATRON_FSDP", "USE_MEGATRON_FSDP"),
    ("TP", "COMMON_TP"),
    ("PP", "COMMON_PP"),
    ("CP", "COMMON_CP"),
    ("EP", "COMMON_EP"),
    ("INFER_TP", "INFER_TP"),
    ("max response length", "MAX_RESPONSE_LENGTH"),
    ("SAVE_FREQ", "SAVE_FREQ"),
    ("RESUME_MODE", "RESUME_MODE"),
)
_METRICS = (REWARD, "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "critic/vf_loss")


def sentence(
    result: str, why: str, request: LevelRequest, passed: int | None, verdicts: Sequence[TrainingVerdict]
) -> str:
    """What was validated, and how far it came; never more than that."""
    level = LEVELS[request.level]
    if result == PASS and request.level == LEARNING_LEVEL:
        steps = max(verdict.training.steps for verdict in verdicts)
        return f"Level 5 learning-signal passed over {steps} steps; no claim of benchmark convergence"
    if result == PASS:
        return f"Level {level.number} passed: {level.proves}"
    reached = f"; level {passed} passed" if passed is not None and passed < request.level else ""
    if result == BLOCKED:
        return f"{truncated(why, _LONGEST)}{reached}; {NO_EVIDENCE}"
    return f"{truncated(why, _LONGEST)}{reached}"


def requested(request: LevelRequest) -> str:
    level = LEVELS[request.level]
    text = f"Level {level.number} ({level.title})"
    if request.level == 2:
        text += f": {', '.join(request.variants)}"
    if request.level == LEARNING_LEVEL:
        text += f": {request.steps} steps"
    if request.level == 4:
        text += f": {request.script or ' '.join(request.overrides) or ', '.join(request.env)}"
    return f"{text}, after Level 0" if request.level else text


def checkpoint(request: LevelRequest, facts: RunFacts) -> str:
    named = (
        ("dummy config", request.dummy_config),
        ("MODEL_ID=", request.model_id),
        ("MODEL_PATH=", request.model_path),
    )
    parts = [f"{name}{' ' if name[-1] != '=' else ''}{value}" for name, value in named if value]
    settings = [training.settings for training in facts.trainings.values() if training.settings.resolved]
    resolved = {str(printed.get("actor_rollout_ref.model.path")) for printed in settings} - {
        request.model_path,
        str(MISSING),
    }
    if resolved:
        parts.append(f"resolved to {', '.join(sorted(resolved))}")
    return ", ".join(parts) or "the wrapper's default"


def combine(verdicts: Sequence[TrainingVerdict], level: int) -> tuple[str, str]:
    """(status, text) of the trainings of one deliverable."""
    status = next(worst for worst in _WORST_FIRST if any(each.status == worst for each in verdicts))
    title = LEVELS[level].title
    if len({(verdict.status, verdict.text) for verdict in verdicts}) == 1 and (len(verdicts) == 1 or status == SKIPPED):
        return status, f"{title}: {truncated(verdicts[0].text, _LONGEST)}"
    texts = (f"{verdict.training.name}: {verdict.status}, {truncated(verdict.text, _LONGEST)}" for verdict in verdicts)
    return status, f"{title}: {'; '.join(texts)}"


def evidence(provenance: Provenance, facts: RunFacts, verdicts: Sequence[TrainingVerdict]) -> tuple[EvidenceItem, ...]:
    where = ", ".join(
        f"{what} {value}" for what, value in (("image", provenance.image), ("host", provenance.host)) if value
    )
    commands = [f"{name}: {training.command}" for name, training in facts.trainings.items() if training.command]
    return (
        EvidenceItem("Bridge repo", (_repository(provenance.bridge_commit, provenance.bridge_dirty),)),
        EvidenceItem("verl repo", (_repository(provenance.verl_commit, provenance.verl_dirty),)),
        EvidenceItem("Command", (provenance.command, *([where] if where else []), *commands)),
        EvidenceItem("Key lines", tuple(key_lines(facts, verdicts)) or ("none: no training began",)),
    )


def key_lines(facts: RunFacts, verdicts: Sequence[TrainingVerdict]) -> Iterable[str]:
    """The resolved algorithm, backend and parallelism of each training, and the lines that show how far it came."""
    if facts.error is not None:
        yield f"line {facts.error.line_no}: {truncated(facts.error.line, _LONGEST)}"
    first: Settings | None = None
    for verdict in verdicts:
        if verdict.facts is None:
            continue
        yield f"{verdict.training.name}: {_settings(verdict.facts.settings, first)}"
        first = first or (verdict.facts.settings if verdict.facts.settings.resolved else None)
        log_lines = (verdict.facts.scratch, verdict.facts.resumed_seen, verdict.facts.progress_seen)
        yield from (f"line {line.line_no}: {truncated(line.text, _LONGEST)}" for line in log_lines if line is not None)
        yield from _metrics(verdict.facts)
        error = verdict.facts.error
        if error is not None and error.line:
            yield f"line {error.line_no}: {truncated(error.line, _LONGEST)}"


def limitations(request: LevelRequest, facts: RunFacts, verdicts: Sequence[TrainingVerdict]) -> tuple[str, ...]:
    notes = list(levels.limitations(request))
    checks = facts.preflight.get(BRIDGE_CHECKS)
    if checks is None or checks.status not in ("pass", "fail"):
        notes.append(f"focused Bridge checks were not run{f': {checks.text}' if checks else ''}")
    notes += [
        f"not shown of {verdict.training.name}: {criterion}"
        for verdict in verdicts
        for criterion in with_outcome(verdict.criteria, NOT_SEEN)
        if criterion.optional
    ]
    noisy = [
        (verdict.training.name, verdict.facts.noise[0])
        for verdict in verdicts
        if verdict.status == PASS and verdict.facts and verdict.facts.noise
    ]
    if noisy:
        names = ", ".join(name for name, _ in noisy)
        first = noisy[0][1]
        example = f"line {first.line_no}: {truncated(first.text, _LONGEST)}"
        notes.append(f"known shutdown noise after completion ({names}), such as {example}")
    return tuple(notes)


def follow_ups(
    result: str, stages: Iterable[FailureStage], verdicts: Sequence[TrainingVerdict], facts: RunFacts
) -> tuple[str, ...]:
    if result == PASS:
        return ("none",)
    steps = [stage.follow_up for stage in stages]
    checks = facts.preflight.get(BRIDGE_CHECKS)
    if checks is not None and checks.status == "fail":
        steps.insert(0, "provider fix: the focused Bridge checks have to pass before the external run says anything")
    elif result == NOT_PROVEN and (checks is None or checks.status != "pass"):
        steps.insert(0, "run the focused Bridge checks: give the image uv or pytest, and --test FILE for others")
    steps.extend(step for verdict in verdicts if verdict.status != PASS for step in verdict.follow_ups)
    if skipped := [verdict.training.name for verdict in verdicts if verdict.status == SKIPPED]:
        steps.append(f"rerun what was skipped: {', '.join(skipped)}")
    return tuple(dict.fromkeys(steps)) or ("rerun",)


def curve(verdicts: Sequence[TrainingVerdict]) -> MetricCurve | None:
    """The reward over the longest training, where it has more than two points."""
    longest = max(
        (verdict for verdict in verdicts if verdict.facts), key=lambda verdict: verdict.training.steps, default=None
    )
    if longest is None or longest.facts is None:
        return None
    points = series(longest.facts.metrics, REWARD)
    return MetricCurve(REWARD, tuple(points)) if len(points) > 2 else None


def _metrics(facts: TrainingFacts) -> Iterable[str]:
    if facts.metrics_seen is None or not facts.metrics:
        return
    step = max(facts.metrics)
    values = facts.metrics[step]
    picked = " - ".join(f"{key}:{values[key]:.4g}" for key in _METRICS if key in values)
    yield f"line {facts.metrics_seen.line_no}: step:{step} - {picked or f'{len(values)} metrics'}"


def _settings(settings: Settings, first: Settings | None) -> str:
    """The named settings; after the first training only those that differ from its."""
    if not settings:
        return "settings not seen"
    if not settings.resolved:
        return f"from the command, not resolved: {_listed(_values(settings))}"
    if first is None:
        return f"resolved: {_listed(_values(settings))}"
    before = dict(_values(first))
    other = _listed((name, value) for name, value in _values(settings) if before.get(name) != value)
    return f"resolved as before{f', but {other}' if other else ''}"


def _listed(values: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in values)


def _values(settings: Settings) -> Iterable[tuple[str, object]]:
    for name, variable in _NAMED:
        value = settings.get(SETTINGS[variable])
        if value is not MISSING:
            yield name, value


def _repository(commit: str, dirty: Sequence[str]) -> str:
    return f"{commit} plus {', '.join(dirty)}" if dirty else f"{commit}, no dirty files"
