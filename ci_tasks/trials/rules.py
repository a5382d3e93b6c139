"""Which runs come next, or what the runs so far show. Pure: the outcomes alone decide.

rule      question                                 method
Repeat    how often does it fail?                  Clopper-Pearson interval; N runs, or five equal failures
Match     is it CI's failure?                      the first equal failure; else the rate that was not excluded
AB        is the failure yours, or the base's?     a stake after each pair of runs (an e-value, Ville's inequality)
Metrics   is a metric worse on your side?          Student's t of paired runs; the looks share the error
Bisect    which setting is the first bad one?      bisection.py

`bench/trials.py` measures what each rule promises.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from math import atan, cos, exp, lgamma, pi, sqrt
from statistics import fmean, stdev
from typing import Protocol

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.results.rates import interval, percents

PASSED, FAILED, BLOCKED, MISSING = "passed", "failed", "blocked", "missing"
ERROR = 0.05  # the most probable that a word is wrong
GIVE_UP = 3  # a setting is given up if runs that say nothing outnumber the others by so many


@dataclass(frozen=True)
class Outcome:
    """One run of a row in a setting, which is named by its key. `status` is PASSED or FAILED; any other one, such as
    BLOCKED, says nothing of the code. `signature` identifies the failure, `kind` is what failures share whose
    signature varies from run to run, `reason` the line that explains it. `lacks`: a package or a program is missing."""

    setting: str
    row: str
    status: str
    signature: str = ""
    kind: str = ""
    reason: str = ""
    run: str = ""
    log: str = ""
    host: str = ""
    image: str = ""
    gpus: str = ""
    seconds: float | None = None
    lacks: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it says something of the code."""
        return self.status in (PASSED, FAILED)


@dataclass(frozen=True)
class TrialVerdict:
    """A word of `words` and why. `promise` is the least probability that the word is right, None if none is promised.
    `way` is the failure that decides, "" for all together; `interval` bounds the failure rate; `likely` are settings
    that may be the first bad one, each with its probability."""

    word: str
    why: str
    promise: float | None = None
    way: str = ""
    interval: tuple[float, float] = (0.0, 1.0)
    likely: tuple[tuple[str, float], ...] = ()


class TrialRule(Protocol):
    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        """The settings to run now, at once if that is possible, or how it ends. `outcomes` are of one row."""


# -- what all rules share --------------------------------------------------------------------------------------------


