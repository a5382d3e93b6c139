"""The conversation with GitHub: what a URL names, who sees the token, what is waited for; a log that arrives whole."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs import github
from ci_tasks.logs.github import GitHubUrl, WorkflowJob, api_base, open_failed_jobs, parse_url
from ci_tasks.logs.job_log import from_url
from tests.logs.github.github_server import REPO, SIGNATURE, Answer, Serving, Storage, job, leads_to, run

SHA = "0123456789abcdef0123456789abcdef01234567"
FROM_API = requests.Response()


# Relative ones are below the repository's page.
URLS: list[tuple[str, dict[str, Any]]] = [
    ("actions/runs/123", {"run": 123}),
    (" https://github.com/THUDM/slime/actions/runs/123?pr=45\n", {"run": 123}),
    ("actions/runs/123/job/9#step:4:56", {"run": 123, "job": 9}),
    ("actions/runs/123/attempts/2", {"run": 123, "attempt": 2}),
    ("pull/45", {"pull": 45}),
    ("pull/45/checks?check_run_id=9", {"pull": 45, "job": 9}),
    (f"pull/45/commits/{SHA}", {"commit": SHA}),
    (f"commit/{SHA}/checks/9", {"job": 9}),
    ("github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://api.github.com/repos/THUDM/slime/actions/jobs/9/logs", {"job": 9}),
    ("https://somebody:ghp_secret@github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://git.corp.example:8443/THUDM/slime/pull/45", {"host": "git.corp.example:8443", "pull": 45}),
]
NO_URLS = [
    "",
    "ftp://github.com/THUDM/slime/pull/45",
    "https://github.com/THUDM/slime",
    "https://github.com/THUDM/../actions/runs/1",
    "failed.log",
]


def test_an_address_names_what_it_shows_and_what_is_none_is_refused_with_the_forms_that_are() -> None:
    slime = {"host": "github.com", "repository": "THUDM/slime"}
    for url, expected in URLS:
        whole = url if "github.com" in url or "//" in url else f"https://github.com/THUDM/slime/{url}"
        assert parse_url(whole) == GitHubUrl(**{**slime, **expected}), url
    for url in NO_URLS:
        with pytest.raises(UsageError) as caught:
            parse_url(url)
        assert "/actions/runs/RUN/job/JOB" in caught.value.hint, url


def test_no_login_or_query_of_an_address_is_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("https://me:ghp_secret@github.com/THUDM?token=ghp_secret")
    assert "ghp_secret" not in str(caught.value)


API_BASES = [
    ("github.com", "", "https://api.github.com"),
    ("git.corp:8443", "", "https://git.corp:8443/api/v3"),
    ("github.com", "http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
    ("git.corp", "https://mirror.corp/api/v3", "https://mirror.corp/api/v3"),
    # Set on every runner; another host's token must not go there.
    ("git.corp", "https://api.github.com", "https://git.corp/api/v3"),
]


@pytest.mark.parametrize(("host", "override", "base"), API_BASES)
def test_where_the_api_of_a_host_is(host: str, override: str, base: str) -> None:
    assert api_base(host, override) == base


GITHUB, ENTERPRISE = "github.com", "git.corp"


def fake_gh(folder: Path, script: str) -> None:
    """A program gh that refuses words which the real one does not know."""
    gh = folder / "bin/gh"
    gh.write_text(
        f"#!{sys.executable}\nimport sys\nif sys.argv[1:4] != ['auth', 'token', '--hostname'] or len(sys.argv) != 5:\n"
        f"    sys.exit(f'unknown: {{sys.argv}}')\nhost = sys.argv[4]\n{script}\n"
    )
    gh.chmod(0o755)


TOKENS = [
    (GITHUB, {"GH_TOKEN": "a", "GITHUB_TOKEN": "b"}, "GH_TOKEN"),
    (GITHUB, {"GH_TOKEN": " ", "GITHUB_TOKEN": "b\n"}, "GITHUB_TOKEN"),
    (ENTERPRISE, {"GH_TOKEN": "a", "GH_ENTERPRISE_TOKEN": "c"}, "GH_ENTERPRISE_TOKEN"),
    (GITHUB, {}, ""),
]


@pytest.mark.parametrize(("host", "environment", "source"), TOKENS)
def test_a_token_goes_to_the_host_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, host: str, environment: dict[str, str], source: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert github.find_token(host) == (environment.get(source, "").strip(), source)


def test_gh_is_queried_for_the_exact_host(tmp_path: Path) -> None:
    fake_gh(tmp_path, "print(f'gho_for_{host}')")
    assert github.find_token(ENTERPRISE) == ("gho_for_git.corp", "gh")


NO_LOGIN = ["print('none'); sys.exit(1)", "print()", "sys.stderr.write('no oauth token'); sys.exit(4)"]


def test_a_gh_without_a_login_gives_none_and_one_that_waits_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in NO_LOGIN:
        fake_gh(tmp_path, script)
        assert github.find_token(GITHUB) == ("", "")
    monkeypatch.setattr(github, "_GH_TIMEOUT", 0.05)
    fake_gh(tmp_path, "import time; time.sleep(60)")
    assert github.find_token(GITHUB) == ("", "")


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", "very\nsecret")
    with pytest.raises(UsageError, match="GH_TOKEN") as caught:
        github.find_token(GITHUB)
    assert "secret" not in str(caught.value)


JOB = "https://github.com/THUDM/slime/actions/runs/7/job/9"
AT = f"{REPO}/actions/jobs/9"


def log_at(url: str) -> bytes:
    with open_failed_jobs(url) as (failed,):
        return b"".join(failed[1].jobs[0].chunks())


def refused(url: str = JOB) -> CiTasksError:
    with pytest.raises(CiTasksError) as caught, open_failed_jobs(url, only_one=True) as (failed,):
        b"".join(failed[1].jobs[0].chunks())
    assert caught.value.hint, "the next step"
    assert "secret" not in str(caught.value)
    return caught.value


# -- the token


@pytest.mark.parametrize("token", ["ghp_verysecret", ""])
def test_a_login_in_netrc_is_nobodys_business(
    api: Serving, storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password verysecret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("GH_TOKEN", token)
    log_at(JOB)
    expected = f"Bearer {token}" if token else None
    assert {request.headers.get("authorization") for request in api.requests} == {expected}
    assert {request.headers.get("authorization") for request in storage.requests} == {None}


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/log", "http://[", "http://h:99999/"])
def test_a_redirect_leads_to_http_alone_and_not_in_a_circle(api: Serving, target: str) -> None:
    api.on(f"{AT}/logs", Answer(302, {}, {"Location": target}))
    assert "github.com cannot be read: " in refused().message
    api.on(AT, Answer(302, {}, {"Location": AT}))
    assert "too many redirects" in refused().message


def test_a_redirect_takes_the_token_along_on_the_api_alone() -> None:
    session, base = github._Session("https://api.github.com", "x"), "https://api.github.com"
    redirected = [("https://storage.example/log", False), (f"{base}/b", True), ("http://api.github.com/b", False)]
    for url, has_token in redirected:
        session.rebuild_auth(request := requests.Request("GET", url, {"Authorization": "x"}).prepare(), FROM_API)
        assert ("Authorization" in request.headers) == has_token


# -- what is waited for


def test_server_errors_are_tried_again(api: Serving, storage: Storage) -> None:
    api.on(AT, Answer(502, b"<html>"), Answer(503, {}), job(9))
    assert log_at(JOB) == storage.log


GZIP = {"Content-Encoding": "gzip"}
TROUBLE: list[tuple[str, Answer, type[CiTasksError], str, int]] = [
    (AT, Answer(502, {}), Blocked, "answered 502 for job 9", 5),
    (AT, Answer(200, b"[" * 100_000), Blocked, "its answer is not JSON", 1),
    (AT, Answer(404, b"[" * 100_000), UsageError, "job 9 of THUDM/slime was not found (404)", 1),
    (AT, Answer(200, gzip.compress(b" " * (65 << 20) + b"{}", 1), GZIP), Blocked, "its answer is not JSON", 1),
    (AT, Answer(429, {}, {"Retry-After": "100"}), Blocked, "the rate limit of github.com is reached", 1),
    (AT, Answer(403, {}, {"x-ratelimit-remaining": "0"}), Blocked, "the rate limit of github.com is reached", 1),
    (AT, Answer(403, {"message": "You have exceeded a secondary rate limit."}), Blocked, "rate limit of", 1),
    ("/log", Answer(403, b"<Error>x</Error>"), Blocked, "may not read the log of job 'job 9' of THUDM/slime (403)", 1),
    ("/log", Answer(404, b"<Error>BlobNotFound</Error>"), UsageError, "is gone (404)", 1),
    ("/log", Answer(200, b"x" * 9, cut=0), Blocked, "cannot be read: the connection was lost", 1),
]


@pytest.mark.parametrize(("path", "answer", "kind", "message", "requests"), TROUBLE)
def test_trouble_that_stays_has_an_end(
    api: Serving, storage: Storage, path: str, answer: Answer, kind: Any, message: str, requests: int
) -> None:
    serving = storage if path == "/log" else api
    serving.on(path, answer)
    error = refused()
    assert (type(error), message in error.message) == (kind, True), error
    assert serving.paths().count(path) == requests


def test_nobody_answers(api: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "http://127.0.0.1:9"
    api.on(f"{AT}/logs", Answer(302, b"", {"Location": f"{nowhere}/log?{SIGNATURE}"}))
    assert "github.com cannot be read: Connection refused" in refused().message, "without the signature"
    monkeypatch.setenv("GITHUB_API_URL", nowhere)
    error = refused()
    assert error.message == "github.com cannot be read: Connection refused"
    assert "a saved log needs no" in error.hint


# -- proxies and certificates


def test_the_proxy_of_the_environment_is_used(api: Serving, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/actions/jobs/9", "/actions/runs/7", "/actions/jobs/9/logs"):
        api.answers[f"http://api.invalid{REPO}{path}"] = api.answers[f"{REPO}{path}"]
    api.on(f"{storage.url}/log", Answer(200, storage.log))
    monkeypatch.setenv("GITHUB_API_URL", "http://api.invalid")
    monkeypatch.setenv("http_proxy", api.url)
    assert log_at(JOB) == storage.log
    assert all(path.startswith("http://") for path in api.paths())


# -- what `--url URL` reads, from a GitHub of our own: which job, what is known of it, and what each refusal means -----


WEB, API = "https://github.com/THUDM/slime", "https://api.github.com/repos/THUDM/slime"
RUN = f"{WEB}/actions/runs/7"


def job_at(url: str) -> WorkflowJob:
    with open_failed_jobs(url, only_one=True) as (failed,):
        return failed[0]


def test_a_failed_job_has_its_log_and_what_github_knows_and_a_check_is_its_job(api: Serving, storage: Storage) -> None:
    with open_failed_jobs(JOB) as (failed,):
        assert b"".join(failed[1].jobs[0].chunks()) == storage.log
    for url in (f"{WEB}/pull/45/checks?check_run_id=9", f"{WEB}/commit/{'a' * 40}/checks/9", f"{API}/actions/jobs/9"):
        assert job_at(url).id == 9, url
    workflow, ended = ".github/workflows/pr-test.yml", ("completed", "failure", "h100-3", JOB)
    assert failed[0] == WorkflowJob("THUDM/slime", workflow, 9, "job 9", *ended)


# -- which job


def test_the_only_failed_job_of_a_run_is_meant_however_many_there_are(api: Serving) -> None:
    others = [job(number, "success" if number % 2 else "skipped") for number in range(1000, 1240)]
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [*others, job(9)])
    assert job_at(RUN).id == 9
    assert api.paths().count(f"{REPO}/actions/runs/7/jobs") == 3


def test_what_a_log_does_not_say_is_known_from_github(api: Serving, storage: Storage) -> None:
    storage.log = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    api.on(f"{REPO}/actions/runs/7", {**run(), "pull_requests": [{"number": 45}]})
    (analysed,) = from_url(JOB, only_one=True)
    found = analysed.job
    assert (found.repository, found.job_name, found.workflow) == (
        "THUDM/slime",
        "job 9",
        ".github/workflows/pr-test.yml",
    )
    assert (found.runner_name, found.pull_request, found.conclusion) == ("h100-3", 45, "failure")
    assert analysed.triage.cause == "cuda_oom"


def test_of_several_failed_jobs_each_address_is_given_or_all_are_read(api: Serving, storage: Storage) -> None:
    api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", [job(9), job(10, "success"), job(11, "timed_out")])
    error = refused(RUN)
    assert (error.exit_code, "2 jobs failed in run 7 of THUDM/slime" in error.message) == (2, True)
    assert error.hint == f"--url takes:\n  job 9: {JOB}\n  job 11: {RUN}/job/11"
    api.on(f"{REPO}/actions/jobs/11/logs", leads_to(storage))
    api.requests.clear()
    assert [one.job.job_name for one in from_url(RUN)] == ["job 9", "job 11"]
    assert api.paths().count(f"{REPO}/actions/runs/7/jobs") == 1
    assert api.paths().count(f"{REPO}/actions/jobs/9") == 0, "a listed job is not asked for again"


NOT_FAILED: list[tuple[str, list[Any], str]] = [
    (RUN, [job(9, "success"), job(10, "skipped")], "nothing failed in run 7"),
    (RUN, [job(9, "success"), job(10, None)], "nothing has failed yet in run 7 of THUDM/slime; not completed: job"),
    (RUN, [], "no job of it ran"),
    (JOB, [job(9, None)], "nothing has failed yet in job 'job 9'"),
    (JOB, [job(9, "success")], "nothing failed in job 'job 9' of THUDM/slime"),
    (JOB, [job(9, "skipped")], "nothing failed in job 'job 9'"),
]


def test_a_run_or_a_job_or_a_pull_request_that_did_not_fail_is_refused(api: Serving) -> None:
    for url, jobs, message in NOT_FAILED:
        api.on_list(f"{REPO}/actions/runs/7/jobs", "jobs", jobs)
        api.on(f"{REPO}/actions/jobs/9", *jobs[:1])
        error = refused(url)
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


NEW, OLD = "b" * 40, "a" * 40


def pull(api: Serving, runs: list[Any], jobs: dict[int, list[Any]]) -> None:
    api.on(f"{REPO}/pulls/45", {"head": {"sha": NEW, "ref": "fix", "repo": {"full_name": "someone/slime"}}})
    api.on_list(f"{REPO}/actions/runs", "workflow_runs", runs)
    api.on(f"{REPO}/commits/bbbbbbb", {"sha": NEW})
    for number, listed in jobs.items():
        api.on_list(f"{REPO}/actions/runs/{number}/jobs", "jobs", listed)


NEWEST = [
    ([run(12, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(9)], 11: [job(8)]}),
    # A label that starts nothing makes a newer run that says nothing.
    ([run(12, "skipped", head_sha=NEW), run(11, head_sha=NEW)], {11: [job(9)]}),
    ([run(12, None, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(8, None)], 11: [job(9)]}),
    ([run(12, None, head_sha=NEW), run(11, head_sha=NEW)], {12: [job(9), job(8, None)], 11: [job(8)]}),
    ([run(12, "success", path="lint.yml", head_sha=NEW), run(11, head_sha=NEW)], {11: [job(9)]}),
]


@pytest.mark.parametrize(("runs", "jobs"), NEWEST)
def test_of_a_pull_request_newest_failure_is_meant(api: Serving, runs: list[Any], jobs: dict[int, list[Any]]) -> None:
    pull(api, runs, jobs)
    for url, pulls in ((f"{WEB}/pull/45", 45), (f"{WEB}/commit/bbbbbbb", None)):
        assert (job_at(url).id, job_at(url).pull_request) == (9, pulls)


# -- refusals


NO_ADMIN = {"message": "Must have admin rights to Repository."}
REFUSALS: list[tuple[str, Answer, type[CiTasksError], str, str]] = [
    (AT, Answer(401, {}), Blocked, "does not accept the token of GH_TOKEN", "gh auth login"),
    (AT, Answer(403, {"message": "Resource not accessible"}), Blocked, "'Resource not accessible'", "read actions"),
    (AT, Answer(403, {"message": "SAML enforcement"}), Blocked, "'SAML enforcement'", "SSO where the owner requires"),
    (AT, Answer(404, {}), UsageError, "the token of GH_TOKEN cannot see the repository", "check the URL"),
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
