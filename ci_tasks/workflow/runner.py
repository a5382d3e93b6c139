"""The machine that `runs-on` asks for: its labels, and what they say. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ci_tasks.workflow import gpus
from ci_tasks.workflow.model import Job
from ci_tasks.workflow.naming import leaves
from ci_tasks.workflow.resolve import Resolver
from ci_tasks.workflow.values import shown, unknowns

_HOSTED = re.compile(r"(ubuntu|windows|macos)-", re.IGNORECASE)
# Labels of GitHub's own runners, such as macos-14, and the ones that every self-hosted runner has.
_OTHER_SYSTEM = re.compile(r"(windows|macos)(-.*)?", re.IGNORECASE)
_FALLBACK = re.compile(r"\|\|\s*'([^']+)'\s*\}\}")


def labels(job: Job, resolve: Resolver) -> list[str]:
    """Those of `runs-on`, what only GitHub knows by its name. A group says nothing."""
    runs_on = resolve.value(job.runs_on)
    value = runs_on.get("labels") if isinstance(runs_on, Mapping) else runs_on
    return [shown(label) for label in (value if isinstance(value, list) else [value]) if label is not None]


def labels_with_fallbacks(job: Job, resolve: Resolver) -> list[str]:
    """As `labels`, with the text behind `||` of an expression that only GitHub knows: `L20x8` of
    `${{ needs.setup.outputs.runner || 'L20x8' }}`."""
    raw = [text for text in leaves(job.runs_on) if isinstance(text, str) and "||" in text]
    unknown = [text for text in raw if list(unknowns(resolve.value(text)))]
    return [*labels(job, resolve), *(text for each in unknown for text in _FALLBACK.findall(each))]


def is_hosted(labels: Sequence[str]) -> bool:
    """Whether the machine is GitHub's; `self-hosted` outweighs what looks like one of its labels."""
    names = [label.lower() for label in labels]
    return "self-hosted" not in names and any(_HOSTED.match(name) for name in names)


def gpu_count(labels: Sequence[str]) -> int | None:
    """The GPUs of the machine: 0 where it is GitHub's usual one, or named after its processors."""
    count = gpus.in_labels(labels)
    if count is not None or any(map(gpus.names_gpu, labels)):
        return count
    return 0 if is_hosted(labels) or any(map(gpus.names_cpu, labels)) else None


def refusal(labels: Sequence[str]) -> str | None:
    """Why no job of the machine can run here: another operating system, or no GPUs of NVIDIA's."""
    for label in labels:
        if _OTHER_SYSTEM.fullmatch(label):
            return f"runs on {label}; only Linux jobs can be run"
        if what := gpus.other_accelerator(label):
            return f"runs on {label}, a runner with {what}; only NVIDIA GPUs are supported"
    return None
