"""The machine that `runs-on` asks for, and how many GPUs a text of a workflow names: a label, a matrix value, a script,
docker's `--gpus`. Pure. None for a text that does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ci_tasks.workflow.model import Job
from ci_tasks.workflow.values import leaves, shown, unknowns

if TYPE_CHECKING:
    from ci_tasks.workflow.context import Resolver

# Strings, which `re` compiles when they are used first: `nox -l` uses none.
_HOSTED = r"(?i)(ubuntu|windows|macos)-"
# Labels of GitHub's own runners, such as macos-14, and the ones that every self-hosted runner has.
_OTHER_SYSTEM = r"(?i)(windows|macos)(-.*)?"
_FALLBACK = r"\|\|\s*'([^']+)'\s*\}\}"


def labels(job: Job, resolve: Resolver) -> list[str]:
    """The labels of `runs-on`; a value that only GitHub knows by its name. A group says nothing."""
    runs_on = resolve.value(job.runs_on)
    value = runs_on.get("labels") if isinstance(runs_on, Mapping) else runs_on
    return [shown(label) for label in (value if isinstance(value, list) else [value]) if label is not None]


def labels_with_fallbacks(job: Job, resolve: Resolver) -> list[str]:
    """As `labels`, with the text behind `||` of an expression that only GitHub knows: `L20x8` of
    `${{ needs.setup.outputs.runner || 'L20x8' }}`."""
    raw = [text for text in leaves(job.runs_on) if isinstance(text, str) and "||" in text]
    unknown = [text for text in raw if list(unknowns(resolve.value(text)))]
    return [*labels(job, resolve), *(text for each in unknown for text in re.findall(_FALLBACK, each))]


def is_hosted(labels: Sequence[str]) -> bool:
    """Whether the machine is GitHub's; `self-hosted` outweighs what looks like one of its labels."""
    names = [label.lower() for label in labels]
    return "self-hosted" not in names and any(re.match(_HOSTED, name) for name in names)


def gpu_count(labels: Sequence[str]) -> int | None:
    """The GPUs of the machine: 0 if it is GitHub's usual one, or named after its processors."""
    found = {count for count in map(gpus_in_label, labels) if count is not None}
    if found or any(map(names_gpu, labels)):
        return found.pop() if len(found) == 1 else None
    return 0 if is_hosted(labels) or any(map(names_cpu, labels)) else None


def refusal(labels: Sequence[str]) -> str | None:
    """Why no job of the machine can run here: another operating system, or no GPUs of NVIDIA's."""
    for label in labels:
        if re.fullmatch(_OTHER_SYSTEM, label):
            return f"runs on {label}; only Linux jobs can be run"
        if what := other_accelerator(label):
            return f"runs on {label}, a runner with {what}; only NVIDIA GPUs are supported"
    return None


# -- GPUs --------------------------------------------------------------------------------------------------------------

LOCK_SCRIPT = "gpu_lock_exec"
_N, _END = "([1-9][0-9]?)", "(?![a-z0-9])"
_MODEL = "(?:(?:rtx|[a-z]{1,2})[0-9]{1,4}[a-z]{0,4}|[2-5]0[5-9]0(?:ti)?)"  # h100, l40s, rtx6000ada, 4090
_LABEL = (
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
_GPU_WORD = rf"gpu|cuda|nvidia|(?<![a-z0-9])(?:rtx|g[bh]|[abhlptv])[0-9]{{1,4}}[a-z]?{_END}"
_PYTEST = r"(?m)^[ \t]*(?:python3? -m )?pytest\b[^\n;&|]*"
_SEVERAL = r"\s-n[ =]?(?:auto|logical|[2-9]|1[0-9])"
_CPU_WORD = r"(?<![a-z0-9])[0-9]*cpus?[0-9]*(?![a-z0-9])"
# What is no GPU of NVIDIA's. Ascend's own runners are called by the chip: linux-aarch64-a2b3-8.
_OTHERS = {
    "AMD GPUs": rf"(?<![a-z0-9])(?:rocm[a-z0-9]*|mi[0-9]{{2,3}}[a-z]?|gfx[0-9]+[a-z]?)(?:x[0-9]+)?{_END}",
    "Ascend NPUs": (
        rf"ascend|(?<![a-z0-9])(?:[0-9]*npus?[0-9]*|910[a-c][0-9]?|a2b[0-9]|aarch64-a[23])(?:x[0-9]+)?{_END}"
    ),
}
_SCRIPT = rf"{LOCK_SCRIPT}(?:(?!\s--\s)[^\n;|&])*?\s--count[\s=]+[\"']?([0-9]{{1,3}})(?![\w.])"
_FLAG = r"device=([A-Za-z0-9-]+(?:,[A-Za-z0-9-]+)*)|(?:count=)?([0-9]+)"


def gpus_in_label(label: str) -> int | None:
    """The number in a runner's label; None too for one that says two."""
    found = {int(next(filter(None, match.groups()))) for match in re.finditer(_LABEL, label.lower())}
    return found.pop() if len(found) == 1 else None


def names_gpu(label: str) -> bool:
    return bool(re.search(_GPU_WORD, label.lower())) or gpus_in_label(label) is not None


def names_cpu(label: str) -> bool:
    """Whether the label names a machine without GPUs, as `linux-amd64-cpu16` does."""
    return bool(re.search(_CPU_WORD, label.lower())) and not names_gpu(label)


def other_accelerator(label: str) -> str:
    """What the machine of the label has instead of GPUs of NVIDIA's; "" for all others."""
    return next((what for what, pattern in _OTHERS.items() if re.search(pattern, label.lower())), "")


def gpus_in_value(value: Any) -> int | None:
    """The number that a matrix value is, or names as a label does: 8, "8", `gpu_num_8`."""
    if isinstance(value, bool):
        return None
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return gpus_in_label(value) if isinstance(value, str) else None
    return count if count >= 0 else None


def gpus_in_script(script: str) -> int | None:
    """The highest number that a script's calls of CI's lock script take."""
    return max((int(count) for count in re.findall(_SCRIPT, script.replace("\\\n", " "))), default=None)


def counts_for_each_test(marker: str, scripts: Iterable[str]) -> bool:
    """Whether the marker selects the tests of pytest commands which all run several at once, by `-n`."""
    commands = [one for script in scripts for one in re.findall(_PYTEST, script.replace("\\\n", " ")) if marker in one]
    return bool(commands) and all(re.search(_SEVERAL, command) for command in commands)


def gpus_in_docker_flag(value: str) -> int | None:
    """The number in the value of `docker run --gpus`; None for `all`."""
    found = re.fullmatch(_FLAG, value.strip("\"' "))
    return None if found is None else int(found[2]) if found[2] else found[1].count(",") + 1
