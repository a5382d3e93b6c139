"""What a fact is: questions to a host's programs, and a pure parser of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.hosts.ask import Answer
from ci_tasks.report.doctor import UNKNOWN, Finding

Answers = Mapping[str, Answer]


@dataclass(frozen=True)
class Fact:
    """`questions` are argvs by name; a name means the same question in every fact. `read` gets all answers so far,
    those of other facts too."""

    questions: Mapping[str, Sequence[str]]
    read: Callable[[Answers], Sequence[Finding]]


def python(script: str, *words: str) -> list[str]:
    """A question that no program of the host answers in a form worth parsing. -I: the caller's PYTHONPATH stays out."""
    return ["python3", "-I", "-c", script, *words]


def unknown(topic: str, answer: Answer) -> list[Finding]:
    return [Finding(topic, UNKNOWN, answer.said)]


def loaded(answer: Answer) -> dict[str, Any]:
    """The JSON object that a program printed, of several the first; empty where it printed none."""
    try:
        found = json.loads(answer.out)
    except ValueError:
        return {}
    if isinstance(found, list) and found:
        found = found[0]
    return found if isinstance(found, dict) else {}


def part(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The object under `names`; docker says null for what it does not know."""
    for name in names:
        value = found.get(name)
        found = value if isinstance(value, dict) else {}
    return dict(found)


def listed(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    return value if isinstance(value, list) else []


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def ago(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
