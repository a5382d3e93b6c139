"""Which commit, image, … is the first bad one? A rule that weighs all runs together. Pure.

Before the culprit the row fails with a background rate: the same failure happens there by chance. From the culprit on
it fails with a higher rate. Neither is known, so each pair of rates of a grid is weighed by what the runs say, together
with each candidate. The setting runs whose result is expected to tell most, until one candidate is certain, or only
those are left that no setting which can be run tells apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import exp, log, log2
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.trials.commit_graph import CommitGraph
from ci_tasks.trials.rules import ERROR, FAILED, GIVE_UP, MISSING, PASSED, Outcome, TrialVerdict, telling, ways

FOUND, UNCLEAR = "found", "unclear"
NOT_BAD, NOT_GOOD, UNTESTABLE = "not bad", "not good", "untestable"  # what is wrong with the ends
OLDER_THAN_GOOD = ""  # the setting of earlier runs of what is older than the good end

# The probability at which it stops. The posterior weighs rates by a prior; for one given pair of rates it is wrong more
# often than it says, and more so for rates below RARE. With these it is right in 1 - ERROR.
CERTAIN, CERTAIN_IF_RARE, RARE = 0.975, 0.99, 0.6
ENDS = 3  # failures of the bad end, and runs of the good one, before others run
ENOUGH_AT_END = 10  # runs after which one failure of an end will do
MOST_AT_BAD = 30  # runs after which the bad end is not bad
MOST_OTHERS = 0.1  # the share of runs that fail in another way up to which the promise holds
AT_MOST = 400
_OLDER = 0.1  # how probable it is, before anything ran, that the good end is bad
_BACKGROUNDS = (0.001, 0.02, 0.05, 0.1, 0.15)
_RATES = (0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.995)
_STEADY = 0.25  # the prior of the last rate; the others share the rest
_BUILT = 0.95  # a setting that was run before is preferred if it tells so much of what the best one would
_OLDER_PLACE = -1


@dataclass(frozen=True)
class Stretch:
    """Candidates that the runs so far do not tell apart: `members` is a bit for each position, `prior` the
    logarithm of how probable they were together before anything ran, `inside` the failures and passes of settings that
    contain them."""

    members: int
    prior: float
    inside: tuple[int, int]


@dataclass(frozen=True)
class Belief:
    """How probable the culprit is in each stretch; and the two rates, as expected now."""

    stretches: tuple[Stretch, ...]
    shares: tuple[float, ...]
    rate: float
    background: float

    @cached_property
    def best(self) -> int:
        return max(range(len(self.shares)), key=self.shares.__getitem__)


def believe(graph: CommitGraph, fails: Counter[int], passes: Counter[int]) -> Belief:
    """What failures and passes by position show. Position -1 is what is older than the good end."""
    tested = [at for at, runs in (fails + passes).items() if runs]
    ran = sum(1 << at for at in tested if at >= 0)
    members: dict[int, int] = {_OLDER_PLACE: 1}  # if the culprit is older than the good end, every setting has it
    for at in range(1, len(graph)):
        key = graph.descendants[at] & ran
        members[key] = members.get(key, 0) | 1 << at
    stretches = []
    for key, bits in members.items():
        own = [at for at in tested if at >= 0 and (key < 0 or key >> at & 1)]
        prior = log(_OLDER if key < 0 else (1 - _OLDER) * bits.bit_count() / graph.bad)
        stretches.append(Stretch(bits, prior, (sum(fails[at] for at in own), sum(passes[at] for at in own))))
    shares, rate, background = _weighed(stretches, (fails.total(), passes.total()))
    return Belief(tuple(stretches), shares, rate, background)


def _weighed(stretches: Sequence[Stretch], every: tuple[int, int]) -> tuple[tuple[float, ...], float, float]:
    """The probability of each stretch over all pairs of rates, and the rates."""
    scores = [
        (one.prior + one.inside[0] * pair.more_fail + one.inside[1] * pair.more_pass + base, at, pair)
        for pair in _PAIRS
        for base in [pair.prior + every[0] * pair.fail + every[1] * pair.passing]
        for at, one in enumerate(stretches)
    ]
    top = max(score for score, _, _ in scores)
    shares, total, rates, backgrounds = [0.0] * len(stretches), 0.0, 0.0, 0.0
    for score, at, pair in scores:
        weight = exp(score - top)
        shares[at] += weight
        total, rates, backgrounds = total + weight, rates + weight * pair.rate, backgrounds + weight * pair.background
    return tuple(share / total for share in shares), rates / total, backgrounds / total


class _Pair(NamedTuple):
    """A rate with the culprit and one without it, and logarithms: of their prior, of a failure and of a pass without
    the culprit, and what is added to these with it."""

    rate: float
    background: float
    prior: float
    fail: float
    passing: float
    more_fail: float
    more_pass: float


def _pair(rate: float, background: float) -> _Pair:
    prior = log(_STEADY if rate == _RATES[-1] else (1 - _STEADY) / (len(_RATES) - 1))
    fail, passing = log(background), log(1 - background)
    return _Pair(rate, background, prior, fail, passing, log(rate) - fail, log(1 - rate) - passing)


_PAIRS = [_pair(rate, background) for background in _BACKGROUNDS for rate in _RATES if rate >= background + 0.1]


def information(within: float, rate: float, background: float) -> float:
    """The bits that a run is expected to tell of a setting that has the culprit with the probability `within`."""
    fails = background + within * (rate - background)
    return _entropy(fails) - within * _entropy(rate) - (1 - within) * _entropy(background)


def _entropy(chance: float) -> float:
    return -chance * log2(chance) - (1 - chance) * log2(1 - chance) if 0 < chance < 1 else 0.0


@dataclass(frozen=True)
class Counts:
    """The runs by position, for the failure `target`. `others` failed in another way."""

    target: str
    fails: Counter[int]
    passes: Counter[int]
    others: Counter[int]
    blocked: Counter[int]
    missing: frozenset[int]

    def told(self, at: int) -> int:
        """Runs that say whether the failure is there."""
        return self.fails[at] + self.passes[at]

    @cached_property
    def silent(self) -> dict[int, int]:
        """Position → runs, where none of them said anything."""
        tried = {*self.others, *self.blocked, *self.missing}
        return {at: self.others[at] + self.blocked[at] for at in tried if not self.told(at)}

    @cached_property
    def dead(self) -> set[int]:
        """The positions that cannot be tested."""
        return {*self.missing, *(at for at, runs in self.silent.items() if runs >= GIVE_UP)}


@dataclass(frozen=True)
class Bisect:
    """`settings` are from good to bad, by their place in `graph`. `target` is the failure's signature or kind, "" for
    the one seen most at the bad end; `repeat` how often a setting has to pass at least; `hosts` how many runs are made
    at once. `earlier` are runs of the good end and of OLDER_THAN_GOOD: they tell the background rate."""

    settings: Sequence[str]
    graph: CommitGraph
    target: str = ""
    repeat: int = 0
    hosts: int = 1
    earlier: Sequence[Outcome] = ()
    at_most: int = AT_MOST

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        seen = self.count(outcomes)
        owed, refusal = self._ends(seen)
        if refusal:
            return refusal
        chosen = owed or self._repeats(seen)
        before = self.count(self.earlier, seen.target)
        fails, passes = seen.fails + before.fails, seen.passes + before.passes
        while len(chosen) < self.hosts and not owed:
            belief = believe(self.graph, fails, passes)
            at, within = self._most_telling(belief, seen, fails + passes)
            if not chosen and (verdict := self._verdict(belief, seen, at is None, len(outcomes))):
                return verdict
            if at is None:
                break
            chosen.append(at)
            # For the next host: as if it had shown what is likely.
            likely_fails = belief.background + within * (belief.rate - belief.background) > 0.5
            (fails if likely_fails else passes)[at] += 1
        return [self.settings[at] for at in chosen[: self.hosts]]

    def count(self, outcomes: Sequence[Outcome], target: str = "") -> Counts:
        """The runs by position."""
        place = {OLDER_THAN_GOOD: _OLDER_PLACE, **{setting: at for at, setting in enumerate(self.settings)}}
        known = telling(outcomes)
        bad, good = (ways(one for one in known if one.setting == self.settings[end]) for end in (-1, 0))
        target = target or self.target or max(bad, key=lambda way: bad[way] - good[way], default="")
        fails, passes, others, blocked = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
        for one in known:
            is_target = target in (one.signature or FAILED, one.kind)
            counter = passes if one.status == PASSED else fails if is_target else others
            counter[place[one.setting]] += 1
        blocked.update(place[one.setting] for one in outcomes if not one.counts and one.status != MISSING)
        missing = frozenset(place[one.setting] for one in outcomes if one.status == MISSING)
        return Counts(target, fails, passes, others, blocked, missing)

    def _ends(self, seen: Counts) -> tuple[list[int], TrialVerdict | None]:
        """Runs of the two ends that are still wanted, or why they will not do."""
        bad, owed = self.graph.bad, list[int]()
        for end, wanted in ((bad, ENDS - seen.fails[bad]), (0, ENDS - seen.told(0))):
            tries, others = seen.told(end), seen.others[end]
            silent = others + seen.blocked[end] - tries
            if end in seen.missing or (others >= GIVE_UP and not tries) or silent >= 2 * GIVE_UP:
                return [], TrialVerdict(UNTESTABLE, self.settings[end])
            if end == bad and not seen.fails[bad] and tries >= MOST_AT_BAD:
                return [], TrialVerdict(NOT_BAD, self.settings[end])
            if wanted > 0 and not (seen.fails[end] and tries >= ENOUGH_AT_END):
                owed += [end] * wanted
        return owed, None

    def _repeats(self, seen: Counts) -> list[int]:
        """Settings that passed, and are to pass more often before the next one is chosen."""
        inner = ((at, passes) for at, passes in seen.passes.items() if 0 < at < self.graph.bad and not seen.fails[at])
        return [at for at, passes in inner for _ in range(self.repeat - passes)]

    def _most_telling(self, belief: Belief, seen: Counts, tested: Mapping[int, int]) -> tuple[int | None, float]:
        """The position whose run is expected to tell most, and how probable the culprit is in it; None if no run tells
        anything."""
        shares = zip(belief.stretches, belief.shares, strict=True)
        heavy = [(one.members, share / one.members.bit_count()) for one, share in shares if share > 1e-9]
        best: tuple[float, int | None, float] = (1e-6, None, 0.0)
        for at in range(len(self.graph)):
            if at in seen.dead:
                continue
            held = self.graph.ancestors[at]
            within = min(1.0, sum(each * (members & held).bit_count() for members, each in heavy))
            worth = information(within, belief.rate, belief.background)
            if not tested[at]:
                worth *= _BUILT
                for other in seen.silent:  # beside what shows nothing, a run is less likely to show something
                    worth *= abs(at - other) / (abs(at - other) + 1) if at != other else 0.25
            best = max(best, (worth, at, within), key=lambda option: option[0])
        return best[1], best[2]

    def _verdict(self, belief: Belief, seen: Counts, nothing_tells: bool, runs: int) -> TrialVerdict | None:
        stretch, share = belief.stretches[belief.best], belief.shares[belief.best]
        is_certain = share >= (CERTAIN if belief.rate >= RARE else CERTAIN_IF_RARE)
        members = self._members(stretch)
        testable = sum(1 << at for at in range(len(self.graph)) if at not in seen.dead)
        alike = len({self.graph.descendants[at] & testable for at in members}) == 1
        if is_certain and members == [0]:
            return TrialVerdict(NOT_GOOD, self.settings[0], 1 - ERROR)
        # Where many runs fail in another way, the rate of the one that is looked for is not the same everywhere.
        promise = 1 - ERROR if seen.others.total() <= MOST_OTHERS * runs else None
        likely = tuple((self.settings[at], share / len(members)) for at in members)
        if is_certain and len(members) == 1:
            return TrialVerdict(FOUND, self._rates(members[0], seen), promise, seen.target, likely=likely)
        if nothing_tells or (is_certain and alike):
            return TrialVerdict(UNCLEAR, "nothing between them can be tested", promise, likely=likely)
        if runs >= self.at_most:
            return TrialVerdict(UNCLEAR, f"not clear after {counted(runs, 'run')}", likely=self._probable(belief))
        return None

    def _members(self, stretch: Stretch) -> list[int]:
        return [at for at in range(len(self.graph)) if stretch.members >> at & 1]

    def _probable(self, belief: Belief) -> tuple[tuple[str, float], ...]:
        """The settings that together are certain enough, the most probable first."""
        shares = zip(belief.stretches, belief.shares, strict=True)
        each = [(share / one.members.bit_count(), at) for one, share in shares for at in self._members(one)]
        likely: list[tuple[str, float]] = []
        for share, at in sorted(each, key=lambda one: (-one[0], one[1])):
            if sum(known for _, known in likely) < CERTAIN:
                likely.append((self.settings[at], share))
        return tuple(likely)

    def _rates(self, culprit: int, seen: Counts) -> str:
        """How often the row failed with the culprit and without it."""
        within = self.graph.descendants[culprit]
        told = {at: (seen.fails[at], seen.told(at)) for at in {*seen.fails, *seen.passes}}
        after = [counts for at, counts in told.items() if within >> at & 1]
        before = [counts for at, counts in told.items() if not within >> at & 1]
        fails, runs = (sum(counts[n] for counts in after) for n in (0, 1))
        return (
            f"the row fails in {fails} of {counted(runs, 'run')} from it on, "
            f"in {sum(counts[0] for counts in before)} of {sum(counts[1] for counts in before)} before it"
        )
