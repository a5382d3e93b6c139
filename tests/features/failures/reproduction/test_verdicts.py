"""CI's failure beside ours: reproduced, passed here, different failure, blocked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.features.failures.reproduction.verdicts import DIFFERENT, compare_failures
from ci_tasks.records import FailureEvidence, RunRecord, Triage

LINE = 'assert log_dict["train/ppo_kl"] == 0.0'
EVIDENCE = FailureEvidence("AssertionError", "kl", "ci.py", "check", source_line=LINE)
CI = Triage("test_assertion", "failed", 7, "AssertionError: kl", "kl#1", 0.9, "AssertionError: kl", evidence=EVIDENCE)


def record(status: str, text: str = "", reason: str = "", **evidence: Any) -> RunRecord:
    triage = replace(CI, text=text, evidence=replace(EVIDENCE, **evidence)) if text else None
    return RunRecord("b.01", "l", "r", "h", status, reason or text or status, triage=triage)


SAME = record("failed", "AssertionError: kl")
ALIKE = record("failed", "AssertionError: kl", source_line='assert log_dict["train/kl_loss"] == 0.0')
OTHER = record("failed", "KeyError: 'a'", exception="KeyError", message="'a'", source_line="")
PASSED, BLOCKED, LOST = record("passed"), record("blocked", reason="no GPU"), record("lost")
VACUOUS = record("vacuous")

TABLE = [
    ("the same", [SAME], "reproduced", 0),
    ("alike", [ALIKE], "same kind", 4),
    ("alike, and once the same", [ALIKE, SAME], "reproduced", 0),
    ("alike, but the environment is to blame", [replace(ALIKE, status="blocked")], "blocked", 125),
    ("passed", [PASSED], "passed here", 1),
    ("another", [OTHER], "different failure", 3),
    ("nothing ran", [VACUOUS], "different failure", 3),
    ("blocked", [BLOCKED], "blocked", 125),
]


@pytest.mark.parametrize(("records", "verdict", "code"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_outcome_has_its_word_and_exit_code(records: list[RunRecord], verdict: str, code: int) -> None:
    comparison = compare_failures(CI, records)
    assert (comparison.verdict, comparison.exit_code) == (verdict, code)
    assert comparison.record in records


def test_two_failures_without_evidence_are_not_the_same() -> None:
    assert compare_failures(Triage("unknown", "failed", None, "", "", 0.0), [record("failed")]).verdict == DIFFERENT
    old = replace(SAME, triage=replace(CI, evidence=None))
    assert compare_failures(CI, [old]).verdict == "same kind", "a record of an earlier version has a signature alone"
