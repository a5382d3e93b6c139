"""One row, run again and again on one tree: its outcomes → a tally, the failure rate with its interval, and a word.

    word                  said where
    flaky                 passes and failures were both seen, or two ways of failing
    fails at least 56 %   every repetition failed in one way, and the rate's lower bound, which it names, is above SURE
    passes                no repetition failed; what N passes are worth is the rate's upper bound
    unclear               everything else: too few failures, or nothing that says anything about the code

A way of failing is a failure's signature. A repetition that was blocked, cancelled or lost is no evidence about the
code: it is counted apart, and made up for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, PASSED, VACUOUS, RunRecord
from ci_tasks.results.rates import at_least, wilson

FLAKY, FAILS, PASSES, UNCLEAR = "flaky", "fails", "passes", "unclear"

# Five equal failures without a pass reach this bound: a test that fails every other time does so once in 32 tries, and
# a sixth costs as much GPU time as the first, and lifts the bound by four points only.
SURE = 0.55
NARROW = 0.2  # an interval's width (±10 points) below which a rate that is neither 0 nor 1 is known well enough
MAX_INCONCLUSIVE = 2  # repetitions in a row that say nothing about the code, after which the row is given up

_FAILING = (FAILED, VACUOUS)
_INCONCLUSIVE = (BLOCKED, CANCELLED, LOST)


@dataclass(frozen=True)
class RepetitionOutcome:
    """How one repetition of a row ended. `signature` is "" where nothing failed, or where it could not be told;
    `alike` is the kind of the failure, which failures with other evidence share."""

    status: str
    signature: str = ""
    alike: str = ""

    @property
    def failure_kind(self) -> str:
        """What it is counted under: failures without a signature are one way, for lack of anything to tell them by."""
        return self.signature or (f"{FAILED}, without a signature" if self.status == FAILED else self.status)


@dataclass(frozen=True)
class RepeatLimit:
    """How often every row is to run to an outcome that says something. `until_fail`: a first failure ends it all."""

    repeats: int
    until_fail: bool = False


@dataclass(frozen=True)
class OutcomeCounts:
    """`failures` are counts by way, the most frequent first; `inconclusive` by status are none of the code's."""

    passed: int
    failures: Mapping[str, int]
    inconclusive: Mapping[str, int]

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def conclusive(self) -> int:
        """Repetitions that say something about the code."""
        return self.passed + self.failed

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the failure rate, 95 % (Wilson)."""
        return wilson(self.failed, self.conclusive)

    @property
    def classification(self) -> str:
        """FLAKY, FAILS, PASSES or UNCLEAR; see the module's docstring."""
        if self.failed and (self.passed or len(self.failures) > 1):
            return FLAKY
        if self.failed:
            return FAILS if self.interval[0] > SURE else UNCLEAR
        return PASSES if self.passed else UNCLEAR

    @property
    def word(self) -> str:
        """The classification for people. So many equal failures are no proof that the next run fails too."""
        kind = self.classification
        return at_least(self.failed, self.conclusive) if kind == FAILS else kind


EQUAL_FAILURES = next(n for n in itertools.count(1) if wilson(n, n)[0] > SURE)
"""So many failures in one way, and no pass, are enough to name a rate."""


def outcome(record: RunRecord) -> RepetitionOutcome:
    """What a record says about the code."""
    status = record.status
    if status not in _FAILING or record.triage is None:
        return RepetitionOutcome(status)
    return RepetitionOutcome(status, record.triage.signature, record.triage.kind)


def count_outcomes(outcomes: Iterable[RepetitionOutcome]) -> OutcomeCounts:
    """Count outcomes. Vacuous ones are failures: the row did not show what it is there to show."""
    repetitions = list(outcomes)
    return OutcomeCounts(
        passed=sum(outcome.status == PASSED for outcome in repetitions),
        failures=dict(
            Counter(outcome.failure_kind for outcome in repetitions if outcome.status in _FAILING).most_common()
        ),
        inconclusive=dict(
            Counter(outcome.status for outcome in repetitions if outcome.status in _INCONCLUSIVE).most_common()
        ),
    )


def stop_reason(outcomes: Sequence[RepetitionOutcome], limit: RepeatLimit) -> str:
    """Why a row is to be run no more, or "" where the next repetition is worth its time.

    Who asks for N repetitions wants a rate. So a row that was seen to pass and to fail, which proves it flaky, goes on
    until its rate is known to ±10 points. EQUAL_FAILURES end it early: what follows is to debug them, not to count
    more. A row that only passed is never ended early: its result is a bound, and N passes are what buys it.
    """
    if trailing_inconclusive(outcomes) >= MAX_INCONCLUSIVE:
        return f"{outcomes[-1].status} {MAX_INCONCLUSIVE} times in a row"
    counts = count_outcomes(outcomes)
    if limit.until_fail and counts.failed:
        return "it failed"
    if counts.conclusive >= limit.repeats:
        return "all done"
    if counts.classification == FAILS:
        return f"{counts.failed} equal failures are clear"
    low, high = counts.interval
    return "the rate is known to ±10 points" if counts.classification == FLAKY and high - low < NARROW else ""


def status(outcomes: Sequence[RepetitionOutcome], limit: RepeatLimit) -> str:
    """The status of a row's repetitions together: failed where one of them was. Repetitions that said nothing do not
    count where they were made up for; a row that was given up for them has the last one's status."""
    counts = count_outcomes(outcomes)
    if counts.failed:
        return FAILED
    if counts.conclusive and (counts.conclusive >= limit.repeats or not trailing_inconclusive(outcomes)):
        return PASSED
    return outcomes[-1].status if outcomes else VACUOUS


def is_conclusive(outcome: RepetitionOutcome) -> bool:
    """Whether it says something about the code."""
    return outcome.status not in _INCONCLUSIVE


def trailing_inconclusive(outcomes: Sequence[RepetitionOutcome]) -> int:
    """How many of the last outcomes, without a break, are no evidence."""
    return len(list(itertools.takewhile(lambda outcome: outcome.status in _INCONCLUSIVE, reversed(outcomes))))
