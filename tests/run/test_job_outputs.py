"""Rows that another job's output gives: the job runs here, and what it wrote is read."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.errors import CiTasksError, WorkflowError
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.find_rows import find_rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.reader import read
from tests.parts.git import repository

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
    repository(path)
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


CHANGED = """\
on: pull_request
jobs:
  e2e-test-changed-detect:
    runs-on: ubuntu-latest
    outputs: {matrix: "${{ steps.find.outputs.matrix }}"}
    steps:
      - id: find
        shell: bash
        run: |
          ROWS=""
          for file in $(git diff --name-only --diff-filter=AM origin/main...HEAD -- 'tests/test_*.py'); do
            GPUS=$(grep -oP '^NUM_GPUS = \\K[0-9]+' "$file" | head -1)
            ROWS+="${ROWS:+,}{\\"test_file\\":\\"$file\\",\\"num_gpus\\":${GPUS:-8}}"
          done
          echo "matrix={\\"info\\":[$ROWS]}" >> "$GITHUB_OUTPUT"
  e2e-test-changed:
    needs: e2e-test-changed-detect
    runs-on: [self-hosted, cpu]
    strategy: {matrix: "${{ fromJSON(needs.e2e-test-changed-detect.outputs.matrix) }}"}
    steps: [{run: "python ${{ matrix.info.test_file }}"}]
"""
TEXT = "NUM_GPUS = 2\n" + "# a line\n" * 20


def changed_source(path: Path, before: list[str], now: dict[str, str | None]) -> CheckoutSource:
    """A checkout with the files `before` committed, and with `now` on disk; None removes a file."""
    repository(path, dict.fromkeys(before, TEXT))
    for name, text in now.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).unlink() if text is None else (path / name).write_text(text)
    return CheckoutSource(path, "given", read(CHANGED, ".github/workflows/pr-test.yml"))


def test_changed_tests_are_listed_by_cis_rule_without_executing_its_script(tmp_path: Path) -> None:
    source = changed_source(tmp_path, [], {"tests/test_a.py": TEXT})
    script = CHANGED.replace('ROWS=""', f'ROWS=""; touch {shlex.quote(str(tmp_path))}/executed', 1)
    source = replace(source, workflow=read(script, ".github/workflows/pr-test.yml"))
    found = find_rows(source, "changed", EventContext(), "HEAD", run_needs=False)
    assert [row.test for row in found.rows] == ["tests/test_a.py"]
    assert "nothing of the checkout is executed" in found.deviations[0].why
    assert not (tmp_path / "executed").exists()
    find_rows(source, "changed", EventContext(), "HEAD")
    assert (tmp_path / "executed").exists(), "with it, it is"


def test_a_file_at_which_cis_detection_ends_with_an_error_is_named(tmp_path: Path) -> None:
    """With pipefail, as `shell: bash` sets it, a grep without a match ends the script before its default counts."""
    source = changed_source(tmp_path, [], {"tests/test_a.py": "", "tests/test_b.py": TEXT})
    found = find_rows(source, "changed", EventContext(), "HEAD")
    assert [(row.test, row.gpus) for row in found.rows] == [("tests/test_a.py", 8), ("tests/test_b.py", 2)]
    (note,) = found.deviations
    assert (
        note.why
        == "CI's detection ends with an error, and no changed test runs: no line NUM_GPUS = n in tests/test_a.py"
    )
