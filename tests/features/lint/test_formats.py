"""Findings for pull requests."""

from __future__ import annotations

from ci_tasks.features.lint.formats import github
from ci_tasks.features.lint.lint_finding import LintFinding


def test_annotations_keep_to_githubs_escapes() -> None:
    """Else the name of a file could be another command of the workflow."""
    finding = LintFinding("tests/a, b.py", 3, "gpus-differ", "50% of\nthem", "make both 4", "a")
    start = "::error file=tests/a%2C b.py,line=3,title=gpus-differ::50%25 of%0Athem."
    assert github([finding])[0].startswith(start)
