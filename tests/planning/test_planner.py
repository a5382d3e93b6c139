"""A workflow's row on a host → its plan: what differs from CI, what is shared, what stays secret; and a retry."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from ci_tasks.agent.codec import encode, to_json
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.records import Checkout, Conversion, Deviation, Event, Plan, ProbeRules, Retry
from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.planner import RowPlan, RunLocation, failed_step, make_plan, retry_plan, wanted_python
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Row, Workflow
from ci_tasks.workflow.reader import read, read_with_called
from tests.parts.cases import cases
from tests.parts.entries import describe

CASES = cases("planning/data/planner.yaml")

CHECKOUT = Checkout("/src/slime", "c0ffee0123456789", "7ree", ("a.py", "b.py"), head="c0ffee0123456789")
PLACE = RunLocation("id-1", "/runs/id 1", CHECKOUT, ("/usr/bin/python3.10", "3.10.4"), "/envs", "/locks")
EVENT = EventContext(sha=CHECKOUT.commit, repository="THUDM/slime", workspace="/runs/id 1/workspace")
BARE = HostSpec("bare", runtime="none")
DOCKER = HostSpec("box")
SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)
BOTH = ["code", "PYTEST_ADDOPTS", "timeout"]
IN_DOCKER = ["name", "labels", "init", "env", "volumes"]
IN_PODMAN = ["container", "name", "labels", "init", "env", "volumes", "runtime", "capabilities"]

STEPS = "    steps:\n      - name: Run\n        run: pytest\n"
MATRIX = "    strategy: {matrix: {info: [{num_gpus: 2, test_file: a.py}, {num_gpus: 0, test_file: b.py}]}}\n"
PYTHON = """    steps:
      - uses: actions/setup-python@v5
        with: {python-version: '3.10'}
      - name: Install
        run: pip install x
      - name: Run
        run: python ${{ matrix.info.test_file }}
