"""Which commits to run next."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph
from ci_tasks.features.failures.bisection.commit_selection import information, max_information, select_commits
from ci_tasks.features.failures.bisection.posterior import Posterior

N = 64
BACKGROUND = 0.005


def uniform(rate: float, count: int = N) -> Posterior:
    return Posterior((0.0, *[1 / count] * count), (rate,) * (count + 1), BACKGROUND)


def chosen(
    rate: float, hosts: int, chances: dict[int, float] | None = None, tested: dict[int, int] | None = None
) -> list[int]:
    everywhere = dict.fromkeys(range(N + 1), 1.0)
    selection = select_commits(CommitGraph.linear(N), uniform(rate), chances or everywhere, tested or {}, hosts)
    return [place for place, _ in selection]


def test_one_host_halves_what_is_left() -> None:
    assert chosen(0.995, 1) == [pytest.approx(N / 2, abs=1)]


def test_several_hosts_divide_what_is_left_among_them() -> None:
    places = [0, *sorted(chosen(0.995, 3)), N]
    parts = [after - before for before, after in pairwise(places)]
    assert max(parts) <= N / 4 + 2


def test_runs_that_have_begun_are_not_chosen_again() -> None:
    everywhere = dict.fromkeys(range(N + 1), 1.0)
    ((place, _),) = select_commits(CommitGraph.linear(N), uniform(0.995), everywhere, {}, 1, begun=[32])
    assert abs(place - 32) > N / 8


def test_a_commit_that_was_run_before_is_preferred_where_it_tells_nearly_as_much() -> None:
    assert chosen(0.3, 1, tested={28: 3}) == [28]
    assert chosen(0.3, 1, tested={5: 3}) != [5]


def test_an_untestable_commit_gets_a_neighbour() -> None:
    without = dict.fromkeys((place for place in range(N + 1) if not 28 <= place <= 36), 1.0)
    assert chosen(0.995, 1, without)[0] in (27, 37)


def test_a_commit_that_may_say_nothing_is_worth_less() -> None:
    chances = {place: 0.2 if 20 <= place <= 44 else 1.0 for place in range(N + 1)}
    assert chosen(0.995, 1, chances)[0] in (19, 45)


def test_more_hosts_than_futures_can_be_looked_at_get_something_too() -> None:
    assert len(chosen(0.3, 12)) == 12


@pytest.mark.parametrize(("rate", "expected"), [(0.999999, 0.97), (0.3, 0.155)])
def test_a_flaky_failure_tells_less_a_run(rate: float, expected: float) -> None:
    assert max_information(rate, BACKGROUND) == pytest.approx(expected, abs=0.02)
    assert max_information(rate, 0.1) < max_information(rate, BACKGROUND), "what fails by chance tells less"
    assert information(0.0, rate, BACKGROUND) == pytest.approx(0, abs=1e-9), "the result is known"
