"""How many GPUs a text of a workflow asks for: a runner's label, a matrix value, a step's script, docker's `--gpus`.
Pure. None for a text that does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

LOCK_SCRIPT = "gpu_lock_exec"
_N, _END = "([1-9][0-9]?)", "(?![a-z0-9])"
_MODEL = "(?:(?:rtx|[a-z]{1,2})[0-9]{1,4}[a-z]{0,4}|[2-5]0[5-9]0(?:ti)?)"  # h100, l40s, rtx6000ada, 4090
_LABEL = re.compile(
    "(?<![a-z0-9])(?:"
    + "|".join(
        (
            f"{_N}x?[-_. ]?gpus?{_END}",  # 8-gpu-h200, 4gpu
            f"gpus?[-_. ]?(?:(?:num|count)[-_])?x?{_N}{_END}(?![-_ ]?(?:core|cpu))",  # gpu-4, gpu-x2, gpu_num_1
            f"(?!x|cpu|arm|amd){_MODEL}x{_N}{_END}",  # L20x8
            f"{_N}x[-_]?{_MODEL}{_END}",  # 8xH100
            f"(?<=[-_.])x(?!32|64|86){_N}{_END}",  # h100-x4, and not linux-x64
        )
    )
    + ")"
)
_GPU_WORD = re.compile(rf"gpu|cuda|nvidia|(?<![a-z0-9])(?:rtx|g[bh]|[abhlptv])[0-9]{{1,4}}[a-z]?{_END}")
_CPU_WORD = re.compile(r"(?<![a-z0-9])[0-9]*cpus?[0-9]*(?![a-z0-9])")
# What is no GPU of NVIDIA's. Ascend's own runners are called by the chip: linux-aarch64-a2b3-8.
_OTHERS = {
    "AMD GPUs": re.compile(rf"(?<![a-z0-9])(?:rocm[a-z0-9]*|mi[0-9]{{2,3}}[a-z]?|gfx[0-9]+[a-z]?)(?:x[0-9]+)?{_END}"),
    "Ascend NPUs": re.compile(
        rf"ascend|(?<![a-z0-9])(?:[0-9]*npus?[0-9]*|910[a-c][0-9]?|a2b[0-9]|aarch64-a[23])(?:x[0-9]+)?{_END}"
    ),
}
_SCRIPT = re.compile(rf"{LOCK_SCRIPT}(?:(?!\s--\s)[^\n;|&])*?\s--count[\s=]+[\"']?([0-9]{{1,3}})(?![\w.])")
_FLAG = re.compile(r"device=([A-Za-z0-9-]+(?:,[A-Za-z0-9-]+)*)|(?:count=)?([0-9]+)")


def in_label(label: str) -> int | None:
    """The number in a runner's label; None too for one that says two."""
    found = {int(next(filter(None, match.groups()))) for match in _LABEL.finditer(label.lower())}
    return found.pop() if len(found) == 1 else None


def in_labels(labels: Iterable[str]) -> int | None:
    """The number that the runner's labels agree on."""
    found = {count for count in map(in_label, labels) if count is not None}
    return found.pop() if len(found) == 1 else None


def names_gpu(label: str) -> bool:
    return bool(_GPU_WORD.search(label.lower())) or in_label(label) is not None


def names_cpu(label: str) -> bool:
    """Whether the label is that of a machine without GPUs, as `linux-amd64-cpu16`."""
    return bool(_CPU_WORD.search(label.lower())) and not names_gpu(label)


def other_accelerator(label: str) -> str:
    """What the machine of the label has instead of GPUs of NVIDIA's; "" for all others."""
    return next((what for what, pattern in _OTHERS.items() if pattern.search(label.lower())), "")


def in_value(value: Any) -> int | None:
    """The number that a matrix value is, or names as a label does: 8, "8", `gpu_num_8`."""
    if isinstance(value, bool):
        return None
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return in_label(value) if isinstance(value, str) else None
    return count if count >= 0 else None


def in_script(script: str) -> int | None:
    """The highest number that a script's calls of CI's lock script take."""
    return max((int(count) for count in _SCRIPT.findall(script.replace("\\\n", " "))), default=None)


def in_docker_flag(value: str) -> int | None:
    """The number in the value of `docker run --gpus`; None for `all`."""
    found = _FLAG.fullmatch(value.strip("\"' "))
    return None if found is None else int(found[2]) if found[2] else found[1].count(",") + 1
