"""Which row of a workflow a log is of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ci_tasks.logs.job_facts import RecoveredJob, RecoveredStep
from ci_tasks.logs.job_row import RowCandidate, RowIdentity, context_of_log, identify_row, row_candidates, shown_outputs
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.reader import read as read_workflow
from ci_tasks.workflow.reader import read_with_called
from tests.logs import github_format as github
from tests.parts.entries import describe

STEPS = """
    env:
      COMMIT: ${{ github.sha }}_${{ github.event.pull_request.number || 'non-pr' }}
      KEY: ${{ secrets.KEY }}
      EVAL: ${{ matrix.info.enable_eval || '1' }}
    steps:
      - uses: actions/checkout@v4
      - name: Install
        run: pip install -e .
      - name: Execute
        run: |
          docker run --pull=always -e KEY=${{ secrets.KEY }} \\
            -e TEST_FILE="${{ matrix.info.test_file }}" \\
            -e TEST_ARGS="${{ matrix.info.test_args || '' }}" \\
            -v ${{ github.workspace }}:/w acme/trainer:latest bash
"""
CKPT = """
          - {num_gpus: 4, test_file: test_ckpt.py}
          - {num_gpus: 4, test_file: test_ckpt.py, test_args: --async-save}
          - {num_gpus: 4, test_file: test_ckpt.py, test_args: --async-save, enable_eval: '0'}
          - {num_gpus: 8, test_file: test_ppo.py, enable_eval: ''}
"""
TEXT = f"""
on: pull_request
jobs:
  ckpt:
    runs-on: gpu
    strategy:
      matrix:
        info:{CKPT}{STEPS}
  twin:
    runs-on: gpu
    strategy:
      matrix:
        info:{CKPT}{STEPS}
"""
FLOW = read_workflow(TEXT, "w.yml")
HERE = EventContext(secrets=("KEY",))


def of(workflow: Workflow, situation: EventContext = HERE, job: str = "") -> list[RowCandidate]:
    jobs = [found for name, found in workflow.jobs.items() if job in ("", name)]
    every = [row_candidates(workflow, one, rows.rows(workflow, one, situation, describe), situation) for one in jobs]
    return [candidate for candidates in every for candidate in candidates]


CI = dataclasses.replace(HERE, sha="c" * 40, workspace="/ci/w", secrets=("KEY",))
EVERY = of(FLOW)


def log_of(number: int, *, name: str | None = None, number_of_pr: int = 7) -> Any:
    """The job that CI would show for the workflow's row of that number."""
    candidate = of(FLOW, CI)[number]
    env = {key: value.replace("non-pr", str(number_of_pr)) for key, value in candidate.env.items()}
    install, execute = candidate.scripts
    steps = (
        github.Step("Install", install, env=env),
        github.Step("Execute", execute, env=env, output=("boom",), exit_code=1),
    )
    return github.Job(candidate.names[0] if name is None else name, steps, commit="c" * 40, pull_request=number_of_pr)


def identify_in(log: bytes, candidates: list[RowCandidate] = EVERY, **changed: Any) -> RowIdentity:
    return identify_row(dataclasses.replace(github.recovered(log), **changed), candidates)


def row(identity: RowIdentity) -> tuple[str, str] | None:
    return (identity.row.job, identity.row.row) if identity.row else None


