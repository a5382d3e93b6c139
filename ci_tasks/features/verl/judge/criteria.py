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
level 1, of files and sizes, which show no more than that a checkpoint was there:
checkpoint files written         the hook saw the actor's               an error, none of the actor's, another step's
checkpoint files read            the same                               the same, an empty file, another checkpoint
resume from the checkpoint       verl's line                            from scratch, another step or directory
same step as uninterrupted       equal metrics and bytes of tensors     (only not seen) other tensors
level 4: the feature active; level 5: see `learning`

What is neither is not seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator

from ci_tasks.agent.evidence import ProcessEvidence, RunEvidence
from ci_tasks.errors import counted, some
from ci_tasks.features.verl.judge.attribution import CHANGE, CONSTRUCTION, ENVIRONMENT, UNCLEAR, attribute
from ci_tasks.features.verl.judge.records import CONTRADICTED, NOT_SEEN, SHOWN, Criterion
from ci_tasks.features.verl.judge.training_log import DDP, FSDP, WATCHED
from ci_tasks.features.verl.judge.training_run import (
    MISSING,
    PROVIDES,
    BuiltModel,
    CheckpointFiles,
    HookedModule,
    ParallelSizes,
    TrainingRun,
    equals_asked,
    process_name,
    value_text,
)
from ci_tasks.features.verl.levels.levels import MINIMAL, SETTINGS
from ci_tasks.logs.lines import visible

LOCAL_BRIDGE, ONE_MEGATRON = "local Bridge in every process", "one Megatron-LM in every process"
STEPS, EXIT, FEATURE = "training steps", "successful exit", "the feature active"
WRITTEN, READ, RESUME = "checkpoint files written", "checkpoint files read", "resume from the checkpoint"
SAME = "same step as without an interruption"
_NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
_ROLES = ("actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron.", "critic.megatron.")
_SIZES = ("tensor", "pipeline", "context", "expert")
_ROLLOUT_SIZE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_REWARD_SIZE = "reward.reward_model.rollout.tensor_model_parallel_size"
# verl says NaN if it had nothing to compare; auxiliary scores are the data set's own.
_EXCUSED = ("training/rollout_probs_diff", "val-aux/")
_CONTENT = (".json", ".safetensors", ".distcp", ".pt", ".pth", ".bin")  # a file of these that is empty holds nothing
# Of a step: the metrics that its tensors decide, and not its clock.
_OF_TENSORS = re.compile(r"^(?:actor|critic|prompt_length|response_length|val-core)/(?!.*mfu)")
# Random states and the data's position are none of the model's.
_TENSORS = re.compile(r"^(?!(?:.*/)?extra[/_]|data).*(?:\.(?:safetensors|distcp|pth?|bin)|model\.json)$")
_SEE_PROBE = "rerun with the probe, whose hooks record what verl does not print"
Seen = tuple[str, str, str]  # the outcome, the evidence, its place


def criteria_of(run: TrainingRun) -> Iterator[Criterion]:
    yield from import_criteria(run.evidence, run.root)
    for name, judged, follow_up in _TABLE:
        if seen := judged(run):
            yield Criterion(name, *seen, follow_up)
    yield _no_exception(run)
    yield _exit(run)
    if run.training.same_as:
        yield _same_step(run)
    yield from _features(run)


# -- what its processes imported ---------------------------------------------------------------------------------------


