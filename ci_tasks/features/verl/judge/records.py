"""What a run of the levels showed: the criteria of each training, and the guide's summary of all.

A criterion is shown, contradicted or not seen. What was asked for is no evidence that it happened, and what was not
seen is neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ci_tasks.agent.quick_dataclass import dataclass

SHOWN, CONTRADICTED, NOT_SEEN = "shown", "contradicted", "not seen"
PASS, FAIL, BLOCKED, SKIPPED, NOT_REQUESTED = "Pass", "Fail", "Blocked", "Skipped", "Not requested"
NOT_PROVEN = "Not proven"  # the one word that the guide does not have
RESULT_CODES = {PASS: 0, FAIL: 1, NOT_PROVEN: 4, BLOCKED: 125}


@dataclass(frozen=True)
class Criterion:
    """`outcome` is shown, contradicted or not seen. `evidence` is what was seen, or why nothing was; `place` is where:
    `line 12`, `rank 0 (pid 71)`, a file. `follow_up` is what to do if it is not shown. `environment` marks a
    contradicted one whose cause is the environment or the command, so that it is no evidence against the change.
    `optional` marks one that the guide does not ask for: if it is not seen, it is a limitation and decides nothing.
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


def with_outcome(criteria: Iterable[Criterion], outcome: str) -> list[Criterion]:
    return [criterion for criterion in criteria if criterion.outcome == outcome]


@dataclass(frozen=True)
class TrainingVerdict:
    """`status` is Pass, Fail, Blocked, Not proven, or Skipped for one that did not begin; `text` is the evidence, or
    what is missing."""

    training: str
    status: str
    text: str
    criteria: tuple[Criterion, ...] = ()


@dataclass(frozen=True)
class Deliverable:
    """A line of the summary, or a mark of the preflight: pass, fail, skipped, blocked, simulated or cited."""

    name: str
    status: str
    text: str


@dataclass(frozen=True)
class Summary:
    """`result` is Pass, Fail, Blocked or Not proven; `deliverables` and `evidence` are in the guide's order."""

    result: str
    sentence: str
    requested: str
    checkpoint: str
    deliverables: tuple[Deliverable, ...]
    evidence: Mapping[str, str]
    limitations: tuple[str, ...]
    follow_ups: tuple[str, ...]
    preflight: tuple[Deliverable, ...] = ()
    criteria: tuple[TrainingVerdict, ...] = ()
