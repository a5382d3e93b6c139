"""rules.yaml: each rule is the first to match its own examples, and what is written wrongly there says where."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ci_tasks import resources
from ci_tasks.logs.lines import expression
from ci_tasks.logs.triage import rules
from ci_tasks.logs.triage.log_prefixes import read
from ci_tasks.logs.triage.rules import NOISE, PROGRESS, ROOT, SUCCESS, Rule, compiled, shipped
from ci_tasks.records import BLOCKED, CANCELLED, FAILED
from tests.parts.cases import named

DESCRIBED: dict[str, Any] = yaml.safe_load(resources.text(rules.FILE))
RULES: list[dict[str, Any]] = DESCRIBED["rules"]
EXAMPLES = [(rule, line) for rule in RULES for line in rule.get("examples", [])]
LOOKED_FOR = [(rule, line) for rule, line in EXAMPLES if rule["rank"] not in (SUCCESS, PROGRESS)]  # those end a log
REFUSED = [(rule, line) for rule in RULES for line in rule.get("not", [])]


def possible_raised(rule: dict[str, Any]) -> list[bool]:
    """How its lines are said: raised, by the way, or either."""
    return [rule["only"] == rules.RAISED] if "only" in rule else [True, False]


def first(line: str, raised: bool) -> Rule:
    """The rule of a line as the reader asks for it: without timestamps, ranks and actors."""
    return shipped().of(read(1, line.encode()).text, raised=raised)


def test_every_cause_that_frames_or_an_engine_give_is_explained() -> None:
    causes = {place["cause"] for place in DESCRIBED["frames"]} | {"sglang_engine_crash", "vllm_engine_crash"}
    assert causes <= shipped().explanations.keys()


def test_an_example_is_matched_first_by_its_own_rule_and_a_line_under_not_never() -> None:
    names = [rule["name"] for rule in RULES]
    assert sorted(names) == sorted(set(names))
    assert [rule["name"] for rule in RULES if not (rule.get("examples") or rule.get("frames"))] == []
    tried = [(rule["name"], line, said, True) for rule, line in EXAMPLES for said in possible_raised(rule)]
    tried += [(rule["name"], line, said, False) for rule, line in REFUSED for said in possible_raised(rule)]
    taken = [(name, line, match.name, is_own) for name, line, said, is_own in tried
             if ((match := first(line, said)).name == name) != is_own]  # fmt: skip
    assert taken == []


def test_an_example_contains_a_keyword() -> None:
    """Else no log's reader would ever see it."""
    unseen = [
        (rule["name"], line) for rule, line in LOOKED_FOR if not expression(shipped().words).search(line.encode())
    ]
    assert unseen == []


def test_what_explains_a_failure_has_a_cause_and_a_verdict() -> None:
    for rule in shipped().rules:
        assert rule.rank in (ROOT, rules.SYMPTOM, rules.WRAPPER, NOISE, SUCCESS, PROGRESS), rule.name
        assert rule.verdict in ("", FAILED, BLOCKED, CANCELLED), rule.name
        if rule.rank == ROOT:
            assert rule.cause, rule.name
        if rule.rank in (NOISE, SUCCESS, PROGRESS):
            assert not rule.cause and not rule.verdict, rule.name


GOOD = {"name": "sample", "cause": "cuda_oom", "verdict": "failed", "rank": "root", "match": "boom", "reason": "x"}
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown key", {"exmaples": ["boom"]}, "exmaples"),
    ("a lookahead, which RE2 has not", {"match": "a(?=b)"}, "a(?=b)"),
    ("frames that are no expression", {"frames": "[z-a]"}, "z-a"),
    ("no reason", {"reason": ...}, "reason"),
]


def read_rule(**change: Any) -> Rule:
    rule = {key: value for key, value in {**GOOD, **change}.items() if value is not ...}
    return compiled({"words": "boom", "rules": [rule], "frames": []}).rules[0]


@named(("change", "says"), BROKEN)
def test_what_is_written_wrongly_is_named(change: dict[str, Any], says: str) -> None:
    assert read_rule().name == "sample"
    with pytest.raises(ValueError, match="sample") as raised:
        read_rule(**change)
    assert says in str(raised.value)
