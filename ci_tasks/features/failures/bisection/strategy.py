"""What to do after every run: run more, or say how it ends. Nothing but the runs so far decides it.

1. the bad end is run until it has failed often enough that the failure and its rate are known
2. the good end is run until a failure at that rate would have shown there
3. the commits in between are run, wherever the result is expected to tell most
4. until one commit is certain, or only commits are left that nothing can tell apart, or it takes too long
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.commit_selection import max_information, select_commits
from ci_tasks.features.failures.bisection.observations import Observation, RunCounts, count_runs, most_frequent_failure
from ci_tasks.features.failures.bisection.posterior import Posterior, posterior_of

CERTAIN = 0.975
LEAST_CLAIM = 0.95  # the least probability with which a culprit is named
# The posterior weighs what it does not know by its priors. For one given pair of rates it is wrong more often than it
# says, as bench/bisection.py measures: up to twice as often, and more where the row often passes with the culprit.
# With so many times the doubt the claim holds, and it takes more runs until the doubt is little enough.
DOUBT, DOUBT_WHERE_RARE = 2.0, 5.0
RARE = 0.6  # a lower failure rate
FAILURES_AT_BAD = 3  # failures after which the bad end is known well enough
RUNS_AT_BAD = 10  # runs after which one failure there will do
MAX_RUNS_AT_BAD = 30  # runs after which it does not fail
CERTAIN_OF_GOOD_END = 0.95  # how probable it is that the good end is not good, where it is refused
MAX_FAILURE_AT_GOOD = 0.02  # how probable the failure may still be at the good end
MIN_RUNS_AT_GOOD = 3  # runs before the good end is believed, and the background rate estimated
MAX_SKIPS = 2  # runs without a result after which a commit is untestable
MAX_RUNS = 400
_MIN_INFORMATION = 1e-6  # bits; less, and a run can tell nothing

# Why a bisection cannot be done as it was asked.
NEVER_FAILS, FAILS_AT_GOOD, GOOD_UNTESTABLE, BAD_UNTESTABLE = "never", "good-fails", "good-untestable", "bad-untestable"


@dataclass(frozen=True)
class RunCommits:
    """Positions to run at once, one each host; the same one may be there several times."""

    positions: tuple[int, ...]


@dataclass(frozen=True)
class CulpritFound:
    """The culprit's position and the probability that is claimed for it."""

    position: int
    probability: float


@dataclass(frozen=True)
class Undecided:
    """Not one commit: these positions are left, with the probability of each. `distinguishable`: more runs could tell
    them apart; else no commit that can be tested does."""

    left: tuple[tuple[int, float], ...]
    distinguishable: bool


@dataclass(frozen=True)
class InvalidRange:
    """The ends are not what they were said to be: NEVER_FAILS and so on."""

    why: str


BisectionDecision = RunCommits | CulpritFound | Undecided | InvalidRange


@dataclass(frozen=True)
class BisectionGoal:
    """What is to be found out. `target` is the failure's signature, or "" for the one seen most at the bad end;
    `repeat` how often a commit is run that passes, 0 for as often as the failure's rate asks for; `earlier` are runs
    of the good end and before it, from which the background rate is estimated too."""

    graph: CommitGraph
    target: str = ""
    repeat: int = 0
    earlier: tuple[Observation, ...] = ()


@dataclass(frozen=True)
class Assessment:
    """What is known now."""

    run_counts: RunCounts
    now: Posterior


def assess(goal: BisectionGoal, observations: Sequence[Observation]) -> Assessment:
    """What `observations` say together."""
    target = goal.target or most_frequent_failure(goal.graph.bad, observations)
    run_counts = count_runs(observations, target, goal.earlier)
    return Assessment(run_counts, posterior_of(goal.graph, run_counts))


def next_decision(goal: BisectionGoal, observations: Sequence[Observation], hosts: int = 1) -> BisectionDecision:
    """What comes after `observations`, with so many hosts to run on."""
    assessment = assess(goal, observations)
    graph, run_counts = goal.graph, assessment.run_counts
    if refusal := _refusal(goal, assessment):
        return InvalidRange(refusal)
    begun = _ends(goal, assessment, hosts)
    if (not begun or run_counts.runs >= MAX_RUNS) and (end := _end(graph, assessment)):
        return end
    if graph.bad in begun:
        return RunCommits(tuple(begun))
    begun += _runs_owed(goal, run_counts)[: hosts - len(begun)]
    missing = hosts - len(begun)
    more = (
        select_commits(graph, assessment.now, _chances(graph, run_counts), _tested(run_counts), missing, begun)
        if missing
        else []
    )
    useful = [position for position, worth in more if worth > _MIN_INFORMATION]
    if not begun and not useful:
        return _untestable_rest(graph, assessment)
    return RunCommits((*begun, *useful))


def runs_of_steady_failure(points: int) -> int:
    """How many runs it takes, more or less, where the row always fails with the culprit and never without: those of
    the two ends, the halvings, and one more of the culprit and of the one before it."""
    return FAILURES_AT_BAD + MIN_RUNS_AT_GOOD + ceil(log(points, 2)) + min(2, points - 1)


def runs_to_go(now: Posterior) -> int:
    """How many more runs it takes, more or less."""
    uncertain = -sum(weight * log(weight, 2) for weight in now.weights if weight > 0)
    return ceil(uncertain / max_information(now.rate, now.background))


