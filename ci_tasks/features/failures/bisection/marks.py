"""What a run says of its commit, and why: a line of the bisection's log."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.features.failures.bisection.observations import (
    BLOCKED,
    MISSING,
    PASS,
    CommitCounts,
    Observation,
    is_failure,
)
from ci_tasks.features.failures.bisection.strategy import BisectionGoal, assess

BAD, GOOD, PROBABLY_GOOD, UNCLEAR, SKIP = "bad", "good", "probably good", "unclear", "skip"
_LITTLE = 0.05  # a chance below which a pass is taken at its word


@dataclass(frozen=True)
class CommitMark:
    """BAD, GOOD and so on, and the words for it."""

    verdict: str
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"


def mark(goal: BisectionGoal, observations: Sequence[Observation]) -> CommitMark:
    """The mark of the last of `observations`, in the light of those before it."""
    last = observations[-1]
    if last.kind == MISSING:
        return CommitMark(SKIP, last.reason)
    if last.kind == BLOCKED:
        return CommitMark(SKIP, f"blocked: {last.reason}")
    assessment = assess(goal, observations)
    here, bad = assessment.run_counts.at(last.position), last.position == goal.graph.bad
    if last.kind == PASS:
        return _passed(here, bad, assessment.now.rate, has_target=bool(assessment.run_counts.target))
    target = assessment.run_counts.target
    if not is_failure(last, target):
        kinds = {seen.failure_kind for seen in observations if is_failure(seen, target)}
        alike = last.failure_kind and last.failure_kind in kinds
        return CommitMark(SKIP, f"{'the same kind, other evidence' if alike else 'another failure'}: {last.signature}")
    how = "fails" if bad else "fails as the bad end does"
    return CommitMark(BAD, f"{how} ({here.fails} of {counted(here.valid, 'run')})")


def _passed(here: CommitCounts, bad: bool, rate: float, *, has_target: bool) -> CommitMark:
    if bad and not here.fails:
        return CommitMark(UNCLEAR, f"passes ({counted(here.valid, 'run')}, none of which failed)")
    if here.fails:
        return CommitMark(BAD, f"passes this time, fails in {here.fails} of {counted(here.valid, 'run')}")
    if not has_target:
        return CommitMark(PROBABLY_GOOD, f"passes ({counted(here.valid, 'run')})")
    chance = (1 - rate) ** here.passes
    count = "1 pass" if here.passes == 1 else f"{here.passes} passes"
    why = f"{count}; with the culprit in it that would happen in {_percent(chance)}"
    return CommitMark(GOOD if round(chance, 2) <= _LITTLE else PROBABLY_GOOD, why)


def _percent(share: float) -> str:
    return "less than 1 %" if share < 0.01 else f"{share:.0%}".replace("%", " %")
