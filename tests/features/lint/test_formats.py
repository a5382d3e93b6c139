"""Findings for people and for pull requests."""

from __future__ import annotations

from ci_tasks.features.lint.formats import github, text
from ci_tasks.features.lint.lint_finding import RULES, LintFinding

ONE = LintFinding("tests/a, b.py", 3, "gpus-differ", "50% of\nthem", "make both 4", "a")
TWO = LintFinding("docs/ci.md", 7, "unknown-label", "run-ci-x starts no job", "name one", "x")
THREE = LintFinding("docs/ci.md", 9, "unknown-label", "run-ci-y starts no job", "name one", "y")


def test_a_rule_says_once_why_it_matters() -> None:
    lines = text([ONE, TWO, THREE])
    assert sum(RULES["unknown-label"].why in line for line in lines) == 1
    assert "  docs/ci.md:7: run-ci-x starts no job" in lines
    assert lines[-1] == "    fix: name one"


def test_annotations_keep_to_githubs_escapes() -> None:
    assert github([ONE])[0].startswith(
        "::error file=tests/a%2C b.py,line=3,title=gpus-differ::50%25 of%0Athem. the row"
    )
