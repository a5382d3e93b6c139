"""Which commits to run next: those whose results are expected to tell most, together with what runs already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.posterior import Posterior

_NEARLY = 0.95  # a commit that was run before is preferred where it tells so much of what the best one would
_BRANCHES = 64  # futures that are looked at; of more than six runs at once, the most probable
_PLACES = 256  # commits that are looked at; of a longer history, evenly by probability


def select_commits(
    graph: CommitGraph,
    now: Posterior,
    chances: Mapping[int, float],
    tested: Mapping[int, int],
    count: int,
    begun: Sequence[int] = (),
) -> list[tuple[int, float]]:
    """`count` positions to run at once, each with the bits that it is expected to add to the others and to `begun`.

    `chances` has the positions that may be run, with how probable it is that a run there says anything; `tested` how
    often each has said something.
    """
    places = _spread(graph, now, sorted(chances))
    futures = [list(now.weights)]
    for position in begun:
        futures = _split(graph, futures, position, now)
    chosen = []
    for _ in range(count if places else 0):
        gains = _gains(graph, futures, places, now)
        worth = {place: gain * chances[place] for place, gain in zip(places, gains, strict=True)}
        enough = max(worth.values()) * _NEARLY
        best = max(
            (place for place in places if worth[place] >= enough),
            key=lambda place: (tested.get(place, 0), worth[place]),
        )
        chosen.append((best, worth[best]))
        futures = _split(graph, futures, best, now)
    return chosen


def information(within: float, rate: float, background: float) -> float:
    """What a run is expected to tell where the culprit is in the commit with the probability `within`."""
    fails = within * rate + (1 - within) * background
    return max(0.0, _entropy(fails) - within * _entropy(rate) - (1 - within) * _entropy(background))


def max_information(rate: float, background: float) -> float:
    """The most bits that one run can tell."""
    return max(information(step / 64, rate, background) for step in range(16, 40))


def _entropy(chance: float) -> float:
    rest = 1 - chance
    return -chance * log2(chance) - rest * log2(rest) if 0 < chance < 1 else 0.0


def _gains(
    graph: CommitGraph, futures: Sequence[Sequence[float]], places: Sequence[int], now: Posterior
) -> list[float]:
    """The bits that a run at each of `places` is expected to tell, over all futures."""
    rates, background = now.rates, now.background
    without = _entropy(background)
    added = {rate: _entropy(rate) - without for rate in set(rates)}
    entropies = [added[rate] for rate in rates]
    gains = [0.0] * len(places)
    for weights in futures:
        total = sum(weights)
        more = graph.within([w * (rate - background) for w, rate in zip(weights, rates, strict=True)], places)
        noise = graph.within([w * entropy for w, entropy in zip(weights, entropies, strict=True)], places)
        for at in range(len(places)):
            information = _entropy(background + more[at] / total) - without - noise[at] / total
            gains[at] += total * max(0.0, information)
    return gains


def _split(graph: CommitGraph, futures: Sequence[list[float]], position: int, now: Posterior) -> list[list[float]]:
    """Each future as two: the run there fails, or it passes."""
    held = graph.ancestors[position]
    chances = [rate if held >> place & 1 else now.background for place, rate in enumerate(now.rates)]
    split = []
    for weights in futures:
        fails = [weight * chance for weight, chance in zip(weights, chances, strict=True)]
        split += [fails, [weight - fail for weight, fail in zip(weights, fails, strict=True)]]
    return sorted(split, key=sum, reverse=True)[:_BRANCHES]


def _spread(graph: CommitGraph, now: Posterior, places: list[int]) -> list[int]:
    if len(places) <= _PLACES:
        return places
    masses = graph.within(now.weights, places)
    commit_run = sorted(range(len(places)), key=masses.__getitem__)
    chosen, goal = [], 0.0
    for at in commit_run:
        if masses[at] >= goal:
            chosen.append(places[at])
            goal = masses[at] + 1 / _PLACES
    return sorted(chosen)
