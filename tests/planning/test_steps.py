"""Workflow text → the steps that will run: what each `uses:` becomes, what is refused, and with which words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

from ci_tasks.agent.records import Deviation
from ci_tasks.config import Override
from ci_tasks.errors import WorkflowError
from ci_tasks.planning.steps import PlannedSteps, override_warnings, plan_steps
from ci_tasks.workflow.context import Resolver
from ci_tasks.workflow.model import Job
from ci_tasks.workflow.reader import read
from tests.parts.cases import cases

CASES = cases("planning/data/steps.yaml")

CONTEXTS = {
    "github": {"workspace": "/w", "sha": "c0ffee", "repository": "o/r"}, "env": {"JOB": "job"}, "matrix": {"n": 1},
    "strategy": {"job-index": 0}, "steps": {}, "secrets": {}, "needs": {}, "runner": {"os": "Linux"},
}  # fmt: skip


def job_of(steps: str, job: str = "") -> Job:
    head = f"on: push\njobs:\n  j:\n    runs-on: x\n{indent(dedent(job), '    ')}"
    text = f"{head}    steps:\n{indent(dedent(steps), '      ')}"
    return read(text, "ci.yml").jobs["j"]


def plan(
    steps: str, job: str = "", overrides: tuple[Override, ...] = (), contexts: Mapping[str, object] | None = None
) -> PlannedSteps:
    parsed = job_of(steps, job)
    return plan_steps(parsed, Resolver("ci.yml", "j", parsed.line, {**CONTEXTS, **(contexts or {})}), overrides)


def refused(steps: str, job: str = "") -> WorkflowError:
    with pytest.raises(WorkflowError) as caught:
        plan(steps, job)
    return caught.value


def test_a_run_step_is_evaluated_in_every_part() -> None:
    planned = plan(
        """
        - name: Step ${{ matrix.n }}
          id: my-id
          run: |
            echo ${{ github.sha }} ${{ env.OWN }} $HOME
          shell: bash
          env: {OWN: "${{ env.JOB }}-own", N: "${{ matrix.n }}"}
          working-directory: ${{ github.workspace }}/below
          timeout-minutes: ${{ matrix.n }}
          continue-on-error: ${{ matrix.n == 1 }}
        """
    )
    (step,) = planned.steps
    assert step.name == "Step 1" and step.id == "my-id"
    assert step.text == "echo c0ffee job-own $HOME\n"
    assert step.words == ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}")
    assert (step.env, step.directory) == ({"OWN": "job-own", "N": "1"}, "/w/below")
    assert step.timeout_minutes == 1 and step.continue_on_error and step.own
    assert planned.python is None and planned.deviations == ()


def test_what_an_expression_gives_is_not_evaluated_again() -> None:
    (step,) = plan(
        "- name: ${{ matrix.n }}\n  run: echo ${{ matrix.n }}\n", contexts={"matrix": {"n": "${{ github.sha }}"}}
    ).steps
    assert step.name == "${{ github.sha }}" and step.text == "echo ${{ github.sha }}"


def test_the_jobs_defaults_hold_for_steps_that_say_nothing() -> None:
    steps = "- run: x\n- run: x\n  shell: sh\n  working-directory: own\n"
    first, second = plan(steps, "defaults: {run: {shell: python, working-directory: below}}\n").steps
    assert (first.words, first.directory) == (("python", "{0}"), "below")
    assert (second.words, second.directory) == (("sh", "-e", "{0}"), "own")


@pytest.mark.parametrize(("condition", "after_success", "after_failure"), CASES["when a step runs"])
def test_when_a_step_runs(condition: str | None, after_success: bool, after_failure: bool) -> None:
    (step,) = plan(f"- run: x\n  {f'if: {condition!r}' if condition else ''}\n").steps
    assert (step.on_success, step.on_failure) == (after_success, after_failure)


# Actions


def test_checkout_and_setup_python_have_equivalents() -> None:
    planned = plan(
        """
        - uses: actions/checkout@v4
          with: {fetch-depth: 1, token: "${{ secrets.NONE }}"}
        - uses: actions/setup-python@v5
          with: {python-version: "3.${{ matrix.n }}", cache: pip}
        - run: x
        """
    )
    assert (planned.python, planned.deviations) == ("3.1", ())
    assert len(planned.steps) == 1


@pytest.mark.parametrize(
    ("script", "planned_steps"),
    [
        ("sudo rm -rf \\\n  /usr/share/dotnet /opt/ghc\ndf -h", 1),
        ("# room\nsudo apt-get clean\n\nsudo rm -rf /opt/az || true\npip cache purge || true", 1),
        ('sudo mv /var/lib/docker/ "${GITHUB_WORKSPACE}/docker"', 1),
        ("sudo rm -rf /opt/az\necho CACHE=1 >> $GITHUB_ENV", 2),
        ("sudo rm -rf /opt/az\ndocker run --rm img pytest", 2),
    ],
)
def test_a_step_that_frees_room_on_cis_machine_is_left_out(script: str, planned_steps: int) -> None:
    steps = f"- run: |\n    {script.replace(chr(10), chr(10) + '    ')}\n- run: x\n"
    planned = plan(steps)
    assert (len(planned.steps), len(planned.deviations)) == (planned_steps, 2 - planned_steps)
    assert all(deviation.why == "frees disk space on CI's machine" for deviation in planned.deviations)
    assert len(plan(steps, "container: ubuntu\n").steps) == 2, "a container has a file system of its own"


@pytest.mark.parametrize(("inputs", "deviations"), CASES["what checkout would do otherwise is a deviation"])
def test_what_checkout_would_do_otherwise_is_a_deviation(inputs: str, deviations: list[list[str]]) -> None:
    planned = plan(f"- uses: actions/checkout@v4\n  with: {inputs}\n- run: x\n")
    assert [[deviation.what, deviation.ci, deviation.here] for deviation in planned.deviations] == deviations


def test_a_cache_is_left_out_by_name_and_its_key_is_not_evaluated() -> None:
    planned = plan(
        """
        - run: echo now >> $GITHUB_OUTPUT
          id: date
        - uses: actions/cache@v4
          id: cache
          with: {path: x, key: "${{ hashFiles('**/req*.txt') }}-${{ steps.date.outputs.now }}"}
        - uses: actions/cache/restore@v4
          if: steps.date.outputs.now
          with: {path: x, key: y}
        - name: Install
          if: steps.cache.outputs.cache-hit != 'true'
          run: pip install
        - uses: actions/upload-artifact@v4
          with: {path: x, name: "${{ hashFiles('x') }}"}
        - uses: actions/upload-artifact@v4
          with: {path: "${{ steps.date.outputs.now }}"}
        - uses: actions/upload-artifact/merge@v4
        """
    )
    assert [deviation.what for deviation in planned.deviations if deviation.here == "not run"] == [
        "step 'actions/cache@v4'",
        "step 'actions/cache/restore@v4'",
        *["step 'actions/upload-artifact@v4'"] * 2,
        "step 'actions/upload-artifact/merge@v4'",
    ]
    assert planned.steps[1].on_success, "a cache that is not there has missed"


@pytest.mark.parametrize(("inputs", "kept"), CASES["upload-artifact keeps files below what its paths have in common"])
def test_upload_artifact_keeps_files_below_their_common_path(tmp_path: Path, inputs: str, kept: list[str]) -> None:
    run_dir, workspace = tmp_path / "run", tmp_path / "it's"
    for name in ("a/b/x.log", "a/b/y.txt", "a/z.log", "a/odd name.log", "c/x.log"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(name)
    (workspace / "a/b/latest").symlink_to("/nowhere/gone")  # passed over, as the action does
    contexts = {"github": {"workspace": str(workspace)}}
    planned = plan(f"- uses: actions/upload-artifact@v4\n  with: {inputs}\n- run: x\n", contexts=contexts)
    assert planned.steps[0].directory == "."
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", planned.steps[0].text], cwd=workspace, env={"CI_TASKS_RUN_DIR": str(run_dir)}
    )
    artifact = run_dir / "artifacts/uploaded"
    found = sorted(str(path.relative_to(artifact)) for path in artifact.rglob("*") if path.is_file())
    assert (found if done.returncode == 0 else [f"exit {done.returncode}"]) == kept


@pytest.mark.parametrize(("action", "inputs", "script"), CASES["what stands for an action is this script"])
def test_what_stands_for_an_action_is_this_script(action: str, inputs: str, script: str | None) -> None:
    step = f"- uses: {action}\n  with: {inputs}\n- run: x\n"
    text = plan(step).steps[0].text if script else refused(step).message
    assert text == f"{script}\n" if script else "or has inputs with no equivalent here" in text


def test_what_stands_for_an_action_is_no_last_step_that_rows_do_not_share() -> None:
    upload = "- {uses: actions/upload-artifact@v4, if: always(), with: {path: x}}\n"
    shared, rest = plan(f"- run: install\n- run: pytest\n{upload}").split()
    assert [step.text for step in shared] == ["install"] and len(rest) == 2
    planned = plan(f"- run: pip install . && pytest\n{upload}")
    assert (planned.split()[0], planned.last) == ((), 0), "the script that tests is none that installs"


def test_an_artifact_that_is_another_for_each_row_is_not_unpacked_once_for_all() -> None:
    download = "- {uses: actions/download-artifact@v4, with: {name: 'w-${{ matrix.n }}'}}\n"
    shared, _ = plan(f"- run: install\n{download}- run: pip install w\n- run: pytest\n").split()
    assert [step.text for step in shared] == ["install"]


def test_download_artifact_unpacks_what_was_uploaded_here_or_blocks() -> None:
    def download(inputs: str) -> tuple[str, str]:
        job = job_of(f"- uses: actions/download-artifact@v4\n  with: {inputs}\n")
        resolve = Resolver("ci.yml", "j", job.line, CONTEXTS)
        planned = plan_steps(job, resolve, (), {"logs": "x", "log dir": "x"})
        return planned.steps[0].text, planned.deviations[0].here

    unpack = 'mkdir -p -- {0} && tar -xzf "$CI_TASKS_RUN_DIR/tmp/artifacts/"{1} -C {0}\n'
    assert download("{name: logs, path: in}")[0] == unpack.format("in", "logs")
    assert download("{}")[0] == unpack.format("./logs", "logs") + unpack.format("'./log dir'", "'log dir'")
    flat = download("{pattern: log*s, merge-multiple: true}")
    assert flat == (unpack.format(".", "logs"), "uploads of jobs that ran here: logs")
    for inputs, what in [("{name: other}", "other"), ("{pattern: x*}", "x*"), ("{run-id: 7}", "artifacts")]:
        text, here = download(inputs)
        assert here == f"blocked: no job that ran here uploaded {what}, at most 1.5 MB packed"
        done = subprocess.run(["bash", "-c", text], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 125 and done.stderr.startswith(f"ci-tasks: {here}; an override of the step")


@pytest.mark.parametrize("action", ["actions/cache-thing@v1", "docker/login-action-2@v3", "./.github/actions/own"])
def test_an_action_without_an_equivalent_says_how_to_replace_it(action: str) -> None:
    error = refused(f"- run: x\n- name: It's\n  uses: {action}\n")
    assert f'ci.yml:7: job j, step "It\'s": uses an action that has no equivalent here\n    uses: {action}' in str(
        error
    )
    assert 'overrides: [{job: j, step: "It\'s", skip: true}]' in error.hint


def test_setup_python_by_the_matrix_takes_the_one_that_runs() -> None:
    step = "- uses: actions/setup-python@v5\n  if: matrix.n == {0}\n  with: {{python-version: '3.1{0}'}}\n"
    assert plan(step.format(1) + step.format(2) + "- run: x\n").python == "3.11"


# What cannot be planned


@pytest.mark.parametrize(("part", "reads"), CASES["what an earlier step decides is refused wherever it stands"])
def test_what_an_earlier_step_decides_is_refused_wherever_it_stands(part: str, reads: str) -> None:
    error = refused(f"- id: first\n  run: echo a=1 >> $GITHUB_OUTPUT\n- {part}\n- run: y\n")
    assert "known only while it runs" in error.message and reads in error.message
    assert (error.job, error.line) == ("j", 8 + part.partition(reads)[0].count("\n"))


@pytest.mark.parametrize(
    ("steps", "job", "message"),
    [
        ("- run: x\n  shell: pwsh\n", "", "the shell 'pwsh' is not supported here; valid: bash, sh, python, or"),
        ('- run: x\n  shell: "bash \'open {0}"\n', "", "its shell cannot be parsed: No closing quotation"),
        ("- {run: x, background: true}\n", "", "`background` is not supported: steps run one after another"),
        ("- {parallel: [{run: x}]}\n", "", "`parallel` is not supported"),
        ("- run: x\n", "services: {db: {image: x}}\n", "`services`: service containers are not supported"),
        ("- uses: actions/checkout@v4\n", "", "has no step to run"),
        ("- run: x\n  id: ../up\n", "", "the id '../up' is no identifier"),
        ('- run: "echo \\0"\n', "", "a NUL byte, which no script and no variable can hold"),
        ('- run: x\n  env: {A: "\\0"}\n', "", "a NUL byte"),
        ("- run: x\n  timeout-minutes: soon\n", "", "timeout-minutes is a number"),
        ("- run: x\n  timeout-minutes: ${{ hashFiles('x') }}\n", "", "needs hashFiles, which is known only while"),
        *(
            (f"- uses: actions/checkout@v4\n  with: {{{key}: x}}\n- run: x\n", "", f"checks out something else ({key})")
            for key in ("repository", "path", "ref")
        ),
        ("- uses: actions/setup-python@v5\n- run: x\n", "", "does not say which Python"),
    ],
)
def test_what_is_refused_says_where(steps: str, job: str, message: str) -> None:
    error = refused(steps, job)
    assert message in error.message
    assert error.message.startswith("ci.yml:") and "job j" in error.message


@pytest.mark.parametrize(
    ("uses", "where"),
    [
        ("./.github/workflows/other.yml", "not in the checkout"),
        ("o/r/.github/workflows/a.yml@v1", "another repository"),
    ],
)
def test_a_call_of_a_workflow_that_is_not_there_is_refused_by_name(uses: str, where: str) -> None:
    job = read(f"on: push\njobs:\n  j:\n    uses: {uses}\n", "ci.yml").jobs["j"]
    with pytest.raises(WorkflowError, match=f"calls a workflow that is (in )?{where}") as caught:
        plan_steps(job, Resolver("ci.yml", "j", 3, CONTEXTS), ())
    assert uses in str(caught.value)


# Overrides

_TWO = """
- name: Install
  run: pip install x
