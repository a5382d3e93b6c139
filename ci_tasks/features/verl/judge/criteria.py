"""The guide's criteria for one training. Each has one source: what the probe's hook noted, else what verl printed.

criterion                        shown by                               contradicted by
local Bridge in every process    imports under the checkout's src       an import from elsewhere (Blocked)
one Megatron-LM                  one origin in the workers              two origins (Blocked)
settings as asked                verl's resolved settings               a setting with another value
non-vanilla Bridge               a provider of Bridge, the settings     vanilla settings, a model without a provider
rollout engine                   the resolved settings                  another one, another tensor-parallel size
LoRA with trainable parameters   adapters in the built models           none, none trainable, fewer than layers
model wrapper                    DDP or Megatron-FSDP as built          the other one
parallel sizes                   Megatron's groups as made              other sizes than asked
training steps                   Training Progress N/N, its metrics     another end of an exit code 0
finite metrics                   all losses, rewards, KL, norms         NaN or infinity
no exception                     none in the log or a process           one in Bridge or around it
successful exit                  exit code 0                            a failure that is the change's (Fail) or the
                                                                        environment's (Blocked)
level 1: see `checkpoints`; level 4: the feature active; level 5: see `learning`

What is neither is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.errors import counted, some
from ci_tasks.features.verl.judge.attribution import CHANGE, CONSTRUCTION, ENVIRONMENT, UNCLEAR, attribute
from ci_tasks.features.verl.judge.checkpoints import checkpoint_criteria
from ci_tasks.features.verl.judge.records import Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.judge.settings import MISSING, equals_asked, value_text
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, WATCHED, TrainingFacts
from ci_tasks.features.verl.judge.training_run import (
    PROVIDES,
    RERUN_AS_ASKED,
    SEE_PROBE,
    BuiltModel,
    HookedModule,
    ParallelSizes,
    TrainingRun,
    process_name,
)
from ci_tasks.features.verl.levels.levels import SETTINGS
from ci_tasks.logs.lines import visible

LOCAL_BRIDGE, ONE_MEGATRON = "local Bridge in every process", "one Megatron-LM in every process"
AS_ASKED, NON_VANILLA, ENGINE = "settings as asked", "non-vanilla Bridge", "rollout engine"
LORA, WRAPPER, SIZES = "LoRA with trainable parameters", "model wrapper", "parallel sizes"
STEPS, FINITE, EXIT = "training steps", "finite metrics", "successful exit"
NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
FEATURE = "the feature active"
_TARGETS = "check LoRA's target module names, and the PEFT helpers that verl expects"
_ROLES = ("actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron.", "critic.megatron.")
_SIZES = ("tensor", "pipeline", "context", "expert")
_ROLLOUT_SIZE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_REWARD_SIZE = "reward.reward_model.rollout.tensor_model_parallel_size"
# verl says NaN where it had nothing to compare; auxiliary scores are the data set's own.
_EXCUSED = ("training/rollout_probs_diff", "val-aux/")


def criteria_of(run: TrainingRun) -> Iterator[Criterion]:
    yield from import_criteria(run.evidence, run.root)
    yield _settings_as_asked(run)
    yield _non_vanilla(run)
    yield _rollout_engine(run)
    yield from _lora(run)
    yield _wrapper(run)
    yield _parallel_sizes(run)
    yield _steps(run)
    yield _finite(run.facts)
    yield _no_exception(run)
    yield _exit(run)
    yield from checkpoint_criteria(run)
    if run.training.level == 4:
        yield from _features(run)


# -- what its processes imported ---------------------------------------------------------------------------------------


def import_criteria(evidence: RunEvidence | None, root: str) -> Iterator[Criterion]:
    """Whether all processes of a training imported the Bridge under `root`, and its workers one Megatron-LM: verl's
    wrapper puts an image's own before the checkout's for the driver alone. Nothing without evidence."""
    if evidence is None or not root:
        return
    source = f"{root.rstrip('/')}/src"
    bridge = _importers(evidence.processes, "megatron.bridge")
    wrong = {place: who for place, who in bridge.items() if not place.startswith(f"{source}/")}
    for place, who in wrong.items():
        yield contradicted(LOCAL_BRIDGE, f"{place} is not under {source}", who, environment=True)
    for place, who in list(bridge.items())[:1] if not wrong else ():
        yield shown(LOCAL_BRIDGE, place, who)
    if not bridge:
        yield not_seen(LOCAL_BRIDGE, "no process of the training was seen to import megatron.bridge", "", SEE_PROBE)
    ranked = [process for process in evidence.processes if process.rank is not None]
    driver = [process for process in evidence.processes if any("main_ppo" in word for word in process.argv)]
    workers = ranked or [process for process in evidence.processes if process not in driver]
    core = _importers(workers, "megatron.core") or _importers(driver, "megatron.core")
    places = "; ".join(f"{place}: {who}" for place, who in core.items())
    if not core:
        yield not_seen(ONE_MEGATRON, "no process of the training was seen to import megatron.core", "", SEE_PROBE)
    elif len(core) > 1:
        yield contradicted(ONE_MEGATRON, places, environment=True)
    else:
        pinned = places.startswith(f"{root.rstrip('/')}/3rdparty/Megatron-LM/")
        note = "" if pinned else ", which is not the Bridge checkout's 3rdparty/Megatron-LM"
        yield shown(ONE_MEGATRON, f"{places}{note}")


def _importers(processes: Iterable[ProcessEvidence], package: str) -> dict[str, str]:
    """Where a package was imported from, as a terminal may have it → the processes that did."""
    found: dict[str, list[str]] = {}
    for process in processes:
        for origin in {one.origin for one in process.imports if one.name == package and one.origin}:
            found.setdefault(visible(origin.encode("utf-8", "replace")), []).append(process_name(process))
    return {place: some(names, 3) for place, names in found.items()}


# -- what verl was given -----------------------------------------------------------------------------------------------


def _settings_as_asked(run: TrainingRun) -> Criterion:
    """Every setting that a variable or an override asks for, as verl resolved it."""
    place = run.facts.settings_place
    if not run.facts.settings:
        text = "the log does not show verl's resolved settings, and the command alone is not trusted"
        return not_seen(AS_ASKED, text, "", SEE_PROBE)
    different, missing = [], []
    for name, asked in run.asked.items():
        value = run.setting(name)
        if value is not MISSING and not equals_asked(asked, value):
            different.append(f"{name}={value_text(value)}, not {asked}")
        # What a revision does not have is off there; roles but the actor may have no such setting.
        elif value is MISSING and asked not in ("False", "null") and not name.startswith(_ROLES[1:]):
            missing.append(name)
    if different:
        return contradicted(AS_ASKED, some(different, 12, "; "), place, RERUN_AS_ASKED)
    if missing:
        todo = "use a revision of verl that has these settings, or do not ask for them"
        return not_seen(AS_ASKED, f"not in the resolved settings: {some(missing, 12, '; ')}", place, todo)
    return shown(AS_ASKED, f"all {len(run.asked)}", place)


def _non_vanilla(run: TrainingRun) -> Criterion:
    """Whether the run went through Megatron-Bridge: another one shows nothing of it."""
    place, vanilla = run.facts.settings_place, run.facts.said.get("vanilla")
    if vanilla is not None:
        text = "a model was built past Megatron-Bridge: with it, verl prints no TF config"
        return contradicted(NON_VANILLA, text, vanilla.place, RERUN_AS_ASKED)
    providers = sorted({model.provider for _, model in run.noted("model", BuiltModel)} - {""})
    watched = any(PROVIDES in one.found for _, one in run.noted("hooked", HookedModule))
    for process, model in run.models() if watched and not providers else ():
        text = f"{model.model or 'a model'} was built without a provider of Megatron-Bridge"
        return contradicted(NON_VANILLA, text, process, RERUN_AS_ASKED)
    needed = {"USE_MBRIDGE": "True", "VANILLA_MBRIDGE": "False"}
    if run.has_critic:
        needed["VALUE_VANILLA_MBRIDGE"] = "False"
    found = {name: run.setting(SETTINGS[name]) for name in needed}
    wrong = {name: value for name, value in found.items() if not equals_asked(needed[name], value)}
    text = ", ".join(f"{name}={value_text(value)}" for name, value in (wrong or found).items())
    if any(value is not MISSING for value in wrong.values()):
        return contradicted(NON_VANILLA, text, place, RERUN_AS_ASKED)
    if wrong and not providers:
        why = text if run.facts.settings else "the resolved settings were not seen"
        return not_seen(NON_VANILLA, why, "", SEE_PROBE)
    built = f"built by {', '.join(providers)}" if providers else ""
    return shown(NON_VANILLA, "; ".join(filter(None, ["" if wrong else text, built])), place)


def _rollout_engine(run: TrainingRun) -> Criterion:
    """Whether rollouts came from the engine that was asked for, and as wide: by what verl resolved and vLLM's line."""
    resolved, served = run.setting(SETTINGS["ENGINE"]), run.facts.said.get("served")
    wanted = run.training.env.get("ENGINE") or value_text(resolved)
    asked = run.asked
    sizes = {asked.get(_ROLLOUT_SIZE), asked.get(_REWARD_SIZE), str(run.setting(_REWARD_SIZE))}
    if served is not None and _ROLLOUT_SIZE in asked and served.value not in sizes:
        text = f"{wanted} says tensor_parallel_size={served.value}, not {asked[_ROLLOUT_SIZE]}"
        return contradicted(ENGINE, text, served.place, RERUN_AS_ASKED)
    if resolved is MISSING:
        return not_seen(ENGINE, "the resolved settings were not seen", "", SEE_PROBE)
    outcome = shown if equals_asked(wanted, resolved) else contradicted
    return outcome(ENGINE, f"{value_text(resolved)} in the resolved settings", run.facts.settings_place)


