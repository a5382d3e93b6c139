"""The words of the summary around its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci_tasks.judge.verl.blame import Stage
from ci_tasks.judge.verl.facts import BRIDGE_CHECKS, RunFacts, TrainingFacts
from ci_tasks.judge.verl.learning import REWARD, series
from ci_tasks.judge.verl.settings import MISSING, Settings
from ci_tasks.judge.verl.training import LEARNING_LEVEL, Judged, mismatches, shown
from ci_tasks.suites.verl import levels
from ci_tasks.suites.verl.levels import LEVELS, SETTINGS, Wish
from ci_tasks.suites.verl.summary import BLOCKED, FAIL, PASS, SKIPPED, Curve, Evidence, Provenance

NO_EVIDENCE = "this is not evidence against the Bridge change"
_WORST_FIRST = (FAIL, BLOCKED, SKIPPED, PASS)
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
_WORD = {True: "ok", False: "not ok", None: "unknown"}
_METRICS = (REWARD, "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "critic/vf_loss")


def sentence(result: str, why: str, wish: Wish, passed: int | None, judged: Sequence[Judged]) -> str:
    """What was validated, and how far it came; never more than that."""
    level = LEVELS[wish.level]
    if result == PASS and wish.level == LEARNING_LEVEL:
        steps = max(one.training.steps for one in judged)
        return f"Level 5 learning-signal passed over {steps} steps; no claim of benchmark convergence"
    if result == PASS:
        return f"Level {level.number} passed: {level.proves}"
    reached = f"; level {passed} passed" if passed is not None and passed < wish.level else ""
    if result == BLOCKED:
        return f"{_short(why)}{reached}; {NO_EVIDENCE}"
    return f"{_short(why)}{reached}"


def requested(wish: Wish) -> str:
    level = LEVELS[wish.level]
    said = f"Level {level.number} ({level.name})"
    if wish.level == 2:
        said += f": {', '.join(wish.variants)}"
    if wish.level == LEARNING_LEVEL:
        said += f": {wish.steps} steps"
    if wish.level == 4:
        said += f": {wish.script or ' '.join(wish.overrides) or ', '.join(wish.env)}"
    return f"{said}, after Level 0" if wish.level else said


def checkpoint(wish: Wish, facts: RunFacts) -> str:
    named = (("dummy config", wish.dummy_config), ("MODEL_ID=", wish.model_id), ("MODEL_PATH=", wish.model_path))
    said = [f"{name}{' ' if name[-1] != '=' else ''}{value}" for name, value in named if value]
    settings = [one.settings for one in facts.trainings.values() if one.settings.resolved]
    resolved = {str(one.get("actor_rollout_ref.model.path")) for one in settings} - {wish.model_path, str(MISSING)}
    if resolved:
        said.append(f"resolved to {', '.join(sorted(resolved))}")
    return ", ".join(said) or "the wrapper's default"


def together(judged: Sequence[Judged], level: int) -> tuple[str, str]:
    """(status, text) of the trainings of one deliverable."""
    status = next(one for one in _WORST_FIRST if any(each.status == one for each in judged))
    title = LEVELS[level].title
    if len({(one.status, one.text) for one in judged}) == 1 and (len(judged) == 1 or status == SKIPPED):
        return status, f"{title}: {_short(judged[0].text)}"
    said = (f"{one.training.name}: {one.status}, {_short(one.text)}" for one in judged)
    return status, f"{title}: {'; '.join(said)}"


def evidence(provenance: Provenance, facts: RunFacts, judged: Sequence[Judged]) -> tuple[Evidence, ...]:
    where = ", ".join(
        f"{what} {value}" for what, value in (("image", provenance.image), ("host", provenance.host)) if value
    )
    commands = [f"{name}: {one.command}" for name, one in facts.trainings.items() if one.command]
    return (
        Evidence("Bridge repo", (_repository(provenance.bridge_commit, provenance.bridge_dirty),)),
        Evidence("verl repo", (_repository(provenance.verl_commit, provenance.verl_dirty),)),
        Evidence("Command", (provenance.command, *([where] if where else []), *commands)),
        Evidence("Key lines", tuple(key_lines(facts, judged)) or ("none: no training began",)),
    )


def key_lines(facts: RunFacts, judged: Sequence[Judged]) -> Iterable[str]:
    """The resolved algorithm, backend and parallelism of each training, and the lines that show how far it came."""
    if facts.error is not None:
        yield f"line {facts.error.line_no}: {_short(facts.error.line)}"
    first: Settings | None = None
    for one in judged:
        if one.facts is None:
            continue
        yield f"{one.training.name}: {_settings(one.facts.settings, first)}"
        first = first or (one.facts.settings if one.facts.settings.resolved else None)
        seen = (one.facts.scratch, one.facts.resumed_seen, one.facts.progress_seen)
        yield from (f"line {line.line_no}: {_short(line.text)}" for line in seen if line is not None)
        yield from _metrics(one.facts)
        yield from (f"{_WORD[check.ok]}: {check.name}: {check.evidence}" for check in one.checks)
        error = one.facts.error
        if error is not None and error.line:
            yield f"line {error.line_no}: {_short(error.line)}"


def limitations(wish: Wish, facts: RunFacts, judged: Sequence[Judged]) -> tuple[str, ...]:
    found = list(levels.limitations(wish))
    checks = facts.preflight.get(BRIDGE_CHECKS)
    if checks is None or checks.status not in ("pass", "fail"):
        found.append(f"focused Bridge checks were not run{f': {checks.text}' if checks else ''}")
    noisy = [
        (one.training.name, one.facts.noise[0])
        for one in judged
        if one.status == PASS and one.facts and one.facts.noise
    ]
    if noisy:
        names = ", ".join(name for name, _ in noisy)
        first = noisy[0][1]
        found.append(
            f"known shutdown noise after completion ({names}), such as line {first.line_no}: {_short(first.text)}"
        )
    return tuple(found)


def follow_ups(result: str, stages: Iterable[Stage], judged: Sequence[Judged], facts: RunFacts) -> tuple[str, ...]:
    if result == PASS:
        return ("none",)
    found = [stage.follow_up for stage in stages]
    checks = facts.preflight.get(BRIDGE_CHECKS)
    if checks is not None and checks.status == "fail":
        found.insert(0, "provider fix: the focused Bridge checks have to pass before the external run says anything")
    for one in judged:
        if one.status == FAIL and one.stage is None:
            found.extend(_after(one))
    if skipped := [one.training.name for one in judged if one.status == SKIPPED]:
        found.append(f"rerun what was skipped: {', '.join(skipped)}")
    return tuple(dict.fromkeys(found)) or ("rerun",)


def curve(judged: Sequence[Judged]) -> Curve | None:
    """The reward over the longest training, where it has more than two points."""
    longest = max((one for one in judged if one.facts), key=lambda one: one.training.steps, default=None)
    if longest is None or longest.facts is None:
        return None
    points = series(longest.facts.metrics, REWARD)
    return Curve(REWARD, tuple(points)) if len(points) > 2 else None


def _after(one: Judged) -> list[str]:
    """What to do about criteria that were missed by a training that ended well."""
    facts = one.facts
    if facts is None:
        return []
    found = []
    if mismatches(one.training, facts.settings):
        found.append("rerun with what was asked for active in the resolved settings")
    if one.training.resumes:
        found.append("find out why the checkpoint was not loaded: keep verl's checkpoints/ between save and resume")
    if any(check.ok is False for check in one.checks):
        found.append("triage the metrics above: data, reward, rollout, masking, or Bridge-side integration")
    if one.training.level == 4:
        found.append("rerun with a command that activates the feature, or correct --proof")
    return found


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
    return ", ".join(f"{name}={shown(value)}" for name, value in values)


def _values(settings: Settings) -> Iterable[tuple[str, object]]:
    for name, variable in _NAMED:
        value = settings.get(SETTINGS[variable])
        if value is not MISSING:
            yield name, value


def _repository(commit: str, dirty: Sequence[str]) -> str:
    return f"{commit} plus {', '.join(dirty)}" if dirty else f"{commit}, no dirty files"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
