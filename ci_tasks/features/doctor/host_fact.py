"""What a fact is: queries to a host's programs, and a pure parser of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor.check_results import CheckResult, unknown

QueryAnswers = Mapping[str, QueryAnswer]


@dataclass(frozen=True)
class HostFact:
    """`queries` are argvs by name; a name means the same query in every fact. `parse` gets all answers so far,
    those of other facts too."""

    queries: Mapping[str, Sequence[str]]
    parse: Callable[[QueryAnswers], Sequence[CheckResult]]


def unanswered(topic: str, answer: QueryAnswer) -> list[CheckResult]:
    return [unknown(topic, answer.last_line)]


def part(json: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The object under `names`; docker says null for what it does not know."""
    for name in names:
        value = json.get(name)
        json = value if isinstance(value, dict) else {}
    return dict(json)


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
