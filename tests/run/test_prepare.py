"""What of a checkout is looked at before its rows are planned: large untracked files, GPU counts that nobody said; and
which changed test runs where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.cli.commands.labels import JobsOptions, PlanOptions, RemoteOptions, RunOptions, jobs, plan, remote, run
from ci_tasks.errors import CheckoutError, UnknownName, UsageError
from ci_tasks.logs.job_log import jobs_in
from ci_tasks.results import store
from ci_tasks.run import label
from ci_tasks.run.checkout_source import RunRequest
from ci_tasks.run.find_rows import JobRows
from ci_tasks.run.label import changed_runs
from ci_tasks.run.prepare import PreparedBatch, RowPlanner, announce_large_files
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row
from tests.logs import github_format


def test_large_files_that_travel_are_named_with_what_leaves_them_behind(capsys: pytest.CaptureFixture[str]) -> None:
    announce_large_files([(f"weights-{6 - at}\x1b.bin", 2_000_000 if at else 300_000_000) for at in range(7)])
    out = capsys.readouterr().out
    assert "312 MB in all: weights-6�.bin" in out and "and 2 more" in out
    assert "press ^C and add them to .gitignore" in out


WORKFLOW = """
on: pull_request
jobs:
  train: {runs-on: [self-hosted, linux-a100], steps: [{run: touch RAN}]}
  mixed:
    runs-on: lab
    strategy: {matrix: {include: [{name: cpu, num_gpus: 0}, {name: any}]}}
    steps: [{run: touch RAN}]
  eight: {runs-on: 8-gpu-h200, steps: [{run: touch RAN}]}
  rocm: {runs-on: [rocm-mi300], steps: [{run: touch RAN}]}
  called: {uses: ./.github/workflows/other.yml}
  away: {uses: o/r/.github/workflows/run.yml@v1}
"""
UNKNOWN = "the workflow does not say how many GPUs the row takes"


@pytest.fixture
def checkout(commit: Callable[[str], Path], tmp_path: Path) -> Path:
    return commit(WORKFLOW.replace("RAN", str(tmp_path / "ran")))


@pytest.mark.parametrize(
    ("label", "message", "hint"),
    [
        ("train", UNKNOWN, "--gpus N"),
        ("mixed", UNKNOWN, "--gpus N"),
        ("rocm", "runs on rocm-mi300, a runner with AMD GPUs; only NVIDIA GPUs are supported", ""),
        # What a job is comes before what its runner has.
        ("called", "calls a workflow that is not in the checkout", ""),
        ("away", "calls a workflow that is in another repository", "--workflow-dir o/r=DIR"),
    ],
)
def test_plan_run_and_remote_refuse_it_before_anything_runs(
    checkout: Path, tmp_path: Path, label: str, message: str, hint: str
) -> None:
    repo = str(checkout)
    calls: list[Callable[[], int]] = [
        lambda: plan(PlanOptions(label=label, repo=repo)),
        lambda: run(RunOptions(label=label, repo=repo)),
        lambda: remote(RemoteOptions(label=label, host="local,sim", repo=repo)),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert message in caught.value.message and hint in caught.value.hint
    assert not (tmp_path / "ran").exists() and not list((tmp_path / "home/runs").glob("*"))


@pytest.mark.parametrize(
    ("label", "gpus", "counts"),
    [("train", 0, [0]), ("train", 2, [2]), ("mixed", 4, [0, 4]), ("eight", 8, [8]), ("eight", 0, [0])],
)
def test_a_person_says_what_the_workflow_does_not_and_the_plan_names_it(
    checkout: Path, capsys: pytest.CaptureFixture[str], label: str, gpus: int, counts: list[int]
) -> None:
    assert plan(PlanOptions(label=label, repo=str(checkout), gpus=gpus, json=True)) == 0
    rows = json.loads(capsys.readouterr().out)
    named = [(each["here"], each["why"]) for row in rows for each in row["deviations"] if each["what"] == "GPU count"]
    assert [row["gpus"] for row in rows] == counts
    assert named == [(str(gpus), "--gpus")] * (gpus != 8)


AWAY = """
on: {workflow_call: {outputs: {size: {value: "${{ jobs.one.outputs.size }}"}}}}
jobs:
  one:
    runs-on: ubuntu-latest
    outputs: {size: "${{ steps.s.outputs.size }}"}
    steps: [{id: s, run: 'echo size=4 >> "$GITHUB_OUTPUT"'}]