# -- what was built ----------------------------------------------------------------------------------------------------


def _lora(run: TrainingRun) -> Iterator[Criterion]:
    """Whether adapters were applied, to every layer, and train. Nothing if none were asked for."""
    rank, said, models = run.setting(SETTINGS["LORA_RANK"]), run.facts.said, run.models()
    if equals_asked("0", run.training.env.get("LORA_RANK", "0") if rank is MISSING else rank):
        return
    adapted = [model for _, model in models if model.adapters]
    few = [model for model in adapted if sum(model.adapters.values()) < _layers(run, model)]
    frozen = [process for process, model in models if model.trainable == 0]
    if models and not adapted:
        yield contradicted(LORA, "no trained model has an adapter", models[0][0], _TARGETS)
    elif models and len(frozen) == len(models):
        yield contradicted(LORA, "0 trainable parameters", frozen[0], _TARGETS)
    elif few:
        text = f"{counted(sum(few[0].adapters.values()), 'adapter')} in {few[0].layers} layers"
        yield contradicted(LORA, text, models[0][0], _TARGETS)
    elif frozen:
        yield not_seen(LORA, "a model has 0 trainable parameters, others have some", frozen[0], _TARGETS)
    elif models:
        adapters = ", ".join(f"{count} {name}" for name, count in sorted(adapted[0].adapters.items()))
        trainable = f"{adapted[0].trainable:,} of {adapted[0].parameters:,} parameters are trainable"
        yield shown(LORA, f"{trainable}, {adapters}", models[0][0])
    elif "frozen" in said:
        yield contradicted(LORA, "0 trainable parameters", said["frozen"].place, _TARGETS)
    elif "trainable" in said:
        yield shown(LORA, f"{said['trainable'].value} trainable parameters", said["trainable"].place)
    else:
        yield not_seen(LORA, "nothing shows trainable parameters of adapters", "", SEE_PROBE)