def import_criteria(evidence: RunEvidence | None, root: str) -> Iterator[Criterion]:
    """Whether all processes of a training imported the Bridge under `root`, and its workers one Megatron-LM: verl's
    wrapper puts an image's own before the checkout's for the driver alone. Nothing without evidence."""
    if evidence is None or not root:
        return
    source, pinned = f"{root.rstrip('/')}/src", f"{root.rstrip('/')}/3rdparty/Megatron-LM/"
    bridge = _importers(evidence.processes, "megatron.bridge")
    wrong = [place for place in bridge if not place.startswith(f"{source}/")]
    for place in wrong:
        yield Criterion(LOCAL_BRIDGE, CONTRADICTED, f"{place} is not under {source}", bridge[place], environment=True)
    for place in [*bridge][:1] if not wrong else ():
        yield Criterion(LOCAL_BRIDGE, SHOWN, place, bridge[place])
    ranked = [process for process in evidence.processes if process.rank is not None]
    driver = [process for process in evidence.processes if any("main_ppo" in word for word in process.argv)]
    workers = ranked or [process for process in evidence.processes if process not in driver]
    core = _importers(workers, "megatron.core") or _importers(driver, "megatron.core")
    if core:
        places = "; ".join(f"{place}: {who}" for place, who in core.items())
        note = "" if places.startswith(pinned) else ", which is not the Bridge checkout's 3rdparty/Megatron-LM"
        several = len(core) > 1
        yield Criterion(ONE_MEGATRON, CONTRADICTED if several else SHOWN, f"{places}{note}", environment=several)
    for name, package, seen in ((LOCAL_BRIDGE, "megatron.bridge", bridge), (ONE_MEGATRON, "megatron.core", core)):
        if not seen:
            text = f"no process of the training was seen to import {package}"
            yield Criterion(name, NOT_SEEN, text, follow_up=_SEE_PROBE)


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
    if different:
        return CONTRADICTED, some(different, 12, "; "), place
    if missing or not run.facts.settings:
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
    needed = ["USE_MBRIDGE", "VANILLA_MBRIDGE", *(["VALUE_VANILLA_MBRIDGE"] if run.has_critic else [])]
    found = {name: run.setting(SETTINGS[name]) for name in needed}
    wrong = {name: value for name, value in found.items() if not equals_asked(MINIMAL[name], value)}
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
        return CONTRADICTED, f"tensor_parallel_size={served.value}, not {asked[_ROLLOUT_SIZE]}", served.place
    outcome = SHOWN if equals_asked(wanted, resolved) else NOT_SEEN if resolved is MISSING else CONTRADICTED
    return outcome, f"{value_text(resolved)} in the resolved settings", run.facts.settings_place


# -- what was built ----------------------------------------------------------------------------------------------------


