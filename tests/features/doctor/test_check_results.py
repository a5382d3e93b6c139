"""The table of results, to the character."""

from __future__ import annotations

import pytest

from ci_tasks.features.doctor.check_results import FAULT, OK, UNKNOWN, WARNING, CheckResult, lines, summary


def test_findings_stand_in_order_with_what_to_do_below() -> None:
    results = [
        CheckResult("hub", WARNING, "429", "wait"),
        CheckResult("disk", OK, "workspace: 90 GB"),
        CheckResult("disk", FAULT, "mount /x:\n not there", "make it"),
        CheckResult("Python", OK, "3.11.2"),
    ]
    assert lines("box (ssh)", results) == [
        "box (ssh)",
        "  ok       Python  3.11.2",
        "  ok       disk    workspace: 90 GB",
        "  fault            mount /x: not there",
        "                   → make it",
        "  warning  hub     429",
        "                   → wait",
    ]


def test_a_hosts_output_does_not_move_the_cursor() -> None:
    assert "\x1b" not in "".join(lines("box", [CheckResult("hub", FAULT, "\x1b[2J", "\x1b[2J")]))


@pytest.mark.parametrize(
    ("statuses", "text"),
    [
        ([], "no fault"),
        ([OK], "no fault"),
        ([FAULT, OK, WARNING, FAULT], "2 faults, 1 warning"),
        ([UNKNOWN, WARNING, WARNING], "2 warnings, 1 unknown"),
    ],
)
def test_the_last_line_counts(statuses: list[str], text: str) -> None:
    assert summary([CheckResult("hub", status, "") for status in statuses]) == text


def test_words_wrap_where_the_terminal_is_narrow() -> None:
    text = "workspace /data/ci-tasks: 57.5 GB free of 270.6 GB"
    disk = CheckResult("disk", WARNING, text, "`ci-tasks clean --host h100a`")
    assert lines("h100a (ssh)", [disk], 60) == [
        "h100a (ssh)",
        "  warning  disk  workspace /data/ci-tasks: 57.5 GB free of",
        "                 270.6 GB",
        "                 → `ci-tasks clean --host h100a`",
    ]
