"""Findings that a project lives with, in a file that can only shrink."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.judge.lint import Finding
from ci_tasks.judge.lint.baseline import compare, read, write


def finding(subject: str, line: int = 1) -> Finding:
    return Finding("tests/test_a.py", line, "unregistered", "message", "fix", subject)


OLD, NEW = finding("old"), finding("new")


def test_what_is_written_is_read_in_one_order() -> None:
    text = write([NEW.key, OLD.key, NEW.key])
    assert text == write([OLD.key, NEW.key])
    assert read(text, "lint.json") == {OLD.key, NEW.key}


def test_known_findings_are_told_from_new_ones_whatever_their_line() -> None:
    found = compare([finding("old", line=9), NEW], read(write([OLD.key]), "lint.json"))
    assert [one.subject for one in found.known] == ["old"]
    assert [one.subject for one in found.new] == ["new"]
    assert found.gone == ()


def test_an_entry_that_is_found_no_more_has_to_leave() -> None:
    assert compare([NEW], frozenset({OLD.key, NEW.key})).gone == (OLD.key,)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [{"rule": "x"}]}', '{"findings": 3}'])
def test_a_file_that_is_no_baseline_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"lint\.json is no baseline"):
        read(text, "lint.json")
