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
from ci_tasks.forge import client, patience
from ci_tasks.forge.github import fetch

if TYPE_CHECKING:
    from tests.forge.conftest import Waiting
    from tests.forge.github_server import REPO, SIGNATURE, Answer, Serving, Storage, job, leads_to
else:
    from ci_tasks_tests_github_server import REPO, SIGNATURE, Answer, Serving, Storage, job, leads_to

JOB = "https://github.com/THUDM/slime/actions/runs/7/job/9"
AT = f"{REPO}/actions/jobs/9"


def log_at(url: str, waiting: Waiting, said: list[str] | None = None) -> bytes:
    with fetch(url, (said if said is not None else []).append, waiting.clock).log as log, log.jobs[0].open() as source:
        return source.read()


def refused(waiting: Waiting, kind: type[CiTasksError] = Blocked) -> CiTasksError:
    with pytest.raises(kind) as caught:
        log_at(JOB, waiting)
    assert caught.value.hint, "the next step"
    assert "secret" not in str(caught.value)
    return caught.value


# -- the token


def test_only_the_api_is_told_who_we_are(api: Serving, storage: Storage, waiting: Waiting) -> None:
    log_at(JOB, waiting)
    assert {asked.headers["authorization"] for asked in api.requests} == {"Bearer ghp_verysecret"}
    assert [asked.headers.get("authorization") for asked in storage.requests] == [None]


