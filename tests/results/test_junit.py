"""JUnit files as pytest writes them, as a killed run leaves them, and as nobody should send them."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from ci_tasks.results.verdict import Junit, read_junit


def _suite(cases: str) -> bytes:
    return f'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>{cases}</testsuite></testsuites>'.encode()


PASSED = '<testcase name="test_a"/>'
FAILED = '<testcase name="test_b"><failure message="assert 1 == 2&#10;more">text</failure></testcase>'
ERROR = '<testcase name="test_c"><error message=""/></testcase>'
SKIPPED = '<testcase name="test_d"><skipped type="pytest.skip" message="no GPU"/></testcase>'
XFAILED = '<testcase name="test_e"><skipped type="pytest.xfail" message=""/></testcase>'

GOOD = [
    ("", Junit(0, 0, 0), 0),
    (PASSED, Junit(1, 0, 0), 1),
    (PASSED + FAILED + ERROR, Junit(3, 2, 0, "test_b: assert 1 == 2"), 3),
    (ERROR, Junit(1, 1, 0, "test_c: failed"), 1),
    (PASSED + SKIPPED, Junit(2, 0, 1), 1),
    (XFAILED, Junit(1, 0, 0), 1),  # an expected failure ran
]


@pytest.mark.parametrize(("cases", "junit", "executed"), GOOD)
def test_counts_and_first_failure(cases: str, junit: Junit, executed: int) -> None:
    counts = read_junit([_suite(cases)])
    assert counts == junit
    assert counts.executed == executed


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuites>&b;</testsuites>'
BAD = {
    "empty": b"",
    "half-written": _suite(PASSED + FAILED)[:-40],
    "not XML": b"Segmentation fault",
    "bomb": BOMB,
    "bomb in UTF-16": BOMB.decode().encode("utf-16"),
    "unknown encoding": b'<?xml version="1.0" encoding="nope"?><testsuites/>',
    "multi-byte encoding": b'<?xml version="1.0" encoding="utf-7"?><testsuites/>',
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_junit_file_is_none(text: bytes) -> None:
    assert read_junit([text]) is None


def test_a_file_is_read_in_a_stream() -> None:
    """A large one costs no memory: nothing of its text is kept, wherever a piece ends."""
    whole = _suite(PASSED + FAILED + ERROR + SKIPPED)
    assert read_junit(whole[at : at + 1] for at in range(len(whole))) == Junit(4, 2, 1, "test_b: assert 1 == 2")
    cases = PASSED[:-2] + "><system-out>" + "x" * 1000 + "</system-out></testcase>"
    head, tail = _suite("|").split(b"|")
    tracemalloc.start()
    counts = read_junit(itertools.chain([head], itertools.repeat(cases.encode(), 20_000), [tail]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == Junit(20_000, 0, 0)
    assert peak < 1_000_000
