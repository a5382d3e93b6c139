"""The guide's criteria for one training that every level has, and those of levels 1 to 4, each with what shows it.

The command is evidence of nothing: verl's printed configuration shows what it was configured with, a line of a built
model or optimizer what was built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ci_tasks.features.verl.judge.failure_stages import (
    CHANGE,
    CONSTRUCTION,
    DENSE_MODEL,
    ENVIRONMENT,
    UNCLEAR,
    FailureLocation,
    locate_failure,
    locate_logged,
)
from ci_tasks.features.verl.judge.hooked_training import DDP, FSDP, HookedTraining
from ci_tasks.features.verl.judge.log_records import LoggedFailure, Metrics, QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.requested_settings import RequestedSetting, requested_settings
from ci_tasks.features.verl.judge.resolved_settings import MISSING, Settings, equals_requested
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.levels.levels import DEFAULT_MODEL, SETTINGS, LevelRequest, Training

AS_ASKED = "settings as asked"
NON_VANILLA = "non-vanilla Bridge"
LORA = "LoRA with trainable parameters"
WRAPPER = "model wrapper"
SIZES = "parallel sizes"
STEPS = "training steps"
FINITE = "finite metrics"
NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
EXIT = "successful exit"
RESUME = "resume from the checkpoint"
FEATURE = "the feature active"
_REWARD_PATH = "RM_MODEL_PATH"
_RERUN_AS_ASKED = "rerun with what was asked for active in the resolved settings"
_SEE_PROBE = "rerun with the probe, whose hooks show what verl does not print"
_CHECK_TARGETS = "check LoRA's target module names, and the PEFT helpers that verl expects"
_PEFT_TYPES = ("lora", "dora", "canonicallora", "vlmlora")
_MOST_NAMED = 12
_SIZE_NAMES: Mapping[str, str] = {
    "COMMON_TP": "tensor_model_parallel_size",
    "COMMON_PP": "pipeline_model_parallel_size",
    "COMMON_CP": "context_parallel_size",
    "COMMON_EP": "expert_model_parallel_size",
    "COMMON_ETP": "expert_tensor_parallel_size",
}
_WIDE = (*_SIZE_NAMES, "INFER_TP")
_WATCHED = re.compile(r"(?i)loss|reward|score|(?:^|[/_])kl|entrop|grad_norm|log_?prob|advantages|returns")
_UNCERTAIN = "training/rollout_probs_diff"  # verl says NaN where it had nothing to compare


@dataclass(frozen=True)
class TrainingRun:
    """A training that began, and all that is known of it. `script` is its wrapper's text; `plain` are the proofs that
    level 0, where the feature is not active, has as well; `failures` are those of its log and of its processes;
    `imports` are criteria of its processes' imports; `hooked` is what the probe's hook noted."""

    training: Training
    facts: TrainingFacts
    request: LevelRequest
    script: str = ""
    plain: Mapping[str, QuotedLine] = field(default_factory=dict)
    failures: tuple[LoggedFailure, ...] = ()
    imports: tuple[Criterion, ...] = ()
    hooked: HookedTraining = field(default_factory=HookedTraining)

    @property
    def ended_well(self) -> bool:
        return self.facts.exit_code == 0 and self.facts.finished

    def location(self) -> FailureLocation | None:
        """Where it failed; None where it ended well, or nobody can see why it did not."""
        if self.ended_well or (self.facts.exit_code == 0 and self.facts.error is None):
            return None
        error = self.facts.error
        paths = (self.request.reward_model, self.training.env.get(_REWARD_PATH, ""))
        located = locate_failure(error, self.facts.constructed(error.line_no if error else None), paths)
        if located.stage.name == DENSE_MODEL and not self._is_dense:
            return FailureLocation(located.stage, UNCLEAR, located.constructed)
        return located

    @property
    def _is_dense(self) -> bool:
        return self.request.model_id in ("", DEFAULT_MODEL) and not (
            self.request.model_path or self.request.dummy_config
        )


def criteria_of(run: TrainingRun) -> tuple[Criterion, ...]:
    """In the order in which a training goes through them."""
    return (
        *run.imports,
        settings_as_asked(run),
        non_vanilla(run),
        *_lora(run),
        _wrapper(run),
        *_sizes(run),
        _steps(run),
        _finite(run.facts.metrics),
        _no_exception(run),
        _exit(run),
        *(_resume(run.training, run.facts) if run.training.resumes else ()),
        *(_features(run) if run.training.level == 4 else ()),
    )


def settings_as_asked(run: TrainingRun) -> Criterion:
    """Every setting that a variable or an override asks for, of every role, as verl resolved it; and what the roles'
    own workers were given of it."""
    settings, asked = run.facts.settings, requested_settings(run.training, run.script)
    different = [
        _differs(dotted, setting, role.values[dotted], f"{role.role}, {role.process}")
        for role in run.hooked.roles
        for dotted, setting in asked.items()
        if dotted in role.values and not equals_requested(setting.value, role.values[dotted])
    ]
    if not settings.resolved and not different:
        text = "the log does not show verl's resolved settings, and the command alone is not trusted"
        return not_seen(AS_ASKED, text, _SEE_PROBE)
    different[:0] = [
        _differs(dotted, setting, settings.get(dotted))
        for dotted, setting in asked.items()
        if settings.get(dotted) is not MISSING and not equals_requested(setting.value, settings.get(dotted))
    ]
    # What a revision does not have is off there.
    missing = [
        dotted
        for dotted, setting in asked.items()
        if settings.get(dotted) is MISSING and setting.value not in ("False", "null")
    ]
    if different:
        return contradicted(AS_ASKED, _listed(different), settings.place, _RERUN_AS_ASKED)
    if missing:
        return not_seen(AS_ASKED, f"not in the resolved settings: {_listed(missing)}", place=settings.place)
    roles = ", ".join(sorted({_role(dotted) for dotted in asked}))
    return shown(AS_ASKED, f"all {len(asked)}, of {roles}", settings.place)


def non_vanilla(run: TrainingRun) -> Criterion:
    """Whether the run went through Megatron-Bridge, whoever asked for that: another shows nothing of it."""
    settings, providers = run.facts.settings, run.hooked.providers
    if not settings.resolved:
        if providers:
            return shown(NON_VANILLA, f"built by {', '.join(providers)} of Megatron-Bridge")
        return not_seen(NON_VANILLA, "the resolved settings were not seen", _SEE_PROBE)
    needed = [("USE_MBRIDGE", "True"), ("VANILLA_MBRIDGE", "False")]
    if has_critic(settings):
        needed.append(("VALUE_VANILLA_MBRIDGE", "False"))
    wrong = [
        (name, settings.get(SETTINGS[name]))
        for name, value in needed
        if not equals_requested(value, settings.get(SETTINGS[name]))
    ]
    if not wrong:
        built = f"; built by {', '.join(providers)}" if providers else ""
        return shown(NON_VANILLA, ", ".join(f"{name}={value}" for name, value in needed) + built, settings.place)
    text = ", ".join(f"{name}={value_text(value)}" for name, value in wrong)
    if any(value is MISSING for _, value in wrong):
        return not_seen(NON_VANILLA, text, place=settings.place)
    return contradicted(NON_VANILLA, text, settings.place, _RERUN_AS_ASKED)


def has_critic(settings: Settings) -> bool:
    """Whether the algorithm has a critic."""
    return bool(settings.get("algorithm.adv_estimator") == "gae")


def uses_peft(run: TrainingRun) -> bool:
    rank = run.facts.settings.get(SETTINGS["LORA_RANK"])
    return not equals_requested("0", run.training.env.get("LORA_RANK", "0") if rank is MISSING else rank)


def value_text(value: object) -> str:
    return "null" if value is None else str(value)


# -- what was built ----------------------------------------------------------------------------------------------------


def _lora(run: TrainingRun) -> Iterator[Criterion]:
    if not uses_peft(run):
        return
    if run.hooked.models:
        yield _adapted(run)
        return
    line, count = run.facts.construction.get("LoRA"), run.facts.trainable
    place = _place(run.facts.trainable_seen)
    if count is None:
        text = "nothing shows trainable parameters of adapters"
        yield not_seen(LORA, f"{text}{f'; {line.text}' if line else ''}", _SEE_PROBE, _place(line))
    elif count == 0:
        yield contradicted(LORA, "0 trainable parameters", place, _CHECK_TARGETS)
    else:
        yield shown(LORA, f"{count:,} trainable parameters", place)


def _adapted(run: TrainingRun) -> Criterion:
    """By the models that train."""
    models, methods = run.hooked.models, run.hooked.methods
    place = models[0].process
    wanted = str(run.facts.settings.get("actor_rollout_ref.model.lora.type")).replace("_", "").lower()
    names = {method.method.lower() for method in methods}
    if wanted in _PEFT_TYPES and names and wanted not in names:
        return contradicted(LORA, f"{', '.join(sorted(names))} was applied, not {wanted}", place, _RERUN_AS_ASKED)
    adapted = [model for model in models if model.built.adapters]
    if not adapted:
        return contradicted(LORA, "no trained model has an adapter", place, _CHECK_TARGETS)
    frozen = [model for model in models if model.built.trainable == 0]
    if len(frozen) == len(models):
        return contradicted(LORA, "0 trainable parameters", place, _CHECK_TARGETS)
    if frozen:
        return not_seen(LORA, "a model has 0 trainable parameters, others have some", _CHECK_TARGETS, frozen[0].process)
    whole = [model for model in adapted if 0 < model.built.parameters == model.built.trainable]
    if whole:
        return contradicted(LORA, "every parameter is trainable beside the adapters", whole[0].process, _CHECK_TARGETS)
    first = adapted[0].built
    layers = ", ".join(f"{count} {name}" for name, count in sorted(first.adapters.items()))
    kinds = "/".join(dict.fromkeys(method.method for method in methods)) or "adapters"
    text = f"{kinds}: {first.trainable:,} of {first.parameters:,} parameters are trainable, {layers}"
    return shown(LORA, text, adapted[0].process)


def _wrapper(run: TrainingRun) -> Criterion:
    asked = run.training.env.get("USE_MEGATRON_FSDP", "False")
    wanted, other = (FSDP, DDP) if asked == "True" else (DDP, FSDP)
    places: dict[str, str] = {}
    for model in reversed(run.hooked.models):
        places[model.wrapper] = f"{model.process}: {' in '.join(reversed(model.built.wrappers))}"
    if not places:
        lines = run.facts.construction
        places = {name: _place(lines[name]) for name in (DDP, FSDP) if name in lines}
    if other in places:
        return contradicted(WRAPPER, f"{other} was built, not {wanted}", places[other], _RERUN_AS_ASKED)
    if wanted in places:
        return shown(WRAPPER, wanted, places[wanted])
    return not_seen(WRAPPER, f"nothing shows that the model was wrapped in {wanted}", _SEE_PROBE)


def _sizes(run: TrainingRun) -> Iterator[Criterion]:
    """Of the built models; verl's settings are only what they were to become."""
    asked = {name: int(run.training.env[name]) for name in _WIDE if run.training.env.get(name, "").isdecimal()}
    if run.training.level == 2 and all(size == 1 for size in asked.values()):
        yield not_seen(SIZES, "all parallel sizes are 1: no evidence for distributed behavior", "ask for larger sizes")
        return
    seen = run.facts.sizes
    built = {name: seen[_SIZE_NAMES[name]] for name in asked if _SIZE_NAMES.get(name) in seen}
    wrong = [
        f"{name}={'/'.join(map(str, size.values))} in the built models, not {asked[name]}"
        for name, size in built.items()
        if size.values != (asked[name],)
    ]
    place = next(iter(built.values())).place if built else ""
    unseen = [name for name in asked if name in _SIZE_NAMES and name not in built and asked[name] != 1]
    if wrong:
        yield contradicted(SIZES, "; ".join(wrong), place, "see whether the provider was finalized with mpu's sizes")
    elif not built or unseen:
        yield not_seen(SIZES, f"nothing shows those of the built models{_of(unseen)}", _SEE_PROBE, place)
    else:
        yield shown(SIZES, ", ".join(f"{name[7:]} {asked[name]}" for name in built), place)


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Criterion:
    facts, steps = run.facts, run.training.steps
    place = _place(facts.progress_seen)
    if facts.finished and facts.progress == (steps, steps) and steps in facts.metrics:
        return shown(STEPS, f"Training Progress {steps}/{steps}, metrics of global step {steps}", place)
    missed = []
    if facts.progress is None:
        missed.append("no Training Progress in the log")
    elif facts.progress != (steps, steps):
        missed.append(f"Training Progress is {facts.progress[0]}/{facts.progress[1]}, not {steps}/{steps}")
    if steps not in facts.metrics:
        missed.append(f"no metrics of global step {steps}")
    seen = facts.progress is not None and facts.progress != (steps, steps)
    # Where it failed for a known reason, that decides what the missing steps mean.
    if seen and facts.exit_code == 0 and run.location() is None:
        return contradicted(STEPS, "; ".join(missed), place)
    return not_seen(STEPS, "; ".join(missed), place=place)


