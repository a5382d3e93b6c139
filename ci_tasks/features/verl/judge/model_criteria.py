"""What was built: adapters, wrappers and parallel sizes, by the models themselves, else by what the log says of them.
verl's settings are only what these were to become; of sizes its log says nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ci_tasks.features.verl.judge.hooked_training import DDP, FSDP
from ci_tasks.features.verl.judge.training_run import (
    RERUN_AS_ASKED,
    SEE_PROBE,
    TrainingRun,
    line_place,
    uses_peft,
)
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown

LORA = "LoRA with trainable parameters"
WRAPPER = "model wrapper"
SIZES = "parallel sizes"
_CHECK_TARGETS = "check LoRA's target module names, and the PEFT helpers that verl expects"
_PEFT_TYPES = ("lora", "dora", "canonicallora", "vlmlora")
_SIZE_NAMES: Mapping[str, str] = {
    "COMMON_TP": "tensor_model_parallel_size",
    "COMMON_PP": "pipeline_model_parallel_size",
    "COMMON_CP": "context_parallel_size",
    "COMMON_EP": "expert_model_parallel_size",
    "COMMON_ETP": "expert_tensor_parallel_size",
}
_WIDE = (*_SIZE_NAMES, "INFER_TP")


def lora(run: TrainingRun) -> Iterator[Criterion]:
    """Whether adapters were applied, and train. Nothing where none were asked for."""
    if not uses_peft(run):
        return
    if run.hooked.models:
        yield _adapted(run)
        return
    line, count = run.facts.construction.get("LoRA"), run.facts.trainable
    place = line_place(run.facts.trainable_seen)
    if count is None:
        text = "nothing shows trainable parameters of adapters"
        yield not_seen(LORA, f"{text}{f'; {line.text}' if line else ''}", SEE_PROBE, line_place(line))
    elif count == 0:
        yield contradicted(LORA, "0 trainable parameters", place, _CHECK_TARGETS)
    else:
        yield shown(LORA, f"{count:,} trainable parameters", place)


def _adapted(run: TrainingRun) -> Criterion:
    models, methods = run.hooked.models, run.hooked.methods
    place = models[0].process
    wanted = str(run.facts.settings.get("actor_rollout_ref.model.lora.type")).replace("_", "").lower()
    names = {method.method.lower() for method in methods}
    if wanted in _PEFT_TYPES and names and wanted not in names:
        return contradicted(LORA, f"{', '.join(sorted(names))} was applied, not {wanted}", place, RERUN_AS_ASKED)
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


def wrapper(run: TrainingRun) -> Criterion:
    asked = run.training.env.get("USE_MEGATRON_FSDP", "False")
    wanted, other = (FSDP, DDP) if asked == "True" else (DDP, FSDP)
    places: dict[str, str] = {}
    for model in reversed(run.hooked.models):
        places[model.wrapper] = f"{model.process}: {' in '.join(reversed(model.built.wrappers))}"
    if not places:
        lines = run.facts.construction
        places = {name: line_place(lines[name]) for name in (DDP, FSDP) if name in lines}
    if other in places:
        return contradicted(WRAPPER, f"{other} was built, not {wanted}", places[other], RERUN_AS_ASKED)
    if wanted in places:
        return shown(WRAPPER, wanted, places[wanted])
    return not_seen(WRAPPER, f"nothing shows that the model was wrapped in {wanted}", SEE_PROBE)


def parallel_sizes(run: TrainingRun) -> Iterator[Criterion]:
    asked = {name: int(run.training.env[name]) for name in _WIDE if run.training.env.get(name, "").isdecimal()}
    if run.training.level == 2 and all(size == 1 for size in asked.values()):
        yield not_seen(SIZES, "all parallel sizes are 1: no evidence for distributed behavior", "ask for larger sizes")
        return
    seen = run.hooked.sizes
    built = {name: seen[_SIZE_NAMES[name]] for name in asked if _SIZE_NAMES.get(name) in seen}
    wrong = [
        f"{name}={'/'.join(map(str, size.values))} in the built models, not {asked[name]}"
        for name, size in built.items()
        if size.values != (asked[name],)
    ]
    place = next(iter(built.values())).process if built else ""
    unseen = [name for name in asked if name in _SIZE_NAMES and name not in built and asked[name] != 1]
    if wrong:
        yield contradicted(SIZES, "; ".join(wrong), place, "see whether the provider was finalized with mpu's sizes")
    elif not built or unseen:
        yield not_seen(SIZES, f"nothing shows those of the built models{_of(unseen)}", SEE_PROBE, place)
    else:
        yield shown(SIZES, ", ".join(f"{name[7:]} {asked[name]}" for name in built), place)


def _of(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""
