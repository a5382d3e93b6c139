"""The hub: what each of its answers means, and that the script which asks it shows no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.hub import hub
from ci_tasks.hosts.queries import LocalQueryRunner

CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize(
    ("error", "status", "step"),
    [
        ("", "ok", ""),
        ("HTTP Error 401: Unauthorized", "warning", "add HF_TOKEN"),
        ("HTTP Error 429: Too Many Requests", "warning", "wait some minutes"),
        ("HTTP Error 503: Service Unavailable", "warning", "wait some minutes"),
        (f"<urlopen error {CERTIFICATE}>", "fault", "certificate"),
        ("<urlopen error [Errno -2] Name or service not known>", "fault", "DNS"),
        (None, "unknown", ""),
    ],
)
def test_each_answer_has_a_message(read: Any, error: str | None, status: str, step: str) -> None:
    answer = Answer(0, "" if error is None else json.dumps({"name": "e", "error": error}))
    [result] = read(hub(HostSpec("h")), {"hub": answer})
    assert (result.status, step in result.next_step, "<" in result.text) == (status, True, False), result


def test_the_script_asks_the_hub_and_shows_no_secret(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    env = {"HF_ENDPOINT": "http://me:verysecret@127.0.0.1:9", "no_proxy": "127.0.0.1"}
    host = HostSpec("h", env=env, secrets=("HF_TOKEN",))
    queries = next(hub(host))
    [result] = read(hub(host), LocalQueryRunner(env).run_queries(queries, 60))
    assert (result.status, result.text) == ("fault", "http://127.0.0.1:9: [Errno 111] Connection refused")
    assert "verysecret" not in str([*queries["hub"], result])
