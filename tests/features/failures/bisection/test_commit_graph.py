"""Which commits contain which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.features.failures.bisection.commit_graph import CommitGraph

#   1 ─ 3 ─ 5      (5 merges the side branch 2 ─ 4, which began before the good end)
#   2 ─ 4 ─┘
MERGED = [[0], [], [1], [2], [3, 4]]


def of(mask: int) -> set[int]:
    return {place for place in range(mask.bit_length()) if mask >> place & 1}


@st.composite
def histories(draw: st.DrawFn) -> list[list[int]]:
    """Up to twelve commits, each with at most two parents among those before it."""
    count = draw(st.integers(1, 12))
    return [draw(st.lists(st.integers(0, place), max_size=2, unique=True)) for place in range(count)]


def test_a_merge_contains_both_sides() -> None:
    graph = CommitGraph(MERGED)
    assert (of(graph.ancestors[5]), of(graph.ancestors[4])) == ({0, 1, 2, 3, 4, 5}, {0, 2, 4})
    assert of(graph.descendants[1]) == {1, 3, 5}
    assert of(graph.descendants[0]) == set(range(6)), "what is older than the good end is everywhere"
    assert graph.bad == 5
    with pytest.raises(ValueError, match="position 1 comes before"):
        CommitGraph([[2], [0]])


@given(histories())
def test_containing_is_the_same_seen_from_either_side(parents: list[list[int]]) -> None:
    graph = CommitGraph(parents)
    every = range(len(graph))
    for commit in every:
        assert of(graph.ancestors[commit]) == {other for other in every if graph.descendants[other] >> commit & 1}


@given(histories(), st.data())
def test_the_weight_within_a_commit_is_that_of_all_it_contains(parents: list[list[int]], data: st.DataObject) -> None:
    graph = CommitGraph(parents)
    weights = data.draw(st.lists(st.floats(0.01, 1), min_size=len(graph), max_size=len(graph)))
    positions = list(range(len(graph)))
    sums = [sum(weights[place] for place in of(graph.ancestors[commit])) for commit in positions]
    assert graph.within(weights, positions) == pytest.approx(sums)


def test_a_line_sums_up_as_any_other_history_does() -> None:
    line = CommitGraph.linear(4)
    assert line.is_linear and not CommitGraph(MERGED).is_linear
    assert line.within([0.1, 0.2, 0.3, 0.2, 0.2], [0, 2, 4]) == pytest.approx([0.1, 0.6, 1.0])
