"""The guide's criteria for one training, in the order in which it goes through them. Each has one source: what the
probe's hook noted, else what verl printed. What was asked for, and verl's settings, are only what it was to become."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.errors import counted, some
from ci_tasks.features.verl.judge import noted as hook
from ci_tasks.features.verl.judge.attribution import (
    CHANGE,
    CONSTRUCTION,
    ENVIRONMENT,
    UNCLEAR,
    attribute,
)
from ci_tasks.features.verl.judge.checkpoints import checkpoint_files, resume, same_step
from ci_tasks.features.verl.judge.noted import importers, noted, process_name
from ci_tasks.features.verl.judge.settings import MISSING, AskedSetting, equals_asked
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, WATCHED, TrainingFacts
from ci_tasks.features.verl.judge.training_run import RERUN_AS_ASKED, SEE_PROBE, TrainingRun, has_critic
from ci_tasks.features.verl.levels.levels import SETTINGS
from ci_tasks.features.verl.levels.summary import Criterion, contradicted, not_seen, shown

LOCAL_BRIDGE, ONE_MEGATRON = "local Bridge in every process", "one Megatron-LM in every process"
AS_ASKED, NON_VANILLA, ENGINE = "settings as asked", "non-vanilla Bridge", "rollout engine"
LORA, WRAPPER, SIZES = "LoRA with trainable parameters", "model wrapper", "parallel sizes"
STEPS, FINITE, EXIT = "training steps", "finite metrics", "successful exit"
NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
FEATURE = "the feature active"
_MOST = 12  # settings in one sentence
_OTHER_VERL = "this verl does not have these settings: use a revision that has them, or do not ask for them"
_TARGETS = "check LoRA's target module names, and the PEFT helpers that verl expects"
_PEFT_TYPES = ("lora", "dora", "canonicallora", "vlmlora")
_ROLES = ("actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron.", "critic.megatron.")
_SIZES = ("tensor", "pipeline", "context", "expert")
_ROLLOUT_SIZE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_REWARD_SIZE = "reward.reward_model.rollout.tensor_model_parallel_size"
# verl says NaN where it had nothing to compare; auxiliary scores are the data set's own.
_EXCUSED = ("training/rollout_probs_diff", "val-aux/")


def criteria_of(run: TrainingRun) -> tuple[Criterion, ...]:
    return (
        *import_criteria(run.evidence, run.root),
        _settings_as_asked(run),
        _non_vanilla(run),
        _rollout_engine(run),
        *_lora(run),
        _wrapper(run),
        *_parallel_sizes(run),
        _steps(run),
        _finite(run.facts),
        _no_exception(run),
        _exit(run),
        *(checkpoint_files(run) if run.training.level == 1 else ()),
        *((resume(run),) if run.training.resumes else ()),
        *((same_step(run),) if run.training.same_as else ()),
        *(_features(run) if run.training.level == 4 else ()),
    )


# -- what its processes imported ---------------------------------------------------------------------------------------


def import_criteria(evidence: RunEvidence | None, root: str) -> Iterator[Criterion]:
    """Whether all processes of a training imported the Bridge under `root`, and its workers one Megatron-LM: verl's
    wrapper puts an image's own before the checkout's for the driver alone. Nothing where there is no evidence."""
    if evidence is None or not root:
        return
    source = f"{root.rstrip('/')}/src/"
    bridge = importers(evidence, "megatron.bridge")
    wrong = {place: who for place, who in bridge.items() if not place.startswith(source)}
    for place, who in wrong.items():
        yield contradicted(LOCAL_BRIDGE, f"{place} is not under {source[:-1]}", _named(who), environment=True)
    if not bridge:
        yield not_seen(LOCAL_BRIDGE, "no process of the training was seen to import megatron.bridge", SEE_PROBE)
    elif not wrong:
        text = f"{counted(sum(map(len, bridge.values())), 'import')} from {source[:-1]}"
        yield shown(LOCAL_BRIDGE, text, _named(next(iter(bridge.values()))))
    core = importers(evidence, "megatron.core")
    ranked = any(process.rank is not None for process in evidence.processes)
    workers = {place: found for place, who in core.items() if (found := _workers(who, ranked))} or core
    if len(workers) > 1:
        places = "; ".join(f"{place}: {_named(who)}" for place, who in workers.items())
        yield contradicted(ONE_MEGATRON, places, environment=True)
    for place, who in workers.items() if len(workers) == 1 else ():
        pinned = place.startswith(f"{root.rstrip('/')}/3rdparty/Megatron-LM/")
        note = "" if pinned else ", which is not the Bridge checkout's 3rdparty/Megatron-LM"
        yield shown(ONE_MEGATRON, f"{place}{note}", _named(who))
    if not core:
        yield not_seen(ONE_MEGATRON, "no process of the training was seen to import megatron.core", SEE_PROBE)


def _workers(processes: Sequence[ProcessEvidence], ranked: bool) -> list[ProcessEvidence]:
    if ranked:
        return [process for process in processes if process.rank is not None]
    return [process for process in processes if not any("main_ppo" in word for word in process.argv)]


def _named(processes: Sequence[ProcessEvidence]) -> str:
    return some([process_name(process) for process in processes], 3)


# -- what verl was given -----------------------------------------------------------------------------------------------


def _settings_as_asked(run: TrainingRun) -> Criterion:
    """Every setting that a variable or an override asks for, as verl resolved it, and as a role's workers got it."""
    settings, asked = run.facts.settings, run.asked
    different = [
        f"{_differs(name, one, role.values[name])} in {role.role}, {role.process}"
        for role in hook.role_settings(run.evidence)
        for name, one in asked.items()
        if name in role.values and not equals_asked(one.value, role.values[name])
    ]
    if not settings and not different:
        text = "the log does not show verl's resolved settings, and the command alone is not trusted"
        return not_seen(AS_ASKED, text, SEE_PROBE)
    different[:0] = [
        _differs(name, one, value)
        for name, one in asked.items()
        if (value := settings.get(name)) is not MISSING and not equals_asked(one.value, value)
    ]
    # What a revision does not have is off there; roles but the actor may have no such setting.
    missing = [
        name
        for name, one in asked.items()
        if settings.get(name) is MISSING and one.value not in ("False", "null") and not name.startswith(_ROLES[1:])
    ]
    if different:
        return contradicted(AS_ASKED, some(different, _MOST, "; "), settings.place, RERUN_AS_ASKED)
    if missing:
        text = f"not in the resolved settings: {some(missing, _MOST, '; ')}"
        return not_seen(AS_ASKED, text, _OTHER_VERL, settings.place)
    return shown(AS_ASKED, f"all {len(asked)}", settings.place)


