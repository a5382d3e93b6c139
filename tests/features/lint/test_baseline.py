"""Findings that a project lives with, in a file that can only shrink."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.lint.baseline import compare, read, write
from ci_tasks.features.lint.lint_finding import LintFinding


def finding(subject: str, line: int = 1) -> LintFinding:
    return LintFinding("tests/test_a.py", line, "unregistered", "message", "fix", subject)


OLD, NEW = finding("old"), finding("new")


def test_what_is_written_is_read_in_one_order() -> None:
    text = write([NEW.key, OLD.key, NEW.key])
    assert text == write([OLD.key, NEW.key])
    assert read(text, "lint.json") == {OLD.key, NEW.key}


def test_known_findings_are_recognized_on_any_line() -> None:
    comparison = compare([finding("old", line=9), NEW], read(write([OLD.key]), "lint.json"))
    assert [finding.subject for finding in comparison.baselined] == ["old"]
    assert [finding.subject for finding in comparison.new] == ["new"]
    assert comparison.fixed == ()


def test_an_entry_without_a_finding_must_be_removed() -> None:
    assert compare([NEW], frozenset({OLD.key, NEW.key})).fixed == (OLD.key,)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [{"rule": "x"}]}', '{"findings": 3}'])
def test_a_file_that_is_no_baseline_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"lint\.json is no baseline"):
        read(text, "lint.json")
