"""The guide's criteria for one training. Each has one source: what the probe's hook noted, else what verl printed.

criterion                        shown by                               contradicted by
local Bridge in every process    imports under the checkout's src       an import from elsewhere (Blocked)
one Megatron-LM                  one origin in the workers              two origins (Blocked)
settings as asked                verl's resolved settings               a setting with another value
non-vanilla Bridge               a provider of Bridge, the settings     vanilla settings, a model without a provider
rollout engine                   the resolved settings                  another one, another tensor-parallel size
LoRA with trainable parameters   adapters in the built models           none, none trainable, all, fewer than layers
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
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN, Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.judge.settings import MISSING, equals_asked, value_text
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, WATCHED
from ci_tasks.features.verl.judge.training_run import (
    PROVIDES,
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
STEPS, EXIT, FEATURE = "training steps", "successful exit", "the feature active"
_ROLES = ("actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron.", "critic.megatron.")
_SIZES = ("tensor", "pipeline", "context", "expert")
_ROLLOUT_SIZE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_REWARD_SIZE = "reward.reward_model.rollout.tensor_model_parallel_size"
# verl says NaN where it had nothing to compare; auxiliary scores are the data set's own.
_EXCUSED = ("training/rollout_probs_diff", "val-aux/")
_NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
Seen = tuple[str, str, str]  # the outcome, the evidence, its place


def criteria_of(run: TrainingRun) -> Iterator[Criterion]:
    yield from import_criteria(run.evidence, run.root)
    for name, judged, follow_up in _TABLE:
        if judged is not _lora or run.asks_for_lora:
            yield Criterion(name, *judged(run), follow_up)
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


def _settings_as_asked(run: TrainingRun) -> Seen:
    """Every setting that a variable or an override asks for, as verl resolved it."""
    place, different, missing = run.facts.settings_place, [], []
    for name, asked in run.asked.items():
        value = run.setting(name)
        if value is not MISSING and not equals_asked(asked, value):
            different.append(f"{name}={value_text(value)}, not {asked}")
        # What a revision does not have is off there; roles but the actor may have no such setting.
        elif value is MISSING and asked not in ("False", "null") and not name.startswith(_ROLES[1:]):
            missing.append(name)
    if not run.facts.settings:
        return NOT_SEEN, "verl's resolved settings were not seen, and the command alone is not trusted", ""
    if different:
        return CONTRADICTED, some(different, 12, "; "), place
    if missing:
        return NOT_SEEN, f"not in the resolved settings: {some(missing, 12, '; ')}", place
    return SHOWN, f"all {len(run.asked)}", place


def _non_vanilla(run: TrainingRun) -> Seen:
    """Whether the run went through Megatron-Bridge: another one shows nothing of it."""
    providers = sorted({model.provider for _, model in run.noted("model", BuiltModel)} - {""})
    watched = any(PROVIDES in one.found for _, one in run.noted("hooked", HookedModule))
    if line := run.facts.said.get("vanilla"):
        return CONTRADICTED, "a model was built past Megatron-Bridge: with it, verl prints no TF config", line.place
    for process, model in run.models() if watched and not providers else ():
        return CONTRADICTED, f"{model.model or 'a model'} was built without a provider of Megatron-Bridge", process
    needed = {"USE_MBRIDGE": "True", "VANILLA_MBRIDGE": "False"}
    needed |= {"VALUE_VANILLA_MBRIDGE": "False"} if run.has_critic else {}
    found = {name: run.setting(SETTINGS[name]) for name in needed}
    wrong = {name: value for name, value in found.items() if not equals_asked(needed[name], value)}
    text = ", ".join(f"{name}={value_text(value)}" for name, value in (wrong or found).items())
    if any(value is not MISSING for value in wrong.values()):
        return CONTRADICTED, text, run.facts.settings_place
    built = f"; built by {', '.join(providers)}" if providers else ""
    return NOT_SEEN if wrong and not providers else SHOWN, f"{text}{built}", run.facts.settings_place


def _rollout_engine(run: TrainingRun) -> Seen:
    """Whether rollouts came from the engine that was asked for, and as wide: by what verl resolved and vLLM's line."""
    resolved, served, asked = run.setting(SETTINGS["ENGINE"]), run.facts.said.get("served"), run.asked
    wanted = run.training.env.get("ENGINE") or value_text(resolved)
    sizes = {asked.get(_ROLLOUT_SIZE), asked.get(_REWARD_SIZE), str(run.setting(_REWARD_SIZE))}
    if served is not None and _ROLLOUT_SIZE in asked and served.value not in sizes:
        text = f"{wanted} says tensor_parallel_size={served.value}, not {asked[_ROLLOUT_SIZE]}"
        return CONTRADICTED, text, served.place
    outcome = SHOWN if equals_asked(wanted, resolved) else NOT_SEEN if resolved is MISSING else CONTRADICTED
    return outcome, f"{value_text(resolved)} in the resolved settings", run.facts.settings_place