def _differs(name: str, asked: AskedSetting, resolved: object) -> str:
    by = "" if asked.by.endswith(f"{name}={asked.value}") else f" ({asked.by})"
    return f"{name}={value_text(resolved)}, not {asked.value}{by}"


def value_text(value: object) -> str:
    return "null" if value is None else str(value)


def _non_vanilla(run: TrainingRun) -> Criterion:
    """Whether the run went through Megatron-Bridge: another one shows nothing of it."""
    settings, vanilla = run.facts.settings, run.facts.said.get("vanilla")
    if vanilla is not None:
        text = "a model was built past Megatron-Bridge: with it, verl prints no TF config"
        return contradicted(NON_VANILLA, text, vanilla.place, RERUN_AS_ASKED)
    providers = sorted({model.provider for _, model in noted(run.evidence, hook.BuiltModel) if model.provider})
    watched = any(hook.PROVIDES in module.found for _, module in noted(run.evidence, hook.HookedModule))
    if run.models and watched and not providers:
        process, model = run.models[0]
        text = f"{model.model or 'a model'} was built without a provider of Megatron-Bridge"
        return contradicted(NON_VANILLA, text, process_name(process), RERUN_AS_ASKED)
    needed = {"USE_MBRIDGE": "True", "VANILLA_MBRIDGE": "False"}
    if has_critic(settings):
        needed["VALUE_VANILLA_MBRIDGE"] = "False"
    found = {name: settings.get(SETTINGS[name]) for name in needed}
    wrong = {name: value for name, value in found.items() if not equals_asked(needed[name], value)}
    text = ", ".join(f"{name}={value_text(value)}" for name, value in (wrong or found).items())
    if any(value is not MISSING for value in wrong.values()):
        return contradicted(NON_VANILLA, text, settings.place, RERUN_AS_ASKED)
    if wrong and not providers:
        return not_seen(NON_VANILLA, text if settings else "the resolved settings were not seen", SEE_PROBE)
    built = f"built by {', '.join(providers)}" if providers else ""
    return shown(NON_VANILLA, "; ".join(filter(None, ["" if wrong else text, built])), settings.place)


