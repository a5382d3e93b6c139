"""What a run says of its commit, and why: a line of the bisection's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.judge.bisection.decide import Question, stand
from ci_tasks.judge.bisection.evidence import BLOCKED, MISSING, PASS, Counts, Observation

BAD, GOOD, PROBABLY_GOOD, UNCLEAR, SKIP = "bad", "good", "probably good", "unclear", "skip"
_LITTLE = 0.05  # a chance below which a pass is taken at its word


@dataclass(frozen=True)
class Mark:
    """BAD, GOOD and so on, and the words for it."""

    word: str
    why: str

    def __str__(self) -> str:
        return f"{self.word}: {self.why}"


def mark(question: Question, observations: Sequence[Observation]) -> Mark:
    """The mark of the last of `observations`, in the light of those before it."""
    last = observations[-1]
    if last.kind == MISSING:
        return Mark(SKIP, last.reason)
    if last.kind == BLOCKED:
        return Mark(SKIP, f"blocked: {last.reason}")
    standing = stand(question, observations)
    here, bad = standing.seen.at(last.position), last.position == question.lineage.bad
    if last.kind == PASS:
        return _passed(here, bad, standing.now.rate, known=bool(standing.seen.target))
    if last.signature != standing.seen.target:
        return Mark(SKIP, f"another failure: {last.signature}")
    how = "fails" if bad else "fails as the bad end does"
    return Mark(BAD, f"{how} ({here.fails} of {_times(here.valid)})")


def _passed(here: Counts, bad: bool, rate: float, *, known: bool) -> Mark:
    if bad and not here.fails:
        return Mark(UNCLEAR, f"passes ({_times(here.valid)}, none of which failed)")
    if here.fails:
        return Mark(BAD, f"passes this time, fails in {here.fails} of {_times(here.valid)}")
    if not known:
        return Mark(PROBABLY_GOOD, f"passes ({_times(here.valid)})")
    chance = (1 - rate) ** here.passes
    count = "1 pass" if here.passes == 1 else f"{here.passes} passes"
    why = f"{count}; with the culprit in it that would happen in {_percent(chance)}"
    return Mark(GOOD if round(chance, 2) <= _LITTLE else PROBABLY_GOOD, why)


def _times(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _percent(share: float) -> str:
    return "less than 1 %" if share < 0.01 else f"{share:.0%}".replace("%", " %")
