"""The conversation with GitHub: what a URL names, who sees the token, what is waited for; a log that arrives whole."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import requests

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs import github
from ci_tasks.logs.failed_job import open_failed_job
from ci_tasks.logs.github import GitHubUrl, api_base, parse_url, rate_limit_delay
from tests.logs.github.github_server import REPO, SIGNATURE, Answer, FakeTime, Serving, Storage, job

SHA = "0123456789abcdef0123456789abcdef01234567"


# Relative ones are below the repository's page.
URLS: list[tuple[str, dict[str, Any]]] = [
    ("actions/runs/123", {"run": 123}),
    (" https://github.com/THUDM/slime/actions/runs/123?pr=45\n", {"run": 123, "pull": 45}),
    ("actions/runs/123/job/9#step:4:56", {"run": 123, "job": 9}),
    ("actions/runs/123/attempts/2", {"run": 123, "attempt": 2}),
    ("pull/45", {"pull": 45}),
    ("pull/45/checks?check_run_id=9", {"pull": 45, "job": 9}),
    (f"pull/45/commits/{SHA}", {"commit": SHA}),
    (f"commit/{SHA}/checks/9", {"commit": SHA, "job": 9}),
    ("github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://api.github.com/repos/THUDM/slime/actions/jobs/9/logs", {"job": 9}),
    ("https://somebody:ghp_secret@github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://git.corp.example:8443/THUDM/slime/pull/45", {"host": "git.corp.example:8443", "pull": 45}),
    ("https://corp.ghe.com/THUDM/slime/pull/45", {"host": "corp.ghe.com", "pull": 45}),
    ("https://api.corp.ghe.com/repos/THUDM/slime/actions/runs/1", {"host": "corp.ghe.com", "run": 1}),
]
NO_URLS = [
    "",
    "ftp://github.com/THUDM/slime/pull/45",
    "https://github.com/THUDM/slime",
    "https://github.com/THUDM/../actions/runs/1",
    "failed.log",
]


def test_an_address_names_what_it_shows_and_what_is_none_is_refused_with_the_forms_that_are() -> None:
    slime = {"host": "github.com", "owner": "THUDM", "repo": "slime"}
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


@pytest.mark.parametrize(
    ("host", "override", "base"),
    [
        ("github.com", "", "https://api.github.com"),
        ("git.corp:8443", "", "https://git.corp:8443/api/v3"),
        ("corp.ghe.com", "", "https://api.corp.ghe.com"),
        ("github.com", "http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("git.corp", "https://mirror.corp/api/v3", "https://mirror.corp/api/v3"),
        # Set on every runner; another host's token must not go there.
        ("git.corp", "https://api.github.com", "https://git.corp/api/v3"),
    ],
)
def test_where_the_api_of_a_host_is(host: str, override: str, base: str) -> None:
    assert api_base(host, override) == base


@pytest.mark.parametrize("override", ["api.github.com", "ssh://host/api", "https://me:ghp_secret@host", "http://["])
def test_an_override_that_is_no_address_is_named_without_its_login(override: str) -> None:
    with pytest.raises(UsageError, match="GITHUB_API_URL") as caught:
        api_base("github.com", override)
    assert "ghp_secret" not in str(caught.value)


GITHUB = parse_url("https://github.com/o/r/pull/1")
TENANT = parse_url("https://corp.ghe.com/o/r/pull/1")
ENTERPRISE = parse_url("https://git.corp/o/r/pull/1")


def fake_gh(folder: Path, script: str) -> None:
    """A program gh that refuses words which the real one does not know."""
    gh = folder / "bin/gh"
    gh.write_text(
        f"#!{sys.executable}\nimport sys\nif sys.argv[1:4] != ['auth', 'token', '--hostname'] or len(sys.argv) != 5:\n"
        f"    sys.exit(f'unknown: {{sys.argv}}')\nhost = sys.argv[4]\n{script}\n"
    )
    gh.chmod(0o755)


@pytest.mark.parametrize(
    ("url", "environment", "source"),
    [
        (GITHUB, {"GH_TOKEN": "a", "GITHUB_TOKEN": "b"}, "GH_TOKEN"),
        (GITHUB, {"GH_TOKEN": " ", "GITHUB_TOKEN": "b\n"}, "GITHUB_TOKEN"),
        (TENANT, {"GH_TOKEN": "a", "GH_ENTERPRISE_TOKEN": "c"}, "GH_TOKEN"),
        (ENTERPRISE, {"GH_TOKEN": "a", "GH_ENTERPRISE_TOKEN": "c"}, "GH_ENTERPRISE_TOKEN"),
        (GITHUB, {}, None),
    ],
)
def test_a_token_goes_to_the_host_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, url: GitHubUrl, environment: dict[str, str], source: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    token = github.find_token(url)
    assert (token and token.source) == source
    assert not token or token.value == environment[source or ""].strip()


def test_gh_is_queried_for_the_exact_host(tmp_path: Path) -> None:
    fake_gh(tmp_path, "print(f'gho_for_{host}')")
    assert github.find_token(ENTERPRISE) == github.GitHubToken("gho_for_git.corp", "gh")


NO_LOGIN = ["print('none'); sys.exit(1)", "print()", "sys.stderr.write('no oauth token'); sys.exit(4)"]


def test_a_gh_without_a_login_gives_none_and_one_that_waits_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in NO_LOGIN:
        fake_gh(tmp_path, script)
        assert github.find_token(GITHUB) is None
    monkeypatch.setattr(github, "_GH_TIMEOUT", 0.05)
    fake_gh(tmp_path, "import time; time.sleep(60)")
    assert github.find_token(GITHUB) is None


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "secret" not in repr(github.GitHubToken("secret", "GH_TOKEN"))
    monkeypatch.setenv("GH_TOKEN", "very\nsecret")
    with pytest.raises(UsageError, match="GH_TOKEN") as caught:
        github.find_token(GITHUB)
    assert "secret" not in str(caught.value)


NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("status", "headers", "message", "attempt", "delay"),
    [
        (429, {"retry-after": "7"}, "", 0, 7),
        (429, {"retry-after": "Tue, 14 Nov 2000 22:00:00 GMT"}, "", 0, 0),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 40)}, "", 0, 41),
        (403, {}, "You have exceeded a secondary rate limit.", 0, 60),
        (403, {}, "You have exceeded a secondary rate limit.", 2, 240),
        (429, {"retry-after": "soon"}, "", 0, 60),
        (403, {"x-ratelimit-remaining": "12"}, "Must have admin rights to Repository.", 0, None),
        (404, {"x-ratelimit-remaining": "0"}, "", 0, None),
    ],
)
def test_a_limit_is_over_when_github_says_so(
    clock: FakeTime, status: int, headers: dict[str, str], message: str, attempt: int, delay: float | None
) -> None:
    assert rate_limit_delay(status, headers, message, attempt) == delay


JOB = "https://github.com/THUDM/slime/actions/runs/7/job/9"
AT = f"{REPO}/actions/jobs/9"


def log_at(url: str, clock: FakeTime, messages: list[str] | None = None) -> bytes:
    with open_failed_job(url, (messages if messages is not None else []).append) as failed:
        return b"".join(failed.log.jobs[0].chunks())


def refused(clock: FakeTime, kind: type[CiTasksError] = Blocked) -> CiTasksError:
    with pytest.raises(kind) as caught:
        log_at(JOB, clock)
    assert caught.value.hint, "the next step"
    assert "secret" not in str(caught.value)
    return caught.value


# -- the token


@pytest.mark.parametrize("token", ["ghp_verysecret", ""])
def test_a_login_in_netrc_is_nobodys_business(
    api: Serving, storage: Storage, clock: FakeTime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password verysecret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("GH_TOKEN", token)
    log_at(JOB, clock)
    expected = f"Bearer {token}" if token else None
    assert {request.headers.get("authorization") for request in api.requests} == {expected}
    assert {request.headers.get("authorization") for request in storage.requests} == {None}


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/log", "http://[", "http://h:99999/"])
def test_a_redirect_leads_to_http_alone_and_not_in_a_circle(api: Serving, clock: FakeTime, target: str) -> None:
    api.on(f"{AT}/logs", Answer(302, {}, {"Location": target}))
    assert "unusable or unencrypted URL" in refused(clock).message
    api.on(AT, Answer(302, {}, {"Location": AT}))
    assert "redirects too often" in refused(clock).message


def test_from_https_nobody_is_led_to_http() -> None:
    answer = requests.Response()
    answer.url, answer.status_code = "https://api.github.com/a", 302
    answer.headers["location"] = "http://storage.example/log"
    with pytest.raises(requests.exceptions.InvalidURL):
        github._Session(None).get_redirect_target(answer)


# -- what is waited for


def test_server_errors_and_limits_are_waited_for_with_a_message(api: Serving, clock: FakeTime) -> None:
    limit = Answer(429, {}, {"Retry-After": "42", "Date": "Tue, 14 Nov 2023 22:13:20 GMT"})
    api.on(AT, Answer(502, b"<html>"), Answer(503, {}, {"Retry-After": "20"}), limit, job(9))
    messages: list[str] = []
    log_at(JOB, clock, messages)
    assert clock.sleeps == [1, 20, 42]
    assert messages[:2] == [f"github.com answered {code}; trying again in {s} s" for code, s in ((502, 1), (503, 20))]
    assert messages[2:] == ["github.com limits requests; trying again in 42 s"]


TROUBLE: list[tuple[str, Answer, type[CiTasksError], str, list[float]]] = [
    (AT, Answer(502, {}), Blocked, "is in trouble (502)", [1, 2, 4, 8]),
    (AT, Answer(429, {}, {"Retry-After": "100"}), Blocked, "", [100, 100, 100]),
    ("/log", Answer(403, b"<Error>x</Error>"), Blocked, "the storage of github.com refuses the log of job 'job 9'", []),
    ("/log", Answer(404, b"<Error>BlobNotFound</Error>"), UsageError, "does not exist (404)", []),
    ("/log", Answer(200, b"x" * 9, cut=0), Blocked, "cannot be read: the connection broke", [1, 2, 4, 8]),
]


@pytest.mark.parametrize(("path", "answer", "kind", "message", "sleeps"), TROUBLE)
def test_trouble_that_stays_has_an_end(
    api: Serving, storage: Storage, clock: FakeTime, path: str, answer: Answer, kind: Any, message: str, sleeps: Any
) -> None:
    (storage if path == "/log" else api).on(path, answer)
    assert message in refused(clock, kind).message
    assert clock.sleeps == sleeps


def test_nobody_answers(api: Serving, clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{unused_port()}"
    api.on(f"{AT}/logs", Answer(302, b"", {"Location": f"{nowhere}/log?{SIGNATURE}"}))
    assert "127.0.0.1 cannot be read: Connection refused" in refused(clock).message, "without the signature"
    clock.sleeps.clear()
    monkeypatch.setenv("GITHUB_API_URL", nowhere)
    error = refused(clock)
    assert error.message == "127.0.0.1 cannot be read: Connection refused"
    assert "a saved log needs neither" in error.hint
    assert clock.sleeps == [1, 2, 4, 8]


# -- a whole log


@pytest.mark.parametrize("cuts", [[], [0], [1 << 18, 1 << 15]])
def test_an_answer_or_a_download_that_breaks_is_requested_again(
    api: Serving, storage: Storage, clock: FakeTime, cuts: list[int]
) -> None:
    storage.cuts = list(cuts)
    api.on(AT, Answer(body=job(9), cut=20), job(9))
    assert log_at(JOB, clock) == storage.log
    assert clock.sleeps[0] == 1
    assert api.paths().count(f"{AT}/logs") == len(cuts) + 1, "a link is requested again, it is valid for a minute"


def test_an_interrupt_leaves_nothing_behind(
    api: Serving, storage: Storage, clock: FakeTime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    storage.cuts = [1 << 18]

    def interrupt(_: str) -> None:
        assert os.listdir(tmp_path / "tmp") == [], "no name while it is there, so none after SIGKILL"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_failed_job(JOB, interrupt):
        pass
    assert os.listdir(tmp_path / "tmp") == []


# -- proxies and certificates


def test_the_proxy_of_the_environment_is_used(
    api: Serving, storage: Storage, clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/actions/jobs/9", "/actions/runs/7", "/pulls", "/actions/jobs/9/logs"):
        api.answers[f"http://api.invalid{REPO}{path}"] = api.answers[f"{REPO}{path}"]
    monkeypatch.setenv("GITHUB_API_URL", "http://api.invalid")
    monkeypatch.setenv("http_proxy", api.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert log_at(JOB, clock) == storage.log
    assert all(path.startswith("http://api.invalid/") for path in api.paths())


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
        return int(port)
