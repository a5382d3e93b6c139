"""What each rule decides, as tables; what AB promises, computed exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.trials import rules
from ci_tasks.trials.bisection import Bisect, CommitGraph
from ci_tasks.trials.rules import AB, ERROR, RISE, Match, Metrics, Outcome, Repeat, TrialRule, TrialVerdict, telling
from docs import generate

ROOT = Path(__file__).parents[2]
STATUSES = {"p": rules.PASSED, "b": rules.BLOCKED}


def runs(setting: str, letters: str) -> list[Outcome]:
    """p passed, b blocked; any other letter is a way of failing."""
    return [Outcome(setting, "row", STATUSES.get(c, rules.FAILED), "" if c in STATUSES else c) for c in letters]


def ended(rule: TrialRule, outcomes: Sequence[Outcome]) -> str | list[str]:
    """The word, or the settings to run."""
    what = rule.next(outcomes)
    return what.word if isinstance(what, TrialVerdict) else sorted(what)


LACKS = Outcome("yours", "row", rules.BLOCKED, "x", host="h", lacks=True)
OK = Outcome("base", "row", rules.PASSED, host="h")
ABLE = [(OK, rules.FAILED), (replace(OK, setting="yours"), rules.BLOCKED), (replace(OK, host="g"), rules.BLOCKED)]


@pytest.mark.parametrize(("other", "status"), [*ABLE, (replace(LACKS, setting="base"), rules.BLOCKED)])
def test_what_a_tree_lacks_is_its_own_where_another_one_passes_on_the_host(other: Outcome, status: str) -> None:
    assert [one.status for one in rules.with_own_lacks([LACKS, other])] == [status, other.status]


def test_whether_the_host_lacks_it_is_asked_of_the_other_side() -> None:
    assert ended(AB("base", "yours", screen=True), [LACKS]) == ["base", "yours"]
    assert ended(Bisect(["base", "yours"], CommitGraph.linear(1)), [LACKS]) == ["base"]
    assert ended(AB("base", "yours"), [LACKS, replace(LACKS, setting="base")] * 3) == "blocked"


# letters → the word, or [] for one more run
REPEATS = [
    ("", []),
    ("pppp", []),
    ("p" * 20, "passes"),
    ("pf" * 10, "flaky"),
    ("fffff", "fails"),
    ("ffff", []),
    ("ffffX", []),  # two ways: more are worth their time
    ("bb", []),
    ("bbb", "unclear"),
    ("pbpbp", []),
]


@pytest.mark.parametrize(("letters", "word"), REPEATS)
def test_repeat_ends_when_the_rate_is_known_or_a_setting_shows_nothing(letters: str, word: str) -> None:
    assert ended(Repeat("t", 20), runs("t", letters)) == (word or ["t"])


def test_repeat_until_fail_ends_with_the_first_failure() -> None:
    assert ended(Repeat("t", 20, until_fail=True), runs("t", "ppf")) == "flaky"
    assert Repeat("t").verdict(runs("t", "pp")).word == "passes", "what an interrupted one has shown"


MATCHES = [
    ("", 1, ["t"]),
    ("s", 1, "reproduced"),
    ("ps", 5, "reproduced"),
    ("p", 1, "passed here"),
    ("pp", 3, ["t"]),
    ("d", 1, "different failure"),
    ("a", 1, "same kind"),
    ("as", 2, "reproduced"),
    ("b", 1, "blocked"),
    ("bp", 2, ["t"]),
    ("bbb", 5, "blocked"),
]


@pytest.mark.parametrize(("letters", "most", "word"), MATCHES)
def test_one_equal_failure_is_enough_and_one_run_is_one_run(letters: str, most: int, word: str | list[str]) -> None:
    match = {"s": rules.REPRODUCED, "a": rules.SAME_KIND, "d": rules.DIFFERENT_FAILURE}
    assert ended(Match("t", lambda one: match[one.signature], most), runs("t", letters)) == word


BOTH = ["base", "yours"]
COMPARED: list[tuple[str, str, str | list[str]]] = [
    ("ppp", "fff", "yours"),
    ("fff", "ppp", "fixed"),
    ("ppppp", "ppppp", "fine"),
    ("fffff", "fffff", "already broken"),
    ("XXXX", "ffff", "yours"),  # in another way
    ("fppfpppfpp", "pfpppppfpp", "flaky"),
    ("p" * 10, "f" + 9 * "p", "cannot tell"),
    ("pp", "ff", BOTH),
    ("ppp", "ff", ["yours"]),
    ("pp", "fff", ["base"]),
    ("pbpp", "fff", "yours"),  # what was blocked is made up for
    ("bbb", "", "blocked"),
]


@pytest.mark.parametrize(("base", "yours", "word"), COMPARED)
def test_ab_says_whose_a_failure_is(base: str, yours: str, word: str | list[str]) -> None:
    assert ended(AB("base", "yours"), runs("base", base) + runs("yours", yours)) == word


SCREENED: list[tuple[str, str, str | list[str]]] = [
    ("", "", ["yours"]),
    ("", "p", "passes"),
    ("", "fpp", ["base"]),
    ("ppp", "fff", ["yours"]),  # the first failure is why it is compared, and no sample
    ("ppp", "ffff", "yours"),
]


@pytest.mark.parametrize(("base", "yours", "word"), SCREENED)
def test_of_several_rows_those_that_fail_are_compared(base: str, yours: str, word: str | list[str]) -> None:
    rule = AB("base", "yours", screen=True)
    assert ended(rule, runs("base", base) + runs("yours", yours)) == word


def test_a_signature_that_varies_in_one_setting_gives_way_to_its_kind() -> None:
    varying = [Outcome("yours", "row", rules.FAILED, f"#{number}", "E") for number in range(3)]
    other = [Outcome("base", "row", rules.FAILED, "#x", "E")] * 3
    assert [one.signature for one in telling([*varying, *other])] == ["E"] * 6
    assert [one.signature for one in telling([*varying[:1], *other])] == ["#0", "#x", "#x", "#x"]


@pytest.mark.parametrize("shift", [0.0, RISE])
def test_no_pair_lets_the_stake_grow_on_average(shift: float) -> None:
    """So by Ville's inequality it reaches 1 / ERROR in ERROR of all cases at most, whatever the rates are."""
    bets = rules.NO_RISE if shift else rules.LESS
    assert sum(share for share, _, _ in bets) == pytest.approx(1)
    rates = [step / 20 for step in range(21)]
    for _, middle, boldness in bets:
        factor = boldness / max(middle, 1 - middle - shift)
        assert factor * middle <= 1 and factor * (1 - middle - shift) <= 1, "nothing is staked that is not there"
        for one in rates:
            means = [(1 + factor * (one - middle)) * (1 - factor * (other - middle - shift)) for other in rates]
            assert all(
                mean <= 1 + 1e-9 for mean, other in zip(means, rates, strict=True) if other >= one + shift - 1e-9
            )


