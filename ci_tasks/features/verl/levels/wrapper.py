"""What verl's wrapper script reads: a variable that it does not read would change nothing, and nobody would notice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ci_tasks.errors import UsageError, nearest
from ci_tasks.features.verl.levels.levels import Training

_READ = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)\b")
# Read by verl, Ray, CUDA and Hugging Face themselves, not by the wrapper.
_OTHERS = re.compile(r"(?:VERL|RAY|CUDA|NCCL|HF|HYDRA|VLLM|TORCH|NVTE|PYTORCH|HIP|ROCR|WANDB|TINY|OMP|GLOO)_[A-Z0-9_]+")

# What a verl that has no such variable has anyway: it does not know the feature that the value turns off.
_WITHOUT = {"USE_MEGATRON_FSDP": "False", "ROUTING_REPLAY_MODE": "disabled"}
# And what it cannot do at all.
_NO_BRIDGE = "this verl has no Megatron-Bridge, only the mbridge library; v0.7.0 is the first that has it"
_LACKS = {
    "VANILLA_MBRIDGE": _NO_BRIDGE,
    "VALUE_VANILLA_MBRIDGE": _NO_BRIDGE,
    "USE_MEGATRON_FSDP": "this verl has no Megatron-FSDP; v0.8.0 is the first that has it",
}


def variables(text: str) -> frozenset[str]:
    """The variables that a shell script reads from its environment, as far as they are in capitals."""
    return frozenset(_READ.findall(text))


def as_read(text: str, env: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` without what asks for nothing at this revision of verl. Raises UsageError for another variable that the
    script in `text` never reads, or sets without reading it."""
    defined = variables(text)
    read = {}
    for name, value in env.items():
        if name in defined or _OTHERS.fullmatch(name):
            read[name] = value
        elif _WITHOUT.get(name) != value:
            near = nearest(name, defined)
            raise UsageError(
                f"{where} does not read {name}{f'; did you mean {near}?' if near else ''}",
                hint=_LACKS.get(name)
                or "verl has changed, or the variable is misspelt; an override of Hydra's may do: --override KEY=VALUE",
            )
    return read


def trainings_as_read(planned: Iterable[Training], scripts: Mapping[str, str]) -> tuple[Training, ...]:
    """The trainings with what their scripts read, whose texts are given by their path. Raises UsageError."""
    return tuple(
        replace(training, env=as_read(scripts[training.script], training.env, training.script))
        if training.script in scripts and training.level != 4  # a script of the user's own reads what it likes
        else training
        for training in planned
    )
