"""Rows that another job's outputs decide: that job is run here only for a person who asks for it. And which checkout is
meant where none is named. That they upload artifacts is seen in `ci_tasks.workflow.rows`."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import resources
from ci_tasks.cli.commands.labels import JobsOptions, PlanOptions, jobs, plan
from ci_tasks.errors import CheckoutError, CiTasksError, WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.run.checkout_source import (
    REPO_ENV,
    SAMPLE,
    CheckoutSource,
    event_context,
    find_checkout,
    open_source,
    outline,
)
from ci_tasks.run.find_rows import find_rows, list_jobs
from ci_tasks.workflow.context import EventContext, UnknownValueError
from ci_tasks.workflow.reader import read
from tests.parts.git import git, repository

WORKFLOW = """
on: pull_request
jobs:
  detect:
    runs-on: x
    outputs: {matrix: '${{ steps.find.outputs.matrix }}'}
    steps:
      - id: find
        run: |
          touch MARK
          echo "matrix={\\"n\\": [1, \\"$(ls)\\"]}" >> "$GITHUB_OUTPUT"
  tests:
    runs-on: x
    needs: detect
    strategy: {matrix: '${{ fromJson(needs.detect.outputs.matrix) }}'}
    steps: [{run: 'echo ${{ matrix.n }}'}]
  vars:
    runs-on: x
    strategy: {matrix: '${{ fromJson(vars.MATRIX) }}'}
    steps: [{run: x}]
"""


@pytest.fixture
def checkout(commit: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkout whose detection leaves the file `mark` beside it."""
    return commit(WORKFLOW.replace("MARK", shlex.quote(str(tmp_path / "mark"))))