def _finite(metrics: Metrics) -> Criterion:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    for step in sorted(metrics):
        for key, value in metrics[step].items():
            if _WATCHED.search(key) and not math.isfinite(value) and not key.startswith(_UNCERTAIN):
                return contradicted(
                    FINITE, f"{key} is {value} at step {step}", follow_up="triage the metrics: data, reward, Bridge"
                )
    if not any(_WATCHED.search(key) for step, values in metrics.items() if step > 0 for key in values):
        return not_seen(FINITE, "no loss, reward or gradient norm was logged")
    return shown(FINITE, f"losses, rewards, KL, entropy and gradients at {sum(step > 0 for step in metrics)} steps")


def _no_exception(run: TrainingRun) -> Criterion:
    """Of a swallowed one the exit code says nothing. What has no frame in Bridge, or in verl's code around it, may have
    been handled where it was raised; what kills a process was not."""
    doubtful: Criterion | None = None
    for failure in run.failures:
        location = locate_logged(failure, failure.construction or run.facts.constructed(failure.line_no or None))
        if failure.construction and location.owner == CHANGE:
            return contradicted(NO_EXCEPTION, failure.text, failure.place, location.stage.follow_up)
        harmful = failure.construction or not failure.frames or location.stage.name == "GPU memory"
        if doubtful is None and harmful and not failure.finished:
            doubtful = not_seen(NO_EXCEPTION, f"{location}: {failure.text}", location.stage.follow_up, failure.place)
    if doubtful is not None:
        return doubtful
    if not run.ended_well:
        return not_seen(NO_EXCEPTION, "it did not come to its end")
    return shown(NO_EXCEPTION, "none in its log" + (" or its processes" if run.imports else ""))


