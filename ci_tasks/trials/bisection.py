"""Which commit, image, … is the first bad one? A rule that weighs all runs together. Pure.

Before the culprit the row fails with a background rate: the same failure happens there by chance. From the culprit on
it fails with a higher rate. Neither is known, so each pair of rates of a grid is weighed by what the runs say, together
with each candidate. The setting runs whose result is expected to tell most, until one candidate is certain, or only
those are left that no setting which can be run tells apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import exp, log, log2

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.trials.rules import ERROR, FAILED, GIVE_UP, MISSING, PASSED, Outcome, TrialVerdict, telling, ways

FOUND, UNCLEAR = "found", "unclear"
NOT_BAD, NOT_GOOD, UNTESTABLE = "not bad", "not good", "untestable"  # what is wrong with the ends

# The probability at which it stops. The posterior weighs rates by a prior; for one given pair of rates it is wrong more
# often than it says, and more so for rates below RARE. With these it is right in 1 - ERROR.
CERTAIN, CERTAIN_IF_RARE, RARE = 0.975, 0.99, 0.6
ENDS = 3  # failures of the bad end, and runs of the good one, before others run
ENOUGH_AT_END = 10  # runs after which one failure of an end will do
MOST_AT_BAD = 30  # runs after which the bad end is not bad
MOST_OTHERS = 0.1  # the share of runs that fail in another way up to which the promise holds
AT_MOST = 400
MOST_LIKELY = 12  # settings that are named if none is certain
_OLDER = 0.1  # how probable it is, before anything ran, that the good end is bad
_BACKGROUNDS = (0.001, 0.02, 0.05, 0.1, 0.15)
_RATES = (0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.995)
_STEADY = 0.25  # the prior of the last rate; the others share the rest
_BUILT = 0.95  # a setting that was run before is preferred if it tells so much of what the best one would
_PAIRS = [(rate, background) for background in _BACKGROUNDS for rate in _RATES if rate >= background + 0.1]
_EVERYWHERE = -1  # as a set of positions, all of them: whatever is older than the good end is in all settings


class CommitGraph:
    """Which commits contain which. Position 0 stands for the good end and all before it; positions 1 to n are the
    commits that could be the culprit, each after its parents, and n is the bad end. `parents[i]` are the positions of
    the parents of position i + 1; none means that they lie before the good end."""

    def __init__(self, parents: Sequence[Sequence[int]]) -> None:
        self.parents: tuple[tuple[int, ...], ...] = ((), *(tuple(commit_parents) or (0,) for commit_parents in parents))

    @classmethod
    def linear(cls, count: int) -> CommitGraph:
        """`count` commits after the good end, each with one parent."""
        return cls([(position,) for position in range(count)])

    @property
    def bad(self) -> int:
        """The position of the bad end."""
        return len(self.parents) - 1

    def __len__(self) -> int:
        return len(self.parents)

    def contains(self, position: int, commit: int) -> bool:
        return bool(self.descendants[commit] >> position & 1)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Bit c of number x: whether x contains c. Every commit contains itself and position 0: what is older than
        the good end is everywhere."""
        masks: list[int] = []
        for position, above in enumerate(self.parents):
            mask = 1 << position
            for parent in above:
                mask |= masks[parent]
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Bit x of number c: whether x contains c."""
        masks = [1 << position for position in range(len(self))]
        for position in range(self.bad, 0, -1):
            for parent in self.parents[position]:
                masks[parent] |= masks[position]
        return tuple(masks)


@dataclass(frozen=True)
class Belief:
    """How probable the culprit is in each stretch, positions that the runs so far do not tell apart, a bit for each;
    and the two rates, as expected now."""

    stretches: tuple[int, ...]
    shares: tuple[float, ...]
    rate: float
    background: float

    def each(self) -> Iterator[tuple[int, float]]:
        """Each stretch, with the probability of one of its positions."""
        for stretch, share in zip(self.stretches, self.shares, strict=True):
            yield stretch, share / stretch.bit_count()


def believe(graph: CommitGraph, fails: Counter[int], passes: Counter[int]) -> Belief:
    """What failures and passes by position show."""
    tested = [at for at, runs in (fails + passes).items() if runs]
    ran = sum(1 << at for at in tested)
    members: dict[int, int] = {_EVERYWHERE: 1}  # the culprit is older than the good end
    for at in range(1, len(graph)):
        key = graph.descendants[at] & ran
        members[key] = members.get(key, 0) | 1 << at
    scores = []
    for at, (key, bits) in enumerate(members.items()):
        prior = log(_OLDER if key == _EVERYWHERE else (1 - _OLDER) * bits.bit_count() / graph.bad)
        inside = [position for position in tested if key >> position & 1]
        fails_in, passes_in = (sum(runs[position] for position in inside) for runs in (fails, passes))
        for rate, background in _PAIRS:
            score = prior + log(_STEADY if rate == _RATES[-1] else (1 - _STEADY) / (len(_RATES) - 1))
            score += fails_in * log(rate) + passes_in * log(1 - rate)
            score += (fails.total() - fails_in) * log(background) + (passes.total() - passes_in) * log(1 - background)
            scores.append((score, at, rate, background))
    top = max(score for score, *_ in scores)
    shares, total, rates, backgrounds = [0.0] * len(members), 0.0, 0.0, 0.0
    for score, at, rate, background in scores:
        weight = exp(score - top)
        shares[at] += weight
        total, rates, backgrounds = total + weight, rates + weight * rate, backgrounds + weight * background
    likely = tuple(share / total for share in shares)
    return Belief(tuple(members.values()), likely, rates / total, backgrounds / total)


def information(within: float, rate: float, background: float) -> float:
    """The bits that a run is expected to tell of a setting that has the culprit with the probability `within`."""
    fails = background + within * (rate - background)
    return _entropy(fails) - within * _entropy(rate) - (1 - within) * _entropy(background)


def _entropy(chance: float) -> float:
    return -chance * log2(chance) - (1 - chance) * log2(1 - chance) if 0 < chance < 1 else 0.0


@dataclass(frozen=True)
class Counts:
    """The runs by position, for the failure `target`. `others` failed in another way; if there is no such row, enough
    are `blocked` to give it up."""

    target: str
    fails: Counter[int]
    passes: Counter[int]
    others: Counter[int]
    blocked: Counter[int]

    def told(self, at: int) -> int:
        """Runs that say whether the failure is there."""
        return self.fails[at] + self.passes[at]

    @cached_property
    def silent(self) -> dict[int, int]:
        """Position → runs, if none of them said anything."""
        return {at: runs for at, runs in (self.others + self.blocked).items() if not self.told(at)}

    @cached_property
    def dead(self) -> set[int]:
        """The positions that cannot be tested."""
        return {at for at, runs in self.silent.items() if runs >= GIVE_UP}


@dataclass(frozen=True)
class Bisect:
    """`settings` are from good to bad, by their place in `graph`. `target` is the failure's signature or kind, "" for
    the one seen most at the bad end."""

    settings: Sequence[str]
    graph: CommitGraph
    target: str = ""
    at_most: int = AT_MOST

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict:
        good = self.settings[0]
        if any(one.lacks for one in outcomes) and not any(one.setting == good for one in outcomes):
            return [good]  # is it the host that lacks it?
        seen = self.count(outcomes)
        ends = self._ends(seen, outcomes)
        if ends is not None:
            return ends
        belief = believe(self.graph, seen.fails, seen.passes)
        at = self._most_telling(belief, seen)
        return self._verdict(belief, seen, at is None, len(outcomes)) or [self.settings[at or 0]]

    def count(self, outcomes: Sequence[Outcome]) -> Counts:
        """The runs by position."""
        place = {setting: at for at, setting in enumerate(self.settings)}
        known = telling(outcomes)
        bad, good = (ways(one for one in known if one.setting == self.settings[end]) for end in (-1, 0))
        target = self.target or max(bad, key=lambda way: bad[way] - good[way], default="")
        fails, passes, others, blocked = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
        for one in known:
            is_target = target in (one.signature or FAILED, one.kind)
            counter = passes if one.status == PASSED else fails if is_target else others
            counter[place[one.setting]] += 1
        for one in outcomes:
            if not one.counts:
                blocked[place[one.setting]] += 2 * GIVE_UP if one.status == MISSING else 1
        return Counts(target, fails, passes, others, blocked)

    def _ends(self, seen: Counts, outcomes: Sequence[Outcome]) -> Sequence[str] | TrialVerdict | None:
        """The runs of an end that are still wanted, or why the ends will not do."""
        bad = self.graph.bad
        for end, wanted in ((bad, ENDS - seen.fails[bad]), (0, ENDS - seen.told(0))):
            tries, others = seen.told(end), seen.others[end]
            silent = others + seen.blocked[end] - tries
            if (others >= GIVE_UP and not tries) or silent >= 2 * GIVE_UP:
                last = [one for one in outcomes if one.setting == self.settings[end]][-1]
                shown = last.signature if last.status == FAILED else last.reason
                return TrialVerdict(UNTESTABLE, f"{self.settings[end]}, an end, does not show the failure: {shown}")
            if end == bad and not seen.fails[bad] and tries >= MOST_AT_BAD:
                return TrialVerdict(NOT_BAD, f"{self.settings[end]} did not fail in {MOST_AT_BAD} runs")
            if wanted > 0 and not (seen.fails[end] and tries >= ENOUGH_AT_END):
                return [self.settings[end]]
        return None

    def _most_telling(self, belief: Belief, seen: Counts) -> int | None:
        """The position whose run is expected to tell most; None if no run tells anything."""
        heavy = [(members, chance) for members, chance in belief.each() if chance > 1e-9]
        best: tuple[float, int | None] = (1e-6, None)
        for at in range(len(self.graph)):
            if at in seen.dead:
                continue
            held = self.graph.ancestors[at]
            within = min(1.0, sum(chance * (members & held).bit_count() for members, chance in heavy))
            worth = information(within, belief.rate, belief.background)
            if not seen.told(at):
                worth *= _BUILT
                for other in seen.silent:  # beside what shows nothing, a run is less likely to show something
                    worth *= abs(at - other) / (abs(at - other) + 1) if at != other else 0.25
            best = max(best, (worth, at), key=lambda option: option[0])
        return best[1]

    def _verdict(self, belief: Belief, seen: Counts, nothing_tells: bool, runs: int) -> TrialVerdict | None:
        share, stretch = max(zip(belief.shares, belief.stretches, strict=True))
        is_certain = share >= (CERTAIN if belief.rate >= RARE else CERTAIN_IF_RARE)
        members = [at for at in range(len(self.graph)) if stretch >> at & 1]
        testable = sum(1 << at for at in range(len(self.graph)) if at not in seen.dead)
        alike = len({self.graph.descendants[at] & testable for at in members}) == 1
        if is_certain and members == [0]:
            return TrialVerdict(NOT_GOOD, f"{self.settings[0]} fails like the bad end", 1 - ERROR)
        # If many runs fail in another way, the rate of the one that is looked for is not the same everywhere; and if
        # the bad end fails in several ways, it is a guess which one is meant, unless a signature says it.
        is_guess = not self.target and seen.others[self.graph.bad] > 0
        promise = None if is_guess or seen.others.total() > MOST_OTHERS * runs else 1 - ERROR
        likely = tuple((self.settings[at], share / len(members)) for at in members)
        if is_certain and len(members) == 1:
            likely = ((likely[0][0], promise or share),)
            return TrialVerdict(FOUND, self._rates(members[0], seen), promise, seen.target, likely=likely)
        if nothing_tells or (is_certain and alike):
            return TrialVerdict(UNCLEAR, "nothing between them can be tested", promise, likely=likely)
        if runs >= self.at_most:
            shares = [(share, at) for bits, share in belief.each() for at in range(len(self.graph)) if bits >> at & 1]
            likely = tuple((self.settings[at], share) for share, at in sorted(shares, reverse=True)[:MOST_LIKELY])
            return TrialVerdict(UNCLEAR, f"not clear after {counted(runs, 'run')}", likely=likely)
        return None

    def _rates(self, culprit: int, seen: Counts) -> str:
        """How often the row failed with the culprit and without it."""
        counts = []
        for has_culprit in (True, False):
            tested = [at for at in {*seen.fails, *seen.passes} if self.graph.contains(at, culprit) == has_culprit]
            counts.append((sum(seen.fails[at] for at in tested), sum(map(seen.told, tested))))
        (fails, runs), (earlier, others) = counts
        return f"the row fails in {fails} of {counted(runs, 'run')} from it on, in {earlier} of {others} before it"
