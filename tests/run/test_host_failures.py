"""Whose fault a failure before any test is: what several rows on several hosts show together."""

from __future__ import annotations

import pytest

from ci_tasks.records import BLOCKED, FAILED, PASSED, Evidence, RunRecord
from ci_tasks.run.host_failures import HostFailures

SILENT = "silent"


def ended(text: str) -> RunRecord:
    """`row@host: how`, where `how` is a status, or what it said when it failed before its test began; a silent one may
    have begun it."""
    where, _, how = text.partition(": ")
    row, _, host = where.partition("@")
    if how in (PASSED, BLOCKED, FAILED):
        return RunRecord(where, "l", row, host, how, evidence=Evidence("script"))
    if how == SILENT:
        return RunRecord(where, "l", row, host, FAILED, "exit code 1", started_at="2026-11-22T09:00:00+00:00")
    return RunRecord(where, "l", row, host, FAILED, how, evidence=Evidence("set-up"))


# what has ended, the last of it an early failure → whose fault that is
CASES = {
    "one row alone shows nothing": (["1@a: no python"], "open"),
    "nor do two, where no other host does better": (["1@a: no python", "2@a: no python"], "open"),
    "nor one, though another host does better": (["2@b: passed", "1@a: no python"], "open"),
    "a host that is blocked does no better": (["3@b: blocked", "1@a: no python", "2@a: no python"], "open"),
    "several alike, while a test began elsewhere": (["3@b: failed", "1@a: no python", "2@a: no python"], "host"),
    "numbers make no difference": (["3@b: passed", "1@a: port 1 is taken", "2@a: port 2 is taken"], "host"),
    "one row twice is one row": (["3@b: passed", "1@a: no python", "1@a: no python"], "open"),
    "tests without GPUs, of which nothing was seen": (["3@b: passed", "1@a: silent", "2@a: silent"], "host"),
    "one of them": (["3@b: passed", "1@a: silent"], "open"),
    "they are not alike": (["3@b: passed", "1@a: no python", "2@a: no git"], "open"),
    "the same on another host": (["3@b: passed", "2@b: no python", "1@a: no python", "2@a: no python"], "row"),
    "a test began on this host": (["3@b: passed", "2@a: failed", "4@a: no python", "1@a: no python"], "row"),
}


@pytest.mark.parametrize(("ends", "cause"), CASES.values(), ids=CASES)
def test_whose_fault_an_early_failure_is(ends: list[str], cause: str) -> None:
    failures, records = HostFailures(), [ended(text) for text in ends]
    for record in records:
        failures.add(record)
    assert failures.cause(records[-1]) == cause


def test_no_further_row_goes_to_a_host_where_several_failed_alike_until_it_is_known_why() -> None:
    failures = HostFailures()
    failures.add(ended("1@a: no python"))
    assert not failures.is_suspect("a")
    failures.add(ended("2@a: no python"))
    assert failures.is_suspect("a")
    failures.add(ended("3@b: no python"))
    assert not failures.is_suspect("a"), "the row fails elsewhere too"


def test_a_host_against_which_nothing_more_will_be_shown_is_cleared() -> None:
    failures, record = HostFailures(), ended("1@a: no python")
    for each in (record, ended("2@a: no python")):
        failures.add(each)
    failures.clear("a")
    assert (failures.is_suspect("a"), failures.cause(record)) == (False, "row")
