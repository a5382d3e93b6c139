"""When a run's metric counts as worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.failures.bisection.metric import MetricRule, worse_of
from ci_tasks.features.failures.bisection.observations import FAIL, PASS, Observation

BAD = 8
RULE = MetricRule("step_time", 0.1)
STEADY = (4.0, 4.1, 3.9, 4.0, 4.05)


def runs(position: int, *values: float) -> list[Observation]:
    return [Observation(position, PASS, value=value) for value in values]


def ends(good: tuple[float, ...], bad: tuple[float, ...]) -> list[Observation]:
    return [*runs(0, *good), *runs(BAD, *bad)]


def scaled(values: tuple[float, ...], by: float) -> tuple[float, ...]:
    return tuple(value * by for value in values)


LIMITS = [
    ("half of what is searched for", STEADY, scaled(STEADY, 1.12), 4.01 * 1.05),
    ("a metric that falls", STEADY, scaled(STEADY, 0.85), 4.01 * 0.95),
    ("1.8 times the scatter, where that is more", (3.6, 3.8, 4.0, 4.2, 4.4), (4.6, 4.8, 5.0, 5.2, 5.4), 4.569),
    ("no difference", STEADY, STEADY, None),
    ("less than half of it", STEADY, scaled(STEADY, 1.04), None),
    ("more scatter than difference", (3.0, 5.0, 4.0, 3.5, 4.5), (3.5, 5.5, 4.5, 4.0, 5.0), None),
    ("too few runs", STEADY[:4], scaled(STEADY, 1.2), None),
]


@pytest.mark.parametrize(("good", "bad", "limit"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_the_ends_decide_the_limit(good: tuple[float, ...], bad: tuple[float, ...], limit: float | None) -> None:
    rule = RULE.learnt(ends(good, bad), BAD)
    assert (rule.limit and rule.limit.value) == (limit and pytest.approx(limit, abs=1e-3))


def test_what_is_beyond_the_limit_fails_and_what_has_no_value_stays() -> None:
    seen = ends(STEADY, scaled(STEADY, 1.12))
    rule = RULE.learnt(seen, BAD)
    crashed = Observation(3, FAIL, "CUDA out of memory")
    judged = rule.judged([*runs(0, *STEADY), *runs(2, 4.1), *runs(3, 4.4), crashed])
    assert [each.kind for each in judged] == [PASS, FAIL, FAIL]  # of the good end, the first five are not there
    assert [each.signature for each in judged] == ["", rule.signature, "CUDA out of memory"]
    assert rule.learnt([*seen, *runs(0, 9.0, 9.0)], BAD) == rule, "later runs change no limit"
    assert [each.kind for each in rule.kept().judged(runs(0, 4.1))] == [PASS], "later stages leave nothing out"
    assert [each.kind for each in RULE.judged(runs(3, 9.0))] == [PASS], "before there is one, nothing fails"


def test_the_ends_run_in_turn_until_more_runs_would_not_help() -> None:
    seen: list[Observation] = []
    while (end := RULE.wanted(seen, BAD)) is not None:
        seen += runs(end, STEADY[len(seen) % 5])
    assert [sum(each.position == end for each in seen) for end in (0, BAD)] == [10, 10]
    assert RULE.refusal(seen, BAD).startswith("step_time is not shown to be worse by 10 %: 4.0")
    failing = [replace(each, kind=FAIL, value=None) for each in seen for _ in range(2)]
    assert RULE.wanted(failing, BAD) is None, "an end that only fails gives no value, however often it runs"


@pytest.mark.parametrize("text", ["", "0", "-5%", "ten", "nan", "inf%"])
def test_a_share_is_a_number_above_0(text: str) -> None:
    assert worse_of("12.5%") == worse_of("12.5") == 0.125
    with pytest.raises(UsageError, match="a share above 0"):
        worse_of(text)