"""


def workflow(body: str, top: str = "", runner: str = "cpu", others: str = "") -> Workflow:
    return read(f"on: pull_request\n{top}jobs:\n{others}  e2e-test-j:\n    runs-on: {runner}\n{body}", "ci.yml")


def row_of(parsed: Workflow, event: EventContext = EVENT, at: int = 0) -> Row:
    return rows.rows(parsed, parsed.jobs["e2e-test-j"], event, describe)[at]


def draft(
    parsed: Workflow, host: HostSpec = BARE, event: EventContext = EVENT, place: RunLocation = PLACE, at: int = 0
) -> RowPlan:
    row = row_of(parsed, event, at)
    return make_plan(parsed, parsed.jobs[row.job], row, host, event, (), place)


def plan(parsed: Workflow, host: HostSpec = BARE, event: EventContext = EVENT, place: RunLocation = PLACE) -> Plan:
    return draft(parsed, host, event, place).plan


def whats(planned: Plan) -> list[str]:
    return [deviation.what for deviation in planned.deviations]


def deviation(planned: Plan, what: str) -> Deviation:
    (match,) = [match for match in planned.deviations if match.what == what]
    return match


# Deviations


CONTAINER_HERE = [  # of a host, what is listed of CI's `docker run --rm --gpus all -v /ci:/d some/image x`
    ("docker", ["init", "labels", "mount /ci", "name", "rm"]),
    ("podman", ["capabilities", "gpus", "name", "runtime"]),
    ("apptainer", ["gpus", "network", "room to write", "runtime"]),
    ("pyxis", ["processes", "runtime"]),
    ("none", ["container", "container flags"]),
]


@pytest.mark.parametrize(("runtime", "listed"), CONTAINER_HERE)
def test_a_plan_lists_how_the_container_will_differ(runtime: str, listed: list[str]) -> None:
    body = MATRIX + "    steps:\n      - run: docker run --rm --gpus all -v /ci:/d some/image x\n"
    planned = plan(workflow(body), HostSpec("box", runtime=runtime, mounts={"/ci": "/here"}, env={"HF_HOME": "/cache"}))
    named = [each.here for each in planned.deviations if each.what == "container"]
    assert set(listed) <= set(whats(planned)) and named in ([], [{"none": "no container"}.get(runtime, runtime)])
    assert deviation(planned, "host env").here == "HF_HOME"


@pytest.mark.parametrize(
    ("dirty", "here"),
    [((), "c0ffee0"), (("a",), "c0ffee0 + 1 changed file"), (("a", "b"), "c0ffee0 + 2 changed files")],
)
def test_the_code_is_named(dirty: tuple[str, ...], here: str) -> None:
    planned = plan(workflow(STEPS), place=replace(PLACE, checkout=replace(CHECKOUT, dirty=dirty)))
    assert deviation(planned, "code").here == here
    assert whats(planned) == BOTH


def test_files_that_ci_would_convert_are_named() -> None:
    unlike = (Conversion("Git LFS", 3, ("a.bin", "b.bin")), Conversion("line ends", 1, ("c.bat",)))
    planned = plan(workflow(STEPS), place=replace(PLACE, checkout=replace(CHECKOUT, conversions=unlike)))
    named = [match for match in planned.deviations if match.what == "files unlike CI's checkout"]
    assert [(match.here, match.why) for match in named] == [
        ("as on your disk: a.bin, b.bin and 1 more", "Git LFS"),
        ("as on your disk: c.bat", "line ends"),
    ]


@pytest.mark.parametrize(("image", "whose"), [("", "the runner's"), ("    container: a/b\n", "the image's own")])
def test_what_a_job_installs_stays_with_it_and_the_rest_is_the_machines(image: str, whose: str) -> None:
    found = deviation(plan(workflow(image + STEPS.replace("pytest", "pip install x")), BARE), "Python packages")
    assert (found.ci, found.here) == (whose, "a venv over the python3 on PATH")


@pytest.mark.parametrize(
    ("host", "body", "runner", "others"),
    [
        (DOCKER, STEPS, "cpu", []),
        (BARE, STEPS.replace("pytest", "pip install x"), "cpu", ["Python packages"]),
        (DOCKER, STEPS, "ubuntu-latest", ["machine"]),
        (SIM, STEPS, "cpu", ["Python packages"]),
        (SIM, MATRIX + STEPS, "cpu", ["Python packages", "GPUs", "strategy.fail-fast", "GPU locks"]),
        (DOCKER, "    container: {image: a/b}\n" + STEPS, "cpu", IN_DOCKER),
        (BARE, "    container: {image: a/b}\n" + STEPS, "cpu", ["Python packages", "container"]),
        (
            DOCKER,
            "    container: {image: a/b, credentials: {username: u, password: p}, ports: [80]}\n" + STEPS,
            "cpu",
            ["container.credentials", "container.ports", *IN_DOCKER],
        ),
        (HostSpec("p", runtime="podman"), "    container: {image: a/b}\n" + STEPS, "cpu", IN_PODMAN),
        (BARE, MATRIX + PYTHON, "cpu", ["install steps", "strategy.fail-fast", "GPU locks"]),
        (DOCKER, "    if: github.event_name == 'push'\n" + STEPS, "cpu", ["if"]),
        (DOCKER, "    if: github.event_name == 'pull_request'\n" + STEPS, "cpu", []),
    ],
)
def test_what_differs_by_situation(host: HostSpec, body: str, runner: str, others: list[str]) -> None:
    assert whats(plan(workflow(body, runner=runner), host)) == BOTH + others


@pytest.mark.parametrize(("on", "job", "named"), CASES["keys without effect are named"])
def test_keys_without_effect_are_named(on: str, job: str, named: list[str]) -> None:
    runner = "" if "runs-on" in job else "    runs-on: cpu\n"
    body = "".join(f"    {line}\n" for line in job.splitlines())
    parsed = read(f"on: {on}\njobs:\n  e2e-test-j:\n{runner}{body}{STEPS}", "ci.yml")
    assert sorted(whats(plan(parsed))) == sorted(BOTH + named)


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        ("", [("a failed row cancels the others", "only with --fail-fast")]),
        ("fail-fast: false", []),
        ("fail-fast: false, max-parallel: 1", [("1 rows at once", "as many as fit")]),
        ("fail-fast: false, max-parallel: '${{ vars.MANY }}'", [("<vars.MANY> rows at once", "as many as fit")]),
    ],
)
def test_how_rows_run_beside_each_other_is_named(strategy: str, named: list[tuple[str, str]]) -> None:
    planned = plan(workflow(MATRIX.replace("{matrix", f"{{{strategy}{', ' if strategy else ''}matrix") + STEPS))
    strategies = [item for item in planned.deviations if item.what.startswith("strategy.")]
    assert [(item.ci, item.here) for item in strategies] == named


@pytest.mark.parametrize(
    ("value", "may_fail"),
    [("'true'", True), ("'no'", False), ("false", False), ("${{ matrix.info.num_gpus == 2 }}", True)],
)
def test_a_job_may_be_allowed_to_fail(value: str, may_fail: bool) -> None:
    assert plan(workflow(f"    continue-on-error: {value}\n" + MATRIX + STEPS)).may_fail is may_fail


NEEDS = """  detect:
    runs-on: x
    outputs: {a: '1'}
    steps: [{run: x}]
  lint:
    runs-on: x
    steps: [{run: x}]
