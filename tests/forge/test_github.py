"""What `--url URL` reads, from a GitHub of our own: which job, what is known of it, and what each refusal means."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.forge.facts import JobFacts, StepFacts
from ci_tasks.forge.github import Fetched, fetch

if TYPE_CHECKING:
    from tests.forge.conftest import Waiting
    from tests.forge.github_server import REPO, Answer, Serving, Storage, job, leads_to, run
else:
    from ci_tasks_tests_github_server import REPO, Answer, Serving, Storage, job, leads_to, run

WEB = "https://github.com/THUDM/slime"
JOB = f"{WEB}/actions/runs/7/job/9"
RUN = f"{WEB}/actions/runs/7"


def job_at(url: str, waiting: Waiting) -> JobFacts:
    found = fetch(url, clock=waiting.clock)
    found.log.close()
    return found.job


def refused(url: str, waiting: Waiting) -> CiTasksError:
    with pytest.raises(CiTasksError) as caught:
        fetch(url, clock=waiting.clock)
    assert caught.value.hint, "the next step"
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_failed_job_comes_with_its_log_and_what_github_knows(
    api: Serving, storage: Storage, waiting: Waiting
) -> None:
    found: Fetched = fetch(JOB, clock=waiting.clock)
    with found.log, found.log.jobs[0].open() as source:
        assert source.read() == storage.log
        assert list(found.log)[1] == b"2025-11-02T10:00:00.0000000Z line 1 of the log"
    assert found.job == JobFacts(
        repository="THUDM/slime",
        run_id=7,
        attempt=2,
        job_id=9,
        name="job 9",
        status="completed",
        conclusion="failure",
        head_sha="a" * 40,
        head_branch="fix",
        head_repository="someone/slime",
        event="pull_request",
        pull_requests=(),
        workflow="PR Test",
        workflow_path=".github/workflows/pr-test.yml",
        runner_name="h100-3",
        labels=("self-hosted", "h100"),
        started_at="2025-11-02T10:00:00Z",
        completed_at="2025-11-02T10:05:00Z",
        html_url=JOB,
        steps=(StepFacts(1, "Set up job", "success", "2025-11-02T10:00:00Z", "2025-11-02T10:00:01Z"),),
    )


def test_what_the_api_leaves_out_is_empty(api: Serving, waiting: Waiting) -> None:
    api.on(f"{REPO}/actions/jobs/9", {"id": 9, "conclusion": "failure", "labels": None, "steps": [{}], "name": 5})
    found = job_at(f"{WEB}/runs/9", waiting)
    assert (found.name, found.labels, found.steps[0].name, found.run_id) == ("", (), "", 0)


# -- which job


def test_the_only_failed_job_of_a_run_is_meant_however_many_there_are(api: Serving, waiting: Waiting) -> None:
    others = [job(number, "success" if number % 2 else "skipped") for number in range(1000, 1240)]
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [*others, job(9)])
    assert job_at(RUN, waiting).job_id == 9
    assert api.paths().count(f"{REPO}/actions/runs/7/jobs") == 3


def test_of_several_failed_jobs_each_address_is_given(api: Serving, waiting: Waiting) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9), job(10, "success"), job(11, "timed_out")])
    error = refused(RUN, waiting)
    assert (error.exit_code, "2 jobs failed in run 7 of THUDM/slime" in error.message) == (2, True)
    assert error.hint == f"--url takes:\n  job 9: {JOB}\n  job 11: {RUN}/job/11"


def test_an_attempt_has_jobs_of_its_own(api: Serving, storage: Storage, waiting: Waiting) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9, "success", run_attempt=2)])
    api.on_list(f"{REPO}/actions/runs/7/attempts/1/jobs", "jobs", [job(8, run_attempt=1)])
    api.on(f"{REPO}/actions/jobs/8/logs", leads_to(storage))
    found = job_at(f"{RUN}/attempts/1", waiting)
    assert (found.job_id, found.attempt) == (8, 1)


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([job(9, "success"), job(10, "skipped")], "nothing failed in run 7"),
        (
            [job(9, "success"), job(10, None)],
            "nothing has failed so far in run 7 of THUDM/slime; still to come: job",
        ),
        ([], "it has no jobs that ran"),
        ([job(9, "cancelled"), job(10, "cancelled")], "2 jobs failed"),
    ],
)
def test_a_run_in_which_nothing_failed(api: Serving, waiting: Waiting, jobs: list[Any], words: str) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", jobs)
    error = refused(RUN, waiting)
    assert (isinstance(error, UsageError), words in error.message) == (True, True)


def test_a_cancelled_job_is_meant_where_none_failed_and_not_beside_one(api: Serving, waiting: Waiting) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9, "cancelled"), job(10, "success")])
    assert job_at(RUN, waiting).conclusion == "cancelled"
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9), job(10, "cancelled")])
    assert job_at(RUN, waiting).job_id == 9


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (job(9, None), "has no log yet: it is in progress"),
        (job(9, None, status="queued"), "has no log yet: it is queued"),
        (job(9, "success"), "succeeded: nothing failed"),
        (job(9, "skipped"), "was skipped: it never ran"),
    ],
)
def test_a_job_that_is_named_and_did_not_fail(api: Serving, waiting: Waiting, said: Any, words: str) -> None:
    api.on(f"{REPO}/actions/jobs/9", said)
    error = refused(JOB, waiting)
    assert (isinstance(error, UsageError), words in error.message) == (True, True)


@pytest.mark.parametrize(
    "url",
    [
        f"{WEB}/pull/45/checks?check_run_id=9",
        f"{WEB}/commit/{'a' * 40}/checks/9",
        "https://api.github.com/repos/THUDM/slime/actions/jobs/9",
    ],
)
def test_a_check_is_its_job(api: Serving, waiting: Waiting, url: str) -> None:
    assert job_at(url, waiting).job_id == 9


NEW, OLD = "b" * 40, "a" * 40


def pull(api: Serving, runs: list[Any], jobs: dict[int, list[Any]]) -> None:
    api.on(f"{REPO}/pulls/45", {"head": {"sha": NEW, "ref": "fix", "repo": {"full_name": "someone/slime"}}})
    api.on_list(f"{REPO}/actions/runs", "workflow_runs", runs)
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
    api: Serving, waiting: Waiting, runs: list[Any], jobs: dict[int, list[Any]]
) -> None:
    pull(api, runs, jobs)
    found = job_at(f"{WEB}/pull/45", waiting)
    assert (found.job_id, found.pull_requests) == (9, (45,))


def test_while_the_newest_commit_has_no_result_an_earlier_failure_is_meant_and_said(
    api: Serving, waiting: Waiting
) -> None:
    stranger = run(11, head_sha="c" * 40, head_repository={"full_name": "another/slime"})
    pull(api, [run(12, None, head_sha=NEW), stranger, run(10, head_sha=OLD)], {12: [job(8, None)], 10: [job(9)]})
    said: list[str] = []
    fetch(f"{WEB}/pull/45", said.append, waiting.clock).log.close()
    assert said == [f"nothing has failed on {NEW[:12]}, its newest commit, so far; these are failures of {OLD[:12]}"]


def test_a_pull_request_that_is_green_has_no_failure(api: Serving, waiting: Waiting) -> None:
    pull(api, [run(12, "success", head_sha=NEW), run(10, head_sha=OLD)], {})
    assert "nothing failed in pull request 45" in refused(f"{WEB}/pull/45", waiting).message


def test_a_commit_has_the_failures_of_its_runs(api: Serving, waiting: Waiting) -> None:
    pull(api, [run(12, head_sha=NEW), run(10, head_sha=OLD)], {12: [job(9)], 10: [job(8)]})
    api.on(f"{REPO}/commits/bbbbbbb", {"sha": NEW})
    assert job_at(f"{WEB}/commit/bbbbbbb", waiting).job_id == 9


@pytest.mark.parametrize(
    ("pulls", "numbers"),
    [
        ([{"number": 45, "head": {"sha": OLD}}, {"number": 44, "head": {"sha": NEW}}], (45,)),
        ([{"number": 45, "head": {"sha": NEW}}], (45,)),  # it has moved on since
        ([{"number": 45, "head": {"sha": NEW}}, {"number": 44, "head": {"sha": NEW}}], ()),  # not guessed
        ([], ()),
    ],
)
def test_the_pull_request_of_a_fork_is_found_by_its_branch(
    api: Serving, waiting: Waiting, pulls: list[Any], numbers: tuple[int, ...]
) -> None:
    api.on(f"{REPO}/pulls", pulls)
    assert job_at(JOB, waiting).pull_requests == numbers
    assert [asked.query["head"] for asked in api.requests if asked.path == f"{REPO}/pulls"] == ["someone:fix"]


# -- refusals


@pytest.mark.parametrize(
    ("answer", "kind", "words", "step"),
    [
        (
            Answer(401, {"message": "Bad credentials"}),
            Blocked,
            "does not accept the token of GH_TOKEN",
            "gh auth login",
        ),
        (Answer(403, {"message": "Resource not accessible"}), Blocked, "'Resource not accessible'", "read actions"),
        (
            Answer(403, {}, {"X-GitHub-SSO": "required; url=https://github.com/orgs/x/sso?r=1"}),
            Blocked,
            "authorised for SSO",
            "https://github.com/orgs/x/sso?r=1",
        ),
        (
            Answer(404, {}),
            UsageError,
            "the token of GH_TOKEN does not see the repository",
            "if the repository is private",
        ),
        (Answer(418, {"message": "\x1b[2J"}), Blocked, "answered 418", "--log FILE"),
        (Answer(200, b"<html>please log in"), Blocked, "something else than JSON", "a proxy"),
    ],
)
def test_a_refusal_says_what_it_means_and_the_next_step(
    api: Serving, waiting: Waiting, answer: Answer, kind: type[CiTasksError], words: str, step: str
) -> None:
    api.on(f"{REPO}/actions/jobs/9", answer)
    error = refused(JOB, waiting)
    assert (type(error), words in error.message, step in error.hint) == (kind, True, True), error
    assert "\x1b" not in str(error)
    assert waiting.sleeps == []


@pytest.mark.parametrize(
    ("answer", "words", "step"),
    [
        (Answer(410, {}), "has expired (410): logs are kept 90 days by default", "re-run the job"),
        (Answer(404, {}), "is not there (404)", "re-run the job"),
        (Answer(403, {"message": "Must have admin rights to Repository."}), "may not read the log", "--log FILE"),
    ],
)
def test_a_log_that_is_not_given(api: Serving, waiting: Waiting, answer: Answer, words: str, step: str) -> None:
    api.on(f"{REPO}/actions/jobs/9/logs", answer)
    error = refused(JOB, waiting)
    assert (words in error.message, step in error.hint) == (True, True), error


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/actions/jobs/9", 404, "or the repository is private and no token was sent"),
        ("/actions/jobs/9/logs", 403, "logs are only for those who are signed in"),
    ],
)
def test_without_a_token_the_next_step_is_to_have_one(
    api: Serving, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, path: str, code: int, words: str
) -> None:
    monkeypatch.delenv("GH_TOKEN")
    api.on(f"{REPO}{path}", Answer(code, {"message": "No"}))
    error = refused(JOB, waiting)
    assert (words in error.message, "set GH_TOKEN" in error.hint) == (True, True), error


def test_a_log_without_a_byte_is_nothing_to_triage(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.log = b""
    assert "is empty: nothing to triage" in refused(JOB, waiting).message


def test_nothing_of_http_is_loaded_before_it_is_asked_for() -> None:
    program = (
        "import sys, ci_tasks.forge.github as _; sys.exit(bool({'requests', 'zipfile', 'gzip'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