def _layers(run: TrainingRun, model: BuiltModel) -> int:
    """How many layers a rank has at least; 0 if it is not known, or the request names layers."""
    if "layers." in str(run.setting("actor_rollout_ref.model.lora.target_modules")):
        return 0
    return model.layers // max((sizes.pipeline or 1 for _, sizes in run.noted("sizes", ParallelSizes)), default=1)


def _wrapper(run: TrainingRun) -> Criterion:
    asked = run.training.env.get("USE_MEGATRON_FSDP") or run.setting(SETTINGS["USE_MEGATRON_FSDP"])
    wanted, other = (FSDP, DDP) if str(asked) == "True" else (DDP, FSDP)
    places = {model.wrapper: f"{process}: {model.wrappers[0]}" for process, model in run.models()}
    places = places or {name: run.facts.said[name].place for name in (DDP, FSDP) if name in run.facts.said}
    if other in places:
        return contradicted(WRAPPER, f"{other} was built, not {wanted}", places[other], RERUN_AS_ASKED)
    if wanted in places:
        return shown(WRAPPER, wanted, places[wanted])
    return not_seen(WRAPPER, f"nothing shows that the model was wrapped in {wanted}", "", SEE_PROBE)


def _parallel_sizes(run: TrainingRun) -> Criterion:
    """Those of Megatron's groups as they were made; of these verl's log says nothing. Level 2 needs one above 1."""
    noted, wished = list(run.noted("sizes", ParallelSizes)), run.asked
    built = {name: {size for _, one in noted if (size := getattr(one, name)) is not None} for name in _SIZES}
    place, wrong, unseen = noted[0][0] if noted else "", [], []
    for name, found in built.items():
        words = [wished.get(f"{role}{name}_model_parallel_size", "") for role in _ROLES]
        asked = [int(word) for word in words if word.isdecimal()]
        if asked and found and (found - {*asked} or asked[0] not in found):
            wrong.append(f"{name} {_listed(found)} in the built models, not {asked[0]}")
        elif not found and max(asked, default=1) > 1:
            unseen.append(name)
    if wrong:
        todo = "see whether the provider was finalized with mpu's sizes"
        return contradicted(SIZES, "; ".join(wrong), place, todo)
    if unseen or not any(built.values()):
        which = f": {', '.join(unseen)}" if unseen else ""
        return not_seen(SIZES, f"nothing shows those of the built models{which}", place, SEE_PROBE)
    if run.training.level == 2 and max(map(max, filter(None, built.values()))) == 1:
        text = "all sizes of the trainer are 1: no evidence for distributed behavior"
        return not_seen(SIZES, text, place, "ask for larger sizes: --env COMMON_TP=2")
    return shown(SIZES, ", ".join(f"{name} {_listed(sizes)}" for name, sizes in built.items() if sizes), place)


