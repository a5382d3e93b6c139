"""The table of verdict.py, line by line, and the exit codes that lie."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import pytest

from ci_tasks.logs.causes import NOT_SAID, JobEnd
from ci_tasks.logs.reading import LogFacts
from ci_tasks.records import Evidence, Triage, Verdict
from ci_tasks.results.verdict import Junit, collect_evidence, judge, missed_tests, needs_triage, read_junit
from tests.parts.cases import named

JUNIT = Evidence("junit", 3)
BAD = Evidence("junit", 3, 1, detail="test_b: assert 1 == 2")
NONE = Evidence("none")
SCRIPT = Evidence("script")
TIMEOUT = JobEnd("timeout", 143, timeout_minutes=90)
NO_JUNIT = Evidence("pytest", 3, 2)
LINE = LogFacts(last_line=(9, "the end"))
FOUND = Triage(
    "test_assertion", "failed", 4, "(Actor pid=3) AssertionError: x", "AssertionError: x#1", 0.9, "AssertionError: x"
)
NOT_KNOWN = Triage("unknown", "failed", None, "", "", 0.0)
LAST = replace(FOUND, reason=NOT_SAID)
BLAMED = replace(FOUND, verdict="blocked", confidence=0.5)
FULL = Triage("disk_full", "blocked", 4, "OSError: no space", "OSError#2", 0.9, "OSError: no space")
DAEMON = LogFacts(daemon="docker: Error response from daemon: no space")
DEVICE = LogFacts(daemon="Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all")
SRUN = LogFacts(srun="srun: unrecognized option '--container-image=x'")
KILL = replace(FULL, rule="killed-by-shell")
ADAPTER = LogFacts(blocked="mount source '/x' does not exist")

NO_SPACE = Evidence("junit", 3, 1, 0, 0, "test_b: OSError: no space left")
ALL_BAD = Evidence("junit", 3, 3, 0, 0, "test_b: assert 1 == 2")
NO_TEST = "pytest found no test to run (--test may name none), no output"

TABLE = [
    ("runner gone", JobEnd(None, None), JUNIT, LINE, "lost", "the runner vanished before the job ended"),
    ("cancelled", JobEnd("cancelled", 143), BAD, LINE, "cancelled", "cancelled"),
    ("cancelled, log lost", JobEnd("cancelled", 143, log_error="disk"), BAD, LINE, "cancelled", "cancelled"),
    ("error", JobEnd("error", None, error="no bash"), NONE, LINE, "blocked", "the job could not be started: no bash"),
    ("log lost, exit 0", JobEnd("exit", 0, log_error="disk full"), JUNIT, LINE, "blocked", "disk full"),
    ("log lost, exit 1", JobEnd("exit", 1, log_error="disk full"), BAD, LINE, "blocked", "disk full"),
    ("timeout", TIMEOUT, JUNIT, LINE, "failed", "timeout after 90 min; last line: the end"),
    ("timeout, silent", TIMEOUT, NONE, LogFacts(), "failed", "timeout after 90 min, no output"),
    ("adapter blocked", JobEnd("exit", 125), NONE, ADAPTER, "blocked", "mount source '/x' does not exist"),
    ("program missing here", JobEnd("exit", 127), NONE, ADAPTER, "blocked", "mount source '/x' does not exist"),
    ("a blocked line, then a test that failed", JobEnd("exit", 1), BAD, ADAPTER, "failed", "test_b: assert 1 == 2"),
    ("docker's error", JobEnd("exit", 125), NONE, DAEMON, "blocked", "docker: Error response from daemon: no space"),
    ("docker's error, the test's code", JobEnd("exit", 1), NONE, DAEMON, "failed", "exit code 1, no output"),
    ("podman's error", JobEnd("exit", 126), NONE, DEVICE, "blocked", DEVICE.daemon),
    ("126 of a command", JobEnd("exit", 126), NONE, DAEMON, "failed", "exit code 126, no output"),
    ("125 of a test", JobEnd("exit", 125), JUNIT, LINE, "failed", "exit code 125; last line: the end"),
    ("srun knows no pyxis", JobEnd("exit", 1), SCRIPT, SRUN, "blocked", SRUN.srun),
    ("a test that calls srun", JobEnd("exit", 1), BAD, SRUN, "failed", "test_b: assert 1 == 2"),
    ("failed, JUnit knows", JobEnd("exit", 1), BAD, LINE, "failed", "test_b: assert 1 == 2"),
    ("a wrong name for --test", JobEnd("exit", 5), Evidence("junit"), LogFacts(), "failed", NO_TEST),
    ("a wrong file for it", JobEnd("exit", 4), Evidence("junit"), LogFacts(), "failed", NO_TEST),
    ("failed, silent", JobEnd("exit", 1), NONE, LogFacts(), "failed", "exit code 1, no output"),
    ("an end without a code", JobEnd("exit", None), JUNIT, LINE, "failed", "exit code None; last line: the end"),
    ("a lying 0", JobEnd("exit", 0), BAD, LINE, "failed", "exit code 0, but test_b: assert 1 == 2"),
    ("a lying 0 without JUnit", JobEnd("exit", 0), NO_JUNIT, LINE, "failed", "exit code 0, but failed tests: 2"),
]


@named(("ended", "evidence", "log", "status", "reason"), TABLE)
def test_each_end_gives_a_verdict(ended: JobEnd, evidence: Evidence, log: LogFacts, status: str, reason: str) -> None:
    verdict = judge(ended, evidence, log, test="t.py", containers=True)
    assert (verdict.status, verdict.reason) == (status, reason)


SKIPPED, RAN = Junit(2, 0, 2), Junit(3, 0, 0)
UNITTEST, UNITTEST_SKIPPED = LogFacts(unittest=2), LogFacts(unittest=2, unittest_skipped=2)
METRICS, GPUS = LogFacts(metrics=3), LogFacts(gpu_ids=(1, 3))
TOOK_NONE = "nothing ran: the row takes GPUs under a lock, and took none"
NONE_RAN = "nothing ran: t.py defines tests, and none of them ran"

# JUnit, what the log says, whether the file defines tests, whether the plan takes GPUs under a lock
GREEN = [
    ("tests", RAN, LogFacts(), True, False, "passed", ""),
    ("tests of pytest without JUnit", None, LogFacts(pytest={"passed": 3}), True, False, "passed", ""),
    ("tests of unittest", None, UNITTEST, True, False, "passed", ""),
    ("tests without a lock", RAN, LogFacts(), True, True, "passed", ""),
    ("tests with their GPUs", RAN, GPUS, True, True, "passed", ""),
    ("every test skipped", SKIPPED, LogFacts(), True, False, "vacuous", "nothing ran: all 2 tests skipped"),
    ("every test skipped, with metrics", SKIPPED, METRICS, True, False, "vacuous", "nothing ran: all 2 tests skipped"),
    ("every test of unittest skipped", None, UNITTEST_SKIPPED, 0, 0, "vacuous", "nothing ran: all 2 tests skipped"),
    ("nothing collected", Junit(0, 0, 0), LogFacts(), True, False, "vacuous", "nothing ran: no test was collected"),
    ("metrics", None, METRICS, False, False, "passed", ""),
    ("metrics of a file that defines tests", None, METRICS, True, False, "passed", ""),
    ("metrics without the GPUs", None, METRICS, False, True, "vacuous", TOOK_NONE),
    ("a training with its GPUs", None, LogFacts(metrics=3, gpu_ids=(1,)), False, True, "passed", ""),
    ("an image that ignores the command", None, LogFacts(), False, True, "vacuous", TOOK_NONE),
    ("the same of a file that defines tests", None, LogFacts(), True, True, "vacuous", TOOK_NONE),
    ("tests that python only defines", None, LogFacts(), True, False, "vacuous", NONE_RAN),
    ("a script without tests", None, LogFacts(), False, False, "passed", ""),
]


@named(("junit", "log", "defines_tests", "takes_locks", "status", "reason"), GREEN)
def test_exit_0_is_a_pass_only_if_something_ran(
    junit: Junit | None, log: LogFacts, defines_tests: bool, takes_locks: bool, status: str, reason: str
) -> None:
    evidence = collect_evidence(junit, log, defines_tests=defines_tests, takes_locks=takes_locks)
    verdict = judge(JobEnd("exit", 0), evidence, log, test="t.py", containers=True)
    assert (verdict.status, verdict.reason) == (status, reason)


TRIAGED = [
    ("the log knows", JobEnd("exit", 1), SCRIPT, FOUND, "failed", "AssertionError: x", 4),
    ("JUnit names the test too", JobEnd("exit", 1), BAD, FOUND, "failed", "test_b: assert 1 == 2", 4),
    ("a kill says not by whom", JobEnd("exit", 137), SCRIPT, KILL, "failed", FULL.text, 4),
    ("it was the environment", JobEnd("exit", 1), SCRIPT, FULL, "blocked", "OSError: no space", 4),
    ("a warning, then a test failed otherwise", JobEnd("exit", 1), BAD, FULL, "failed", "test_b: assert 1 == 2", 4),
    ("a test says it too", JobEnd("exit", 1), NO_SPACE, FULL, "blocked", "OSError: no space", 4),
    ("all tests failed", JobEnd("exit", 1), ALL_BAD, FULL, "blocked", "OSError: no space", 4),
    ("the triage blames the environment", JobEnd("exit", 1), SCRIPT, BLAMED, "blocked", "AssertionError: x", 4),
    ("a line that only stands last", JobEnd("exit", 1), SCRIPT, LAST, "failed", "exit code 1; last line: the end", 9),
    ("nobody knows", JobEnd("exit", 1), SCRIPT, NOT_KNOWN, "failed", "exit code 1; last line: the end", 9),
    ("the adapter knows better", JobEnd("exit", 125), SCRIPT, FOUND, "failed", "AssertionError: x", 4),
]


@named(("ended", "evidence", "triage", "status", "reason", "line_no"), TRIAGED)
def test_a_failure_has_the_reason_that_its_log_gives(
    ended: JobEnd, evidence: Evidence, triage: Triage, status: str, reason: str, line_no: int
) -> None:
    verdict = judge(ended, evidence, LINE, test="t.py", containers=True, triage=triage)
    assert (verdict.status, verdict.reason, verdict.line_no) == (status, reason, line_no)


def test_a_log_is_triaged_where_the_job_ran_and_did_not_get_through() -> None:
    assert all(map(needs_triage, [JobEnd("exit", 1), TIMEOUT]))
    assert not any(map(needs_triage, [JobEnd("exit", 0), JobEnd("cancelled", 143), JobEnd("exit", 1, log_error="x")]))


def test_without_containers_docker_said_nothing() -> None:
    verdict: Verdict = judge(JobEnd("exit", 125), NONE, DAEMON, test="t.py", containers=False)
    assert verdict.status == "failed"


def test_a_program_that_is_missing_is_this_machines_without_a_container() -> None:
    missing = replace(FOUND, text="bash: line 1: uv: command not found")
    known = [(SCRIPT, False, missing), (SCRIPT, True, missing), (BAD, False, missing), (SCRIPT, False, FOUND)]
    ended = [judge(JobEnd("exit", 127), each, LINE, test="t.py", containers=of, triage=say) for each, of, say in known]
    assert [verdict.status for verdict in ended] == ["blocked", "failed", "failed", "failed"]


WEIGHED = [
    ("junit", Junit(3, 1, 1, "x"), {"passed": 1, "failed": 1, "skipped": 1}, Evidence("junit", 2, 1, 1, 0, "x")),
    ("several sessions, the last in JUnit", Junit(1, 0, 0), {"passed": 4, "failed": 1}, Evidence("pytest", 5, 1)),
    ("JUnit inside a container's own directory", None, {"passed": 2}, Evidence("pytest", 2)),
    ("half-written JUnit", None, {}, Evidence("pytest")),
    ("JUnit, a quiet log", Junit(2, 0, 0), None, Evidence("junit", 2)),
    ("last session skipped", Junit(2, 0, 2), {"passed": 9, "skipped": 2}, Evidence("pytest", 9, 0, 2)),
]


@named(("junit", "counts", "evidence"), WEIGHED)
def test_of_junit_and_log_the_one_that_saw_more_counts(
    junit: Junit | None, counts: dict[str, int] | None, evidence: Evidence
) -> None:
    assert collect_evidence(junit, LogFacts(pytest=counts), defines_tests=True, takes_locks=True) == evidence


OTHER = [
    (LogFacts(unittest=3, unittest_skipped=1, unittest_failed=1, metrics=2), Evidence("unittest", 2, 1, 1, 2)),
    (LogFacts(metrics=2), Evidence("set-up", steps=2)),
    (LogFacts(), Evidence("set-up")),
    (LogFacts(gpu_ids=(0,), metrics=2), Evidence("metrics", steps=2)),
    (LogFacts(gpu_ids=(0,)), Evidence("none")),
    (LogFacts(gpu_ids=(0,), pytest_failed=2), Evidence("none", failures=2)),
    (LogFacts(pytest={"passed": 3}, pytest_failed=1), Evidence("pytest", 3, 1)),
    (
        LogFacts(pytest={"passed": 3, "failed": 1}, pytest_failed=1, unittest=1, unittest_failed=1),
        Evidence("pytest", 4, 2),
    ),
]


@pytest.mark.parametrize(("log", "evidence"), OTHER)
def test_without_pytest_other_evidence_counts(log: LogFacts, evidence: Evidence) -> None:
    assert collect_evidence(None, log, defines_tests=True, takes_locks=True) == evidence


def _suite(cases: str) -> bytes:
    return f'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>{cases}</testsuite></testsuites>'.encode()


PASSED = '<testcase name="test_a"/>'
FAILED = '<testcase name="test_b"><failure message="assert 1 == 2&#10;more">text</failure></testcase>'
ERROR = '<testcase name="test_c"><error message=""/></testcase>'
SKIPPED_CASE = '<testcase name="test_d"><skipped type="pytest.skip" message="no GPU"/></testcase>'
XFAILED = '<testcase name="test_e"><skipped type="pytest.xfail" message=""/></testcase>'

GOOD = [
    ("", Junit(0, 0, 0), 0),
    (PASSED, Junit(1, 0, 0), 1),
    (PASSED + FAILED + ERROR, Junit(3, 2, 0, "test_b: assert 1 == 2"), 3),
    (ERROR, Junit(1, 1, 0, "test_c: failed"), 1),
    (PASSED + SKIPPED_CASE, Junit(2, 0, 1), 1),
    (XFAILED, Junit(1, 0, 0), 1),  # an expected failure ran
    (XFAILED.replace('message=""', 'message="[NOTRUN] later"'), Junit(1, 0, 1), 0),
]


@pytest.mark.parametrize(("cases", "junit", "executed"), GOOD)
def test_counts_and_first_failure(cases: str, junit: Junit, executed: int) -> None:
    counts = read_junit([_suite(cases)])
    assert counts == junit
    assert counts.executed == executed


CASE = '<testcase classname="tests.test_x.T" name="test_y[a::b]"'
THERE = [f"{CASE}/>", f"{CASE}/>{FAILED}", f"{CASE}><system-out>x</system-out></testcase>"]
MISSED = [f"{CASE}><failure/></testcase>", f"{CASE}><skipped/></testcase>", CASE.replace("_y", "_z") + "/>"]
OTHER_FILE = CASE.replace("_x", "_w") + "/>"
NOT_RUN = [*((case, b"", False) for case in THERE), *((case, b"test_x.py", True) for case in MISSED)]
NOT_RUN += [(OTHER_FILE, b"test_x.py .", False), (OTHER_FILE, b"test_w.py .", True), (f"{CASE}><failure>", b"", True)]


@pytest.mark.parametrize(("cases", "log", "is_missing"), NOT_RUN)
def test_a_test_did_not_run_if_only_others_passed(cases: str, log: bytes, is_missing: bool) -> None:
    pieces = [b"tests/" + log[:3], log[3:]]
    found = missed_tests([_suite(cases)], ["tests/test_x.py::T::test_y[a::b] (tests/test_x.py:4)"], pieces)
    assert found == ["tests/test_x.py::T::test_y[a::b]"] * is_missing


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuites>&b;</testsuites>'
NO_XML = {
    "empty": b"",
    "half-written": _suite(PASSED + FAILED)[:-40],
    "not XML": b"Segmentation fault",
    "bomb": BOMB,
    "bomb in UTF-16": BOMB.decode().encode("utf-16"),
    "unknown encoding": b'<?xml version="1.0" encoding="nope"?><testsuites/>',
    "multi-byte encoding": b'<?xml version="1.0" encoding="utf-7"?><testsuites/>',
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("text", NO_XML.values(), ids=NO_XML.keys())
def test_what_is_no_junit_file_is_none(text: bytes) -> None:
    assert read_junit([text]) is None


def test_a_file_is_read_in_a_stream() -> None:
    """A large one costs no memory: nothing of its text is kept, wherever a piece ends."""
    whole = _suite(PASSED + FAILED + ERROR + SKIPPED_CASE)
    assert read_junit(whole[at : at + 1] for at in range(len(whole))) == Junit(4, 2, 1, "test_b: assert 1 == 2")
    cases = PASSED[:-2] + "><system-out>" + "x" * 1000 + "</system-out></testcase>"
    head, tail = _suite("|").split(b"|")
    tracemalloc.start()
    counts = read_junit(itertools.chain([head], itertools.repeat(cases.encode(), 20_000), [tail]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == Junit(20_000, 0, 0)
    assert peak < 1_000_000
