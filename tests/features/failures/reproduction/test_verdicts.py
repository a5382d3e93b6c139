"""CI's failure beside ours: reproduced, passed here, different failure, blocked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.features.failures.reproduction.verdicts import compare_failures
from ci_tasks.records import RunRecord, Triage

CI = Triage("test_assertion", "failed", 7, "AssertionError: kl", "AssertionError: kl#1", 0.9, "AssertionError: kl")


def record(status: str, signature: str = "", text: str = "", frames: tuple[str, ...] = ()) -> RunRecord:
    triage = replace(CI, signature=signature, text=text, frames=frames) if signature else None
    return RunRecord("b.01", "l", "r", "h", status, text or status, triage=triage)


SAME, OTHER = (
    record("failed", "AssertionError: kl#1", "AssertionError: kl"),
    record("failed", "KeyError: 'a'#2", "KeyError: 'a'"),
)
PASSED, BLOCKED, LOST = record("passed"), record("blocked", "", "no GPU"), record("lost")
VACUOUS = record("vacuous")

TABLE = [
    ("the same", [SAME], "reproduced", 0),
    ("the same, once in three", [PASSED, OTHER, SAME], "reproduced", 0),
    ("the same, and the environment is to blame", [replace(SAME, status="blocked")], "reproduced", 0),
    ("passed", [PASSED], "passed here", 1),
    ("passed and blocked", [BLOCKED, PASSED], "passed here", 1),
    ("another", [OTHER], "different failure", 3),
    ("another, now and then", [PASSED, OTHER], "different failure", 3),
    ("nothing ran", [VACUOUS], "different failure", 3),
    ("blocked", [BLOCKED], "blocked", 125),
    ("lost and cancelled", [LOST, record("cancelled")], "blocked", 125),
]


@pytest.mark.parametrize(("records", "verdict", "code"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_outcome_has_its_word_and_exit_code(records: list[RunRecord], verdict: str, code: int) -> None:
    comparison = compare_failures(CI, records)
    assert (comparison.verdict, comparison.exit_code) == (verdict, code)
    assert comparison.record in records


def test_two_failures_without_a_signature_are_not_the_same() -> None:
    assert compare_failures(replace(CI, signature=""), [record("failed")]).verdict == "different failure"


WHY = [
    ([PASSED, OTHER, SAME], "the same failure in 1 of 3 runs: AssertionError: kl#1"),
    ([OTHER], "CI: AssertionError: kl; here: KeyError: 'a'"),
    (
        [record("failed", "x#9", "AssertionError: kl", ("a.py:f", "b.py:g"))],
        "the same message from another place: b.py:g < a.py:f",
    ),
    ([BLOCKED], "no GPU"),
    ([PASSED], "it passed here once; `--repeat 20` tells whether it is flaky"),
    ([PASSED, PASSED], "it passed here in all 2 runs; `--repeat 20` tells whether it is flaky"),
]


@pytest.mark.parametrize(("records", "why"), WHY, ids=[why for _, why in WHY])
def test_the_word_has_its_reason(records: list[RunRecord], why: str) -> None:
    assert compare_failures(CI, records).why == why


def test_an_environment_failure_that_passes_here_is_reported_as_such() -> None:
    ci = replace(CI, verdict="blocked", cause="hf_download")
    assert compare_failures(ci, [PASSED]).why == "it passed here once; CI's failure was its environment's (hf_download)"


def test_a_log_that_says_little_makes_a_weak_sign() -> None:
    assert "a weak sign" in compare_failures(replace(CI, confidence=0.3), [SAME]).why