def _rollout_engine(run: TrainingRun) -> Criterion:
    """Whether rollouts came from the engine that was asked for, as wide as asked: by its servers' class and its own
    line, else by what verl resolved, which the guide takes as well."""
    settings, resolved = run.facts.settings, run.facts.settings.get(SETTINGS["ENGINE"])
    wanted = run.training.env.get("ENGINE") or str(resolved)
    served = run.facts.said.get("served")
    sizes = {run.asked[name].value for name in (_ROLLOUT_SIZE, _REWARD_SIZE) if name in run.asked}
    sizes |= {str(settings.get(_REWARD_SIZE))}
    if served is not None and _ROLLOUT_SIZE in run.asked and served.value not in sizes:
        text = f"{wanted} says tensor_parallel_size={served.value}, not {run.asked[_ROLLOUT_SIZE].value}"
        return contradicted(ENGINE, text, served.place, RERUN_AS_ASKED)
    servers = {
        config.owner: process_name(process)
        for process, config in noted(run.evidence, hook.RoleConfig)
        if config.role == "rollout_server" and config.owner
    }
    for name, place in servers.items():
        if not name.lower().startswith(wanted.lower()):
            return contradicted(ENGINE, f"{name} served, not {wanted}", place, RERUN_AS_ASKED)
    if servers:
        return shown(ENGINE, f"{wanted}: {next(iter(servers))} served", next(iter(servers.values())))
    if resolved is MISSING:
        return not_seen(ENGINE, "neither its servers nor the resolved settings were seen", SEE_PROBE)
    text = f"{value_text(resolved)} in the resolved settings; no process noted its server"
    outcome = shown if equals_asked(wanted, resolved) else contradicted
    return outcome(ENGINE, text, settings.place)


# -- what was built ----------------------------------------------------------------------------------------------------


def _lora(run: TrainingRun) -> Iterator[Criterion]:
    """Whether adapters were applied, to every layer, and train. Nothing where none were asked for."""
    rank = run.facts.settings.get(SETTINGS["LORA_RANK"])
    if equals_asked("0", run.training.env.get("LORA_RANK", "0") if rank is MISSING else rank):
        return
    said, here = run.facts.said, _layers(run)
    if here and run.facts.lora_layers and len(run.facts.lora_layers) < here:
        text = f"adapters in {len(run.facts.lora_layers)} of {here} layers"
        yield contradicted(LORA, text, said["LoRA"].place if "LoRA" in said else "", _TARGETS)
    elif run.models:
        yield _adapted(run, here)
    elif "frozen" in said:
        yield contradicted(LORA, "0 trainable parameters", said["frozen"].place, _TARGETS)
    elif "trainable" in said:
        yield shown(LORA, f"{said['trainable'].value} trainable parameters", said["trainable"].place)
    else:
        line = said.get("LoRA")
        text = f"nothing shows trainable parameters of adapters{f'; {line.text}' if line else ''}"
        yield not_seen(LORA, text, SEE_PROBE, line.place if line else "")


def _layers(run: TrainingRun) -> int:
    """How many layers a rank has at least, as Bridge's provider built it; 0 where it is not known, or the request names
    layers."""
    if "layers." in str(run.facts.settings.get("actor_rollout_ref.model.lora.target_modules")):
        return 0
    configs = (config for _, config in noted(run.evidence, hook.RoleConfig) if config.role == "provider")
    layers = [value for config in configs if isinstance(value := config.settings.get("provider.num_layers"), int)]
    stages = max((sizes.pipeline or 1 for _, sizes in noted(run.evidence, hook.ParallelSizes)), default=1)
    return min(layers, default=0) // stages


