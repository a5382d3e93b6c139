"""Values that earlier steps leave, in the expressions of later ones: planned, and run by bash as GitHub would."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.planning.script import Script, render, retried
from ci_tasks.planning.steps import PlannedSteps, plan_steps
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.reader import read_with_called
from ci_tasks.workflow.rows import row_resolver, rows
from ci_tasks.workflow.suite import describe
from tests.parts.cases import cases
from tests.parts.git import git, repository
from tests.planning.test_script import Ran, adapter_in, runner_at

CASES = cases("planning/data/late.yaml")

HEAD = "on: pull_request\njobs:\n  j:\n    runs-on: ubuntu-latest\n    env: {JOB: of-the-job}\n    steps:\n"
WRITES = """
- id: first
  run: |
    echo tag=v1.2 >> "$GITHUB_OUTPUT"
    echo option=-n >> "$GITHUB_OUTPUT"
    echo Empty= >> "$GITHUB_OUTPUT"
    printf 'lines<<X\\na b\\n  c$HOME\\nX\\n' >> "$GITHUB_OUTPUT"
    echo MODE=fast >> "$GITHUB_ENV"
- {id: broken, run: exit 3, continue-on-error: true}
- {id: skipped, run: echo no, if: false}
"""
ACTION = """
inputs: {who: {default: nobody}}
outputs: {greeting: {value: "${{ steps.first.outputs.text }}"}}
runs:
  using: composite
  steps:
  - {id: first, shell: bash, run: "echo text=hello-${{ inputs.who }} >> \\"$GITHUB_OUTPUT\\""}
  - {shell: bash, run: "echo in-the-action ${{ steps.first.outputs.text }}"}
"""


def planned(
    text: str, event: EventContext = EventContext(), actions: Mapping[str, str] = {"greet/action.yml": ACTION}
) -> tuple[PlannedSteps, Row]:
    workflow = read_with_called(text, "ci.yml", actions.get)
    job = workflow.jobs["j"]
    (row,) = rows(workflow, job, event, describe)
    return plan_steps(job, row_resolver(workflow, job, row, event), ()), row


def run(
    steps: str,
    tmp_path: Path,
    environ: dict[str, str] | None = None,
    secrets: tuple[str, ...] = (),
    actions: Mapping[str, str] = {"greet/action.yml": ACTION},
) -> Ran:
    """The job's run.sh, run."""
    text = HEAD + "".join(f"    {line}\n" for line in steps.strip().splitlines())
    runner = runner_at(tmp_path)
    all_steps, row = planned(
        text, EventContext(workspace=str(runner.workspace), repository="me/tested", secrets=secrets), actions
    )
    script = Script("title", "c0ffee", str(runner.workspace), row.env, all_steps.steps, secrets=secrets)
    return runner.execute(script, environ)


@pytest.mark.parametrize(
    ("expression", "text"), CASES["what a step leaves has githubs value in scripts variables and conditions"]
)
def test_what_a_step_leaves_has_githubs_value_in_scripts_variables_and_conditions(
    tmp_path: Path, expression: str, text: str | None
) -> None:
    steps = f"""{WRITES}
- env: {{V: "${{{{ {expression} }}}}"}}
  run: |
    printf '%s\\n' "$V" > variable
    cat > script << 'END'
    ${{{{ {expression} }}}}
    END
- {{run: touch holds, if: "{expression}"}}
"""
    if text is None:
        with pytest.raises(WorkflowError, match="known only while it runs"):
            run(steps, tmp_path)
        return
    ran = run(steps, tmp_path)
    assert ran.code == 0, ran.log
    assert [(ran.workspace / name).read_text() for name in ("variable", "script")] == [f"{text}\n"] * 2
    assert (ran.workspace / "holds").exists() == (text not in ("", "false"))


def test_an_output_is_data_in_a_variable_and_in_a_condition(tmp_path: Path) -> None:
    """Quotes, `$(…)` and marks of our own mean nothing there."""
    steps = """
- id: odd
  shell: python3 {0}
  run: |
    import os
    with open(os.environ["GITHUB_OUTPUT"], "a") as file:
        file.write("a=$(touch owned) `touch owned` \\"' \\x02TOKEN\\x03 ${HOME}\\n")
        file.write("b];touch owned;x[=1\\n")
- {env: {V: "${{ steps.odd.outputs.a }}"}, run: 'printf "%s" "$V" > seen; printf "%s" "$TOKEN" > /dev/null'}
- {run: touch same, if: "steps.odd.outputs.a == env.JOB"}
- {run: touch set, if: "steps.odd.outputs.a"}
"""
    ran = run(steps, tmp_path, {"TOKEN": "s3cret", "HOME": "/h"}, ("TOKEN",))
    assert ran.code == 0, ran.log
    assert (ran.workspace / "seen").read_text() == "$(touch owned) `touch owned` \"' \x02TOKEN\x03 ${HOME}"
    assert sorted(path.name for path in ran.workspace.iterdir() if path.is_file()) == ["seen", "set"]