def _listed(sizes: set[int]) -> str:
    return "/".join(map(str, sorted(sizes)))


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Criterion:
    facts, steps, missed = run.facts, run.training.steps, []
    place = facts.said["progress"].place if "progress" in facts.said else ""
    if facts.progress is None:
        missed.append("no Training Progress in the log")
    elif facts.progress != (steps, steps):
        missed.append(f"Training Progress is {facts.progress[0]}/{facts.progress[1]}, not {steps}/{steps}")
    # If it failed for a known reason, that decides what the missing steps mean.
    ended_early = bool(missed) and facts.progress is not None and facts.exit_code == 0 and run.attribution() is None
    if steps not in facts.metrics:
        missed.append(f"no metrics of global step {steps}")
    if ended_early:
        return contradicted(STEPS, "; ".join(missed), place)
    if missed:
        return not_seen(STEPS, "; ".join(missed), place, "see the end of the log: why verl logged no such step")
    return shown(STEPS, f"Training Progress {steps}/{steps}, metrics of global step {steps}", place)


def _finite(facts: TrainingFacts) -> Criterion:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    watched = [
        (step, name, value)
        for step, values in sorted(facts.metrics.items())
        for name, value in values.items()
        if WATCHED.search(name) and not name.startswith(_EXCUSED)
    ]
    for step, name, value in watched:
        if not math.isfinite(value):
            todo = "triage the metrics: data, reward, Bridge"
            return contradicted(FINITE, f"{name} is {value} at step {step}", follow_up=todo)
    for name, where in facts.unreadable.items():
        return not_seen(FINITE, f"{name} is no number at {where}", "", "see what verl logged there")
    steps = {step for step, _, _ in watched if step > 0}
    if not steps:
        return not_seen(FINITE, "no loss, reward or gradient norm was logged", "", "let verl log to the console")
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
            doubtful = not_seen(NO_EXCEPTION, f"{found}: {failure.text}", failure.place, found.stage.follow_up)
    if doubtful is not None:
        return doubtful
    if not run.facts.ended_well:
        return not_seen(NO_EXCEPTION, "it did not come to its end")
    return shown(NO_EXCEPTION, "none in its log" + (" or its processes" if run.evidence else ""))


def _exit(run: TrainingRun) -> Criterion:
    facts, found, error = run.facts, run.attribution(), run.facts.error
    place = error.place if error else ""
    if found is None and facts.exit_code == 0:
        return shown(EXIT, "exit code 0")
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    text = f"{code}, {error.text}" if error else f"{code}; the log does not say why"
    if found is None or (facts.exit_code is None and error is None):
        return not_seen(EXIT, text, place)
    text = f"{found}: {text}"
    if facts.finished:
        text = f"all steps are done, but the process did not exit successfully: {text}"
    if found.owner == UNCLEAR:
        return not_seen(EXIT, text, place, found.stage.follow_up)
    return contradicted(EXIT, text, place, found.stage.follow_up, environment=found.owner == ENVIRONMENT)


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern in run.request.proofs:
        line, plain = run.facts.proofs.get(pattern), run.plain.get(pattern)
        if line is None:
            yield not_seen(FEATURE, f"no line matches {pattern!r}", "", todo)
        elif plain is not None:
            text = f"{pattern!r} proves nothing: level 0, without the feature, has such a line too"
            yield not_seen(FEATURE, text, plain.place, todo)
        else:
            yield shown(FEATURE, repr(line.text), line.place)
