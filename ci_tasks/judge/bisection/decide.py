"""What to do after every run: run more, or say how it ends. Nothing but the runs so far decides it.

1. the bad end is run until it has failed often enough that the failure and its rate are known
2. the good end is run until a failure at that rate would have shown there
3. the commits in between are run, wherever the result is expected to tell most
4. until one commit is certain, or only commits are left that nothing can tell apart, or it takes too long
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

from ci_tasks.judge.bisection.choice import capacity, choose
from ci_tasks.judge.bisection.evidence import Observation, Tally, failure_at, tally
from ci_tasks.judge.bisection.lineage import Lineage
from ci_tasks.judge.bisection.posterior import Posterior, weigh

CERTAIN = 0.95
FAILS_AT_BAD = 3  # failures after which the bad end is known well enough
RUNS_AT_BAD = 10  # runs after which one failure there will do
MOST_AT_BAD = 30  # runs after which it does not fail
OLDER_LIMIT = 0.02  # how probable the failure may still be at the good end
TRIES = 2  # runs without a result after which a commit is untestable
MOST_RUNS = 400
_WORTH = 1e-6  # bits; less, and a run can tell nothing

# Why a bisection cannot be done as it was asked.
NEVER_FAILS, FAILS_AT_GOOD, GOOD_UNTESTABLE, BAD_UNTESTABLE = "never", "good-fails", "good-untestable", "bad-untestable"


@dataclass(frozen=True)
class Run:
    """Positions to run at once, one each host; the same one may be there several times."""

    positions: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """The culprit's position and its probability."""

    position: int
    probability: float


@dataclass(frozen=True)
class Unclear:
    """Not one commit: these positions are left, with the probability of each. `apart` says that more runs could tell
    them apart; else no commit that can be tested does."""

    left: tuple[tuple[int, float], ...]
    apart: bool


@dataclass(frozen=True)
class Refused:
    """The ends are not what they were said to be: NEVER_FAILS and so on."""

    why: str


Decision = Run | Found | Unclear | Refused


@dataclass(frozen=True)
class Question:
    """What is to be found out. `target` is the failure's signature, or "" for the one seen most at the bad end;
    `repeat` how often a commit is run that passes, 0 for as often as the failure's rate asks for."""

    lineage: Lineage
    target: str = ""
    repeat: int = 0


@dataclass(frozen=True)
class Standing:
    """What is known now."""

    seen: Tally
    now: Posterior


def stand(question: Question, observations: Sequence[Observation]) -> Standing:
    """What `observations` say together."""
    target = question.target or failure_at(question.lineage.bad, observations)
    seen = tally(observations, target)
    return Standing(seen, weigh(question.lineage, seen))


def decide(question: Question, observations: Sequence[Observation], hosts: int = 1) -> Decision:
    """What comes after `observations`, with so many hosts to run on."""
    standing = stand(question, observations)
    lineage, seen = question.lineage, standing.seen
    if refusal := _refusal(lineage, standing):
        return Refused(refusal)
    begun = _ends(lineage, standing, hosts)
    if (not begun or seen.runs >= MOST_RUNS) and (end := _end(lineage, standing)):
        return end
    if lineage.bad in begun:
        return Run(tuple(begun))
    begun += _owed(question, seen)[: hosts - len(begun)]
    missing = hosts - len(begun)
    more = choose(lineage, standing.now, _chances(lineage, seen), _tested(seen), missing, begun) if missing else []
    useful = [position for position, worth in more if worth > _WORTH]
    if not begun and not useful:
        return _left(lineage, standing)
    return Run((*begun, *useful))


def runs_to_go(now: Posterior) -> int:
    """How many more runs it takes, more or less."""
    uncertain = -sum(weight * log(weight, 2) for weight in now.weights if weight > 0)
    return ceil(uncertain / capacity(now.rate))