"""


ON_BOTH = "    needs: [lint, detect]\n    env: {A: '${{ needs.*.result }}'}\n"


@pytest.mark.parametrize(("job", "ci"), [("    needs: lint\n", "after lint"), (ON_BOTH, "after lint, detect")])
def test_jobs_that_were_not_run_are_named(job: str, ci: str) -> None:
    named = deviation(plan(workflow(job + STEPS, others=NEEDS)), "needs")
    assert (named.ci, named.why) == (ci, "you selected the row")


def test_a_job_that_was_run_for_its_outputs_is_no_deviation() -> None:
    parsed = workflow("    needs: detect\n    env: {A: '${{ needs.detect.outputs.a }}'}\n" + STEPS, others=NEEDS)
    planned = plan(parsed, event=replace(EVENT, outputs={"detect": {"a": "1"}}))
    assert whats(planned) == BOTH and planned.env == {"A": "1"}


SECRETS = """    env:
      WANDB: ${{ secrets.WANDB_KEY }}
    steps:
      - uses: actions/checkout@v4
        with: {token: "${{ secrets.CHECKOUT_TOKEN }}"}
      - name: Login
        if: secrets.LOGIN != ''
        run: echo "not secrets.COMMENT" ${{ secrets['HF_TOKEN'] }} ${{ github.token }}