"""


def test_a_workflow_of_another_repository_comes_from_a_directory(
    commit: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "on: push\njobs:\n  away: {uses: o/r/.github/workflows/run.yml@v1}\n"
    after = "{needs: away, runs-on: ubuntu-latest, env: {SIZE: '${{ needs.away.outputs.size }}'}, steps: [{run: x}]}"
    repo, other = str(commit(f"{text}  after: {after}\n")), tmp_path / "other"
    (other / ".github/workflows").mkdir(parents=True)
    options = PlanOptions(
        label="after", repo=repo, json=True, run_needs=True, base="HEAD", workflow_dir=(f"o/r={other}",)
    )
    with pytest.raises(UsageError, match=r"--workflow-dir o/r: .*other has no \.github/workflows/run\.yml") as caught:
        plan(options)
    assert caught.value.hint == "check out o/r at v1 there"
    (other / ".github/workflows/run.yml").write_text(AWAY)
    assert plan(options) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["env"] == {"SIZE": "4"}
    (Path(repo) / ".github/workflows/other.yml").write_text("on: pull_request\njobs: {x: {steps: [{run: x}]}}\n")
    assert jobs(JobsOptions(repo=repo, changed=True, base="HEAD", workflow_dir=(f"o/r={other}",))) == 0
    (Path(repo) / ".github/workflows/other.yml").unlink()
    with pytest.raises(UsageError, match="calls no workflow of it; did you mean 'o/r'") as caught:
        plan(PlanOptions(label="after", repo=repo, workflow_dir=(f"o/rr={other}",)))
    assert caught.value.hint == "it calls workflows of: o/r"


def test_outputs_of_other_jobs_come_from_cis_log(
    commit: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "bash tests.sh --tag ${{ needs.build.outputs.tag }}"
    text = "on: push\njobs:\n  build: {runs-on: ubuntu-latest, outputs: {tag: x}, steps: [{run: docker ps}]}\n"
    repo = str(commit(f"{text}  test: {{needs: build, runs-on: ubuntu-latest, steps: [{{run: '{script}'}}]}}\n"))
    log = tmp_path / "ci.log"
    log.write_bytes(
        github_format.render(github_format.Job("test", (github_format.Step("Run", "bash tests.sh --tag v7"),)))
    )
    options = PlanOptions(label="test", repo=repo, json=True, outputs_from=str(log))
    assert plan(options) == 0
    (row,) = json.loads(capsys.readouterr().out)
    named = {"what": "needs.build.outputs.tag", "ci": "GitHub's value", "here": "v7", "why": f"--outputs-from {log}"}
    assert named in row["deviations"]
    assert plan(replace(options, output=("build.tag=v8",))) == 0
    assert '"here": "v8", "why": "--output"' in " ".join(capsys.readouterr().out.split())
    log.write_bytes(github_format.render(github_format.Job("build", (github_format.Step("Run", "docker ps"),))))
    jobs_in.cache_clear()
    with pytest.raises(UsageError, match=r"ci\.log shows no output of another job") as caught:
        plan(options)
    assert "--output JOB.NAME=VALUE" in caught.value.hint


def test_it_cannot_contradict_the_workflow(checkout: Path) -> None:
    with pytest.raises(UsageError, match="--gpus 4: the workflow says 8") as caught:
        plan(PlanOptions(label="eight", repo=str(checkout), gpus=4))
    assert caught.value.hint.startswith("run it without --gpus")


def test_jobs_lists_what_is_not_known_and_what_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs(JobsOptions(repo=str(checkout), json=True)) == 0
    rows = {row["row"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["gpus"] for name, row in rows.items()} == {
        "train": None, "mixed[cpu-0]": 0, "mixed[any]": None, "eight": 8, "rocm": None, "called": None, "away": None,
    }  # fmt: skip
    assert [name for name, row in rows.items() if "refused" in row] == ["rocm"]
    assert jobs(JobsOptions(repo=str(checkout))) == 0
    assert "Cannot run here:\nrocm  runs on rocm-mi300, a runner with AMD GPUs" in capsys.readouterr().out


REQUEST = RunRequest("changed", host="h100a", image="a/b", prefetch=True)


def row(label: str, name: str, gpus: int, image: str | None = None) -> Row:
    return Row(label, label, None, name, f"tests/test_{name}.py", "", gpus, image, {}, "self-hosted", None)


CPU = [row("cpu-unittest", "rewards", 0), row("cpu-unittest", "metrics", 0), row("agent-test", "tools", 0)]
ALL = [*CPU, row("megatron", "ppo", 8, "a/b"), row("image", "rewards", 0, "a/b")]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """runs(names, …) → the runs of a change that touches these tests."""

    def changed(names: str, **request: Any) -> list[RunRequest]:
        found = [row("changed", name, 8, "a/b") for name in names.split()]
        monkeypatch.setattr(label, "find_rows", lambda *_: JobRows(Job("changed", 1), found, EventContext()))
        monkeypatch.setattr(label, "list_jobs", lambda _: ALL)
        monkeypatch.setattr(label, "event_context", lambda _: EventContext())
        suite = SimpleNamespace(is_changed=lambda _: True)
        given = SimpleNamespace(outputs={})
        source: Any = SimpleNamespace(headline="checkout: here", path="/here", suite=suite, given=given)
        return changed_runs(source, replace(REQUEST, **request))

    return changed


def test_only_without_a_changed_test_says_that_none_changed(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs("", only="ppo") == []
    assert "no test file is new or modified since origin/main" in capsys.readouterr().out


def test_every_cpu_label_is_one_run_on_this_machine_and_the_rest_one_on_the_host_that_was_asked_for(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    here, agent, there = runs("rewards tools ppo")
    assert here == replace(
        REQUEST, label="cpu-unittest", rows=("rewards",), host="local", image=None, prefetch=False
    ), "image has that test too, in a container"
    assert (agent.label, agent.rows, agent.host) == ("agent-test", ("tools",), "local")
    assert there == replace(REQUEST, rows=("ppo",))
    assert capsys.readouterr().out.splitlines() == [
        "changed: rewards of cpu-unittest on local",
        "changed: tools of agent-test on local",
        "changed: ppo of changed on h100a",
    ]


def test_without_a_changed_test_nothing_runs_and_reason_is_said(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs("") == []
    assert "vacuous: label changed has no row: no test file is new or modified" in capsys.readouterr().out


def test_only_selects_among_both_and_names_what_there_is(runs: Any) -> None:
    assert [run.rows for run in runs("rewards ppo", only="ppo")] == [("ppo",)]
    with pytest.raises(UnknownName, match="unknown row 'pppo' in label changed"):
        runs("rewards ppo", only="pppo")


def test_a_row_starts_ray_if_it_has_gpus_and_its_test_does_or_the_runner_takes_its_locks() -> None:
    rows: list[Row] = [row("l", name, gpus) for name, gpus in (("ray", 8), ("ray", 0), ("plain", 8))]
    code: Any = SimpleNamespace(read_file=lambda path: "import ray\nray.init()\n" if "ray" in path else "")
    rest: Any = None
    for request, starts in ((RunRequest("l"), [True, False, False]), (RunRequest("l", by_runner=True), [True] * 3)):
        planner = RowPlanner(rest, rest, request, rest, rest, rows, code, simulates=False)
        assert [planner._starts_ray(each) for each in rows] == starts


def test_interrupt_while_a_command_closes_ends_one_step_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))
    batch, closed = store.new_batch("ckpt"), list[str]()

    def close(name: str) -> None:
        closed.append(name)
        raise KeyboardInterrupt

    sessions: Any = [SimpleNamespace(executor=SimpleNamespace(close=partial(close, name))) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        PreparedBatch(batch, (), sessions, None, Checkout("", "", "", ())).close()
    state = store.read_state_if_readable(batch.path)
    assert sorted(closed) == ["a", "b"] and state is not None and state.phase == "ended"


def test_a_base_that_does_not_exist_is_an_error_even_where_none_is_needed(checkout: Path) -> None:
    with pytest.raises(CheckoutError, match="has no revision 'nosuch'"):
        run(RunOptions(label="eight", base="nosuch", repo=str(checkout)))
