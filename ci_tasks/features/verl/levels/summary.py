"""The summary that ends every run of verl's levels: the guide's five deliverables, and what stands around them."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from ci_tasks.agent.codec import JSON_SCHEMA
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.levels.criterion import Criterion

PASS, FAIL, BLOCKED, SKIPPED, NOT_REQUESTED = "Pass", "Fail", "Blocked", "Skipped", "Not requested"
NOT_PROVEN = "Not proven"
CHECKS = "Bridge-side checks"
IMPORT = "Local Bridge import in verl"
BACKEND = "verl Megatron backend run"
VARIANTS = "Requested variants"
LOG = "Log capture"
# In JSON a value that is no number is its name: "nan".
_POINTS = {
    "type": "array",
    "items": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": ["number", "string"]}]},
}


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
    """`lines` are one or more, each fit for a terminal."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MetricCurve:
    """A metric over global steps, for a plot."""

    name: str
    points: tuple[tuple[int, float], ...] = field(metadata={JSON_SCHEMA: {"schema": _POINTS}})


@dataclass(frozen=True)
class Provenance:
    """What the log does not know of its run. Commits are short; `bridge_root` is the Bridge checkout as the job sees
    it, "" where nobody knows; `command` repeats the run when it is pasted; `log` is where the log lies, "" where there
    is none."""

    bridge_commit: str
    verl_commit: str
    command: str
    log: str
    bridge_dirty: tuple[str, ...] = ()
    verl_dirty: tuple[str, ...] = ()
    image: str = ""
    host: str = ""
    bridge_root: str = ""


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
    curve: MetricCurve | None = None
    criteria: tuple[TrainingCriteria, ...] = ()

    def public(self) -> dict[str, Any]:
        return asdict(self)
