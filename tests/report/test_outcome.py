"""The answer in words: the verdict's sentence, failures by what they hit, and commands to type as they stand."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.records import RunRecord
from ci_tasks.report.outcome import failures, next_steps, verdict

FEATURES = ("doctor", "bisect")


def record(row: str, status: str, cause: str = "", signature: str = "", **more: Any) -> RunRecord:
    triage = {"cause": cause, "verdict": "failed", "line_no": 1, "line": "x", "signature": signature, "confidence": 0.9}
    fields = {"id": "b.01", "label": "l", "row": row, "host": "h1", "status": status, **more}
    return decode(RunRecord, {**fields, "triage": {**triage, "reason": f"why {cause}"} if cause else None}, where="")


def rows(*statuses: str, **more: Any) -> list[RunRecord]:
    return [record(f"row{number}", status, **more) for number, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "sentence"),
    [
        ([], "No row ran"),
        (["passed"], "row0 passed"),
        (["blocked"], "row0 was blocked"),
        (["passed"] * 3, "All 3 rows passed"),
        (["vacuous"] * 2, "All 2 rows ran no test"),
        (["passed", "failed", "blocked", "failed", "passed"], "2 of 5 rows failed, 1 was blocked, 2 passed"),
        (["passed", "blocked", "lost", "blocked"], "1 of 4 rows was lost, 2 were blocked, 1 passed"),
        (["running", "planned", "passed"], "1 of 3 rows is running, 1 has not started, 1 passed"),
        (["passed", "unheard of"], "1 of 2 rows passed, 1 unheard of"),
    ],
)
def test_the_verdict_begins_with_what_matters_most(statuses: list[str], sentence: str) -> None:
    assert verdict(rows(*statuses)) == sentence


def test_a_failure_that_ci_allows_is_said_to_be_one_and_repetitions_are_runs() -> None:
    assert verdict(rows("failed", "failed", may_fail=True)) == "All 2 rows failed, which CI allows"
    assert verdict([record("a", "failed"), record("a", "passed")]) == "1 of 2 runs failed, 1 passed"


def test_rows_of_one_signature_are_one_failure_and_what_hit_most_rows_is_first() -> None:
    found = failures(
        [
            record("a", "blocked", "disk_full", "s3"),
            record("b", "failed", "hang", "s4"),
            record("c", "failed", "oom", "s1"),
            record("d", "failed", "oom", "s2"),
            record("e", "failed", "oom", "s1"),
            record("f", "passed"),
            record("g", "running", "oom", "s1"),
        ]
    )
    assert [(failure.status, failure.cause, [r.row for r in failure.records]) for failure in found] == [
        ("failed", "oom", ["c", "e"]),
        ("failed", "hang", ["b"]),
        ("failed", "oom", ["d"]),
        ("blocked", "disk_full", ["a"]),
    ]
    assert found[0].reason == "why oom"


def commands(records: list[RunRecord], features: tuple[str, ...] = FEATURES) -> list[str]:
    return [step.command for step in next_steps(["b"], records, features)]


def test_the_next_commands_are_those_for_what_happened() -> None:
    assert commands(rows("passed")) == ["ci-tasks report b --markdown"]
    assert commands(rows("running", "passed")) == ["ci-tasks attach b"]
    assert commands(rows("passed", "lost")) == ["ci-tasks attach b"]
    assert commands(rows("passed", "blocked")) == [
        "ci-tasks remote --host h1 l --only row1 --keep",
        "ci-tasks doctor --host h1",
    ]
    assert commands(rows("failed", "failed")) == [
        "ci-tasks remote --host h1 l --only row0,row1 --keep",
        "ci-tasks bisect l --only row0 --host h1 --good REV",
    ]
    assert commands(rows(*["failed"] * 4))[0] == "ci-tasks remote --host h1 l --last-failed"
    assert commands([record("a, b", "failed")])[0].endswith(" --last-failed"), "--only would take it for two parts"


def test_a_failed_run_that_was_kept_is_retried() -> None:
    steps = next_steps(["b"], rows("failed", "failed"), FEATURES, ["b.01"])
    assert [step.command for step in steps][:2] == [
        "ci-tasks retry b.01",
        "ci-tasks remote --host h1 l --only row0,row1 --keep",
    ]
    assert "ci-tasks retry b.04" not in [
        step.command for step in next_steps(["b"], rows("failed"), FEATURES, ["b.01", "b.02", "b.03", "b.04"])
    ]


def test_no_command_of_a_feature_that_is_not_here() -> None:
    assert commands(rows("failed", "blocked"), ()) == ["ci-tasks remote --host h1 l --only row0,row1 --keep"]
    assert "ci-tasks compare l --only row0 --host h1" in commands(rows("failed"), ("compare", "bisect"))


def test_a_row_of_any_name_is_what_the_command_runs() -> None:
    name = "a[$(b) 'c' \"d\"]"
    (command, *_) = commands([record(name, "failed")])
    words = shlex.split(command)
    assert words[words.index("--only") + 1] == name