# -- what was built ----------------------------------------------------------------------------------------------------


def _lora(run: TrainingRun) -> Seen:
    """Whether adapters were applied, to every layer, and train."""
    said, models = run.facts.said, run.models()
    adapted = [model for _, model in models if model.adapters]
    few = [model for model in adapted if sum(model.adapters.values()) < _layers(run, model)]
    frozen = [process for process, model in models if model.trainable == 0]
    if models and not adapted:
        return CONTRADICTED, "no trained model has an adapter", models[0][0]
    if models and len(frozen) == len(models):
        return CONTRADICTED, "0 trainable parameters", frozen[0]
    if few:
        text = f"{counted(sum(few[0].adapters.values()), 'adapter')} in {few[0].layers} layers"
        return CONTRADICTED, text, models[0][0]
    if frozen:
        return NOT_SEEN, "a model has 0 trainable parameters, others have some", frozen[0]
    if any(0 < model.parameters == model.trainable for model in adapted):
        return CONTRADICTED, "every parameter is trainable beside the adapters", models[0][0]
    if models:
        adapters = ", ".join(f"{count} {name}" for name, count in sorted(adapted[0].adapters.items()))
        trainable = f"{adapted[0].trainable:,} of {adapted[0].parameters:,} parameters are trainable"
        return SHOWN, f"{trainable}, {adapters}", models[0][0]
    if line := said.get("frozen") or said.get("trainable"):
        outcome = CONTRADICTED if "frozen" in said else SHOWN
        return outcome, f"{line.value or 0} trainable parameters", line.place
    return NOT_SEEN, "nothing shows trainable parameters of adapters", ""


def _layers(run: TrainingRun, model: BuiltModel) -> int:
    """How many layers a rank has at least; 0 if it is not known, or the request names layers."""
    if "layers." in str(run.setting("actor_rollout_ref.model.lora.target_modules")):
        return 0
    return model.layers // max((sizes.pipeline or 1 for _, sizes in run.noted("sizes", ParallelSizes)), default=1)


def _wrapper(run: TrainingRun) -> Seen:
    asked = run.training.env.get("USE_MEGATRON_FSDP") or run.setting(SETTINGS["USE_MEGATRON_FSDP"])
    wanted, other = (FSDP, DDP) if str(asked) == "True" else (DDP, FSDP)
    places = {model.wrapper: process for process, model in run.models()}
    places = places or {name: run.facts.said[name].place for name in (DDP, FSDP) if name in run.facts.said}
    if other in places:
        return CONTRADICTED, f"{other} was built, not {wanted}", places[other]
    if wanted in places:
        return SHOWN, wanted, places[wanted]
    return NOT_SEEN, f"nothing shows that the model was wrapped in {wanted}", ""


def _parallel_sizes(run: TrainingRun) -> Seen:
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
        return CONTRADICTED, "; ".join(wrong), place
    if unseen or not any(built.values()):
        return NOT_SEEN, f"those of the built models{': ' * bool(unseen)}{', '.join(unseen)}", place
    if run.training.level == 2 and max(map(max, filter(None, built.values()))) == 1:
        return NOT_SEEN, "all sizes of the trainer are 1: no evidence for distributed behavior", place
    return SHOWN, ", ".join(f"{name} {_listed(sizes)}" for name, sizes in built.items() if sizes), place


