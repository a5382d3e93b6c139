"""rules.yaml: each rule is the first to match its own examples, and what is written wrongly there says where."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ci_tasks import resources
from ci_tasks.features.failures.triage.log_prefixes import read
from ci_tasks.features.failures.triage.rules import FILE, NOISE, PROGRESS, RAISED, SUCCESS, Rule, compiled, shipped

DESCRIBED: dict[str, Any] = yaml.safe_load(resources.text(FILE))
RULES: list[dict[str, Any]] = DESCRIBED["rules"]
EXAMPLES = [(rule, line) for rule in RULES for line in rule.get("examples", [])]
LOOKED_FOR = [(rule, line) for rule, line in EXAMPLES if rule["rank"] not in (SUCCESS, PROGRESS)]  # those end a log
REFUSED = [(rule, line) for rule in RULES for line in rule.get("not", [])]


def matches(rule: dict[str, Any], line: str) -> set[str]:
    """The names of the first rule to match a line, as the reader asks for it: without timestamps, ranks and actors;
    raised, by the way, or either."""
    ways = [rule["only"] == RAISED] if "only" in rule else [True, False]
    return {match.name if match else "no rule" for match in (first(line, raised) for raised in ways)}


def first(line: str, raised: bool) -> Rule | None:
    return shipped().of(read(1, line.encode()).text, raised=raised)


def test_every_cause_that_frames_or_an_engine_give_is_explained() -> None:
    causes = {place["cause"] for place in DESCRIBED["frames"]} | {"sglang_engine_crash", "vllm_engine_crash"}
    assert causes <= shipped().explanations.keys()


def test_an_example_is_matched_first_by_its_own_rule() -> None:
    taken = {line: names for rule, line in EXAMPLES if (names := matches(rule, line)) != {rule["name"]}}
    assert taken == {}


def test_an_example_contains_a_keyword() -> None:
    unseen = [line for _, line in LOOKED_FOR if not shipped().keywords.search(line.encode())]
    assert unseen == [], "no word of `words` is in it: no log's reader would ever see it"


def test_a_line_under_not_is_not_the_rules() -> None:
    assert [line for rule, line in REFUSED if rule["name"] in matches(rule, line)] == []


def test_a_rule_shows_a_line_that_it_matches() -> None:
    untried = [rule["name"] for rule in RULES if not (rule.get("examples") or rule.get("frames"))]
    assert untried == [], "a rule without an example cannot be tried"


def test_a_line_matches_the_keywords_once() -> None:
    log = b"error: it failed and died\nstep 3\nfatal error\n"
    assert [hit.group() for hit in shipped().keywords.finditer(log)] == [b"error: it failed and died", b"fatal error"]


def test_names_are_unique() -> None:
    names = [rule["name"] for rule in RULES]
    assert sorted(names) == sorted(set(names))


def test_what_explains_a_failure_has_a_cause_and_a_verdict() -> None:
    for rule in shipped().rules:
        if rule.rank == "root":
            assert rule.cause, rule.name
        if rule.rank in (NOISE, SUCCESS, PROGRESS):
            assert not rule.cause and not rule.verdict, rule.name


def test_frames_are_asked_where_a_rule_has_some() -> None:
    torn_down = shipped().of("KeyError: '/psm_1'", "multiprocessing/resource_tracker.py:main")
    assert torn_down is not None and torn_down.rank == NOISE
    raised = shipped().of("KeyError: '/psm_1'", "train.py:main")
    assert raised is None or raised.rank != NOISE


def test_a_rule_for_raised_lines_leaves_the_others_alone() -> None:
    line = "RuntimeError: Failed to update parameter online: tensor shapes differ"
    printed, raised = first(line, raised=False), first(line, raised=True)
    assert raised is not None and raised.name == "weight-sync"
    assert printed is None or printed.name != "weight-sync"


GOOD = {
    "name": "sample",
    "cause": "cuda_oom",
    "verdict": "failed",
    "rank": "root",
    "match": "boom",
    "reason": "it burst",
}
BROKEN = [
    ("an unknown key", {"exmaples": ["boom"]}, "exmaples"),
    ("a rank that is none", {"rank": "rooot"}, "rank is one of"),
    ("no rank", {"rank": None}, "rank is one of"),
    ("an only that is none", {"only": "shouted"}, "only is"),
    ("a verdict that is none", {"verdict": "fail"}, "verdict is"),
    ("a regular expression that is none", {"match": "(unclosed"}, "unclosed"),
    ("a lookahead, which RE2 has not", {"match": "a(?=b)"}, "regular expression"),
    ("an exception that is none", {"unless": "(unclosed"}, "unclosed"),
    ("frames that are no expression", {"frames": "[z-a]"}, "z-a"),
    ("no reason", {"reason": ...}, "reason"),
    ("no expression", {"match": ...}, "match"),
]


def described(rule: dict[str, Any]) -> dict[str, Any]:
    return {"words": "boom", "rules": [rule], "frames": []}


def test_a_rule_may_be_as_short_as_this() -> None:
    (rule,) = compiled(described(GOOD)).rules
    assert (rule.name, rule.cause, rule.verdict, rule.rank) == ("sample", "cuda_oom", "failed", "root")


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_rule_written_wrongly_is_named(change: dict[str, Any], says: str) -> None:
    rule = {key: value for key, value in {**GOOD, **change}.items() if value is not ...}
    with pytest.raises(ValueError, match="sample") as raised:
        compiled(described(rule))
    assert says in str(raised.value)


PLACE = {"cause": "reward_fn", "verdict": "failed", "frames": "reward/"}
BROKEN_PLACES = [
    ("frames that are no expression", {"frames": "[z-a]"}, "z-a"),
    ("a match that is none", {"match": "(unclosed"}, "unclosed"),
    ("no frames", {"frames": ...}, "frames is missing"),
    ("an unknown key", {"rank": "root"}, "unknown key rank"),
    ("a verdict that is none", {"verdict": "fail"}, "verdict is"),
]


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in BROKEN_PLACES], ids=[row[0] for row in BROKEN_PLACES])
def test_frames_written_wrongly_are_named_by_their_number(change: dict[str, Any], says: str) -> None:
    place = {key: value for key, value in {**PLACE, **change}.items() if value is not ...}
    with pytest.raises(ValueError, match="frames, number 2") as raised:
        compiled({**described(GOOD), "frames": [PLACE, place]})
    assert says in str(raised.value)
