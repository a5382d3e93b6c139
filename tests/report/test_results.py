"""The tables as text, to the character."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.records import Attempt, RunRecord, epoch_seconds
from ci_tasks.report import results
from ci_tasks.report.results import deviations, evidence_of, failures, next_steps, reason_with_attempts, table, verdict

NOTHING = {"kind": "none", "tests": 0, "failures": 0, "skipped": 0, "steps": 0}


def record(row: str, status: str = "passed", **more: Any) -> RunRecord:
    fields = {"id": "b.01", "label": "l", "row": row, "host": None, "status": status, "started_at": "now"}
    shown = {"timings": {"seconds": 1.26}, "evidence": {**NOTHING, "kind": "junit", "tests": 2}}
    return decode(RunRecord, {**fields, **shown, **more}, where="a test")


LAST = {"id": "b.01", "host": None, "status": "passed"}


def differs(what: str = "code", ci: str = "merge", here: str = "tree", why: str = "yours") -> dict[str, str]:
    return {"what": what, "ci": ci, "here": here, "why": why}


EVIDENCE = [
    ({}, "-"),
    ({"kind": "junit", "tests": 1}, "1 test"),
    ({"kind": "pytest", "tests": 12, "failures": 2, "skipped": 3}, "12 tests, 2 failed, 3 skipped"),
    ({"kind": "metrics", "steps": 7}, "7 metric lines"),
    ({"kind": "junit", "tests": 1, "steps": 7}, "1 test, 7 metric lines"),
    ({"kind": "script"}, "script, no tests"),
]


@pytest.mark.parametrize(("fields", "expected"), EVIDENCE)
def test_evidence_in_a_few_words(fields: Mapping[str, Any], expected: str) -> None:
    assert evidence_of(record("a", evidence={**NOTHING, **fields})) == expected


def test_the_time_of_a_row_is_without_its_wait() -> None:
    timings = [{"seconds": None}, {"seconds": 2.0, "queued": 0.5}, {"seconds": 10.0, "queued": 7.0}]
    assert [results.took(record("a", timings=each)) for each in timings] == ["-", "1.5 s", "3 s (waited 7 s)"]


def test_what_can_change_a_result_stands_before_what_cannot() -> None:
    whats = ["PYTEST_ADDOPTS", "concurrency", "container", "strategy.max-parallel", "GPUs", "exit code", "code"]
    lines = deviations([record("a", deviations=[differs(what) for what in whats])])
    shown = [line.split(":")[0].strip() for line in lines[1:]]
    assert shown == ["exit code", "code", "container", "GPUs", "PYTEST_ADDOPTS", "concurrency", "strategy.max-parallel"]


def test_a_difference_that_one_row_has_twice_counts_once() -> None:
    records = [record("a", deviations=[differs(), differs()]), record("b")]
    assert deviations(records)[-1] == "  code:  merge → tree; yours [a]"


def test_our_own_sentence_is_not_cut() -> None:
    text = "Python processes record imports, failures and how they end; torch's flight recorder is on"
    assert "left out" not in "".join(deviations([record("a", deviations=[differs("probe", "none", text)])]))


def test_the_path_of_a_log_in_a_reason_is_not_cut() -> None:
    reason = (
        f"the install steps ended with 1: {'x' * 100} (log /{'d' * 150}/log); this override would fix it: {'y' * 90}"
    )
    assert reason_with_attempts(record("a", "blocked", reason=reason)) == reason


def test_what_was_so_in_the_last_run_is_counted_and_rows_that_never_began_have_none() -> None:
    records = [
        record("a", deviations=[differs(), differs("image")]),
        record("b", "blocked", started_at=None, deviations=[differs("GPUs")]),
    ]
    known = [records[0].deviations[0]]
    assert deviations(records, None, known, "ci-tasks report b --deviations") == [
        "Different from CI (CI → here; why):",
        "  image:  merge → tree; yours [a]",
        "Same differences from CI as in the last run: 1; `ci-tasks report b --deviations` lists them",
    ]
    assert deviations([records[1]]) == []


def test_two_differences_that_begin_alike_stay_two() -> None:
    long = "x" * 100
    records = [record("a", deviations=[differs(here=long + "1")]), record("b", deviations=[differs(here=long + "2")])]
    assert [line[-5:] for line in deviations(records)[1:]] == ["s [a]", "s [b]"]


def test_rows_of_one_host_do_not() -> None:
    records = [record("a", host="h100a", attempts=[LAST])] * 2
    assert table(records, ["", ""]) == table([record("a")] * 2, ["", ""])


def stamp(at: float) -> str:
    whole, thousandths = divmod(round(at * 1000), 1000)
    return f"2026-11-21T{12 + whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{thousandths:03d}+00:00"


def attempt(host: str, begin: float, end: float, **more: Any) -> Attempt:
    return replace(Attempt("b.01", host, "passed", started_at=stamp(begin), ended_at=stamp(end)), **more)


def ran(
    row: str, host: str, begin: float, end: float, gpus: int = 8, earlier: Sequence[Attempt] = (), **more: Any
) -> RunRecord:
    return RunRecord(
        "b.01", "l", row, host, "passed", gpus=gpus, attempts=(*earlier, attempt(host, begin, end, **more))
    )


def never(row: str) -> RunRecord:
    return RunRecord("b.01", "l", row, "h100b", "blocked", attempts=(Attempt("b.01", "h100b", "blocked"),))


UNTIMED = [ran("a", "h", 0, 5, ended_at=None), ran("b", "h", 0, 5, started_at="soon")]
MOVED = ran("moved", "y", 40, 80, earlier=[attempt("x", 0, 40, status="lost")])


WALL_TIMES = [
    ([ran("a", "h100a", 0, 600), ran("b", "h100a", 600.3, 1200, 4), never("never")], ["Wall time: 20 min"]),
    ([MOVED, ran("other", "y", 40, 60)], ["Wall time: 80 s"]),
    ([], []),
    ([ran("alone", "h", 0, 5)], []),
    ([never("a"), never("b")], []),
    (UNTIMED, []),
    ([ran("a", "h", 0, 5, 0), ran("b", "h", 0, 5, 0)], []),
]


@pytest.mark.parametrize(("records", "lines"), WALL_TIMES)
def test_the_wall_time_of_several_rows_counts_earlier_attempts(records: list[RunRecord], lines: list[str]) -> None:
    assert results.wall_time(records) == lines


@pytest.mark.parametrize(("text", "since"), [("1970-01-01T01:00:01+01:00", 1.0), ("2026-13-21", None), (None, None)])
def test_times(text: str | None, since: float | None) -> None:
    assert epoch_seconds(text) == since


def ended(row: str, status: str, cause: str = "", signature: str = "", **more: Any) -> RunRecord:
    triage = {"cause": cause, "verdict": "failed", "line_no": 1, "line": "x", "signature": signature, "confidence": 0.9}
    found = {**triage, "reason": f"why {cause}"} if cause else None
    return record(row, status, host="h1", triage=found, **more)


def rows(*statuses: str, **more: Any) -> list[RunRecord]:
    return [ended(f"row{number}", status, **more) for number, status in enumerate(statuses)]


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


def test_a_row_counts_by_its_last_attempt() -> None:
    last = record("a", id="b.02", attempts=[LAST, {**LAST, "id": "b.02"}])
    assert results.batch_result("b", [record("a", "failed"), last], {}).runs == (last,)


def test_a_failure_that_ci_allows_is_said_to_be_one_and_repetitions_are_runs() -> None:
    assert verdict(rows("failed", "failed", may_fail=True)) == "All 2 rows failed, which CI allows"
    assert verdict([ended("a", "failed"), ended("a", "passed")]) == "1 of 2 runs failed, 1 passed"


def test_rows_of_one_signature_are_one_failure_and_what_hit_most_rows_is_first() -> None:
    found = failures(
        [
            ended("a", "blocked", "disk_full", "s3"),
            ended("b", "failed", "hang", "s4"),
            ended("c", "failed", "oom", "s1"),
            ended("d", "failed", "oom", "s2"),
            ended("e", "failed", "oom", "s1"),
            ended("f", "passed"),
            ended("g", "running", "oom", "s1"),
        ]
    )
    assert [(failure.status, failure.cause, [r.row for r in failure.records]) for failure in found] == [
        ("failed", "oom", ["c", "e"]),
        ("failed", "hang", ["b"]),
        ("failed", "oom", ["d"]),
        ("blocked", "disk_full", ["a"]),
    ]
    assert found[0].reason == "why oom"


def commands(records: list[RunRecord], kept: Sequence[str] = ()) -> list[str]:
    return [step.command for step in next_steps(["b"], records, kept)]


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
        "ci-tasks compare l --only row0 --host h1",
    ]
    assert commands(rows(*["failed"] * 4))[0] == "ci-tasks remote --host h1 l --last-failed"
    assert commands([ended("a, b", "failed")])[0].endswith(" --last-failed"), "--only would take it for two parts"


def test_a_failed_run_that_was_kept_is_retried() -> None:
    kept = commands(rows("failed", "failed"), ["b.01"])
    assert kept[:2] == ["ci-tasks retry b.01", "ci-tasks remote --host h1 l --only row0,row1 --keep"]
    assert "ci-tasks retry b.04" not in commands(rows("failed"), ["b.01", "b.02", "b.03", "b.04"])


def test_a_row_of_any_name_is_what_the_command_runs() -> None:
    name = "a[$(b) 'c' \"d\"]"
    (command, *_) = commands([ended(name, "failed")])
    words = shlex.split(command)
    assert words[words.index("--only") + 1] == name