"""
OTHER_SECRETS = "  other:\n    runs-on: x\n    steps: [{run: 'echo ${{ secrets.OTHER }}'}]\n"


@pytest.mark.parametrize(
    ("secrets", "unset"),
    [
        ((), "WANDB_KEY, HF_TOKEN, GITHUB_TOKEN, LOGIN"),
        (("WANDB_KEY", "GITHUB_TOKEN"), "HF_TOKEN, LOGIN"),
        (("WANDB_KEY", "LOGIN", "HF_TOKEN", "GITHUB_TOKEN"), None),
    ],
)
def test_secrets_that_the_row_reads_and_the_caller_lacks_are_named(secrets: tuple[str, ...], unset: str | None) -> None:
    """Not those of other jobs, of comments, or of a checkout that is not done."""
    planned = plan(workflow(SECRETS, others=OTHER_SECRETS), event=replace(EVENT, secrets=secrets))
    assert [each.ci for each in planned.deviations if each.what == "secrets"] == ([unset] if unset else [])


# Secrets


def test_a_plan_holds_names_of_secrets_and_never_a_mark() -> None:
    host = replace(DOCKER, secrets=("HOST_TOKEN",))
    event = replace(EVENT, secrets=("WANDB_KEY", "HF_TOKEN", "LOGIN", "GITHUB_TOKEN"))
    planned = plan(workflow(SECRETS), host, event)
    assert [name for name in planned.secrets if name != "GITHUB_TOKEN"] == ["WANDB_KEY", "HF_TOKEN", "HOST_TOKEN"]
    text = to_json(planned)
    assert "\\u0002" not in text and "script" not in encode(planned)
    assert planned.env == {"WANDB": "<secret WANDB_KEY>"}
    assert 'export WANDB="${WANDB_KEY:-}"' in planned.script


# Shared install steps


def test_rows_share_the_leading_steps_that_are_the_same() -> None:
    parsed = workflow(MATRIX + PYTHON)
    first, second = draft(parsed), draft(parsed, at=1)
    assert first.setup is not None and first.setup == second.setup
    assert first.plan.setup is not None and first.plan.setup.startswith("/envs/j-")
    other = draft(parsed, host=replace(BARE, name="h100b")).setup
    assert other is not None and other.id != first.setup.id, "both logs are kept side by side here"
    assert first.plan.workspace == f"{first.plan.setup}/workspace"
    assert not first.setup.install.texts and "agent.pyz" not in first.setup.script, "without a store nothing is kept"
    assert "pip install x" in first.setup.script and "pip install x" not in first.plan.script
    assert "python a.py" in first.plan.script and "python b.py" in second.plan.script


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"run_dir": "/runs/other", "id": "other"}, True),
        ({"checkout": replace(CHECKOUT, path="/src/other")}, True),
        ({"python": ("/usr/bin/python3.12", "3.12.1")}, False),
    ],
)
def test_rows_of_one_python_share_a_venv(change: dict[str, object], same: bool) -> None:
    parsed = workflow(MATRIX + PYTHON)
    other = draft(parsed, place=replace(PLACE, **change)).setup  # type: ignore[arg-type]
    setup = draft(parsed).setup
    assert setup and other and (setup.id == other.id) is same


def test_another_commit_has_the_same_install_steps() -> None:
    """So that runs share their packages after an edit."""
    parsed = workflow("    env: {NAME: '${{ github.sha }}', PIP_INDEX_URL: http://x}\n" + MATRIX + PYTHON)
    place = replace(PLACE, checkout=replace(CHECKOUT, commit="0ther"))
    first, second = draft(parsed).setup, draft(parsed, event=replace(EVENT, sha="0ther"), place=place).setup
    assert first and second and (first.id, first.script) == (second.id, second.script)
    assert "export PIP_INDEX_URL=http://x" in first.script and "export NAME" not in first.script


def test_install_steps_are_told_apart_by_what_they_do_not_by_where_they_run() -> None:
    install = PYTHON.replace("pip install x", "pip install -e ${{ github.workspace }}/sub")
    install = install.replace("name: Install", "name: Install\n        working-directory: ${{ github.workspace }}/deep")
    parsed = workflow("    env: {CUDA: '1', NAME: '${{ github.sha }}'}\n" + MATRIX + install)
    place = replace(PLACE, store="/store", fresh=True)
    setup = draft(parsed, place=place).setup
    assert setup is not None
    assert (setup.install.store, setup.install.fresh) == ("/store", True)
    text, *_, directory, variable = setup.install.texts[0].splitlines()
    assert (text, directory, variable) == ("pip install -e $GITHUB_WORKSPACE/sub", "$GITHUB_WORKSPACE/deep", "CUDA=1")
    elsewhere = draft(parsed, place=replace(place, environments="/other")).setup
    assert elsewhere and elsewhere.install == setup.install


def test_a_job_of_one_row_shares_the_packages_of_all_steps_but_the_last() -> None:
    parsed = workflow(PYTHON.replace("${{ matrix.info.test_file }}", "a.py"))
    planned = plan(parsed, place=replace(PLACE, store="/store"))
    assert [step.splitlines()[0] for step in planned.install.texts] == ["pip install x"]
    assert (planned.install.fresh, planned.keep) == (False, False)
    stored = planned.script.index("store-packages")
    assert planned.script.index("pip install x") < stored < planned.script.index("python a.py")


def test_rows_whose_install_steps_see_another_variable_get_another_environment() -> None:
    env = "    env: {FILE: '${{ matrix.info.test_file }}', OTHER: '${{ matrix.info.num_gpus }}'}\n"
    unused = workflow(env + MATRIX + PYTHON)
    assert draft(unused).setup == draft(unused, at=1).setup
    used = workflow(env + MATRIX + PYTHON.replace("pip install x", "pip install $FILE"))
    first, second = draft(used).setup, draft(used, at=1).setup
    assert first and second and first.id != second.id
    assert "export FILE=a.py" in first.script and "OTHER" not in first.script


@pytest.mark.parametrize(
    "body",
    [
        PYTHON,  # a single row has nobody to share with
        MATRIX + STEPS,  # no setup-python: the image has the environment
        MATRIX + PYTHON.replace("pip install x", "pip install ${{ matrix.info.test_file }}"),
    ],
)
def test_other_rows_have_an_environment_of_their_own(body: str) -> None:
    drafted = draft(workflow(body))
    assert drafted.setup is None and drafted.plan.setup is None
    assert drafted.plan.workspace == EVENT.workspace


# The rest of a plan


@pytest.mark.parametrize(
    ("host", "body", "python"),
    [
        (SIM, STEPS, "/usr/bin/python3.10"),
        (BARE, "    container: {image: a/b}\n" + STEPS, '"$(command -v python3)"'),
        (DOCKER, "    container: {image: a/b}\n" + STEPS, None),
        (BARE, STEPS, None),
    ],
    ids=["simulated host", "image without containers", "image", "no image"],
)
def test_a_throwaway_venv_is_only_where_steps_would_change_somebodys_python(
    host: HostSpec, body: str, python: str | None
) -> None:
    script = plan(workflow(body), host).script
    lines = [line for line in script.splitlines() if line.startswith("_venv=") and "/tmp/venv _python=" in line]
    assert [line.partition("_python=")[2] for line in lines] == ([python.replace('"', "")] if python else [])


def test_the_python_that_a_job_wants() -> None:
    parsed = workflow(PYTHON)
    assert wanted_python(parsed, parsed.jobs["e2e-test-j"], row_of(parsed), EVENT, ()) == "3.10"
    parsed = workflow(STEPS)
    assert wanted_python(parsed, parsed.jobs["e2e-test-j"], row_of(parsed), EVENT, ()) == ""


def test_another_image_takes_the_place_of_cis() -> None:
    job = "    container: {image: a/b}\n" + STEPS
    planned = plan(workflow(job), DOCKER, place=replace(PLACE, image="a/b@sha256:0"))
    assert planned.container is not None and planned.container.image == {"a/b": "a/b@sha256:0"}
    assert planned.image == "a/b", "what CI runs in stays on record"


def test_a_jobs_container_and_its_words() -> None:
    body = """    container:
      image: repo/image:${{ github.base_ref }}
      options: --gpus 2 --name 'a b'
      env: {A: "${{ github.sha }}"}
      volumes: ["/mnt/x:/x"]
