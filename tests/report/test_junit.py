"""The XML of a run, read back as its readers do."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.records import EXIT_CODES, RunRecord
from ci_tasks.report.junit import render
from ci_tasks.results.verdict import read_junit
from tests.report import test_markdown


def record(row: str = "ppo", status: str = "passed", **more: Any) -> RunRecord:
    return test_markdown.record(row, status, **more)


def triage(**fields: Any) -> dict[str, Any]:
    return {"verdict": "failed", "signature": "x", "confidence": 0.9, **fields}


def case(record: RunRecord, log: str = "/runs/01/log") -> ElementTree.Element:
    element = ElementTree.fromstring(render("batch", [record], [log]).encode()).find("testsuite/testcase")
    assert element is not None
    return element


def whole_file() -> str:
    """Its golden file is screens/junit.xml."""
    before = {"id": "batch.02", "host": "h100b", "status": "blocked", "reason": "disk full"}
    attempts = [before, {"id": "batch.01", "host": "h100a", "status": "failed"}]
    found = triage(cause="python_error", line="KeyError: 'a' & <b>", line_no=41)
    more = {"timings": {"seconds": None}, "environment": {"image": "slimerl/slime:latest"}}
    failed = record("ckpt", "failed", reason="KeyError: 'a' & <b>", triage=found, attempts=attempts, **more)
    return render("batch", [failed], ["/runs/02/log"])


ELEMENTS = [
    ("passed", None),
    ("failed", "failure"),
    ("vacuous", "failure"),
    ("blocked", "error"),
    ("lost", "error"),
    ("cancelled", "error"),
    ("running", "error"),  # the file must not be greener than the run
]


@pytest.mark.parametrize(("status", "element"), ELEMENTS)
def test_each_status_has_its_element(status: str, element: str | None) -> None:
    tags = [child.tag for child in case(record(status=status)) if child.tag != "properties"]
    assert tags == ([element] if element else [])


def test_what_the_suite_counts_is_what_its_cases_are() -> None:
    suite = ElementTree.fromstring(render("b", [record(status=status) for status in EXIT_CODES], [""] * 6)).find(
        "testsuite"
    )
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["6", "2", "2", "1"]


def test_the_line_that_triage_found_is_said_where_the_reason_is_another() -> None:
    testcase = case(
        record(status="failed", reason="exit code 1", triage=triage(cause="unknown", line="boom", line_no=3))
    )
    assert testcase.findtext("failure") == "exit code 1\nboom\nlog: /runs/01/log:3"


def test_a_row_that_never_began_has_no_log() -> None:
    testcase = case(record(status="blocked", reason="no GPU", started_at=None, checkout=None, environment={}))
    assert testcase.findtext("error") == "no GPU"


def test_no_row_is_a_file_all_the_same() -> None:
    assert ElementTree.fromstring(render("b", [], [])).get("tests") == "0"


ANY = st.text(st.characters())  # lone surrogates and control characters included


@settings(max_examples=60)
@given(ANY, ANY, ANY, ANY)
def test_whatever_rows_and_reasons_contain_it_is_xml(name: str, row: str, reason: str, line: str) -> None:
    failed = record(row, "failed", reason=reason, label=name, host=line, triage=triage(cause="x", line=line, line_no=1))
    text = render(name, [failed], [line]).encode("utf-8")
    junit = read_junit([text])
    assert junit is not None and (junit.tests, junit.failures) == (1, 1)


def test_what_xml_cannot_say_is_marked() -> None:
    assert case(record("a\x1b[31m\ud800\ufffe\x00\tb")).get("name") == "a\ufffd[31m\ufffd\ufffd\\x00\tb"