ROWS = [(candidate.row.job, candidate.row.row) for candidate in EVERY]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_row_is_known_by_the_name_of_its_job_and_within_a_job_by_its_script(number: int) -> None:
    identity = identify_in(github.render(log_of(number)))
    assert row(identity) == ROWS[number]
    assert "another revision" not in identity.why
    assert row(identify_in(b"", job_name=f"nightly / {EVERY[number].names[0]}")) == ROWS[number], "of a called workflow"
    of_job = EVERY[:4] if number < 4 else EVERY[4:]
    pasted = github.without_prefix(log_of(number, name=""))
    assert row(identify_in(pasted, of_job)) == ROWS[number]
    hidden = pasted.replace(b"async", b"***").replace(b"acme", b"***")
    in_ci = of(FLOW, CI, ROWS[number][0])
    assert row(identify_in(hidden, in_ci)) == ROWS[number], "a secret may hide any part of a script"
    renamed = log_of(number, name=f"{ROWS[number][0]} (9, changed since)")
    assert row(identify_in(github.render(renamed))) == ROWS[number]
    assert row(identify_in(github.from_gh(log_of(number), failed=True), job_name="")) is None, (
        "two jobs have that script"
    )


NAMES: list[tuple[str, list[str]]] = [
    ("name: Test\n    strategy: {matrix: {a: [1, 2.5], b: [true]}}", ["Test (1, true)", "Test (2.5, true)"]),
    # A name with an expression stands for itself.
    ("name: Test ${{ matrix.a }}\n    strategy: {matrix: {a: [x], b: [y]}}", ["Test x"]),
    ("name: On ${{ github.event.issue.number }}x", ["On x"]),
    # What `include` adds to a combination is not in the name; a combination of its own is.
    ("strategy: {matrix: {a: [x, y], include: [{a: x, more: 1}, {a: z, more: 2}]}}", ["j (x)", "j (y)", "j (z, 2)"]),
]


@pytest.mark.parametrize(("job", "names"), NAMES)
def test_a_job_is_called_as_github_calls_it(job: str, names: list[str]) -> None:
    flow = read_workflow(f"on: push\njobs:\n  j:\n    runs-on: x\n    {job}\n    steps: [{{run: x}}]\n", "w.yml")
    assert [name for candidate in of(flow) for name in candidate.names] == names


LONG = "--" + "x" * 120


def long_rows(*ends: str) -> list[RowCandidate]:
    entries = "".join(f"          - {{test_file: t.py, test_args: {LONG}{end}}}\n" for end in ends)
    return of(read_workflow(TEXT.replace(CKPT, "\n" + entries), "w.yml"), HERE, "ckpt")


SHOWN = [f"{f'ckpt (t.py, {LONG}a)':.97}...", f"ckpt (t.py, {LONG}a)", f"ckpt (t.py, {LONG[:60]}…"]


@pytest.mark.parametrize("shown", SHOWN)
def test_a_name_is_cut_as_github_cuts_it_and_is_enough_where_no_other_begins_so(shown: str) -> None:
    identity = identify_row(RecoveredJob(job_name=shown), long_rows("a"))
    assert identity.row is not None and identity.row.args == f"{LONG}a"
    identity = identify_row(RecoveredJob(job_name=SHOWN[0]), long_rows("a", "b"))
    assert (identity.row, [candidate.args[-1] for candidate in identity.nearest]) == (None, ["a", "b"])


def test_a_step_that_a_program_made_up_chooses_no_other_row() -> None:
    job = log_of(0)
    forged = dataclasses.replace(job.steps[1], output=tuple(github.without_prefix(log_of(3)).splitlines()))
    log = github.render(dataclasses.replace(job, steps=(job.steps[0], forged)))
    assert row(identify_in(log)) == row(identify_in(log, EVERY[:4], job_name="")) == ROWS[0]


def test_without_evidence_no_row_is_chosen_and_those_like_it_are_near() -> None:
    ls = RecoveredJob(steps=(RecoveredStep("Run ls", 1, script="ls"),))
    nothing = [(RecoveredJob(), EVERY), (RecoveredJob(job_name="ckpt (8, test_ppo.py)"), []), (ls, EVERY)]
    for recovered, candidates in nothing:
        identity = identify_row(recovered, candidates)
        assert identity.row is None and identity.why
    unknown = identify_in(github.render(log_of(0, name="changed (4, x)")), EVERY[:4])
    assert (unknown.row, [candidate.row for candidate in unknown.nearest]) == (None, ["ckpt"])
    assert "no row's job is called 'changed (4, x)'" in unknown.why
    assert "its EVAL is '1'; 2 rows fit" in identify_in(github.render(log_of(1)), job_name="").why


