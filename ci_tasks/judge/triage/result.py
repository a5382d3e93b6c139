"""The answer of a triage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FAIL, BLOCKED, PASS = "fail", "blocked", "pass"
UNKNOWN = "unknown"
TIMEOUT_HANG = "timeout_hang"


@dataclass(frozen=True)
class Blame:
    """A line that may be the reason. `line_no` is 1-based in the log as it was given."""

    cause: str
    verdict: str
    line_no: int
    line: str
    rule: str


@dataclass(frozen=True)
class Triage:
    """What a log says of its failure.

    `verdict` is `fail` (the code under test or its configuration), `blocked` (the environment) or `pass` (nothing
    failed); `cause` one of the classes of rules.yaml, `unknown` where no rule knows, `pass` where nothing failed.
    `line` has no escape sequences; `text` is the same without timestamp, rank and actor. `signature` is equal for
    two runs of one failure, "" where nothing failed. `confidence` is between 0 and 1. `context` are the lines
    around, the blamed one among them; `reason` is the rule's explanation; `frames` the innermost calls of its
    traceback as `file:function`, outermost first. `second` is the next best, where that is not far behind.
    """

    cause: str
    verdict: str
    line_no: int | None
    line: str
    signature: str
    confidence: float
    text: str = ""
    context: tuple[str, ...] = ()
    reason: str = ""
    rule: str = ""
    frames: tuple[str, ...] = ()
    second: Blame | None = None

    def public(self) -> dict[str, Any]:
        """The content of `triage --json` and of a record."""
        return asdict(self)