def test_steps_of_an_action_have_ids_and_outputs_of_their_own(tmp_path: Path) -> None:
    steps = """
- {id: first, run: echo text=of-the-job >> "$GITHUB_OUTPUT"}
- {id: greet, uses: ./greet, with: {who: you}}
- {id: later, uses: ./greet, if: "steps.greet.outputs.greeting == 'nothing'"}
- run: echo "[${{ steps.greet.outputs.greeting }}] [${{ steps.first.outputs.text }}]"
- run: echo "[${{ steps.later.outputs.greeting }}]"
"""
    log = run(steps, tmp_path).log
    assert "[hello-you] [of-the-job]\n" in log and "\n[]\n" in log
    assert log.count("in-the-action hello-you\n") >= 1 and "hello-nobody\n" not in log


def test_a_retry_decides_by_what_earlier_steps_left_when_they_ran(tmp_path: Path) -> None:
    steps = """
- {id: first, run: "echo go=yes >> \\"$GITHUB_OUTPUT\\"; echo STAGE=1 >> \\"$GITHUB_ENV\\""}
- {run: echo second, if: "steps.first.outputs.go && env.STAGE == '1'"}
- {run: "echo STAGE=3 >> \\"$GITHUB_ENV\\""}
- {run: "echo fourth; exit 3", if: "steps.first.outputs.go"}
"""
    assert run(steps, tmp_path).code == 3
    directory, workspace = tmp_path / "run", tmp_path / "workspace"
    again = tmp_path / "again"
    for number in (1, 2):
        adapter_in(again)
        text = retried(
            (directory / "run.sh").read_text(), 4, ("c0ffee", "decade"), [str(tmp_path / "run"), str(directory)]
        )
        (again / "run.sh").write_text(text)
        ran = subprocess.run(["bash", again / "run.sh"], capture_output=True, text=True, cwd=workspace)
        assert (ran.returncode, "fourth\n" in ran.stdout, "second\n" in ran.stdout) == (3, True, False), number
        directory, again = again, tmp_path / "once-more"


@pytest.mark.parametrize(("condition", "runs"), [("failure()", True), ("always()", True), ("success()", False)])
def test_an_action_with_an_if_runs_after_a_failure_as_it_says(tmp_path: Path, condition: str, runs: bool) -> None:
    failed = run(f"- run: exit 1\n- {{uses: ./greet, if: {condition}}}\n", tmp_path / "failed")
    fine = run(f"- run: exit 0\n- {{uses: ./greet, if: {condition}}}\n", tmp_path / "fine")
    assert ("\nin-the-action hello-nobody" in failed.log) == runs
    assert ("\nin-the-action hello-nobody" in fine.log) == (condition != "failure()")


def test_an_actions_steps_have_the_variables_of_the_step_that_uses_it_and_fail_no_more_than_it(tmp_path: Path) -> None:
    action = """
runs:
  using: composite
  steps:
  - {shell: bash, env: {OWN: inner}, run: 'echo "<$TOLD $OWN $KNOWN ${{ env.KNOWN }}>"; exit 4'}
"""
    steps = """
- {id: first, run: echo v=told >> "$GITHUB_OUTPUT"}
- uses: ./fail
  continue-on-error: true
  env: {TOLD: "${{ steps.first.outputs.v }}", OWN: outer, KNOWN: "${{ env.JOB }}"}
- run: echo "after [$TOLD]"
"""
    ran = run(steps, tmp_path, {"TOLD": ""}, actions={"fail/action.yml": action})
    assert (ran.code, "<told inner of-the-job of-the-job>" in ran.log, "after []" in ran.log) == (0, True, True), (
        ran.log
    )


@pytest.mark.parametrize("given", ["with: {who: '${{ matrix.n }}'}", "env: {N: '${{ matrix.n }}'}"])
def test_steps_of_an_action_that_gets_a_value_of_the_matrix_are_the_rows_own(given: str) -> None:
    text = f"{HEAD}    - {{uses: ./greet, {given}}}\n    - run: x\n".replace(
        "steps:", "strategy: {matrix: {n: [1]}}\n    steps:"
    )
    shared, _ = planned(text)[0].split()
    assert not shared


