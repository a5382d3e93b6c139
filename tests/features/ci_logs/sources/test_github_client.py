"""The conversation: who sees the token, what is waited for, and a log that arrives whole over a bad connection."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.features.ci_logs.sources import github_client
from ci_tasks.features.ci_logs.sources.failed_job import open_failed_job

if TYPE_CHECKING:
    from tests.features.ci_logs.sources.conftest import FakeTime
    from tests.features.ci_logs.sources.github_server import REPO, SIGNATURE, Answer, Serving, Storage, job
else:
    from ci_tasks_tests_github_server import REPO, SIGNATURE, Answer, Serving, Storage, job

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


def test_only_the_api_gets_the_token(api: Serving, storage: Storage, clock: FakeTime) -> None:
    log_at(JOB, clock)
    assert {request.headers["authorization"] for request in api.requests} == {"Bearer ghp_verysecret"}
    assert [request.headers.get("authorization") for request in storage.requests] == [None]


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


def test_a_repository_that_was_renamed_is_followed_with_the_token(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(301, {}, {"Location": "/repositories/5/actions/jobs/9"}))
    api.on("/repositories/5/actions/jobs/9", job(9))
    log_at(JOB, clock)
    [moved] = [request for request in api.requests if request.path.startswith("/repositories")]
    assert moved.headers["authorization"] == "Bearer ghp_verysecret"


def test_redirects_in_a_circle_end(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(302, {}, {"Location": AT}))
    assert "redirects too often" in refused(clock).message


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/log", "http://[", "http://h:99999/"])
def test_a_redirect_leads_to_http_alone(api: Serving, clock: FakeTime, target: str) -> None:
    api.on(f"{AT}/logs", Answer(302, {}, {"Location": target}))
    assert "unusable or unencrypted URL" in refused(clock).message


def test_from_https_nobody_is_led_to_http() -> None:
    answer = requests.Response()
    answer.url, answer.status_code = "https://api.github.com/a", 302
    answer.headers["location"] = "http://storage.example/log"
    with pytest.raises(requests.exceptions.InvalidURL):
        github_client._Session(None).get_redirect_target(answer)


# -- what is waited for


def test_server_errors_are_retried_with_a_message(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(502, b"<html>"), Answer(503, {}, {"Retry-After": "20"}), job(9))
    messages: list[str] = []
    log_at(JOB, clock, messages)
    assert clock.sleeps == [1, 20]
    assert messages == [f"github.com answered {code}; trying again in {s} s" for code, s in ((502, 1), (503, 20))]


def test_trouble_that_stays_is_blocked(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(502, {}))
    assert "is in trouble (502)" in refused(clock).message
    assert clock.sleeps == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("code", "headers", "message", "sleeps"),
    [
        (429, {"Retry-After": "42"}, "", [42]),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000030"}, "API rate limit exceeded", [31]),
        (403, {}, "You have exceeded a secondary rate limit", [60]),
    ],
)
def test_a_limit_is_waited_for(
    api: Serving, clock: FakeTime, code: int, headers: dict[str, str], message: str, sleeps: list[float]
) -> None:
    headers = {**headers, "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}
    api.on(AT, Answer(code, {"message": message}, headers), job(9))
    messages: list[str] = []
    log_at(JOB, clock, messages)
    assert clock.sleeps == sleeps
    assert messages == [f"github.com limits requests; trying again in {sleeps[0]:.0f} s"]


@pytest.mark.parametrize("token", ["ghp_verysecret", ""])
def test_a_limit_that_is_too_long_is_blocked_and_says_until_when(
    api: Serving, clock: FakeTime, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("GH_TOKEN", token)
    api.on(AT, Answer(429, {}, {"Retry-After": "3000"}))
    error = refused(clock)
    assert "it resets at 23:03:20" in error.message
    assert ("5,000 requests an hour instead of 60" in error.hint) == (not token)
    assert clock.sleeps == []


def test_limits_are_not_waited_for_without_an_end(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(429, {}, {"Retry-After": "100"}))
    refused(clock)
    assert clock.sleeps == [100, 100, 100]


@pytest.mark.parametrize("after", ["9" * 400, "9" * 14, "1e309", "inf", "\x00", "Tue, 99 Foo 2023"])
def test_a_senseless_time_to_wait_does_no_harm(api: Serving, clock: FakeTime, after: str) -> None:
    api.on(AT, Answer(429, {}, {"Retry-After": after}))
    refused(clock)


def test_nobody_answers(api: Serving, clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{unused_port()}")
    error = refused(clock)
    assert (
        error.message == "127.0.0.1 cannot be read: Connection refused",
        "a saved log needs neither" in error.hint,
    ) == (True, True)
    assert clock.sleeps == [1, 2, 4, 8]


def test_a_truncated_response_is_requested_again(api: Serving, clock: FakeTime) -> None:
    api.on(AT, Answer(body=job(9), cut=20), job(9))
    log_at(JOB, clock)
    assert clock.sleeps == [1]


# -- a whole log


@pytest.mark.parametrize("cuts", [[], [0], [1 << 18, 1 << 15]])
def test_a_download_that_breaks_is_started_again(
    api: Serving, storage: Storage, clock: FakeTime, cuts: list[int]
) -> None:
    storage.cuts = list(cuts)
    assert log_at(JOB, clock) == storage.log
    assert api.paths().count(f"{AT}/logs") == len(cuts) + 1, "a link is requested anew, it is valid for a minute"


def test_a_connection_that_always_breaks_is_blocked(api: Serving, storage: Storage, clock: FakeTime) -> None:
    storage.cuts = [0] * 99
    assert "cannot be read: the connection broke" in refused(clock).message


def test_a_storage_that_refuses_the_log_is_blocked(api: Serving, storage: Storage, clock: FakeTime) -> None:
    storage.on("/log", Answer(403, b"<Error>AuthenticationFailed</Error>"))
    assert "the storage of github.com refuses the log of job 'job 9'" in refused(clock).message


def test_a_storage_that_lost_the_log(api: Serving, storage: Storage, clock: FakeTime) -> None:
    storage.on("/log", Answer(404, b"<Error>BlobNotFound</Error>"))
    assert "does not exist (404)" in refused(clock, UsageError).message


def test_a_storage_that_cannot_be_reached_is_named_without_its_signature(api: Serving, clock: FakeTime) -> None:
    target = f"http://127.0.0.1:{unused_port()}/log?{SIGNATURE}"
    api.on(f"{AT}/logs", Answer(302, b"", {"Location": target}))
    assert "127.0.0.1 cannot be read: Connection refused" in refused(clock).message


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


@pytest.mark.parametrize(
    ("name", "value", "message", "step"),
    [
        ("http_proxy", "http://me:verysecret@127.0.0.1:{port}", "Connection refused", "HTTPS_PROXY"),
        ("http_proxy", "socks5://me:verysecret@127.0.0.1:{port}", "proxy of the environment", "requests[socks]"),
        ("http_proxy", "http://", "cannot be used", "HTTPS_PROXY"),
    ],
)
def test_a_proxy_that_does_not_work(
    api: Serving, clock: FakeTime, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str, step: str
) -> None:
    monkeypatch.setattr("requests.adapters.SOCKSProxyManager", no_socks)
    monkeypatch.setenv(name, value.format(port=unused_port()))
    error = refused(clock, CiTasksError)
    assert (message in error.message, step in error.hint) == (True, True), error


def test_a_file_of_certificates_that_is_not_there(
    api: Serving, clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_API_URL", f"https://127.0.0.1:{api.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent.pem")
    assert "/nonexistent.pem" in refused(clock, UsageError).message


def no_socks(*_args: Any, **_options: Any) -> None:
    """What requests has in that place where PySocks is not installed."""
    raise requests.exceptions.InvalidSchema("Missing dependencies for SOCKS support.")


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
        return int(port)