def test_the_log_says_more_of_the_event_than_what_is_known_here() -> None:
    known = RecoveredJob(commit="a" * 40, workspace="/w")
    context = context_of_log(known, dataclasses.replace(HERE, repository="o/r"))
    assert (context.sha, context.workspace, context.repository) == ("a" * 40, "/w", "o/r")


# -- outputs of other jobs ---------------------------------------------------------------------------------------------

OUTPUTS = """
on: pull_request
jobs:
  policy: {runs-on: x, outputs: {cadence: x, labels: x, image: x, flag: x, twice: x}, steps: [{run: x}]}
  gpu:
    needs: policy
    strategy: {matrix: {part: [0, 1]}}
    uses: ./.github/workflows/run.yml
    with:
      image: ${{ needs.policy.outputs.image }}
      command: >-
        python run_suite.py --part ${{ matrix.part }} --cadence ${{ needs.policy.outputs.cadence }}
        --labels ${{ needs.policy.outputs.labels }} ${{ github.event_name == 'push' && '--all' || '' }}
  other: {needs: policy, runs-on: x, steps: [{run: "python run_suite.py --labels ${{ needs.policy.outputs.cadence }}"}]}
"""
CALLED_FILE = """
on: {workflow_call: {inputs: {command: {type: string}, image: {type: string, default: i}}}}
jobs:
  run:
    runs-on: gpu
    container: {image: "${{ inputs.image }}"}
    env: {KEY: "${{ secrets.KEY }}", FLAG: "${{ needs.policy.outputs.flag == 'x' && 'a' || 'b' }}"}
    steps: [{run: "${{ inputs.command }}", env: {SUITE: "${{ inputs.command }}!"}}]
"""
COMMAND = "python run_suite.py --part 1 --cadence {} --labels {} "
IN_LOG = {"cadence": "nightly", "labels": '["a b"]', "image": "acme/trainer:pr-7"}


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        ("gpu (1) / run", COMMAND.format("nightly", '["a b"]'), IN_LOG),
        # A log that does not name its job is that of any job with such a script.
        ("", COMMAND.format("nightly", '["a b"]'), IN_LOG),
        ("gpu (1) / run", COMMAND.format("***", "[]"), {"labels": "[]", "image": "acme/trainer:pr-7"}),
        # Which text is which output's is not known.
        ("gpu (1) / run", COMMAND.format("a --labels b", "c"), {}),
        ("gpu (1) / run", "python other.py", {}),
        ("other", COMMAND.format("nightly", "[]"), {}),
        ("other", "python run_suite.py --labels weekly", {"cadence": "weekly"}),
    ],
)
def test_outputs_of_other_jobs_are_what_the_log_of_a_job_shows_where_it_uses_them(
    name: str, command: str, shown: dict[str, str]
) -> None:
    workflow = read_with_called(OUTPUTS, "ci.yml", {".github/workflows/run.yml": CALLED_FILE}.get)
    step = RecoveredStep("Run", 1, script=command, env={"SUITE": f"{command}!", "FLAG": "a"})
    job = RecoveredJob(job_name=name, image="acme/trainer:pr-7", steps=(step,))
    assert shown_outputs(workflow, [job], HERE, describe) == {f"policy.{name}": value for name, value in shown.items()}


def test_an_output_that_is_seen_with_two_values_is_not_known() -> None:
    workflow = read_with_called(OUTPUTS, "ci.yml", lambda file: None)
    steps = [RecoveredStep("Run", 1, script=f"python run_suite.py --labels {value}") for value in ("a", "b")]
    assert shown_outputs(workflow, [RecoveredJob(job_name="other", steps=tuple(steps))], HERE, describe) == {}