def test_jobs_and_plan_execute_nothing_of_the_checkout(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs(JobsOptions(repo=str(checkout), json=True)) == 0
    assert jobs(JobsOptions(label="tests", repo=str(checkout))) == 0
    assert "--run-needs runs that job here" in capsys.readouterr().out
    with pytest.raises(UnknownValueError) as caught:
        plan(PlanOptions(label="tests", repo=str(checkout)))
    assert caught.value.hint.startswith("give --output detect.matrix=VALUE; with --run-needs, `jobs` and `plan`")
    assert not (checkout.parent / "mark").exists()


def test_who_asks_for_it_has_the_job_run(checkout: Path) -> None:
    source = open_source(str(checkout))
    source.path.joinpath("untracked").touch()
    rows = list_jobs(source, "tests", "HEAD", run_needs=True)
    assert [row.row for row in rows] == ["tests[1]", "tests[untracked]"]
    assert (checkout.parent / "mark").exists()


# what the detection runs at its end, what else it has → the error
NO_ROWS = {
    "it fails": ("exit 3", "", "job detect, whose output decides the rows, ends with 3: "),
    "it runs docker": ("docker run x", "", "its output decides the rows, and it cannot be run here: it uses docker"),
    "its container": (":", "container: {image: a/b}", "it cannot be run here: it uses docker"),
}


@pytest.mark.parametrize(("end", "more", "message"), NO_ROWS.values(), ids=NO_ROWS)
def test_a_detection_that_fails_or_needs_containers_gives_no_rows(
    commit: Callable[[str], Path], end: str, more: str, message: str
) -> None:
    text = WORKFLOW.replace("touch MARK", ":").replace("    outputs:", f"    {more}\n    outputs:", 1)
    text = text.replace('"$GITHUB_OUTPUT"\n', f'"$GITHUB_OUTPUT"\n          {end}\n', 1)
    source = open_source(str(commit(text)))
    with pytest.raises(CiTasksError, match=message):
        find_rows(source, "tests", event_context(source), "HEAD")


def test_a_given_output_decides_the_rows_and_runs_nothing(checkout: Path) -> None:
    given = GivenValues(outputs={"detect": {"matrix": json.dumps({"n": [3]})}})
    source = open_source(str(checkout), given=given)
    found = find_rows(source, "tests", event_context(source), None, run_needs=False)
    assert [row.row for row in found.rows] == ["tests[3]"]
    assert not (checkout.parent / "mark").exists()


def test_a_matrix_that_only_github_knows_is_no_row_to_run(checkout: Path) -> None:
    source = open_source(str(checkout))
    with pytest.raises(UnknownValueError, match="the rows are not known") as caught:
        find_rows(source, "vars", event_context(source), None)
    assert caught.value.hint.startswith("give --var MATRIX=VALUE")


def test_a_job_with_an_error_hides_no_others(commit: Callable[[str], Path]) -> None:
    steps = "runs-on: ubuntu-latest, steps: [{run: x}]"
    bad = f"  bad: {{{steps}, strategy: {{matrix: {{a: \"${{{{ fromJSON('[1') }}}}\"}}}}}}\n"
    source = open_source(str(commit(f"on: pull_request\njobs:\n{bad}  good: {{{steps}}}\n")))
    listed = {row.label: row.refused for row in list_jobs(source)}
    assert "fromJSON: not JSON" in (listed["bad"] or "") and listed["good"] is None
    assert outline(source) == {"bad": [], "good": ["good"]}
    with pytest.raises(WorkflowError, match="fromJSON: not JSON"):
        list_jobs(source, "bad")


CALLED = """
on:
  workflow_call:
    inputs: {size: {type: string, required: true}}
    outputs: {rows: {value: "${{ jobs.second.outputs.rows }}"}, odd: {value: "${{ jobs.gone.outputs.x }}"}}
jobs:
  first:
    runs-on: x
    outputs: {size: "${{ steps.a.outputs.size }}"}
    steps: [{id: a, run: 'echo "size=${{ inputs.size }}" >> "$GITHUB_OUTPUT"'}]
  second:
    runs-on: x
    needs: first
    outputs: {rows: "${{ steps.a.outputs.rows }}"}
    steps: [{id: a, run: 'echo "rows=[${{ needs.first.outputs.size }}, 9]" >> "$GITHUB_OUTPUT"'}]
"""
USES_OUTPUTS = """
on: pull_request
jobs:
  policy:
    runs-on: x
    outputs: {size: "${{ steps.p.outputs.size }}", base: "${{ steps.p.outputs.base }}"}
    steps:
      - {uses: actions/checkout@v4}
      - id: p
        run: |
          echo size=7 >> "$GITHUB_OUTPUT"; echo ran >> MARK
          echo "base=${{ github.event.pull_request.base.sha }}" >> "$GITHUB_OUTPUT"
  rows: {needs: policy, uses: ./.github/workflows/called.yml, with: {size: "${{ needs.policy.outputs.size }}"}}
  tests:
    needs: [policy, rows]
    runs-on: ubuntu-latest
    strategy: {matrix: {n: "${{ fromJSON(needs.rows.outputs.rows) }}"}}
    env: {BASE: "${{ needs.policy.outputs.base }}"}
    steps: [{run: "echo ${{ needs.policy.outputs.size }}"}]
"""


def test_outputs_of_jobs_and_of_called_workflows_reach_rows_variables_and_steps(
    commit: Callable[[str], Path], tmp_path: Path
) -> None:
    path = commit(USES_OUTPUTS.replace("MARK", shlex.quote(str(tmp_path / "mark"))))
    (path / ".github/workflows/called.yml").write_text(CALLED)
    source = open_source(str(path), workflow=".github/workflows/ci.yml")
    found = find_rows(source, "tests", event_context(source), "HEAD")
    assert [row.row for row in found.rows] == ["tests[7]", "tests[9]"]
    assert (tmp_path / "mark").read_text() == "ran\n", "a job that two others need runs once"
    base = git(path, "rev-parse", "HEAD")
    assert found.context.outputs["policy"] == {"size": "7", "base": base}
    assert {row.env["BASE"] for row in found.rows} == {base}
    with pytest.raises(UnknownValueError, match="the rows are not known") as caught:
        find_rows(source, "tests", event_context(source), "HEAD", run_needs=False)
    assert caught.value.hint.startswith("give --output rows.rows=VALUE; with --run-needs")


ARTIFACTS = """
on: pull_request
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - run: mkdir dist && echo wheel > dist/a.whl
      - uses: actions/upload-artifact@v4
        with: {name: dist, path: dist}
  on-gpus:
    runs-on: 8-gpu-h100
    steps: [{run: exit 1}, {uses: actions/upload-artifact@v4, with: {path: x}}]
  install:
    needs: [build, on-gpus]
    runs-on: ubuntu-latest
    steps:
      - {uses: actions/download-artifact@v4, with: {name: dist, path: in}}
      - run: cp in/a.whl COPY
"""


@pytest.mark.parametrize("run_needs", [True, False])
def test_artifacts_that_a_needed_job_uploads_are_unpacked_in_the_row(
    commit: Callable[[str], Path], tmp_path: Path, run_needs: bool
) -> None:
    path, out = commit(ARTIFACTS.replace("COPY", shlex.quote(str(tmp_path / "copy")))), tmp_path / "out"
    plan(PlanOptions(label="install", repo=str(path), run_needs=run_needs, base="HEAD", out=str(out), json=True))
    done = subprocess.run(["bash", str(out / "01/run.sh")], capture_output=True, text=True)
    assert done.returncode == (0 if run_needs else 125), done
    if run_needs:
        assert (tmp_path / "copy").read_text() == "wheel\n"
    else:
        assert "ci-tasks: blocked: no job that ran here uploaded dist" in done.stderr


def test_a_matrix_of_a_caller_that_waits_for_a_job_is_an_error_that_names_it(commit: Callable[[str], Path]) -> None:
    caller = "strategy: {matrix: {n: '${{ fromJSON(needs.policy.outputs.rows) }}'}}, needs: policy"
    text = "on: pull_request\njobs:\n  policy: {runs-on: x, outputs: {rows: x}, steps: [{run: docker ps}]}\n"
    path = commit(f"{text}  called: {{{caller}, uses: ./.github/workflows/b.yml}}\n")
    (path / ".github/workflows/b.yml").write_text("on: workflow_call\njobs:\n  a: {runs-on: x, steps: [{run: x}]}\n")
    source = open_source(str(path), workflow=".github/workflows/ci.yml")
    for run_needs in (False, True):
        with pytest.raises(WorkflowError, match="rows"):
            find_rows(source, "called/a", event_context(source), "HEAD", run_needs=run_needs)


@pytest.mark.parametrize("name", ["../../secret.yml", ".github/workflows/../../../../secret.yml", "link.yml"])
def test_a_workflow_outside_of_checkout_is_not_read(commit: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    path = commit(
        "on: push\njobs:\n  away: {uses: ./NAME}\n  own: {runs-on: x, steps: [{run: x}]}\n".replace("NAME", name)
    )
    for place in (path.parent, path.parent.parent):
        (place / "secret.yml").write_text("token: s3cret\n")
    (path / "link.yml").symlink_to(path.parent / "secret.yml")
    assert list(outline(open_source(str(path), workflow="ci.yml"))) == ["away", "own"]


# -- changed tests -----------------------------------------------------------------------------------------------------

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


def changed_source(path: Path, files: dict[str, str], before: str = "") -> CheckoutSource:
    """A checkout with these files, none of them committed; `before` its detection runs this."""
    repository(path)
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    workflow = CHANGED.replace('ROWS=""', f'ROWS=""; {before or ":"}', 1)
    return CheckoutSource(path, "given", read(workflow, ".github/workflows/pr-test.yml"))


def test_changed_tests_are_listed_by_cis_rule_without_executing_its_script(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    source = changed_source(tmp_path, {"tests/test_a.py": TEXT}, f"touch {shlex.quote(str(mark))}")
    found = find_rows(source, "changed", EventContext(), "HEAD", run_needs=False)
    assert [row.test for row in found.rows] == ["tests/test_a.py"]
    assert "nothing of the checkout is executed" in found.deviations[0].why
    assert not mark.exists()
    find_rows(source, "changed", EventContext(), "HEAD")
    assert mark.exists(), "with it, it is"


def test_a_file_at_which_cis_detection_ends_with_an_error_is_named(tmp_path: Path) -> None:
    """With pipefail, as `shell: bash` sets it, a grep without a match ends the script before its default counts."""
    source = changed_source(tmp_path, {"tests/test_a.py": "", "tests/test_b.py": TEXT})
    for run_needs in (False, True):
        with pytest.raises(WorkflowError, match=r"no changed test runs: no line NUM_GPUS = n in tests/test_a\.py\nadd"):
            find_rows(source, "changed", EventContext(), "HEAD", run_needs=run_needs)


# -- `jobs --changed` --------------------------------------------------------------------------------------------------

ON_PATHS = "on: {pull_request: {paths: ['%s']}}\njobs: {%s: {runs-on: x, steps: [run: exit 1]}}\n"


def test_labels_of_all_workflows_by_the_changed_files(person: Any) -> None:
    person.write(".github/workflows/docs.yml", ON_PATHS % ("docs/**", "docs"))
    person.write(".github/workflows/other.yml", ON_PATHS % ("nothing/**", "other"))
    person.write(".github/workflows/broken.yml", "jobs: [")
    person.write(".github/workflows/range.yml", ON_PATHS % ("[z-a]", "range"))
    person.write(".github/workflows/docs.yml~", ON_PATHS % ("**", "backup"))
    person.write(".github/workflows/README.md", "not a workflow")
    person.write(".github/workflows/directory.yml/a", "not a workflow")
    person.git("add", "-A")
    person.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "workflows")
    person.git("update-ref", "refs/remotes/origin/main", "HEAD")
    person.write("docs/new.md", "not committed")
    said = person.ci_tasks("jobs", "--changed", "--json")
    starts = {entry["label"]: entry["starts"] for entry in said.json}
    assert (starts["docs"], starts["other"]) == ("yes", "no")
    assert starts["ckpt"] == "with label"
    assert {"backup", "-"} & {*starts} == {"-"}
    assert len(said.json) == len(starts) + 1  # a template has no labels of its own
    assert "README.md" not in person.ci_tasks("jobs", "--changed", "--rev", "HEAD").out
    shown = person.ci_tasks("jobs", "--changed").out
    assert shown.startswith("1 changed file since origin/main\n")
    assert "paths docs/new.md: none matches nothing/**" in shown and "invalid YAML" in shown
    assert "invalid filter pattern: bad character range z-a" in shown
    assert person.ci_tasks("jobs", "ckpt", "--changed").code == 2
    branches = "on: {pull_request: {branches: [r/1]}}\njobs: {docs: {runs-on: x, steps: [run: a]}}"
    person.write(".github/workflows/docs.yml", branches)
    person.git("update-ref", "refs/remotes/origin/r/1", "HEAD")
    for base, word in (("origin/r/1", "yes"), ("origin/main", "no"), ("HEAD~0", "no")):
        said = person.ci_tasks("jobs", "--changed", "--base", base, "--json")
        assert {entry["label"]: entry["starts"] for entry in said.json}["docs"] == word, base


OTHER_PROJECT = ".github/workflows/gpu.yml"
SLIME, BRIDGE = ".github/workflows/pr-test.yml", ".github/workflows/cicd-main.yml"


def test_a_directory_without_workflows_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError) as caught:
        open_source(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path} has no workflow in .github/workflows\n")


@pytest.mark.parametrize(
    ("files", "cwd", "found"),
    [
        # A suite knows the workflow of the current directory, or of one above it.
        ([f"a/{SLIME}"], "a", "a"),
        ([f"a/{SLIME}", "a/tests/x"], "a/tests", "a"),
        # Nothing here is a checkout: the sibling, else the sample.
        (["a/x", f"Megatron-Bridge/{BRIDGE}", f"slime/{SLIME}"], "a", "slime"),
        (["a/x"], "a", SAMPLE),
        # In another project's checkout no sibling is tested instead.
        ([f"a/{OTHER_PROJECT}", f"slime/{SLIME}"], "a", "a"),
    ],
)
def test_the_current_directory_comes_before_a_sibling(
    files: list[str], cwd: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.delenv(REPO_ENV, raising=False)
    monkeypatch.chdir(tmp_path / cwd)
    assert find_checkout(None)[0] == (resources.path(SAMPLE) if found == SAMPLE else tmp_path / found)


def test_a_clone_of_ours_has_workflows_and_is_no_checkout_to_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPO_ENV, raising=False)
    monkeypatch.chdir(resources.path(SAMPLE).parent)
    assert find_checkout(None)[0] != resources.path(SAMPLE).parent.parent


def test_all_outputs_of_jobs_that_cannot_be_run_here_are_named_at_once(commit: Callable[[str], Path]) -> None:
    steps = "steps: [{id: s, run: x}, {run: 'echo ${{ fromJSON(steps.s.outputs.y).z }}'}]"
    needs = "needs: [a, g], runs-on: x, strategy: {matrix: '${{ fromJSON(needs.a.outputs.m) }}'}"
    needs += ", steps: [{run: 'echo ${{ needs.g.outputs.v }}'}]"
    a = f"runs-on: ubuntu-latest, outputs: {{other: 1, m: 1}}, {steps}"
    g = "runs-on: x, outputs: {v: 1}, container: {image: g}, steps: [{run: x}]"
    path = commit(f"on: push\njobs:\n  a: {{{a}}}\n  g: {{{g}}}\n  b: {{{needs}}}\n")
    with pytest.raises(UnknownValueError, match="known only while it runs") as caught:
        find_rows(source := open_source(str(path)), "b", event_context(source), "HEAD")
    assert caught.value.hint == "give --output a.m=VALUE --output g.v=VALUE"