def _listed(sizes: set[int]) -> str:
    return "/".join(map(str, sorted(sizes)))


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Seen:
    facts, steps = run.facts, run.training.steps
    place = facts.said["progress"].place if "progress" in facts.said else ""
    done, total = facts.progress or (0, 0)
    text = f"Training Progress {done}/{total}, {'' if steps in facts.metrics else 'no '}metrics of global step {steps}"
    if (done, total) == (steps, steps):
        return SHOWN if steps in facts.metrics else NOT_SEEN, text, place
    # If it failed for a known reason, that decides what the missing steps mean.
    ended_early = facts.progress is not None and facts.exit_code == 0 and run.attribution() is None
    return CONTRADICTED if ended_early else NOT_SEEN, f"{text}: not {steps}/{steps}", place


def _finite(run: TrainingRun) -> Seen:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    seen = set()
    for step, values in sorted(run.facts.metrics.items()):
        for name, value in values.items():
            if WATCHED.search(name) and not name.startswith(_EXCUSED):
                if not math.isfinite(value):
                    return CONTRADICTED, f"{name} is {value} at step {step}", ""
                seen.add(step)
    for name, where in run.facts.unreadable.items():
        return NOT_SEEN, f"{name} is no number at {where}", ""
    outcome = SHOWN if seen - {0} else NOT_SEEN
    return outcome, f"losses, rewards, KL, entropy and gradients at {len(seen - {0})} steps", ""


def _no_exception(run: TrainingRun) -> Criterion:
    """Of a swallowed one the exit code says nothing. What has no frame in Bridge, or in verl's code around it, may have
    been handled where it was raised; what kills a process was not. After the last step it is noise."""
    doubtful: Criterion | None = None
    for failure in run.facts.failures:
        if not failure.sure or failure.finished:
            continue
        found = attribute(failure, failure.constructs or run.facts.constructed(failure.line_no), run.root)
        if failure.constructs and found.owner == CHANGE:
            return contradicted(_NO_EXCEPTION, failure.text, failure.place, found.stage.follow_up)
        if doubtful is None and (failure.constructs or not failure.frames or failure.cause == "cuda_oom"):
            doubtful = not_seen(_NO_EXCEPTION, f"{found}: {failure.text}", failure.place, found.stage.follow_up)
    if doubtful is not None:
        return doubtful
    if not run.facts.ended_well:
        return not_seen(_NO_EXCEPTION, "it did not come to its end")
    return shown(_NO_EXCEPTION, "none in its log" + (" or its processes" if run.evidence else ""))


def _exit(run: TrainingRun) -> Criterion:
    facts, found, error = run.facts, run.attribution(), run.facts.error
    if found is None and facts.exit_code == 0:
        if facts.starts > 1:
            return not_seen(EXIT, f"exit code 0 is of the last of {facts.starts} starts of the trainer")
        return shown(EXIT, "exit code 0")
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    text, place = (f"{code}, {error.text}", error.place) if error else (f"{code}; the log does not say why", "")
    if found is None or (facts.exit_code is None and error is None):
        return not_seen(EXIT, text, place)
    if facts.finished:
        text = f"all steps are done, but the process did not exit successfully: {text}"
    outcome = NOT_SEEN if found.owner == UNCLEAR else CONTRADICTED
    return Criterion(EXIT, outcome, f"{found}: {text}", place, found.stage.follow_up, found.owner == ENVIRONMENT)


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern in run.request.proofs:
        line, plain = run.facts.proofs.get(pattern), run.plain.get(pattern)
        if line and not plain:
            yield shown(FEATURE, repr(line.text), line.place)
        else:
            why = "proves nothing: level 0, without the feature, has such a line too" if line else "matches no line"
            yield not_seen(FEATURE, f"{pattern!r} {why}", plain.place if plain else "", todo)


_AS_ASKED = "rerun with what was asked for active in the resolved settings"
_TABLE = (
    ("settings as asked", _settings_as_asked, _AS_ASKED),
    ("non-vanilla Bridge", _non_vanilla, _AS_ASKED),
    ("rollout engine", _rollout_engine, _AS_ASKED),
    (
        "LoRA with trainable parameters",
        _lora,
        "check LoRA's target module names, and the PEFT helpers that verl expects",
    ),
    ("model wrapper", _wrapper, SEE_PROBE),
    ("parallel sizes", _parallel_sizes, "see whether the provider was finalized with mpu's sizes; --env COMMON_TP=2"),
    (STEPS, _steps, "see the end of the log: why verl logged no such step"),
    ("finite metrics", _finite, "triage the metrics: data, reward, Bridge, verl's console logger"),
)