def shares(base: float, yours: float, pairs: int) -> dict[str, float]:
    """How probable each word is, for two failure rates in one way."""
    rule, open_ = AB("base", "yours"), {(0, 0): 1.0}
    ended: dict[str, float] = defaultdict(float)
    for n in range(1, pairs + 1):
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (b, y), p in open_.items():
            for more_b, more_y in ((0, 0), (0, 1), (1, 0), (1, 1)):
                share = p * (base if more_b else 1 - base) * (yours if more_y else 1 - yours)
                after[b + more_b, y + more_y] += share
        open_ = {}
        for (b, y), p in after.items():
            found = rule.verdict(Counter(x=b) if b else Counter(), Counter(x=y) if y else Counter(), n)
            if found:
                ended[found.word] += p
            elif p > 1e-12:
                open_[b, y] = p
    return ended


@pytest.mark.parametrize("base", [0.0, 0.1, 0.3, 0.5, 0.9])
def test_a_word_of_ab_is_wrong_in_five_of_a_hundred_at_most(base: float) -> None:
    alike = shares(base, base, 50)
    assert alike["yours"] + alike["fixed"] <= ERROR
    if base + RISE <= 1:
        risen = shares(base, base + RISE, 50)
        assert sum(risen[word] for word in ("fine", "flaky", "already broken", "fixed")) <= ERROR


SCATTER = [
    ([0, 0.001, -0.001], "not worse"),
    ([0.2, 0.21, 0.19], "worse"),
    ([0.2, 0.21], BOTH),
    ([0.3, -0.3, 0.1], "cannot tell"),
]


@pytest.mark.parametrize(("losses", "word"), SCATTER)
def test_metrics_are_judged_by_the_scatter_of_pairs(losses: list[float], word: str | list[str]) -> None:
    seen = [
        Outcome(side, "row", rules.PASSED, metrics={"m": 1 - loss * (side == "yours")})
        for loss in losses
        for side in BOTH
    ]
    assert ended(Metrics("base", "yours", "m", 0.05, 3), seen) == word
    noisy = [Outcome(one.setting, "row", rules.PASSED, metrics={**one.metrics, "m error": 1.0}) for one in seen]
    assert ended(Metrics("base", "yours", "m", 0.05, 3), noisy) in ("cannot tell", BOTH)


@pytest.mark.parametrize(
    "bad", [Outcome("base", "row", rules.PASSED), Outcome("yours", "row", rules.FAILED, metrics={"m": 1})]
)
def test_a_run_without_the_metric_or_that_failed_ends_metrics_without_a_word(bad: Outcome) -> None:
    assert ended(Metrics("base", "yours", "m", 0.05), [bad]) == "cannot tell"


def test_the_page_of_statuses_has_the_words_and_exit_codes_of_the_table() -> None:
    assert (ROOT / "docs/reference/statuses.md").read_text(encoding="utf-8").endswith(generate.results_of_trials())


# Tables of Student's t, two-sided 5 %.
@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.776, 4), (2.042, 30)])
def test_the_tails_are_those_of_the_tables(t: float, freedom: int) -> None:
    assert rules.student_tails(t, freedom) == pytest.approx(0.05, abs=2e-4)