def with_own_lacks(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes; what a run lacks is its setting's own failure where another setting passed on the same host."""
    passed = {(one.setting, one.host) for one in outcomes if one.status == PASSED}
    others = [{setting for setting, host in passed if host == one.host} - {one.setting} for one in outcomes]
    pairs = zip(outcomes, others, strict=True)
    return [replace(one, status=FAILED) if one.lacks and able else one for one, able in pairs]


def telling(outcomes: Sequence[Outcome], setting: str | None = None) -> list[Outcome]:
    """The outcomes that say something of the code. A failure whose signature varies has its kind as signature."""
    signatures: dict[tuple[str, str], Counter[str]] = {}
    for one in outcomes:
        if one.kind:
            signatures.setdefault((one.setting, one.kind), Counter())[one.signature] += 1
    varies = {kind for (_, kind), seen in signatures.items() if 2 * max(seen.values()) < seen.total()}
    own = [one for one in outcomes if one.counts and (setting is None or one.setting == setting)]
    return [replace(one, signature=one.kind) if one.kind in varies else one for one in own]


def ways(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Failures by signature, the most frequent first."""
    found = Counter(one.signature or FAILED for one in outcomes if one.status == FAILED)
    return Counter(dict(found.most_common()))


def given_up(outcomes: Sequence[Outcome], *settings: str) -> TrialVerdict | None:
    """That one of the settings is not worth another run."""
    for setting in settings:
        own = [one for one in outcomes if one.setting == setting]
        silent = [one for one in own if not one.counts]
        if 2 * len(silent) - len(own) >= GIVE_UP or any(one.status == MISSING for one in own):
            silence = f"{setting} shows nothing in {len(silent)} of {counted(len(own), 'run')}"
            silence = f"{setting} has no such test" if silent[-1].status == MISSING else silence
            return TrialVerdict(BLOCKED, f"{silence}: {silent[-1].reason or silent[-1].status}")
    return None


def in_turn(runs: Mapping[str, int], seed: str) -> list[str]:
    """Of two sides those with fewer runs. Which is first changes at random: a host that warms up, or fills, is not read
    as a difference."""
    fewest = min(runs.values())
    sides = [side for side, count in runs.items() if count == fewest]
    return random.Random(f"{seed} {fewest}").sample(sides, len(sides))


# -- Repeat ----------------------------------------------------------------------------------------------------------

FLAKY, FAILS, PASSES, UNCLEAR = "flaky", "fails", "passes", "unclear"
EQUAL_FAILURES = 5  # failures in one way, and no pass, after which more runs cost more than they show


@dataclass(frozen=True)
class Repeat:
    """`runs` is the number of runs that count. `until_fail`: the first failure is enough."""

    setting: str
    runs: int = 20
    until_fail: bool = False

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        known = telling(outcomes, self.setting)
        failed = sum(ways(known).values())
        enough = len(known) >= self.runs or _equal_failures(known) or (failed and self.until_fail)
        return self.verdict(outcomes) if enough or given_up(outcomes, self.setting) else [self.setting]

    def verdict(self, outcomes: Sequence[Outcome]) -> TrialVerdict:
        """The word that these outcomes show, at whatever point it ends."""
        known = telling(outcomes, self.setting)
        seen, runs = ways(known), len(known)
        failed, equal = seen.total(), _equal_failures(known)
        if not runs:
            return TrialVerdict(UNCLEAR, "no run tested the code")
        # The early look at equal failures takes one tail's half of the error.
        bounds = interval(failed, runs, ERROR * (0.5 if equal else 0.75))
        low, high = percents(bounds)
        if not failed:
            word, why = PASSES, f"0 of {runs} failed: the true rate is below {high} %"
        elif failed < runs or len(seen) > 1:
            word, why = FLAKY, f"fails in {failed} of {runs} runs, in {counted(len(seen), 'way')}, on one tree"
        else:
            word, why = FAILS if equal else UNCLEAR, f"{failed} of {runs} failed in one way: it fails at least {low} %"
        return TrialVerdict(word, why, 1 - ERROR, interval=bounds)


def _equal_failures(known: Sequence[Outcome]) -> bool:
    seen = ways(known)
    return len(seen) == 1 and len(known) == seen.total() >= EQUAL_FAILURES


# -- Match -----------------------------------------------------------------------------------------------------------

REPRODUCED, SAME_KIND, DIFFERENT_FAILURE = "reproduced", "same kind", "different failure"
PASSED_HERE, FIXED_HERE = "passed here", "fixed here"


@dataclass(frozen=True)
class Match:
    """`match` says how a failure here compares with the known one: REPRODUCED, SAME_KIND or DIFFERENT_FAILURE."""

    setting: str
    match: Callable[[Outcome], str]
    runs: int = 1

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        known = telling(outcomes, self.setting)
        matches = Counter(self.match(one) for one in known if one.status == FAILED)
        if matches[REPRODUCED]:
            often = f" in {matches[REPRODUCED]} of {len(known)} runs" if len(known) > 1 else ""
            return TrialVerdict(REPRODUCED, f"the same failure{often}")
        if len(known) < self.runs:
            if self.runs == 1 and outcomes:  # only a single run was asked for
                return TrialVerdict(BLOCKED, outcomes[-1].reason)
            return given_up(outcomes, self.setting) or [self.setting]
        if matches[SAME_KIND]:
            return TrialVerdict(SAME_KIND, "alike, but not shown to be the same")
        missed = f"CI's failure may still happen here in up to {100 * (1 - ERROR ** (1 / len(known))):.0f} % of runs"
        if matches:
            return TrialVerdict(DIFFERENT_FAILURE, f"it fails differently; {missed}", 1 - ERROR)
        return TrialVerdict(PASSED_HERE, f"it passed here in {counted(len(known), 'run')}; {missed}", 1 - ERROR)


# -- AB --------------------------------------------------------------------------------------------------------------

YOURS, BROKEN, FIXED, FINE, CANNOT_TELL = "yours", "already broken", "fixed", "fine", "cannot tell"
RISE = 0.5  # a rise of the failure rate that is not overlooked
STEADY = 5  # pairs without a failure of yours, or with nothing but failures of the base, exclude RISE: 1 in 32
_ANY = ""  # all ways of failing together
# Bets: how much is at stake, the rate of one side around which it is laid, and its boldness, 0 to 1.
LESS = (
    (0.36, 0.5, 0.99), (0.15, 0.25, 0.97), (0.15, 0.75, 0.97), (0.11, 0.35, 0.9), (0.11, 0.65, 0.9), (0.12, 0.5, 0.6),
)  # fmt: skip
NO_RISE = ((0.62, 0.25, 0.34), (0.19, 0.1, 0.5), (0.19, 0.4, 0.5))


@cache
def stake(one: int, other: int, pairs: int, shift: float = 0.0) -> float:
    """What became of a stake of 1, after so many failures in pairs of runs, laid on `other` failing less often than
    `one` does and `shift` more. If that is not so, no pair lets the stake grow on average, whatever the rates are and
    however they drift: it ever reaches 20 in one case of 20 at most (Ville)."""
    total = 0.0
    for share, middle, boldness in NO_RISE if shift else LESS:
        factor = boldness / max(middle, 1 - middle - shift)
        won = (1 + factor * (1 - middle)) ** one * (1 - factor * middle) ** (pairs - one)
        lost = (1 - factor * (1 - middle - shift)) ** other * (1 + factor * (middle + shift)) ** (pairs - other)
        total += share * won * lost
    return total


@dataclass(frozen=True)
class AB:
    """`at_most` is how many runs of both sides together. `screen`: a row that passes once on yours is not compared, and
    a first failure there is not counted: it was chosen because it failed."""

    base: str
    yours: str
    at_most: int = 20
    screen: bool = False
    seed: str = ""

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        if verdict := given_up(outcomes, self.yours, self.base):
            return verdict
        first = telling(outcomes, self.yours)
        if self.screen and not first and not any(one.lacks for one in outcomes):
            return [self.yours]
        sample = self.sample(outcomes)
        base, yours = telling(sample, self.base), telling(sample, self.yours)
        if self.screen and first and not base and not ways(first):
            return TrialVerdict(PASSES, "passed on your tree; not compared")
        pairs = min(len(base), len(yours))
        if verdict := self.verdict(ways(base[:pairs]), ways(yours[:pairs]), pairs):
            return verdict
        if len(base) + len(yours) >= self.at_most:
            failed = [f"{sum(ways(side).values())} of {counted(len(side), 'run')}" for side in (yours, base)]
            return TrialVerdict(CANNOT_TELL, f"yours failed in {failed[0]}, the base in {failed[1]}: neither is shown")
        return in_turn({self.base: len(base), self.yours: len(yours)}, self.seed)

    def sample(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes without the failure for which a row of several is compared."""
        first = next((one for one in outcomes if self.screen and one.setting == self.yours and one.counts), None)
        return [one for one in outcomes if one is not first or one.status == PASSED]

    def verdict(self, base: Counter[str], yours: Counter[str], pairs: int) -> TrialVerdict | None:
        """The word that so many failures, by way, in as many runs of each side show."""
        kinds = [*(yours | base)]
        counts = {_ANY: (base.total(), yours.total())}
        if len(kinds) > 1:
            counts |= {kind: (base[kind], yours[kind]) for kind in kinds}
        if more := [kind for kind, (b, y) in counts.items() if stake(y, b, pairs) * ERROR >= len(counts)]:
            way = more[-1] or (kinds[0] if len(kinds) == 1 else "")
            why = f"your tree fails more often than the base{'' if _ANY in more else ' in one way'}"
            return TrialVerdict(YOURS, why, 1 - ERROR, way)
        if not yours and stake(counts[_ANY][0], 0, pairs) * ERROR >= 1:
            return TrialVerdict(FIXED, "your tree never failed, the base failed more often", 1 - ERROR)
        rises = (y and b < pairs and stake(b, y, pairs, RISE) * ERROR < 1 for b, y in counts.values())
        if pairs < STEADY or any(rises):  # a rise of a rate by RISE is not excluded
            return None
        if not yours:
            return TrialVerdict(FINE, "your tree never failed", 1 - ERROR)
        main = yours.most_common(1)[0][0]
        if not base[main]:
            return None
        if 2 * base.total() > pairs:
            return TrialVerdict(BROKEN, "the base fails in most runs, too", 1 - ERROR, main)
        return TrialVerdict(FLAKY, "both fail sometimes in the same way", 1 - ERROR, main)


# -- Metrics ---------------------------------------------------------------------------------------------------------

WORSE, NOT_WORSE = "worse", "not worse"
FEWEST_PAIRS = 3  # two differences have a scatter that may be anything
_STEPS = 400  # of Simpson's rule


@dataclass(frozen=True)
class Metrics:
    """Is `name` less on yours, if more is better? `margin` is the loss to exclude, `pairs` their maximum. A metric
    `name + " error"`, if there is one, is a run's own scatter: pairs that are alike by chance prove nothing. Run n of
    the base is paired with run n of yours."""

    base: str
    yours: str
    name: str
    margin: float
    pairs: int = 5
    seed: str = ""

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        if verdict := given_up(outcomes, self.base, self.yours):
            return verdict
        base, yours = telling(outcomes, self.base), telling(outcomes, self.yours)
        if bad := next((one for one in [*base, *yours] if one.status == FAILED or self.name not in one.metrics), None):
            why = f"failed: {bad.reason}" if bad.status == FAILED else f"has no {self.name}"
            return TrialVerdict(CANNOT_TELL, f"run {bad.run or 'of ' + bad.setting} {why}")
        both = list(zip(base, yours, strict=False))
        if len(both) >= FEWEST_PAIRS and (verdict := self.verdict(both)):
            return verdict
        if len(both) >= self.pairs:
            return TrialVerdict(CANNOT_TELL, f"{self.name} scatters too much to tell a loss of {self.margin:g}")
        return in_turn({self.base: len(base), self.yours: len(yours)}, self.seed)

    def verdict(self, both: Sequence[tuple[Outcome, Outcome]]) -> TrialVerdict | None:
        """The word that these pairs show, three of them at least."""
        less = [base.metrics[self.name] - yours.metrics[self.name] for base, yours in both]
        noise = [sum(one.metrics.get(f"{self.name} error", 0.0) ** 2 for one in pair) for pair in both]
        error = max(stdev(less), sqrt(fmean(noise))) / sqrt(len(both))
        allowed = error_of_look(len(both), self.pairs)
        if chance_of_more(fmean(less), error, len(both) - 1) <= allowed:
            return TrialVerdict(WORSE, f"{self.name} is less by {fmean(less):.4g}", 1 - ERROR)
        if chance_of_more(self.margin - fmean(less), error, len(both) - 1) <= allowed:
            return TrialVerdict(NOT_WORSE, f"{self.name} is not less by {self.margin:g}", 1 - ERROR)
        return None


def error_of_look(pair: int, planned: int) -> float:
    """The probability of a wrong word that the look after this pair may have: all looks together have ERROR."""
    before = pair - 1 if pair > FEWEST_PAIRS else 0
    return float(ERROR * (pair**2 - before**2) / planned**2)


def chance_of_more(mean: float, error: float, freedom: float) -> float:
    """How probable a mean as high, with this standard error, is if the true one is 0 or less."""
    if not error:
        return 0.0 if mean > 0 else 1.0
    tail = student_tails(mean / error, freedom) / 2
    return tail if mean > 0 else 1 - tail


def student_tails(t: float, freedom: float) -> float:
    """How probable it is that Student's t is further from 0 than `t`: its density, summed up (Simpson) over the angle
    atan(t / sqrt(freedom)), in which it is a power of the cosine."""
    begin = atan(abs(t) / sqrt(freedom))
    width = (pi / 2 - begin) / _STEPS
    heights: list[float] = [
        cos(min(begin + step * width, pi / 2)) ** (freedom - 1) * (1 if step in (0, _STEPS) else 4 if step % 2 else 2)
        for step in range(_STEPS + 1)
    ]
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return min(1.0, 2 * scale * sum(heights) * width / 3)
