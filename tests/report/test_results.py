"""The tables as text, to the character."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.records import Evidence, GpuUse, RunRecord
from ci_tasks.report.results import deviations, evidence, gpu_oddities, reason_with_attempts, summary, table

NOTHING = {"kind": "none", "tests": 0, "failures": 0, "skipped": 0, "steps": 0}


def record(row: str, status: str = "passed", **more: Any) -> RunRecord:
    fields = {"id": "b.01", "label": "l", "row": row, "host": None, "status": status, "started_at": "now"}
    shown = {"timings": {"seconds": 1.26}, "evidence": {**NOTHING, "kind": "junit", "tests": 2}}
    return decode(RunRecord, {**fields, **shown, **more}, where="a test")


LAST = {"id": "b.01", "host": None, "status": "passed"}


def differs(what: str = "code", ci: str = "merge", here: str = "tree", why: str = "yours") -> dict[str, str]:
    return {"what": what, "ci": ci, "here": here, "why": why}


def test_results_have_a_line_a_row_and_the_log_of_what_did_not_pass() -> None:
    records = [
        record("ppo"),
        record("ckpt[async]", "failed", reason="exit code 1:\n  Traceback\tKeyError", timings={"seconds": 125.0}),
        record("not begun", "blocked", reason="no GPU", started_at=None, timings={"seconds": None}, evidence=NOTHING),
    ]
    assert table(records, ["/l/1", "/l/2", "/l/3"]) == [
        "STATUS   ROW          TIME        EVIDENCE  REASON",
        "passed   ppo          1.3 s       2 tests",
        "failed   ckpt[async]  2 min 05 s  2 tests   exit code 1: Traceback KeyError",
        "blocked  not begun    -           -         no GPU",
        "",
        "log of ckpt[async]:  /l/2",
    ]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "no row ran"),
        (["passed"], "1 passed"),
        (
            ["lost", "cancelled", "blocked", "vacuous", "failed", "passed", "passed"],
            "2 passed, 1 failed, 1 vacuous, 1 blocked, 1 cancelled, 1 lost",
        ),
    ],
)
def test_the_summary_counts_in_one_order(statuses: list[str], expected: str) -> None:
    assert summary([record("r", status) for status in statuses]) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "-"),
        ({"kind": "junit", "tests": 1}, "1 test"),
        ({"kind": "pytest", "tests": 12, "failures": 2, "skipped": 3}, "12 tests, 2 failed, 3 skipped"),
        ({"kind": "metrics", "steps": 7}, "7 metric lines"),
        ({"kind": "junit", "tests": 1, "steps": 7}, "1 test, 7 metric lines"),
        ({"kind": "script"}, "script, no tests"),
    ],
)
def test_evidence_in_a_few_words(fields: Mapping[str, Any], expected: str) -> None:
    assert evidence(decode(Evidence, {**NOTHING, **fields}, where="a test")) == expected


def test_a_long_reason_that_the_row_above_has_too_is_said_once() -> None:
    why = "local lacks 8 GPUs (found 0: no nvidia-smi on PATH); docker (not on PATH)"
    records = [record(row, status="blocked", reason=why) for row in "ab"] + [record("c", reason="short")] * 2
    assert [line.split("  ")[-1].strip() for line in table(records, [""] * 4)[1:5]] == [
        why,
        "as above",
        "short",
        "short",
    ]


def test_what_all_rows_share_is_said_once_and_others_with_their_rows() -> None:
    shared, some, one = differs(), differs("GPUs"), differs("if")
    records = [
        record("a", deviations=[shared, some, one]),
        record("b", deviations=[shared, some]),
        record("c", deviations=[shared, some]),
        record("d", deviations=[shared]),
    ]
    assert deviations(records) == [
        "Different from CI (CI → here; why):",
        "  code:  merge → tree; yours",
        "  GPUs:  merge → tree; yours [a, b and 1 more]",
        "  if:    merge → tree; yours [a]",
    ]


def test_what_can_change_a_result_stands_before_what_cannot() -> None:
    whats = ["PYTEST_ADDOPTS", "concurrency", "container", "strategy.max-parallel", "GPUs", "exit code", "code"]
    lines = deviations([record("a", deviations=[differs(what) for what in whats])])
    shown = [line.split(":")[0].strip() for line in lines[1:]]
    assert shown == ["exit code", "code", "container", "GPUs", "PYTEST_ADDOPTS", "concurrency", "strategy.max-parallel"]


def test_a_difference_that_one_row_has_twice_counts_once() -> None:
    records = [record("a", deviations=[differs(), differs()]), record("b")]
    assert deviations(records)[-1] == "  code:  merge → tree; yours [a]"


def test_long_scripts_and_messages_of_several_lines_take_one_line() -> None:
    script = "set -e\n" + "pip install something  \\\n" * 10
    lines = deviations([record("a", deviations=[differs("step\n'x'", script, script + "y", "one\ntwo")])])
    assert len(lines) == 2
    here, ci = lines[1].rpartition("; one two")[0].split(" → ")[::-1]
    assert ci.startswith("  step 'x':  set -e pip install") and "characters left out" in ci
    assert here.endswith("something \\ y"), "what is another at the end is seen"


def test_our_own_sentence_is_not_cut() -> None:
    text = "Python processes note what they import, how they fail and how they end; torch's flight recorder is on"
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
        "Different from CI as in the last run: 1; `ci-tasks report b --deviations` lists them",
    ]
    assert deviations([records[1]]) == []


def test_two_differences_that_begin_alike_stay_two() -> None:
    long = "x" * 100
    records = [record("a", deviations=[differs(here=long + "1")]), record("b", deviations=[differs(here=long + "2")])]
    assert [line[-5:] for line in deviations(records)[1:]] == ["s [a]", "s [b]"]


def test_rows_of_several_hosts_say_which() -> None:
    records = [record("a", host="h100a"), record("b", "blocked", host="h100b", reason="disk full", started_at=None)]
    assert table(records, [""] * 2) == [
        "STATUS   ROW  HOST   TIME   EVIDENCE  REASON",
        "passed   a    h100a  1.3 s  2 tests",
        "blocked  b    h100b  1.3 s  2 tests   disk full",
    ]


def test_rows_of_one_host_do_not() -> None:
    records = [record("a", host="h100a", attempts=[LAST])] * 2
    assert table(records, ["", ""]) == table([record("a")] * 2, ["", ""])


def test_what_is_left_on_hosts_is_named_with_the_command_that_removes_it() -> None:
    attempts = [
        {**LAST, "status": "blocked", "host": "h100a", "left": ["container x: docker did not answer"]},
        {**LAST, "host": "h100b", "left": ["/w: busy"]},
    ]
    assert table([record("ppo", host="h100b", attempts=attempts), record("ckpt")], ["/l/1", "/l/2"])[-4:] == [
        "",
        "Left at the end (`ci-tasks clean --host h100a`, `ci-tasks clean --host h100b`):",
        "  h100a:  ppo: container x: docker did not answer",
        "  h100b:  ppo: /w: busy",
    ]


def test_a_row_that_needed_several_attempts_says_what_became_of_them() -> None:
    before = [{"id": "x.01", "host": "h100a", "status": "blocked", "reason": "no space\nleft"}]
    lost = {"id": "x.02", "host": "h100b", "status": "lost"}
    records = [
        record("a", attempts=[*before, LAST]),
        record("b", "failed", reason="KeyError", attempts=[*before, lost, LAST], started_at=None),
    ]
    assert [line.split("2 tests")[1].strip() for line in table(records, [""] * 2)[1:]] == [
        "attempt 2; blocked on h100a: no space left",
        "KeyError (attempt 3; blocked on h100a: no space left; lost on h100b)",
    ]


def test_what_was_odd_about_gpus_stands_below_the_table_and_of_a_failure_what_was_not_seen() -> None:
    use = GpuUse(oddities=("GPU 3 was throttled (power cap) for 41 s",), not_seen=("Xids: the log was not read",))
    records = [replace(record("a", "passed"), gpu_use=use), replace(record("b", "failed"), gpu_use=use)]
    assert gpu_oddities(records) == [
        "GPUs while rows ran:",
        "  a:  GPU 3 was throttled (power cap) for 41 s",
        "  b:  GPU 3 was throttled (power cap) for 41 s",
        "  b:  Xids: the log was not read",
    ]
    assert not gpu_oddities([record("a", "failed")])
