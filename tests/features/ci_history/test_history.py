"""Whether a failure is new in CI, flaky there, or the base's: by the last runs of its workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.cli.program import run as ci_tasks
from ci_tasks.features.ci_history.history import PastJob, ci_row_history, judge
from ci_tasks.logs.job_log import from_url
from tests.logs.github.github_server import REPO, Serving, Storage, job, leads_to, run


def past(name: str, failed: bool, *, base: bool = False) -> PastJob:
    return PastJob(f"u/{name}", failed, "main" if base else name, base)


# A job's URL ends in the signature that its log has.
CASES = [
    ([past("same", True, base=True)], "already broken in CI: its last run on main failed in the same way, u/same"),
    (
        [past("ok", False, base=True), past("same", True, base=True)],
        "flaky in CI: 1 of 2 other runs failed in the same way, the last on main, u/same",
    ),
    (
        [past("same", True), past("other", True), past("ok", False)],
        "flaky in CI: 1 of 3 other runs failed in the same way, the last on same, u/same",
    ),
    ([past("other", True, base=True), past("ok", False)], "new in CI: none of its last 2 runs failed in the same way"),
    # A log that is gone, or not read, is none that failed in another way.
    (
        [past("", True), past("other", True)],
        "CI's history shows nothing: 2 other runs failed, of which 1 could be compared",
    ),
    ([past("other", True)] * 9, "CI's history shows nothing: 9 other runs failed, of which 8 could be compared"),
    ([], "CI's history shows nothing: no other run of the job has ended"),
]


@pytest.mark.parametrize(("runs", "sentence"), CASES)
def test_what_other_runs_say_of_a_failure(runs: list[PastJob], sentence: str) -> None:
    assert judge("same", runs, lambda url: url.rpartition("/")[2]) == sentence


LOG = b"2025-11-02T10:00:00.0000000Z E   AssertionError: 1 != 2\n2025-11-02T10:00:01.0000000Z FAILED tests/a.py::b\n"
URL = "https://github.com/THUDM/slime/actions/runs/7/job/9"


@pytest.fixture
def storage(storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Storage:
    """It has the log of every job. What is remembered of them lies in a home of the test's."""
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    storage.log = LOG
    return storage


@pytest.mark.parametrize(("is_mine", "said"), [(True, "flaky in CI: 1 of 1 other"), (False, "already broken in CI")])
def test_a_push_to_a_pull_requests_branch_is_not_the_base(
    api: Serving, storage: Storage, capsys: Any, is_mine: bool, said: str
) -> None:
    owner = "THUDM" if is_mine else "fork"
    mine = {**run(), "event": "pull_request", "head_branch": "b", "head_repository": {"full_name": f"{owner}/slime"}}
    push = {**run(), "id": 6, "event": "push", "head_branch": "b"}
    api.on(f"{REPO}/actions/workflows/pr-test.yml/runs", {"workflow_runs": [mine, push]})
    api.on(f"{REPO}/actions/runs/7/jobs", {"jobs": [job(9)]})
    api.on(f"{REPO}/actions/runs/6/jobs", {"jobs": [{**job(5), "name": "job 9"}]})
    api.on(f"{REPO}/actions/jobs/5", {**job(5), "name": "job 9", "run_id": 6})
    api.on(f"{REPO}/actions/runs/6", push)
    api.on(f"{REPO}/actions/jobs/5/logs", leads_to(storage))
    ci_tasks(["ci-tasks", "triage", "--url", URL])
    assert said in capsys.readouterr().out


def test_of_several_jobs_none_is_taken_for_another(api: Serving, storage: Storage, tmp_path: Path, capsys: Any) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(8), job(9)])
    api.on(f"{REPO}/actions/jobs/8/logs", leads_to(storage))
    ci_tasks(["ci-tasks", "triage", "--url", URL.rpartition("/job")[0]])
    assert "CI's history shows nothing: 2 jobs failed in run 7 of THUDM/slime" in capsys.readouterr().out


def test_triage_of_a_url_reads_each_log_once(api: Serving, storage: Storage, tmp_path: Path, capsys: Any) -> None:
    older = {**run(), "id": 6, "event": "push", "head_branch": "main"}
    api.on(f"{REPO}/actions/workflows/pr-test.yml/runs", {"workflow_runs": [run(), older]})
    api.on(f"{REPO}/actions/runs/7/jobs", {"jobs": [job(9)]})
    api.on(f"{REPO}/actions/runs/6/jobs", {"jobs": [{**job(5), "name": "job 9"}, job(4)]})
    api.on(f"{REPO}/actions/runs/6", older)
    api.on(f"{REPO}/actions/jobs/5", {**job(5), "name": "job 9", "run_id": 6})
    api.on(f"{REPO}/actions/jobs/5/logs", leads_to(storage))
    for _ in range(2):
        ci_tasks(["ci-tasks", "triage", "--url", URL])
        assert "already broken in CI: its last run on main failed in the same way" in capsys.readouterr().out
    assert api.paths().count(f"{REPO}/actions/jobs/5/logs") == 1
    assert (tmp_path / "home").stat().st_mode & 0o77 == 0, "runs will lie there"
    (tmp_path / "home/ci-history.json").write_text("1")
    ci_tasks(["ci-tasks", "triage", "--url", URL])
    assert "already broken in CI" in capsys.readouterr().out


def test_what_github_refuses_is_said(api: Serving, storage: Storage, tmp_path: Path, capsys: Any) -> None:
    ci_tasks(["ci-tasks", "triage", "--url", URL])
    said = capsys.readouterr().out
    assert "AssertionError: 1 != 2" in said and "CI's history shows nothing: " in said


@pytest.mark.parametrize("origin", ["git@github.com:THUDM/slime.git", "https://x@github.com/THUDM/slime"])
def test_rows_are_found_in_cis_runs_by_their_names_with_or_without_a_failure_here(
    api: Serving, storage: Storage, origin: str
) -> None:
    older = {**run(), "id": 6, "event": "push", "head_branch": "main"}
    api.on(f"{REPO}/actions/workflows/pr-test.yml/runs", {"workflow_runs": [run(), older]})
    api.on(f"{REPO}/actions/runs/7/jobs", {"jobs": [{**job(9), "name": "a"}]})
    api.on(f"{REPO}/actions/runs/6/jobs", {"jobs": [{**job(5), "name": "a", "conclusion": "success"}]})
    (signature,) = {one.triage.signature for one in from_url(URL)}
    rows = {"a": (("a",), ""), "again": (("a",), signature), "new": (("a",), "other"), "b": (("b",), "")}
    lines = ci_row_history(origin, ".github/workflows/pr-test.yml", rows)
    assert lines[0].startswith("a: 1 of its last 2 runs in CI failed, the last on ")
    assert lines[1].startswith("again: flaky in CI: 1 of 2 other runs failed in the same way")
    assert lines[2:] == [
        "new: new in CI: none of its last 2 runs failed in the same way",
        "b: 0 of its last 0 runs in CI failed",
    ]
    assert api.paths().count(f"{REPO}/actions/runs/7/jobs") == 1, "each run is asked for once, for all rows"