def _adapted(run: TrainingRun, layers: int) -> Criterion:
    models, names = run.models, {peft.method for _, peft in noted(run.evidence, hook.AppliedPeft)}
    place, first = process_name(models[0][0]), models[0][1]
    wanted = str(run.facts.settings.get("actor_rollout_ref.model.lora.type")).replace("_", "").lower()
    if wanted in _PEFT_TYPES and names and wanted not in {name.lower() for name in names}:
        return contradicted(LORA, f"{', '.join(sorted(names))} was applied, not {wanted}", place, RERUN_AS_ASKED)
    adapted = [model for _, model in models if model.adapters]
    few = [model for model in adapted if sum(model.adapters.values()) < layers]
    frozen = [process for process, model in models if model.trainable == 0]
    whole = [model for model in adapted if 0 < model.parameters == model.trainable]
    if not adapted:
        return contradicted(LORA, "no trained model has an adapter", place, _TARGETS)
    if len(frozen) == len(models):
        return contradicted(LORA, "0 trainable parameters", place, _TARGETS)
    if few:
        text = f"{counted(sum(few[0].adapters.values()), 'adapter')} in {layers} layers"
        return contradicted(LORA, text, place, _TARGETS)
    if frozen:
        text = "a model has 0 trainable parameters, others have some"
        return not_seen(LORA, text, _TARGETS, process_name(frozen[0]))
    if whole:
        return contradicted(LORA, "every parameter is trainable beside the adapters", place, _TARGETS)
    first = adapted[0]
    layers_text = ", ".join(f"{count} {name}" for name, count in sorted(first.adapters.items()))
    kinds = "/".join(sorted(names)) or "adapters"
    text = f"{kinds}: {first.trainable:,} of {first.parameters:,} parameters are trainable, {layers_text}"
    return shown(LORA, text, place)


def _wrapper(run: TrainingRun) -> Criterion:
    asked = run.training.env.get("USE_MEGATRON_FSDP") or run.facts.settings.get(SETTINGS["USE_MEGATRON_FSDP"])
    wanted, other = (FSDP, DDP) if str(asked) == "True" else (DDP, FSDP)
    places = {
        model.wrapper: f"{process_name(process)}: {' in '.join(reversed(model.wrappers))}"
        for process, model in reversed(run.models)
    } or {name: run.facts.said[name].place for name in (DDP, FSDP) if name in run.facts.said}
    if other in places:
        return contradicted(WRAPPER, f"{other} was built, not {wanted}", places[other], RERUN_AS_ASKED)
    if wanted in places:
        return shown(WRAPPER, wanted, places[wanted])
    return not_seen(WRAPPER, f"nothing shows that the model was wrapped in {wanted}", SEE_PROBE)


def _parallel_sizes(run: TrainingRun) -> Iterator[Criterion]:
    """Those of Megatron's groups as they were made; of these verl's log says nothing. Level 2 needs one above 1."""
    built: dict[str, set[int]] = {}
    place = ""
    for process, sizes in noted(run.evidence, hook.ParallelSizes):
        place = place or process_name(process)
        for name in _SIZES:
            if (size := getattr(sizes, name)) is not None:
                built.setdefault(name, set()).add(size)
    asked = {}
    for name in _SIZES:
        values = [run.asked.get(f"{role}{name}_model_parallel_size") for role in _ROLES]
        asked[name] = [int(one.value) for one in values if one is not None and one.value.isdecimal()]
    wrong = [
        f"{name} {'/'.join(map(str, sorted(found)))} in the built models, not {asked[name][0]}"
        for name, found in built.items()
        if asked[name] and (found - {*asked[name]} or asked[name][0] not in found)
    ]
    unseen = [name for name, values in asked.items() if values and name not in built and max(values) > 1]
    if wrong:
        yield contradicted(SIZES, "; ".join(wrong), place, "see whether the provider was finalized with mpu's sizes")
    elif not built or unseen:
        which = f": {', '.join(unseen)}" if unseen else ""
        yield not_seen(SIZES, f"nothing shows those of the built models{which}", SEE_PROBE, place)
    elif run.training.level == 2 and all(max(found) == 1 for found in built.values()):
        text = "all sizes of the trainer are 1: no evidence for distributed behavior"
        yield not_seen(SIZES, text, "ask for larger sizes: --env COMMON_TP=2", place)
    else:
        yield shown(SIZES, ", ".join(f"{name} {'/'.join(map(str, sorted(built[name])))}" for name in built), place)


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Criterion:
    facts, steps = run.facts, run.training.steps
    place = facts.said["progress"].place if "progress" in facts.said else ""
    if facts.progress == (steps, steps) and steps in facts.metrics:
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
    if seen and facts.exit_code == 0 and run.attribution() is None:
        return contradicted(STEPS, "; ".join(missed), place)
    return not_seen(STEPS, "; ".join(missed), "see the end of the log: why verl logged no such step", place)


