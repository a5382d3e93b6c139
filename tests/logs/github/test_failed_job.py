"""What `--url URL` reads, from a GitHub of our own: which job, what is known of it, and what each refusal means."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs.github import WorkflowJob, open_failed_jobs
from tests.logs.github.github_server import REPO, Answer, Serving, Storage, job, leads_to, run

WEB, API = "https://github.com/THUDM/slime", "https://api.github.com/repos/THUDM/slime"
JOB = f"{WEB}/actions/runs/7/job/9"
RUN = f"{WEB}/actions/runs/7"


def job_at(url: str) -> WorkflowJob:
    with open_failed_jobs(url, only_one=True) as (failed,):
        return failed[0]


def refused(url: str) -> CiTasksError:
    with pytest.raises(CiTasksError) as caught, open_failed_jobs(url, only_one=True):
        pass
    assert caught.value.hint, "the next step"
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_failed_job_comes_with_its_log_and_what_github_knows(api: Serving, storage: Storage) -> None:
    with open_failed_jobs(JOB) as (failed,):
        assert b"".join(failed[1].jobs[0].chunks()) == storage.log
    workflow, ended = ".github/workflows/pr-test.yml", ("completed", "failure", "h100-3", JOB)
    assert failed[0] == WorkflowJob("THUDM/slime", workflow, 9, "job 9", *ended)


# -- which job


def test_the_only_failed_job_of_a_run_is_meant_however_many_there_are(api: Serving) -> None:
    others = [job(number, "success" if number % 2 else "skipped") for number in range(1000, 1240)]
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [*others, job(9)])
    assert job_at(RUN).id == 9
    assert api.paths().count(f"{REPO}/actions/runs/7/jobs") == 3


def test_of_several_failed_jobs_each_address_is_given_or_all_are_read(api: Serving, storage: Storage) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9), job(10, "success"), job(11, "timed_out")])
    error = refused(RUN)
    assert (error.exit_code, "2 jobs failed in run 7 of THUDM/slime" in error.message) == (2, True)
    assert error.hint == f"--url takes:\n  job 9: {JOB}\n  job 11: {RUN}/job/11"
    api.on(f"{REPO}/actions/jobs/11/logs", leads_to(storage))
    with open_failed_jobs(RUN) as failed:
        assert [job.id for job, _ in failed] == [9, 11]
    assert api.paths().count(f"{REPO}/actions/jobs/9") == 0, "a listed job is not asked for again"


NO_FAILURE: list[tuple[list[Any], str]] = [
    ([job(9, "success"), job(10, "skipped")], "nothing failed in run 7"),
    ([job(9, "success"), job(10, None)], "nothing has failed yet in run 7 of THUDM/slime; not completed: job"),
    ([], "no job of it ran"),
]
NOT_FAILED: list[tuple[Any, str]] = [
    (job(9, None), "nothing has failed yet in job 'job 9'"),
    (job(9, "success"), "nothing failed in job 'job 9' of THUDM/slime"),
    (job(9, "skipped"), "nothing failed in job 'job 9'"),
]


def test_a_run_or_a_job_or_a_pull_request_that_did_not_fail_is_refused(api: Serving) -> None:
    for jobs, message in NO_FAILURE:
        api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", jobs)
        error = refused(RUN)
        assert (type(error), message in error.message) == (UsageError, True), error
    for body, message in NOT_FAILED:
        api.on(f"{REPO}/actions/jobs/9", body)
        error = refused(JOB)
        assert (type(error), message in error.message) == (UsageError, True), error
    pull(api, [run(12, "success", head_sha=NEW), run(10, head_sha=OLD)], {})
    assert "nothing failed in pull request 45" in refused(f"{WEB}/pull/45").message


def test_a_job_that_is_named_is_read_however_github_calls_its_failure(api: Serving) -> None:
    for conclusion in ("startup_failure", "action_required", "stale", "cancelled"):
        api.on(f"{REPO}/actions/jobs/9", job(9, conclusion))
        assert job_at(JOB).conclusion == conclusion


def test_a_cancelled_job_is_meant_where_none_failed_and_not_beside_one(api: Serving) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9, "cancelled"), job(10, "success")])
    assert job_at(RUN).conclusion == "cancelled"
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9), job(10, "cancelled")])
    assert job_at(RUN).id == 9


@pytest.mark.parametrize(
    "url", [f"{WEB}/pull/45/checks?check_run_id=9", f"{WEB}/commit/{'a' * 40}/checks/9", f"{API}/actions/jobs/9"]
)
def test_a_check_is_its_job(api: Serving, url: str) -> None:
    assert job_at(url).id == 9


NEW, OLD = "b" * 40, "a" * 40


def pull(api: Serving, runs: list[Any], jobs: dict[int, list[Any]]) -> None:
    api.on(f"{REPO}/pulls/45", {"head": {"sha": NEW, "ref": "fix", "repo": {"full_name": "someone/slime"}}})
    api.on_list(f"{REPO}/actions/runs", "workflow_runs", runs)
    api.on(f"{REPO}/commits/bbbbbbb", {"sha": NEW})
    for number, listed in jobs.items():
        api.on_list(f"{REPO}/actions/runs/{number}/jobs", "jobs", listed)


@pytest.mark.parametrize(
    ("runs", "jobs"),
    [
        ([run(12, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(9)], 11: [job(8)]}),
        # A label that starts nothing makes a newer run that says nothing.
        ([run(12, "skipped", head_sha=NEW), run(11, head_sha=NEW)], {11: [job(9)]}),
        ([run(12, None, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(8, None)], 11: [job(9)]}),
        ([run(12, None, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(9), job(8, None)], 11: [job(8)]}),
        ([run(12, "success", path="lint.yml", head_sha=NEW), run(11, head_sha=NEW)], {11: [job(9)]}),
    ],
)
def test_of_a_pull_request_the_newest_failure_is_meant(
    api: Serving, runs: list[Any], jobs: dict[int, list[Any]]
) -> None:
    pull(api, runs, jobs)
    for url, pulls in ((f"{WEB}/pull/45", 45), (f"{WEB}/commit/bbbbbbb", None)):
        assert (job_at(url).id, job_at(url).pull_request) == (9, pulls)


# -- refusals


AT = f"{REPO}/actions/jobs/9"
NO_ADMIN = {"message": "Must have admin rights to Repository."}
REFUSALS: list[tuple[str, Answer, type[CiTasksError], str, str]] = [
    (AT, Answer(401, {}), Blocked, "does not accept the token of GH_TOKEN", "gh auth login"),
    (AT, Answer(403, {"message": "Resource not accessible"}), Blocked, "'Resource not accessible'", "read actions"),
    (AT, Answer(403, {"message": "SAML enforcement"}), Blocked, "'SAML enforcement'", "SSO where the owner requires"),
    (AT, Answer(404, {}), UsageError, "the token of GH_TOKEN may not see the repository", "check the URL"),
    (f"{AT}/logs", Answer(410, {}), UsageError, "is gone (410): logs are kept 90 days by default",
     "re-run the job"),
    (f"{AT}/logs", Answer(403, NO_ADMIN), Blocked, "may not read the log", "the scope `repo`"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "answer", "kind", "message", "step"), REFUSALS)
def test_a_refusal_says_what_it_means_and_the_next_step(
    api: Serving, path: str, answer: Answer, kind: type[CiTasksError], message: str, step: str
) -> None:
    api.on(path, answer)
    error = refused(JOB)
    assert (type(error), message in error.message, step in error.hint) == (kind, True, True), error
    assert "\x1b" not in str(error)
