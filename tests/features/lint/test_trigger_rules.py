"""Which tests a label's row starts, which only the job for changed tests, and which nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ci_tasks.features.lint.checkout_files import CheckoutFiles, LintFinding
from ci_tasks.features.lint.rules import lint
from ci_tasks.workflow.changed_tests import ChangedJob
from ci_tasks.workflow.suite import ChangedRule
from tests.features.lint.test_rules import CLEAN, RUNS, subject

FAILS = ChangedRule(("tests/test_*.py",), "AM", re.compile("^NUM_GPUS = [0-9]+"), fails_without=True)
EIGHT = replace(FAILS, default_gpus=8, fails_without=False)


def checkout(rule: ChangedRule | None, files: dict[str, str], *commands: str) -> CheckoutFiles:
    """The clean checkout and more files; the rule selects what lies in tests/, or in a folder of it named test_…"""
    whole = subject(tests={**CLEAN, **files})
    if rule is None:
        return replace(whole, commands=commands)
    selected = frozenset(path for path in whole.files if path.startswith("tests/test_"))
    return replace(whole, changed=[(ChangedJob("cpu-unittest", "run-ci-changed", rule), selected)], commands=commands)


def reported(of: CheckoutFiles, *rules: str) -> list[tuple[str, str]]:
    return [(finding.rule, finding.file) for finding in lint(of) if not rules or finding.rule in rules]


def only(of: CheckoutFiles, rule: str) -> LintFinding:
    (finding,) = (finding for finding in lint(of) if finding.rule == rule)
    return finding


def test_without_a_job_for_changed_tests_nothing_reaches_a_test_that_is_in_no_matrix() -> None:
    of = checkout(None, {"tests/test_c.py": RUNS})
    assert reported(of) == [("unreachable", "tests/test_c.py")]
    assert only(of, "unreachable").message == "in no job's matrix"


def test_a_test_that_the_job_for_changed_tests_selects_is_unregistered_and_not_unreachable() -> None:
    of = checkout(FAILS, {"tests/test_c.py": f"NUM_GPUS = 1\n{RUNS}"})
    assert reported(of) == [("unregistered", "tests/test_c.py")]
    expected = "in no job's matrix; run-ci-changed runs it when it changes, with 1 GPU"
    assert only(of, "unregistered").message == expected


def test_a_test_that_no_pathspec_selects_is_unreachable() -> None:
    of = checkout(FAILS, {"tests/utils/test_c.py": RUNS})
    assert reported(of) == [("unreachable", "tests/utils/test_c.py")]
    assert "run-ci-changed selects only 'tests/test_*.py'" in only(of, "unreachable").message


@pytest.mark.parametrize(
    "command",
    [
        "python tests/utils/test_c.py --fast",
        "pytest tests/utils",
        "python -m pytest -q ./tests/",
    ],
)
def test_a_test_that_another_step_runs_is_reached(command: str) -> None:
    assert reported(checkout(FAILS, {"tests/utils/test_c.py": RUNS}, command)) == []


def test_a_test_that_a_registered_test_starts_is_reached() -> None:
    starts = f"import subprocess\nNUM_GPUS = 4\nCOMMAND = ['torchrun', 'tests/utils/test_c.py']\n{RUNS}"
    assert reported(checkout(FAILS, {"tests/test_a.py": starts, "tests/utils/test_c.py": RUNS})) == []


def test_a_changed_test_that_only_defines_things_runs_nothing() -> None:
    of = checkout(FAILS, {"tests/test_c.py": "NUM_GPUS = 0\ndef test_x(): ...\n"})
    assert reported(of, "runs-nothing") == [("runs-nothing", "tests/test_c.py")]
    assert only(of, "runs-nothing").message.startswith("run-ci-changed runs `python tests/test_c.py` when it changes")


# What the file is, and what the job for changed tests does with it where it has no line NUM_GPUS = n.
@pytest.mark.parametrize(
    ("path", "rule", "effect"),
    [
        # A registered test, one that is not, and a helper: each of them ends slime's detection.
        ("tests/test_a.py", FAILS, "ends with an error"),
        ("tests/test_folder/helpers.py", FAILS, "ends with an error"),
        # With a default, only what is shown to be wrong: a row with another number, and what is no test.
        ("tests/test_a.py", EIGHT, "runs this file on 8 GPUs when a pull request changes it; its row has 4"),
        ("tests/test_a.py", replace(EIGHT, default_gpus=4), None),
        ("tests/test_folder/helpers.py", EIGHT, "runs this file as a test on 8 GPUs"),
        # Where nobody knows how the script finds the number, nothing is claimed.
        ("tests/test_a.py", replace(FAILS, gpus_line=None), None),
        # What is not selected needs no such line.
        ("tests/utils/test_b.py", FAILS, None),
    ],
)
def test_a_file_without_num_gpus(path: str, rule: ChangedRule, effect: str | None) -> None:
    found = [finding for finding in lint(checkout(rule, {path: RUNS})) if finding.rule == "no-num-gpus"]
    assert [finding.file for finding in found] == ([path] if effect else [])
    assert all(effect is not None and effect in finding.message for finding in found)