@pytest.mark.parametrize("token", ["ghp_verysecret", ""])
def test_a_login_in_netrc_is_nobodys_business(
    api: Serving, storage: Storage, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password verysecret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("GH_TOKEN", token)
    log_at(JOB, waiting)
    expected = f"Bearer {token}" if token else None
    assert {asked.headers.get("authorization") for asked in api.requests} == {expected}
    assert {asked.headers.get("authorization") for asked in storage.requests} == {None}


def test_a_repository_that_was_renamed_is_followed_with_the_token(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(301, {}, {"Location": "/repositories/5/actions/jobs/9"}))
    api.on("/repositories/5/actions/jobs/9", job(9))
    log_at(JOB, waiting)
    [moved] = [asked for asked in api.requests if asked.path.startswith("/repositories")]
    assert moved.headers["authorization"] == "Bearer ghp_verysecret"


def test_redirects_in_a_circle_end(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(302, {}, {"Location": AT}))
    assert "from one address to the next" in refused(waiting).message


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/log", "http://[", "http://h:99999/"])
def test_a_redirect_leads_to_http_alone(api: Serving, waiting: Waiting, target: str) -> None:
    api.on(f"{AT}/logs", Answer(302, {}, {"Location": target}))
    assert "an address that is none" in refused(waiting).message


def test_from_https_nobody_is_led_to_http() -> None:
    with pytest.raises(Blocked):
        client._next("https://api.github.com/a", "http://storage.example/log")


# -- what is waited for


def test_trouble_of_the_server_is_waited_for_and_said(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(502, b"<html>"), Answer(503, {}, {"Retry-After": "20"}), job(9))
    said: list[str] = []
    log_at(JOB, waiting, said)
    assert waiting.sleeps == [1, 20]
    assert said == [f"github.com answered {code}; trying again in {s} s" for code, s in ((502, 1), (503, 20))]


def test_trouble_that_stays_is_blocked(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(502, {}))
    assert "is in trouble (502)" in refused(waiting).message
    assert waiting.sleeps == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("code", "headers", "message", "sleeps"),
    [
        (429, {"Retry-After": "42"}, "", [42]),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000030"}, "API rate limit exceeded", [31]),
        (403, {}, "You have exceeded a secondary rate limit", [60]),
    ],
)
def test_a_limit_is_waited_for(
    api: Serving, waiting: Waiting, code: int, headers: dict[str, str], message: str, sleeps: list[float]
) -> None:
    headers = {**headers, "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}
    api.on(AT, Answer(code, {"message": message}, headers), job(9))
    said: list[str] = []
    log_at(JOB, waiting, said)
    assert waiting.sleeps == sleeps
    assert said == [f"github.com limits our requests; trying again in {sleeps[0]:.0f} s"]


@pytest.mark.parametrize("token", ["ghp_verysecret", ""])
def test_a_limit_that_is_too_long_is_blocked_and_says_until_when(
    api: Serving, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("GH_TOKEN", token)
    api.on(AT, Answer(429, {}, {"Retry-After": "3000"}))
    error = refused(waiting)
    assert "it resets at 23:03:20" in error.message
    assert ("5,000 requests an hour instead of 60" in error.hint) == (not token)
    assert waiting.sleeps == []


def test_limits_are_not_waited_for_without_an_end(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(429, {}, {"Retry-After": "100"}))
    refused(waiting)
    assert waiting.sleeps == [100, 100, 100]


@pytest.mark.parametrize("after", ["9" * 400, "9" * 14, "1e309", "inf", "\x00", "Tue, 99 Foo 2023"])
def test_a_senseless_time_to_wait_does_no_harm(api: Serving, waiting: Waiting, after: str) -> None:
    api.on(AT, Answer(429, {}, {"Retry-After": after}))
    refused(waiting)


def test_nobody_answers(api: Serving, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{unused_port()}")
    error = refused(waiting)
    assert (error.message.endswith("127.0.0.1: Connection refused"), "--log FILE" in error.hint) == (True, True)
    assert waiting.sleeps == [1, 2, 4, 8]


def test_an_answer_that_breaks_off_is_asked_for_again(api: Serving, waiting: Waiting) -> None:
    api.on(AT, Answer(body=job(9), cut=20), job(9))
    log_at(JOB, waiting)
    assert waiting.sleeps == [1]


# -- a whole log


@pytest.mark.parametrize(
    ("cuts", "ranges", "asked"),
    [
        ([], True, [None]),
        ([1 << 18, 1 << 15], True, [None, "bytes=262144-", "bytes=294912-"]),
        ([0], True, [None, None]),
        ([1 << 18], False, [None, "bytes=262144-"]),
    ],
)
def test_a_download_that_breaks_goes_on_where_it_stopped_or_begins_again(
    api: Serving, storage: Storage, waiting: Waiting, cuts: list[int], ranges: bool, asked: list[str | None]
) -> None:
    whole = storage.log
    storage.cuts, storage.has_ranges = list(cuts), ranges
    assert log_at(JOB, waiting) == whole
    assert [request.headers.get("range") for request in storage.requests] == asked
    assert api.paths().count(f"{AT}/logs") == len(asked), "a link is asked for anew, it lives for a minute"


def test_a_log_that_is_another_by_now_begins_again(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.cuts, storage.tags = [1 << 18], ['"one"', '"two"', '"two"']
    assert log_at(JOB, waiting) == storage.log
    assert [request.headers.get("range") for request in storage.requests] == [None, "bytes=262144-", None]


def test_a_rest_from_the_wrong_place_is_not_taken(api: Serving, storage: Storage, waiting: Waiting) -> None:
    wrong = Answer(206, storage.log[7:], {"Content-Range": f"bytes 7-{len(storage.log) - 1}/{len(storage.log)}"})
    storage.on("/log", Answer(200, storage.log, cut=1 << 18), wrong, Answer(200, storage.log))
    assert log_at(JOB, waiting) == storage.log


def test_a_log_that_became_shorter_begins_again(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.on("/log", Answer(200, storage.log, cut=1 << 18), Answer(416, b""), Answer(200, storage.log[:1000]))
    assert log_at(JOB, waiting) == storage.log[:1000]


def test_a_connection_that_always_breaks_is_blocked(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.cuts = [0] * 99
    assert "does not arrive: 127.0.0.1: it ended early" in refused(waiting).message


def test_a_connection_that_breaks_again_and_again_is_blocked_some_time(
    api: Serving, storage: Storage, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "MOST_SECONDS", 9.0)
    storage.cuts = [1 << 15] * 99
    refused(waiting)
    assert waiting.sleeps == [1] * 9


def test_a_link_that_became_too_old_is_replaced(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.on("/old", Answer(403, b"<Error>AuthenticationFailed</Error>"))
    old = Answer(302, b"", {"Location": f"{storage.url}/old?{SIGNATURE}"})
    api.on(f"{AT}/logs", old, leads_to(storage))
    assert log_at(JOB, waiting) == storage.log
    api.on(f"{AT}/logs", old)
    assert "a storage that does not give the log of job 'job 9'" in refused(waiting).message


def test_a_storage_that_lost_the_log(api: Serving, storage: Storage, waiting: Waiting) -> None:
    storage.on("/log", Answer(404, b"<Error>BlobNotFound</Error>"))
    assert "is not there (404)" in refused(waiting, UsageError).message


def test_a_storage_that_cannot_be_reached_is_named_without_its_signature(api: Serving, waiting: Waiting) -> None:
    target = f"http://127.0.0.1:{unused_port()}/log?{SIGNATURE}"
    api.on(f"{AT}/logs", Answer(302, b"", {"Location": target}))
    assert "127.0.0.1: Connection refused" in refused(waiting).message


def test_an_interrupt_leaves_nothing_behind(
    api: Serving, storage: Storage, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    storage.cuts = [1 << 18]

    def interrupt(_: str) -> None:
        assert os.listdir(tmp_path / "tmp") == [], "no name while it is there, so none after SIGKILL"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(JOB, interrupt, waiting.clock)
    assert os.listdir(tmp_path / "tmp") == []


# -- proxies and certificates


def test_the_proxy_of_the_environment_is_asked(
    api: Serving, storage: Storage, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/actions/jobs/9", "/actions/runs/7", "/pulls", "/actions/jobs/9/logs"):
        api.answers[f"http://api.invalid{REPO}{path}"] = api.answers[f"{REPO}{path}"]
    monkeypatch.setenv("GITHUB_API_URL", "http://api.invalid")
    monkeypatch.setenv("http_proxy", api.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert log_at(JOB, waiting) == storage.log
    assert all(path.startswith("http://api.invalid/") for path in api.paths())


@pytest.mark.parametrize(
    ("name", "value", "words", "step"),
    [
        ("http_proxy", "http://me:verysecret@127.0.0.1:{port}", "Connection refused", "HTTPS_PROXY"),
        (
            "http_proxy",
            "socks5://me:verysecret@127.0.0.1:{port}",
            "proxy that the environment names",
            "requests[socks]",
        ),
        ("http_proxy", "http://", "cannot be used", "HTTPS_PROXY"),
    ],
)
def test_a_proxy_that_does_not_work(
    api: Serving, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str, step: str
) -> None:
    monkeypatch.setattr("requests.adapters.SOCKSProxyManager", no_socks)
    monkeypatch.setenv(name, value.format(port=unused_port()))
    error = refused(waiting, CiTasksError)
    assert (words in error.message, step in error.hint) == (True, True), error


def test_a_file_of_certificates_that_is_not_there(
    api: Serving, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_API_URL", f"https://127.0.0.1:{api.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent.pem")
    assert "/nonexistent.pem" in refused(waiting, UsageError).message


def no_socks(*_words: Any, **_options: Any) -> None:
    """What requests has in that place where PySocks is not installed."""
    raise requests.exceptions.InvalidSchema("Missing dependencies for SOCKS support.")


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
        return int(port)