"""
    planned = plan(workflow(body + STEPS))
    arguments, image = "docker run --rm --gpus 2 --name 'a b' -v /mnt/x:/x -v", "repo/image:main"
    assert planned.image == image and arguments in planned.script and f"--entrypoint bash {image} " in planned.script
    assert f"export A={CHECKOUT.commit}" in planned.script


def test_container_options_that_are_no_words_are_refused() -> None:
    with pytest.raises(WorkflowError, match="container options: No closing quotation") as caught:
        plan(workflow('    container: {image: x, options: "--name \'a"}\n' + STEPS))
    assert caught.value.job == "e2e-test-j" and caught.value.text == "--name 'a"


def test_a_jobs_variable_with_a_nul_byte_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"ci\.yml:\d+.*a NUL byte") as caught:
        plan(workflow('    env: {A: "x\\0"}\n' + STEPS))
    assert caught.value.text == r"'A: x\x00'"


@pytest.mark.parametrize(("minutes", "planned"), [("30", 30), ("0", 1440), ("0.5", 0.5)])
def test_a_jobs_time_limit_of_0_is_none_of_cis(minutes: str, planned: float) -> None:
    assert plan(workflow(f"    timeout-minutes: {minutes}\n" + STEPS)).timeout_minutes == planned


# The probe


def test_a_row_whose_interpreters_vanish_with_it_gets_the_probe_and_says_so() -> None:
    probe = ProbeRules(("slime",))
    image = "    container: {image: x}\n" + STEPS
    cases = {"venv": (PYTHON + MATRIX, BARE), "layered venv": (STEPS, SIM), "container": (image, DOCKER)}
    for name, (body, host) in cases.items():
        planned = plan(workflow(body), host, place=replace(PLACE, probe=probe))
        assert (planned.probe, "probe" in whats(planned)) == (probe, True), name
        without = plan(workflow(body), host)
        assert (without.probe, "probe" in whats(without), "probe" in without.script) == (None, False, False), name


# -- retry -------------------------------------------------------------------------------------------------------------


OLD, NEW = Checkout("/c", "a" * 40, "b" * 40), Checkout("/c", "c" * 40, "d" * 40)
SCRIPT = f"#!/usr/bin/env bash\nset -uo pipefail\nexport GITHUB_SHA={'a' * 40}\n"
BEFORE = Plan(id="X.01", row="row", host="h", checkout=OLD, script=SCRIPT, workspace="/h/x/workspace", secrets=("KEY",))


@pytest.mark.parametrize(
    ("names", "step"),
    [
        (["started"], 1),  # it was blocked before its first step
        (["started", "step", "step"], 2),  # it was killed
        (["started", "step", "step", "step failed", "step", "ended"], 2),  # a step of `if: always()` came after
    ],
)
def test_the_failed_step_is_the_last_that_began_before_one_failed(names: list[str], step: int) -> None:
    events = [Event(1.0, name) for name in names]
    assert failed_step(BEFORE, events) == step
    again = replace(BEFORE, retry=Retry(("/h/w",), step=4))
    assert failed_step(again, events) == step + 3, "steps that a retry did not run count as well"
    beside = replace(again, script='[ -z "${CI_TASKS_INSIDE:-}" ]', container=ContainerRules())
    assert failed_step(beside, events) == step + 3, "a job on a host with docker that runs in no container of its own"
    inside = replace(again, script="  export CI_TASKS_INSIDE=1\n", container=ContainerRules())
    assert failed_step(inside, events) == 1, "what steps did in a job's container has gone with it"


def test_it_runs_the_same_script_with_the_new_commit_in_the_oldest_workspace_after_the_newest_run() -> None:
    first = retry_plan(BEFORE, id="Y.01", run_dir="/h/y", earlier_dir="/h/x", step=2, checkout=NEW)
    second = retry_plan(
        replace(first, script=first.script), id="Z.01", run_dir="/h/z", earlier_dir="/h/y", step=3, checkout=OLD
    )
    assert second.script.count("_first=") == 1
    assert "\n_first=3 _kept=/h/x _before=/h/y\n" in second.script
    assert f"GITHUB_SHA={'c' * 40}" in first.script
    assert second.retry == Retry(("/h/x", "/h/y"), 3, NEW.commit, NEW.tree)
    assert (second.workspace, second.secrets) == ("/h/x/workspace", ("KEY",))
    assert (second.retry_of, second.keep) == ("Y.01", True)
    assert [item.here for item in second.deviations if item.what == "retried"] == ["steps 3.. of run Y.01"]


def test_its_containers_are_its_own() -> None:
    rules = ContainerRules(
        name="ci-tasks-X", labels={"ci-tasks.dir": "/h/x"}, env={"CI_TASKS_RUN_DIR": "/h/x", "A": "1"}
    )
    plan = retry_plan(
        replace(BEFORE, container=rules), id="Y.01", run_dir="/h/y", earlier_dir="/h/x", step=2, checkout=NEW
    )
    assert plan.container is not None
    assert plan.container.labels == {"ci-tasks.run": "Y.01", "ci-tasks.dir": "/h/y"}
    assert (plan.container.env["CI_TASKS_RUN_DIR"], plan.container.env["A"]) == ("/h/y", "1")
    assert plan.container.volumes == ("/h/y/artifacts",)


def test_rows_of_a_called_workflow_share_install_steps_only_with_those_of_the_same_call() -> None:
    called = (
        "on: {workflow_call: {inputs: {extra: {type: string}}}}\njobs:\n  e2e:\n    runs-on: cpu\n" + MATRIX + PYTHON
    )
    of = "o/r/.github/workflows/run.yml@v1"
    calls = "    strategy: {matrix: {extra: [a, b]}}\n    with: {extra: '${{ matrix.extra }}'}\n"
    text = f"on: pull_request\njobs:\n  all:\n    uses: {of}\n{calls}"
    parsed = read_with_called(text, "ci.yml", {of: called.replace("install x", "install ${{ inputs.extra }}")}.get)
    job = parsed.jobs["all / e2e"]
    event = replace(EVENT, given=GivenValues(workflow_dirs={"o/r": "/other"}))
    drafts = [make_plan(parsed, job, row, BARE, event, (), PLACE) for row in rows.rows(parsed, job, event, describe)]
    setups = {draft.setup.id: draft.setup.script for draft in drafts if draft.setup}
    assert len(drafts) == 4 and ["install b" in script for script in setups.values()] == [False, True]
    assert deviation(drafts[0].plan, "called workflow") == Deviation("called workflow", of, "/other", "--workflow-dir")


def test_the_given_tests_are_pytests_only_ones_and_a_deviation() -> None:
    given = GivenValues(tests=("tests/test_a.py::TestX::test_y", "test_b.py::test_z[1-a]"))
    plan = draft(workflow("    env: {PYTEST_ADDOPTS: -v}\n" + STEPS), event=replace(EVENT, given=given)).plan
    options = "-v -k '(test_a.py and TestX and test_y) or (test_b.py and test_z[1-a])'"
    assert f"export PYTEST_ADDOPTS={shlex.quote(options)}" in plan.script
    told = Deviation("tests", "all of the row", "tests/test_a.py::TestX::test_y test_b.py::test_z[1-a]", "--test")
    assert told in plan.deviations
    for more in (
        "    container: {image: a/b, env: {PYTEST_ADDOPTS: -v}}\n" + STEPS,
        STEPS + "        env: {PYTEST_ADDOPTS: -v}\n",
    ):
        script = draft(workflow(more), event=replace(EVENT, given=given)).plan.script
        assert f"export PYTEST_ADDOPTS={shlex.quote(options)}" in script, "whatever sets it"
