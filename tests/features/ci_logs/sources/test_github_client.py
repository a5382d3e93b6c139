"""The conversation: who sees the token, what is waited for, and a log that arrives whole over a bad connection."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import requests

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.features.ci_logs.sources import github_client
from ci_tasks.features.ci_logs.sources.failed_job import open_failed_job
from tests.features.ci_logs.sources.github_server import REPO, SIGNATURE, Answer, FakeTime, Serving, Storage, job

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
        github_client._Session(None).get_redirect_target(answer)


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
