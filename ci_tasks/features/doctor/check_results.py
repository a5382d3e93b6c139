"""Checks of a host: generators that yield queries, get the answers, and return results, the lines of `doctor`'s table.

A check may yield more queries after it has read the first answers. A query's name means the same query in all checks.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.errors import printable
from ci_tasks.report.table import Table

# A fault would block or break a row; a warning may; unknown is what could not be queried.
OK, WARNING, FAULT, UNKNOWN = "ok", "warning", "fault", "unknown"


@dataclass(frozen=True)
class CheckResult:
    """One result of a host's examination; `next_step` is empty if nothing has to be done."""

    topic: str
    status: str
    text: str
    next_step: str = ""


Queries = Mapping[str, Sequence[str]]  # argv by name
Answers = Mapping[str, QueryAnswer]
Check = Generator[Queries, Answers, list[CheckResult]]


def ok(topic: str, text: str) -> CheckResult:
    return CheckResult(topic, OK, text)


def warning(topic: str, text: str, next_step: str = "") -> CheckResult:
    return CheckResult(topic, WARNING, text, next_step)


def fault(topic: str, text: str, next_step: str) -> CheckResult:
    return CheckResult(topic, FAULT, text, next_step)


def unknown(topic: str, text: str, next_step: str = "") -> CheckResult:
    return CheckResult(topic, UNKNOWN, text, next_step)


def remedy(text: str, remedies: Iterable[tuple[str, str]], otherwise: str) -> str:
    """What to do about a program's complaint: the step of the first pattern that is found in it."""
    return next((step for pattern, step in remedies if re.search(pattern, text, re.IGNORECASE)), otherwise)


def lines(host: str, results: Sequence[CheckResult], width: int | None = None) -> list[str]:
    """The host's name, and a line for each result, with its next step below. Further lines of a text stay whole, such
    as one for known_hosts."""
    topics = max((len(result.topic) for result in results), default=0)
    shown, topic = [host], ""
    for result in results:
        text, *more = result.text.strip().splitlines() or [""]
        name = result.topic if result.topic != topic else ""
        shown += Table([(f"  {result.status:8}", f"{name:{topics}}", text)]).text(width)
        step, *further = result.next_step.splitlines() or [""]
        shown += map(printable, more)
        shown += Table([(" " * 10, " " * topics, f"→ {step}")]).text(width) if step else []
        shown += map(printable, further)
        topic = result.topic
    return shown


def summary(results: Sequence[CheckResult]) -> str:
    """`2 faults, 1 warning`, for the last line."""
    counts = {status: sum(result.status == status for result in results) for status in (FAULT, WARNING, UNKNOWN)}
    plural = {FAULT: "faults", WARNING: "warnings", UNKNOWN: "unknown"}
    parts = [f"{count} {status if count == 1 else plural[status]}" for status, count in counts.items() if count]
    return ", ".join(parts) or "no fault"