- name: Python
  uses: actions/setup-python@v5
  with: {python-version: '3.9', cache: pip}
- name: Test
  run: pytest
"""


@pytest.mark.parametrize(
    ("override", "texts", "ci", "here"),
    [
        (Override("j", "Install", run="pip install y"), ["pip install y", "pytest"], "pip install x", "pip install y"),
        (Override("j", "Install", skip=True), ["pytest"], "pip install x", "skipped"),
        (
            Override("j", "Python", run="python -V"),
            ["pip install x", "python -V", "pytest"], "actions/setup-python@v5", "python -V",
        ),
        (
            Override("j", "Python", with_={"python-version": "3.11", "check-latest": True}),
            ["pip install x", "pytest"],
            "python-version: 3.9, check-latest: unset", "python-version: 3.11, check-latest: True",
        ),
    ],
)  # fmt: skip
def test_a_step_is_replaced_or_skipped_or_has_other_inputs_and_that_is_named(
    override: Override, texts: list[str], ci: str, here: str
) -> None:
    planned = plan(_TWO, overrides=(override,))
    assert [step.text for step in planned.steps] == texts
    assert planned.python == (None if "python -V" in texts else (override.with_ or {}).get("python-version", "3.9"))
    assert planned.deviations == (Deviation(f"step {override.step!r}", ci, here, "override in hosts.yaml"),)


_PIP = """
- name: Install
  run: |
    pip install torch==2.9.1+cu128 --index-url https://download.example/whl/cu128
    pip install pytest