def _exit(run: TrainingRun) -> Criterion:
    facts, location = run.facts, run.location()
    if location is None and facts.exit_code == 0 and facts.starts > 1:
        text = f"exit code 0 is of the last of {facts.starts} starts of the trainer"
        return not_seen(EXIT, text, "find out why the trainer was started again")
    if location is None and facts.exit_code == 0:
        return shown(EXIT, "exit code 0")
    place, text = _failure(facts)
    if location is None:
        return not_seen(EXIT, text, place=place)
    text = f"{location}: {text}"
    if facts.finished and facts.exit_code != 0:
        text = f"all steps are done, but the process did not exit successfully: {text}"
    if location.owner == UNCLEAR:
        return not_seen(EXIT, text, location.stage.follow_up, place)
    follow_up = location.stage.follow_up
    return contradicted(EXIT, text, place, follow_up, environment=location.owner == ENVIRONMENT)


def _failure(facts: TrainingFacts) -> tuple[str, str]:
    """(place, text) of what ended it."""
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    if facts.error is not None and facts.error.line:
        return f"line {facts.error.line_no}", f"{code}, {facts.error.text or facts.error.line}"
    return "", f"{code}; the log does not say why"


# -- levels ------------------------------------------------------------------------------------------------------------


def _resume(training: Training, facts: TrainingFacts) -> Iterator[Criterion]:
    from_step = training.steps - 1
    why = "find out why the checkpoint was not loaded: keep verl's checkpoints/ between save and resume"
    again = [step for step in facts.metrics if 0 < step <= from_step]
    if facts.scratch is not None:
        yield contradicted(RESUME, facts.scratch.text, _place(facts.scratch), why)
    elif again:
        yield contradicted(RESUME, f"it trained global step {again[0]} again: nothing was loaded", "", why)
    elif facts.resumed_from is None:
        yield not_seen(RESUME, "no line says from which checkpoint", why)
    elif facts.resumed_from != from_step:
        text = f"it resumed at global step {facts.resumed_from}, not {from_step}"
        yield contradicted(RESUME, text, _place(facts.resumed_seen), why)
    else:
        yield shown(RESUME, f"resumed at global step {from_step}", _place(facts.resumed_seen))


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern in run.request.proofs:
        line, plain = run.facts.proofs.get(pattern), run.plain.get(pattern)
        if line is None:
            yield not_seen(FEATURE, f"no line matches {pattern!r}", todo)
        elif plain is not None:
            text = f"{pattern!r} proves nothing: level 0, without the feature, has such a line too"
            yield not_seen(FEATURE, text, todo, _place(plain))
        else:
            yield shown(FEATURE, repr(line.text), _place(line))


# -- words -------------------------------------------------------------------------------------------------------------


def _differs(dotted: str, setting: RequestedSetting, resolved: object, where: str = "") -> str:
    asked = "" if setting.by.endswith(f"{dotted}={setting.value}") else f" ({setting.by})"
    return f"{dotted}={value_text(resolved)}{f' in {where}' if where else ''}, not {setting.value}{asked}"


def _role(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "actor_rollout_ref" else parts[0]


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return "; ".join(items[:_MOST_NAMED]) + more


def _of(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _place(line: QuotedLine | None) -> str:
    return f"line {line.line_no}" if line is not None else ""
