"""What a run of the levels showed: criteria of each training, and the guide's summary of all. Pure.

A criterion has three outcomes: shown, contradicted, not seen. What was asked for is no evidence that it happened, and
what was not seen is neither good nor bad: a training passes where all of its criteria are shown, fails where one is
contradicted, and is not proven otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass

SHOWN, CONTRADICTED, NOT_SEEN = "shown", "contradicted", "not seen"
PASS, FAIL, BLOCKED, SKIPPED, NOT_REQUESTED = "Pass", "Fail", "Blocked", "Skipped", "Not requested"
NOT_PROVEN = "Not proven"
CHECKS = "Bridge-side checks"
IMPORT = "Local Bridge import in verl"
BACKEND = "verl Megatron backend run"
VARIANTS = "Requested variants"
LOG = "Log capture"


@dataclass(frozen=True)
class Criterion:
    """`outcome` is shown, contradicted or not seen. `evidence` is what was seen, or why nothing was; `place` is where:
    `line 12`, `rank 0 (pid 71)`, a file. `follow_up` is what to do where it is not shown. `environment` says of a
    contradicted one that the environment or the command is its reason, so that it is no evidence against the change.
    `optional` says of one that is not seen that the guide does not ask for it: it is a limitation, and decides nothing.
    """

    name: str
    outcome: str
    evidence: str
    place: str = ""
    follow_up: str = ""
    environment: bool = False
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}{f' ({self.place})' if self.place else ''}"


def shown(name: str, evidence: str, place: str = "") -> Criterion:
    return Criterion(name, SHOWN, evidence, place)


def contradicted(
    name: str, evidence: str, place: str = "", follow_up: str = "", *, environment: bool = False
) -> Criterion:
    return Criterion(name, CONTRADICTED, evidence, place, follow_up, environment)


def not_seen(name: str, evidence: str, follow_up: str = "", place: str = "", *, optional: bool = False) -> Criterion:
    return Criterion(name, NOT_SEEN, evidence, place, follow_up, optional=optional)


def with_outcome(criteria: Iterable[Criterion], outcome: str) -> list[Criterion]:
    return [criterion for criterion in criteria if criterion.outcome == outcome]


@dataclass(frozen=True)
class Deliverable:
    """One line: `status` is Pass, Fail, Blocked, Not proven, Skipped or Not requested; `text` its evidence."""

    name: str
    status: str
    text: str


@dataclass(frozen=True)
class TrainingCriteria:
    training: str
    status: str
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True)
class EvidenceItem:
    """`lines` are one or more; the summary has them in one."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """`result` is Pass, Fail, Blocked or Not proven; `passed_level` the highest requested level whose criteria were
    met, None where none was. `deliverables` are five and `evidence` four, in the guide's order; `preflight` has a line
    for each mark of the preflight, `criteria` an entry for each training that began."""

    result: str
    sentence: str
    requested: str
    checkpoint: str
    deliverables: tuple[Deliverable, ...]
    evidence: tuple[EvidenceItem, ...]
    limitations: tuple[str, ...]
    follow_ups: tuple[str, ...]
    passed_level: int | None = None
    preflight: tuple[Deliverable, ...] = ()
    criteria: tuple[TrainingCriteria, ...] = ()

    def public(self) -> dict[str, Any]:
        return asdict(self)
