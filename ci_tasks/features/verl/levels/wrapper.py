"""What verl's wrapper script reads: a variable that it does not read would change nothing, and nobody would notice."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ci_tasks.errors import UsageError, nearest

_READ = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)\b")
# Read by verl, Ray, CUDA and Hugging Face themselves, not by the wrapper.
_OTHERS = re.compile(r"(?:VERL|RAY|CUDA|NCCL|HF|HYDRA|VLLM|TORCH|NVTE|PYTORCH|HIP|ROCR|WANDB|TINY|OMP|GLOO)_[A-Z0-9_]+")


def variables(text: str) -> frozenset[str]:
    """The variables that a shell script reads from its environment, as far as they are in capitals."""
    return frozenset(_READ.findall(text))


def check(text: str, names: Iterable[str], where: str) -> None:
    """Raises UsageError for a name that the script in `text` never reads, or sets without reading it."""
    defined = variables(text)
    for name in names:
        if name in defined or _OTHERS.fullmatch(name):
            continue
        near = nearest(name, defined)
        raise UsageError(
            f"{where} does not read {name}{f'; did you mean {near}?' if near else ''}",
            hint="verl has changed, or the variable is misspelt; an override of Hydra's may do: --override KEY=VALUE",
        )