def _refusal(lineage: Lineage, standing: Standing) -> str:
    seen, older = standing.seen, standing.now.weights[0]
    good, bad = seen.at(0), seen.at(lineage.bad)
    if bad.missing or (not bad.fails and bad.valid + bad.others >= MOST_AT_BAD):
        return BAD_UNTESTABLE if bad.missing or bad.others > bad.valid else NEVER_FAILS
    if older > CERTAIN:
        return FAILS_AT_GOOD
    if good.missing or (not good.valid and good.others >= TRIES):
        return GOOD_UNTESTABLE
    return ""


def _ends(lineage: Lineage, standing: Standing, hosts: int) -> list[int]:
    """Runs of the two ends that are still wanted."""
    seen = standing.seen
    bad = seen.at(lineage.bad)
    if bad.fails < FAILS_AT_BAD and not (bad.fails and bad.valid >= RUNS_AT_BAD):
        wanted = FAILS_AT_BAD - bad.fails if bad.fails == bad.valid else hosts
        begun = [lineage.bad] * min(hosts, wanted)
        return begun + [0] * min(hosts - len(begun), 1)
    older = standing.now.weights[0]
    if older <= OLDER_LIMIT or _has_begun(lineage, seen):
        return []
    wanted = ceil(log(OLDER_LIMIT / older) / log(1 - min(standing.now.rate, 0.99)))
    return [0] * min(hosts, wanted)


def _has_begun(lineage: Lineage, seen: Tally) -> bool:
    """Whether commits between the ends were run: from then on the good end is one commit of many."""
    return any(counts.valid for position, counts in seen.counts.items() if position not in (0, lineage.bad))


def _end(lineage: Lineage, standing: Standing) -> Decision | None:
    now, best = standing.now, standing.now.best
    if best and now.weights[best] > CERTAIN:
        return Found(best, now.weights[best])
    if sum(now.weights[position] for position in _alike(lineage, standing.seen, best)) > CERTAIN:
        return _left(lineage, standing)
    if standing.seen.runs >= MOST_RUNS:
        return Unclear(_likely(now), apart=True)
    return None


def _left(lineage: Lineage, standing: Standing) -> Unclear:
    alike = _alike(lineage, standing.seen, standing.now.best)
    return Unclear(tuple((position, standing.now.weights[position]) for position in alike), apart=False)


def _likely(now: Posterior) -> tuple[tuple[int, float], ...]:
    """The positions that together are certain enough, the most probable first."""
    found: list[tuple[int, float]] = []
    for position in sorted(range(len(now.weights)), key=lambda position: -now.weights[position]):
        if sum(weight for _, weight in found) > CERTAIN:
            break
        found.append((position, now.weights[position]))
    return tuple(found)


def _alike(lineage: Lineage, seen: Tally, position: int) -> list[int]:
    """The candidates that no commit which can be run tells from the one at `position`."""
    testable = sum(1 << place for place in _chances(lineage, seen))
    key = lineage.descendants[position] & testable
    return [place for place in range(len(lineage)) if lineage.descendants[place] & testable == key]


def _chances(lineage: Lineage, seen: Tally) -> dict[int, float]:
    """The positions that can be run, with how probable a result is there: less beside commits that gave none."""
    silent = [place for place, counts in seen.counts.items() if not counts.valid and (counts.skips or counts.missing)]
    found = {}
    for place in range(len(lineage)):
        counts = seen.at(place)
        if counts.missing or (counts.skips >= TRIES and counts.skips > counts.valid):
            continue
        chance = 1.0
        for other in silent if not counts.valid else ():
            distance = abs(place - other)
            chance *= distance / (distance + 1) if distance else 0.25
        found[place] = chance
    return found


def _tested(seen: Tally) -> dict[int, int]:
    return {position: counts.valid for position, counts in seen.counts.items()}


def _owed(question: Question, seen: Tally) -> list[int]:
    """Commits that were begun, passed, and are to pass more often before the next one is chosen."""
    owed = []
    for position, counts in seen.counts.items():
        if 0 < counts.passes < question.repeat and not counts.fails and counts.skips < TRIES:
            owed += [position] * (question.repeat - counts.passes)
    return owed