def _lora(run: TrainingRun) -> Seen | None:
    """Whether adapters were applied, to every layer, and train."""
    said, models = run.facts.said, run.models()
    adapted = [model for _, model in models if model.adapters]
    stages = max((sizes.pipeline or 1 for _, sizes in run.noted("sizes", ParallelSizes)), default=1)
    named = "layers." in str(run.setting("actor_rollout_ref.model.lora.target_modules"))  # by the request
    few = [model for model in adapted if sum(model.adapters.values()) < model.layers // stages and not named]
    frozen = [process for process, model in models if model.trainable == 0]
    if not run.asks_for_lora:
        return None
    if not models:
        line = said.get("frozen") or said.get("trainable")
        if line is None:
            return NOT_SEEN, "nothing shows trainable parameters of adapters", ""
        return CONTRADICTED if "frozen" in said else SHOWN, f"{line.value or 0} trainable parameters", line.place
    place = models[0][0]
    if not adapted:
        return CONTRADICTED, "no trained model has an adapter", place
    if len(frozen) == len(models):
        return CONTRADICTED, "0 trainable parameters", place
    if few:
        return CONTRADICTED, f"{counted(sum(few[0].adapters.values()), 'adapter')} in {few[0].layers} layers", place
    if frozen:
        return NOT_SEEN, "a model has 0 trainable parameters, others have some", frozen[0]
    if any(0 < model.parameters == model.trainable for model in adapted):
        return CONTRADICTED, "every parameter is trainable beside the adapters", place
    adapters = ", ".join(f"{count} {name}" for name, count in sorted(adapted[0].adapters.items()))
    return SHOWN, f"{adapted[0].trainable:,} of {adapted[0].parameters:,} parameters are trainable, {adapters}", place


def _wrapper(run: TrainingRun) -> Seen:
    asked = run.training.env.get("USE_MEGATRON_FSDP") or run.setting(SETTINGS["USE_MEGATRON_FSDP"])
    wanted, other = (FSDP, DDP) if str(asked) == "True" else (DDP, FSDP)
    said = {name: line.place for name, line in run.facts.said.items() if name in (DDP, FSDP)}
    places = {model.wrapper: process for process, model in run.models()} or said
    if other in places:
        return CONTRADICTED, f"{other} was built, not {wanted}", places[other]
    text = wanted if wanted in places else f"nothing shows that the model was wrapped in {wanted}"
    return SHOWN if wanted in places else NOT_SEEN, text, places.get(wanted, "")


def _parallel_sizes(run: TrainingRun) -> Seen:
    """The sizes of Megatron's groups as they were made; verl's log does not have them. Level 2 needs one above 1."""
    noted, wished = list(run.noted("sizes", ParallelSizes)), run.asked
    built = {name: {size for _, one in noted if (size := getattr(one, name)) is not None} for name in _SIZES}
    listed = {name: "/".join(map(str, sorted(found))) for name, found in built.items()}
    place, wrong, unseen = noted[0][0] if noted else "", [], []
    for name, found in built.items():
        words = [wished.get(f"{role}{name}_model_parallel_size", "") for role in _ROLES]
        asked = [int(word) for word in words if word.isdecimal()]
        if asked and found and (found - {*asked} or asked[0] not in found):
            wrong.append(f"{name} {listed[name]} in the built models, not {asked[0]}")
        elif not found and max(asked, default=1) > 1:
            unseen.append(name)
    if wrong:
        return CONTRADICTED, "; ".join(wrong), place
    if unseen or not any(built.values()):
        return NOT_SEEN, f"those of the built models{': ' * bool(unseen)}{', '.join(unseen)}", place
    if run.training.level == 2 and max(map(max, filter(None, built.values()))) == 1:
        return NOT_SEEN, "all sizes of the trainer are 1: no evidence for distributed behavior", place
    return SHOWN, ", ".join(f"{name} {sizes}" for name, sizes in listed.items() if sizes), place


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Seen:
    facts, steps, bar = run.facts, run.training.steps, run.facts.said.get("progress")
    (done, total), place = facts.progress or (0, 0), bar.place if bar else ""
    text = f"Training Progress {done}/{total}, {'' if steps in facts.metrics else 'no '}metrics of global step {steps}"
    if (done, total) == (steps, steps):
        return SHOWN if steps in facts.metrics else NOT_SEEN, text, place
    # If it failed for a known reason, that decides what the missing steps mean.
    ended_early = facts.progress is not None and facts.exit_code == 0 and run.attribution() is None
    return CONTRADICTED if ended_early else NOT_SEEN, f"{text}: not {steps}/{steps}", place


def _finite(run: TrainingRun) -> Seen:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    points = [(step, *pair) for step, values in sorted(run.facts.metrics.items()) for pair in values.items()]
    watched = [one for one in points if WATCHED.search(one[1]) and not one[1].startswith(_EXCUSED)]
    for step, name, value in watched:
        if not math.isfinite(value):
            return CONTRADICTED, f"{name} is {value} at step {step}", ""
    if line := run.facts.said.get("unreadable"):
        return NOT_SEEN, line.text, line.place
    steps = {step for step, *_ in watched} - {0}
    return SHOWN if steps else NOT_SEEN, f"losses, rewards, KL, entropy and gradients at {len(steps)} steps", ""


def _no_exception(run: TrainingRun) -> Criterion:
    """Of a swallowed one the exit code says nothing. What has no frame in Bridge, or in verl's code around it, may have
    been handled where it was raised; what kills a process was not. After the last step it is noise."""
    found: list[Criterion] = []
    for failure in [one for one in run.facts.failures if one.sure and not one.finished]:
        whose = attribute(failure, failure.constructs or run.facts.constructed(failure.line_no), run.root)
        where = (failure.place, whose.stage.follow_up)
        if failure.constructs and whose.owner == CHANGE:
            return Criterion(_NO_EXCEPTION, CONTRADICTED, failure.text, *where)
        if failure.constructs or not failure.frames or failure.cause == "cuda_oom":
            found.append(Criterion(_NO_EXCEPTION, NOT_SEEN, f"{whose}: {failure.text}", *where))
    if not run.facts.ended_well:
        found.append(Criterion(_NO_EXCEPTION, NOT_SEEN, "it did not finish"))
    text = "none in its log" + (" or its processes" if run.evidence else "")
    return found[0] if found else Criterion(_NO_EXCEPTION, SHOWN, text)


def _exit(run: TrainingRun) -> Criterion:
    facts, found, error = run.facts, run.attribution(), run.facts.error
    if found is None and facts.exit_code == 0:
        text = f"exit code 0 is of the last of {facts.starts} starts of the trainer"
        return Criterion(EXIT, NOT_SEEN, text) if facts.starts > 1 else Criterion(EXIT, SHOWN, "exit code 0")
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    text, place = (f"{code}, {error.text}", error.place) if error else (f"{code}; the log does not say why", "")
    if found is None or (facts.exit_code is None and error is None):
        return Criterion(EXIT, NOT_SEEN, text, place)
    done = "all steps are done, but the process did not exit successfully: " if facts.finished else ""
    outcome = NOT_SEEN if found.owner == UNCLEAR else CONTRADICTED
    text = f"{found}: {done}{text}"
    return Criterion(EXIT, outcome, text, place, found.stage.follow_up, found.owner == ENVIRONMENT)


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern, line in run.facts.proofs.items() if run.training.level == 4 else ():
        plain = run.plain.proofs.get(pattern) if run.plain else None
        why = "proves nothing: level 0, without the feature, has such a line too" if line else "matches no line"
        if line and not plain:
            yield Criterion(FEATURE, SHOWN, repr(line.text), line.place)
        else:
            yield Criterion(FEATURE, NOT_SEEN, f"{pattern!r} {why}", plain.place if plain else "", todo)


# -- level 1's checkpoints ---------------------------------------------------------------------------------------------


def _files(run: TrainingRun, is_read: bool) -> Seen | None:
    """While a checkpoint is written, another rank or a thread may still have to fill a file, and earlier steps' come
    before; a file that is empty when it is read stays so."""
    if run.training.level != 1 or (is_read and not run.training.resumes):
        return None
    records = [one for _, one in run.noted("loaded" if is_read else "saved", CheckpointFiles)]
    step = run.training.steps - is_read
    actor = [one.path for one in records if one.is_actor]
    written = _written_before(run) if is_read else []
    others = [path for path in actor if f"/global_step_{step}/" not in path]
    others += [path for path in actor if written and not any(_is_same(path, one) for one in written)]
    sizes: dict[str, int] = {}
    for file, size in ((f"{one.path}/{file}", size) for one in records for file, size in one.files.items()):
        sizes[file] = max(size, sizes.get(file, 0))
    empty = [f"{file} is empty" for file, size in sorted(sizes.items()) if not size and file.endswith(_CONTENT)]
    wrong = [f"{one.path}: {one.error}" for one in records if one.error]
    wrong += [] if actor else [f"none of the actor, only {one.path}" for one in records]
    if others and (is_read or len(others) == len(actor)):
        wrong.append(f"{others[0]} is not what the training before wrote, or of global step {step}")
    if wrong or (empty and is_read):
        return CONTRADICTED, [*wrong, *empty][0], ""
    if empty or not sizes:
        return NOT_SEEN, [*empty, "no process recorded a checkpoint with files"][0], ""
    return SHOWN, f"{counted(len(sizes), 'file')}, {sum(sizes.values()):,} bytes", actor[0]


def _written_before(run: TrainingRun) -> list[str]:
    """Directories of the actor's checkpoints of the training before it."""
    noted = run.before.noted("saved", CheckpointFiles) if run.before else ()
    return [one.path for _, one in noted if one.is_actor]


def _is_same(one: str, other: str) -> bool:
    """verl names its checkpoints from its own directory here, from the root there."""
    ends = [f"/{path.removeprefix('./').strip('/')}" for path in (one, other)]
    return ends[0].endswith(ends[1]) or ends[1].endswith(ends[0])


def _resume(run: TrainingRun) -> Seen | None:
    facts, step = run.facts, run.training.steps - 1
    line, scratch = facts.said.get("resumed"), facts.said.get("scratch")
    again = [done for done in facts.metrics if 0 < done <= step]
    if not run.training.resumes:
        return None
    if scratch is not None:
        return CONTRADICTED, scratch.text, scratch.place
    if again:
        return CONTRADICTED, f"it trained global step {again[0]} again: nothing was loaded", ""
    if line is None:
        return NOT_SEEN, "no line says from which checkpoint", ""
    own = facts.settings.get("trainer.default_local_dir", line.value.rpartition("/")[0])
    wanted = [f"{own}/global_step_{step}/actor", *_written_before(run)]
    if not all(_is_same(f"{line.value}/actor", path) for path in wanted):
        return CONTRADICTED, f"it resumed from {line.value}, not from the global step {step} before it", line.place
    return SHOWN, f"resumed at global step {step}", line.place


def _same_step(run: TrainingRun) -> Criterion:
    """Whether the last step is what it was in the training that was resumed before it, by the tensors after it. After
    another rollout they cannot be compared: sampling begins again in a new process."""
    step, sides = run.training.steps, [run.facts, run.before.facts if run.before else run.facts]
    mine, theirs = (
        {name: repr(value) for name, value in facts.metrics.get(step, {}).items() if _OF_TENSORS.search(name)}
        for facts in sides
    )
    own, others = ({path: facts.files[path] for path in facts.files if _TENSORS.search(path)} for facts in sides)
    changed = sorted(path for path in own if own[path] != others.get(path))
    if not own or own.keys() != others.keys() or mine != theirs:
        text = "other metrics or files: sampling differs, so tensors cannot be compared"
        return Criterion(SAME, NOT_SEEN, text, optional=True)
    if changed:
        text = f"equal metrics, but {len(changed)} of {len(own)} files of tensors differ, such as {changed[0]}"
        return Criterion(SAME, NOT_SEEN, text, "", "see whether the optimizer's state was saved and read back")
    return Criterion(SAME, SHOWN, f"equal metrics of global step {step}, and {counted(len(own), 'file')} by SHA-256")


_AS_ASKED = "rerun with the requested feature active in the resolved settings"
_CHECKPOINT_FIX = "see what was saved, keep verl's checkpoints/ between save and resume, and rerun level 1"
_TABLE: tuple[tuple[str, Callable[[TrainingRun], Seen | None], str], ...] = (
    ("settings as asked", _settings_as_asked, _AS_ASKED),
    ("non-vanilla Bridge", _non_vanilla, _AS_ASKED),
    ("rollout engine", _rollout_engine, _AS_ASKED),
    ("LoRA with trainable parameters", _lora, "check LoRA's target module names, and the PEFT helpers of verl"),
    ("model wrapper", _wrapper, _SEE_PROBE),
    ("parallel sizes", _parallel_sizes, "see whether the provider was finalized with mpu's sizes; --env COMMON_TP=2"),
    (STEPS, _steps, "see the end of the log: why verl logged no such step"),
    ("finite metrics", _finite, "triage the metrics: data, reward, Bridge, verl's console logger"),
    (WRITTEN, lambda run: _files(run, is_read=False), _CHECKPOINT_FIX),
    (READ, lambda run: _files(run, is_read=True), _CHECKPOINT_FIX),
    (RESUME, _resume, _CHECKPOINT_FIX),
)
