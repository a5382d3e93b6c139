"""Rows that another job's output gives: the job runs here, and what it wrote is read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci_tasks.errors import CiTasksError, WorkflowError
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.job_outputs import find_rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read

WORKFLOW = """\
on: pull_request
jobs:
  detect:
    runs-on: ubuntu-latest
    %s
    outputs: {tests: "${{ steps.find.outputs.tests }}"}
    steps:
      - {run: echo looking}
      - {id: find, run: '%s'}
  unit:
    needs: detect
    runs-on: ubuntu-latest
    strategy: {matrix: {test: "${{ fromJSON(needs.detect.outputs.tests) }}"}}
    steps: [{run: "pytest ${{ matrix.test }}"}]
"""
FIND = 'echo "tests=[\\"$(ls tests)\\"]" >> "$GITHUB_OUTPUT"'


def source(path: Path, find: str, more: str = "") -> CheckoutSource:
    """A checkout with a test that is not committed."""
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*argv, "init", "-q"], cwd=path, check=True)
    subprocess.run([*argv, "commit", "-q", "--allow-empty", "-m", "1"], cwd=path, check=True)
    (path / "tests").mkdir()
    (path / "tests" / "test_new.py").touch()
    return CheckoutSource(path, "given", read(WORKFLOW % (more, find.replace("'", "''")), "ci.yml"))


def test_a_job_that_gives_rows_sees_files_that_are_not_committed(tmp_path: Path) -> None:
    found = find_rows(source(tmp_path, FIND), "unit", EventContext(), "HEAD")
    assert [row.row for row in found.rows] == ["unit[test_new.py]"]
    assert found.context.outputs == {"detect": {"tests": '["test_new.py"]'}}


@pytest.mark.parametrize("code", [1, 3])
def test_a_job_that_fails_gives_no_rows_even_if_it_wrote_some(tmp_path: Path, code: int) -> None:
    with pytest.raises(CiTasksError, match=f"job detect, whose output decides the rows, ends with {code}: "):
        find_rows(source(tmp_path, f"{FIND}; exit {code}"), "unit", EventContext(), "HEAD")


def test_a_job_that_writes_no_output_is_an_error_of_the_workflow(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError):
        find_rows(source(tmp_path, "true"), "unit", EventContext(), "HEAD")


@pytest.mark.parametrize(("find", "more"), [("docker run x", ""), (FIND, "container: {image: a/b}")])
def test_a_job_with_containers_is_not_run_here(tmp_path: Path, find: str, more: str) -> None:
    with pytest.raises(WorkflowError, match="its output decides the rows, and it cannot be run here") as caught:
        find_rows(source(tmp_path, find, more), "unit", EventContext(), "HEAD")
    assert caught.value.job == "detect"