def test_what_github_refuses_in_github_output_fails_the_step(tmp_path: Path) -> None:
    ran = run('- {id: bad, run: echo nonsense >> "$GITHUB_OUTPUT"}\n- run: echo after\n', tmp_path)
    assert ran.code == 1 and "##[error]GITHUB_OUTPUT: not NAME=VALUE: nonsense" in ran.log


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        ("'**/*.txt'", ["a-b.txt", "dir/.hidden.txt", "dir/sub/x.txt", "dir.txt"]),
        ("'dir'", ["dir/.hidden.txt", "dir/sub/x.txt", "dir/sub/y"]),
        ("'dir/**', '!dir/sub/*.txt', '../outside'", ["dir/.hidden.txt", "dir/sub/y"]),
        ("steps.name.outputs.of", ["dir.txt"]),
        ("'no such'", []),
    ],
)
def test_hash_files_is_that_of_the_files_when_the_step_begins(tmp_path: Path, patterns: str, files: list[str]) -> None:
    """GitHub hashes the hashes of the files, in the order of a walk through the directories."""
    steps = f"""
- {{id: name, run: 'mkdir -p dir/sub; for f in a-b.txt dir/.hidden.txt dir/sub/x.txt dir/sub/y dir.txt ../outside; do
    echo "$f" > "$f"; done; echo of=dir.txt >> "$GITHUB_OUTPUT"'}}
- {{env: {{H: "${{{{ hashFiles({patterns}) }}}}"}}, run: 'printf "%s" "$H" > seen'}}
"""
    ran = run(steps, tmp_path)
    assert ran.code == 0, ran.log
    digests = b"".join(sha256(f"{name}\n".encode()).digest() for name in files)
    assert (ran.workspace / "seen").read_text() == (sha256(digests).hexdigest() if files else "")


def test_another_repository_below_the_tested_one_is_fetched_at_the_ref_that_a_step_names(tmp_path: Path) -> None:
    steps = """
- {id: ref, run: 'echo of=v1 >> "$GITHUB_OUTPUT"'}
- {uses: actions/checkout@v4, with: {repository: owner/other, ref: "${{ steps.ref.outputs.of }}", path: other/one}}
- {uses: actions/checkout@v4, with: {repository: owner/other, path: other/two}}
- run: cat other/one/file other/two/file
- {uses: actions/checkout@v4, with: {repository: owner/other, ref: none, path: other/three}}
"""
    origin = repository(tmp_path / "owner/other", {"file": "of v1\n"})
    git(origin, "tag", "v1")
    (origin / "file").write_text("of v2\n")
    git(origin, "commit", "-aqm", "2")
    address = {"GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/.insteadOf", "GIT_CONFIG_VALUE_0": "https://github.com/"}
    ran = run(steps, tmp_path, {"GIT_CONFIG_COUNT": "1", **address})
    assert "of v1\nof v2\n" in ran.log
    assert ran.code == 125 and "ci-tasks: blocked: cannot fetch owner/other at none" in ran.log


def test_a_script_without_such_values_has_no_sign_of_them() -> None:
    step = render(Script("t", "c", "/w", {}, planned(HEAD + "    - run: x\n")[0].steps)).partition("if begin")[2]
    assert "_late" not in step and "_on_success" not in step


NOT_RUN = {
    "actions/setup-python@v5\n  with: {python-version: 3.x}": "outputs.path",
    "actions/upload-artifact@v4": "outputs.path",
    "actions/setup-node@v4": "outputs.path",
    "./greet": "outcome",  # its steps run, but it is none itself
}


@pytest.mark.parametrize(("action", "asked"), NOT_RUN.items())
def test_what_an_action_that_is_not_run_would_leave_is_refused_and_never_empty_or_skipped(
    tmp_path: Path, action: str, asked: str
) -> None:
    with pytest.raises(WorkflowError, match=rf"steps\.a\.{asked.partition('.')[0]}"):
        run(f"- id: a\n  uses: {action}\n- run: echo ${{{{ steps.a.{asked} }}}}\n", tmp_path)


def test_what_a_cache_and_a_token_would_give_is_empty(tmp_path: Path) -> None:
    steps = "- {id: c, uses: actions/cache/restore@v4}\n- {id: t, uses: actions/create-github-app-token@v1}\n"
    log = run(
        f"{steps}- run: 'echo \"[${{{{ steps.c.outputs.cache-hit }}}}${{{{ steps.t.outputs.token }}}}]\"'\n", tmp_path
    ).log
    assert "\n[]\n" in log


def test_a_script_that_stands_for_an_action_ends_as_it_does(tmp_path: Path) -> None:
    steps = "- {id: b, uses: docker/build-push-action@v6, continue-on-error: true}\n"  # the adapter here refuses it
    ran = run(f"{steps}- {{run: touch seen, if: \"steps.b.outcome == 'failure'\"}}\n", tmp_path)
    assert ran.code == 0 and (ran.workspace / "seen").exists(), ran.log