def _finite(facts: TrainingFacts) -> Criterion:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    watched = {
        step: {name: value for name, value in values.items() if WATCHED.search(name) and not name.startswith(_EXCUSED)}
        for step, values in facts.metrics.items()
    }
    for step in sorted(watched):
        for name, value in watched[step].items():
            if not math.isfinite(value):
                text = f"{name} is {value} at step {step}"
                return contradicted(FINITE, text, follow_up="triage the metrics: data, reward, Bridge")
    for name, where in facts.unreadable.items():
        return not_seen(FINITE, f"{name} is no number at {where}", "see what verl logged there")
    steps = [step for step, values in watched.items() if step > 0 and values]
    if not steps:
        return not_seen(FINITE, "no loss, reward or gradient norm was logged", "let verl log to the console")
    return shown(FINITE, f"losses, rewards, KL, entropy and gradients at {len(steps)} steps")


def _no_exception(run: TrainingRun) -> Criterion:
    """Of a swallowed one the exit code says nothing. What has no frame in Bridge, or in verl's code around it, may have
    been handled where it was raised; what kills a process was not. After the last step it is noise."""
    doubtful: Criterion | None = None
    for failure in run.facts.failures:
        if not failure.sure or failure.finished:
            continue
        found = attribute(failure, failure.constructs or run.facts.constructed(failure.line_no), run.root)
        if failure.constructs and found.owner == CHANGE:
            return contradicted(NO_EXCEPTION, failure.text, failure.place, found.stage.follow_up)
        if doubtful is None and (failure.constructs or not failure.frames or failure.cause == "cuda_oom"):
            doubtful = not_seen(NO_EXCEPTION, f"{found}: {failure.text}", found.stage.follow_up, failure.place)
    if doubtful is not None:
        return doubtful
    if not run.facts.ended_well:
        return not_seen(NO_EXCEPTION, "it did not come to its end")
    return shown(NO_EXCEPTION, "none in its log" + (" or its processes" if run.evidence else ""))


def _exit(run: TrainingRun) -> Criterion:
    facts, found = run.facts, run.attribution()
    if found is None and facts.exit_code == 0 and facts.starts > 1:
        text = f"exit code 0 is of the last of {facts.starts} starts of the trainer"
        return not_seen(EXIT, text, "find out why the trainer was started again")
    if found is None and facts.exit_code == 0:
        return shown(EXIT, "exit code 0")
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    error = facts.error
    text = f"{code}, {error.text}" if error else f"{code}; the log does not say why"
    place = error.place if error else ""
    if found is None or (facts.exit_code is None and error is None):
        return not_seen(EXIT, text, place=place)
    text = f"{found}: {text}"
    if facts.finished:
        text = f"all steps are done, but the process did not exit successfully: {text}"
    if found.owner == UNCLEAR:
        return not_seen(EXIT, text, found.stage.follow_up, place)
    return contradicted(EXIT, text, place, found.stage.follow_up, environment=found.owner == ENVIRONMENT)


# -- level 4 ----------------------------------------------------------------------------------------------------------


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern in run.request.proofs:
        line, plain = run.facts.proofs.get(pattern), run.plain.get(pattern)
        if line is None:
            yield not_seen(FEATURE, f"no line matches {pattern!r}", todo)
        elif plain is not None:
            text = f"{pattern!r} proves nothing: level 0, without the feature, has such a line too"
            yield not_seen(FEATURE, text, todo, plain.place)
        else:
            yield shown(FEATURE, repr(line.text), line.place)