def _refusal(goal: BisectionGoal, assessment: Assessment) -> str:
    graph = goal.graph
    run_counts, older = assessment.run_counts, assessment.now.weights[0]
    good, bad = run_counts.at(0), run_counts.at(graph.bad)
    if bad.missing or (not bad.fails and bad.valid + bad.others >= MAX_RUNS_AT_BAD):
        return BAD_UNTESTABLE if bad.missing or bad.others > bad.valid else NEVER_FAILS
    if older > CERTAIN_OF_GOOD_END:
        return FAILS_AT_GOOD
    if good.missing or (not good.valid and good.others >= MAX_SKIPS):
        return GOOD_UNTESTABLE
    return ""


def _ends(goal: BisectionGoal, assessment: Assessment, hosts: int) -> list[int]:
    """Runs of the two ends that are still wanted."""
    graph = goal.graph
    run_counts = assessment.run_counts
    bad = run_counts.at(graph.bad)
    if bad.fails < FAILURES_AT_BAD and not (bad.fails and bad.valid >= RUNS_AT_BAD):
        runs_needed = FAILURES_AT_BAD - bad.fails if bad.fails == bad.valid else hosts
        begun = [graph.bad] * min(hosts, runs_needed)
        return begun + [0] * min(hosts - len(begun), 1)
    if _inner_commits_ran(graph, run_counts):
        return []
    older = assessment.now.weights[0]
    runs_needed = MIN_RUNS_AT_GOOD - run_counts.at(0).valid
    if older > MAX_FAILURE_AT_GOOD:
        by_rate = ceil(log(MAX_FAILURE_AT_GOOD / older) / log(1 - min(assessment.now.rate, 0.99)))
        runs_needed = max(runs_needed, by_rate)
    return [0] * min(hosts, max(0, runs_needed))


def _inner_commits_ran(graph: CommitGraph, run_counts: RunCounts) -> bool:
    """Whether commits between the ends were run: from then on the good end is one commit of many."""
    return any(counts.valid for position, counts in run_counts.counts.items() if position not in (0, graph.bad))


def _end(graph: CommitGraph, assessment: Assessment) -> BisectionDecision | None:
    now, best = assessment.now, assessment.now.best
    if best and (probability := claim(now)) > LEAST_CLAIM:
        return CulpritFound(best, probability)
    alike = _indistinguishable(graph, assessment.run_counts, best)
    if len(alike) > 1 and sum(now.weights[position] for position in alike) > CERTAIN:
        return _untestable_rest(graph, assessment)
    if assessment.run_counts.runs >= MAX_RUNS:
        return Undecided(_most_probable(now), distinguishable=True)
    return None


def claim(now: Posterior) -> float:
    """How probable the best commit may be called."""
    return 1 - (DOUBT if now.rate >= RARE else DOUBT_WHERE_RARE) * (1 - now.weights[now.best])


def _untestable_rest(graph: CommitGraph, assessment: Assessment) -> Undecided:
    alike = _indistinguishable(graph, assessment.run_counts, assessment.now.best)
    return Undecided(tuple((position, assessment.now.weights[position]) for position in alike), distinguishable=False)


def _most_probable(now: Posterior) -> tuple[tuple[int, float], ...]:
    """The positions that together are certain enough, the most probable first."""
    likely: list[tuple[int, float]] = []
    for position in sorted(range(len(now.weights)), key=lambda position: -now.weights[position]):
        if sum(weight for _, weight in likely) > CERTAIN:
            break
        likely.append((position, now.weights[position]))
    return tuple(likely)


def _indistinguishable(graph: CommitGraph, run_counts: RunCounts, position: int) -> list[int]:
    """The candidates that no commit which can be run tells from the one at `position`."""
    testable = sum(1 << place for place in _chances(graph, run_counts))
    key = graph.descendants[position] & testable
    return [place for place in range(len(graph)) if graph.descendants[place] & testable == key]


def _chances(graph: CommitGraph, run_counts: RunCounts) -> dict[int, float]:
    """The positions that can be run, with how probable a result is there: less beside commits that gave none."""
    silent = [
        place for place, counts in run_counts.counts.items() if not counts.valid and (counts.skips or counts.missing)
    ]
    chances = dict.fromkeys(range(len(graph)), 1.0)
    for place, counts in run_counts.counts.items():
        if counts.missing or (counts.skips >= MAX_SKIPS and counts.skips > counts.valid):
            del chances[place]
    for place in chances if silent else ():
        for other in silent if not run_counts.at(place).valid else ():
            distance = abs(place - other)
            chances[place] *= distance / (distance + 1) if distance else 0.25
    return chances


def _tested(run_counts: RunCounts) -> dict[int, int]:
    return {position: counts.valid for position, counts in run_counts.counts.items()}


def _runs_owed(goal: BisectionGoal, run_counts: RunCounts) -> list[int]:
    """Commits that were begun, passed, and are to pass more often before the next one is chosen."""
    owed = []
    for position, counts in run_counts.counts.items():
        if 0 < counts.passes < goal.repeat and not counts.fails and counts.skips < MAX_SKIPS:
            owed += [position] * (goal.repeat - counts.passes)
    return owed
