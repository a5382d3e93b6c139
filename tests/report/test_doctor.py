"""The table of findings, to the character."""

from __future__ import annotations

import pytest

from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding, lines, summary


def test_findings_stand_in_order_with_what_to_do_below() -> None:
    found = [
        Finding("hub", WARNING, "429", "wait"),
        Finding("disk", OK, "workspace: 90 GB"),
        Finding("disk", FAULT, "mount /x:\n not there", "make it"),
        Finding("Python", OK, "3.11.2"),
    ]
    assert lines("box (ssh)", found) == [
        "box (ssh)",
        "  ok       Python  3.11.2",
        "  ok       disk    workspace: 90 GB",
        "  fault            mount /x: not there",
        "                   → make it",
        "  warning  hub     429",
        "                   → wait",
    ]


def test_a_hosts_words_do_not_move_the_cursor() -> None:
    assert "\x1b" not in "".join(lines("box", [Finding("hub", FAULT, "\x1b[2J", "\x1b[2J")]))


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
    assert summary([Finding("hub", status, "") for status in statuses]) == text