- name: Python
  uses: actions/setup-python@v5
  with: {python-version: '3.10'}
- name: Test
  run: pytest
"""


_INDEX = "--index-url https://download.example/whl/cu128"
_MIRROR = "https://mirror.example/simple"
_PARTS = [
    (Override("j", "Install", pip_index=_MIRROR), f"torch==2.9.1+cu128 --index-url {_MIRROR}",
     [(_INDEX, f"--index-url {_MIRROR}"), ("pip's own index", _MIRROR)]),
    (Override("j", "Install", pip_index="default", replace={"torch==2.9.1+cu128": "torch==2.9.1"}), "torch==2.9.1",
     [("torch==2.9.1+cu128", "torch==2.9.1"), (_INDEX, "pip's own index")]),
]  # fmt: skip


@pytest.mark.parametrize(("override", "text", "named"), _PARTS)
def test_the_index_and_parts_of_a_step_are_replaced_each_named_by_itself(
    override: Override, text: str, named: list[tuple[str, str]]
) -> None:
    planned = plan(_PIP, overrides=(replace(override, source="my.yaml:3"),))
    assert planned.steps[0].text == f"pip install {text}\npip install pytest\n"
    assert [(each.ci, each.here, each.why) for each in planned.deviations] == [
        (ci, here, "override in my.yaml:3") for ci, here in named
    ]
    assert planned.steps[0].env.get("PIP_INDEX_URL") == (_MIRROR if _MIRROR in text else None)


@pytest.mark.parametrize(
    ("override", "warning"),
    [
        (Override("j", "Instal", skip=True), "job j has no step 'Instal'; did you mean 'Install'?"),
        (Override("j", "zzzz", skip=True), "job j has no step 'zzzz'; its steps: Install, Python, Test"),
        (Override("unit-test", "Install", skip=True), "there is no job 'unit-test'; did you mean 'unit-tests'?"),
        (Override("j", "Install", replace={"torch==1": "x"}), "step 'Install' has no text 'torch==1'"),
        (Override("j", "Test", pip_index=_MIRROR), "step 'Test' has no pip command"),
        (Override("of another workflow", "x", skip=True), None),
        (Override("j", "Install", pip_index="default"), None),
    ],
)
def test_an_override_that_changes_nothing_is_a_warning(override: Override, warning: str | None) -> None:
    """Not an error: the user's own overrides count for every checkout and every revision."""
    jobs = {"j": job_of(_PIP), "e2e-test-unit-tests": replace(job_of(_TWO), id="e2e-test-unit-tests")}
    head = "hosts.yaml: this override changes nothing: "
    assert override_warnings([override], jobs) == ([] if warning is None else [head + warning])
    assert all("PIP_INDEX_URL" not in step.env for step in plan(_PIP, overrides=(override,)).steps)


# Which leading steps rows share


@pytest.mark.parametrize(("steps", "job", "shared"), CASES["leading steps that are the same for every row are shared"])
def test_leading_steps_that_are_the_same_for_every_row_are_shared(steps: str, job: str, shared: int) -> None:
    first, rest = plan(steps, job).split()
    assert len(first) == shared and rest
