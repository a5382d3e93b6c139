"""The hub: what each of its answers means, and a real server that gives them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import hub_access
from ci_tasks.hosts.queries import LocalQueryRunner


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """QueryAnswers with the code that is the first part of the path, and keeps the headers that it was sent."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(dict(self.headers))
            self.send_response(int(self.path.split("/")[1]))
            self.send_header("Retry-After", "42")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    requests: list[dict[str, str]] = []
    with HTTPServer(("127.0.0.1", 0), Hub) as serving:
        serving.requests = requests  # type: ignore[attr-defined]
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def hub_result(read: Any, **host: Any) -> Any:
    facts = hub_access.facts(HostSpec("h", **host))
    answers = LocalQueryRunner(host.get("env")).run_queries(
        {name: argv for fact in facts for name, argv in fact.queries.items()}, 60
    )
    [result] = read(facts, answers)
    return result


@pytest.mark.parametrize(
    ("code", "secrets", "status", "text", "step"),
    [
        (200, (), "ok", "answers", ""),
        (404, (), "ok", "answers", ""),  # a mirror need not have every page
        (401, (), "warning", "HF_TOKEN is not among its secrets", "add HF_TOKEN"),
        (403, ("HF_TOKEN",), "warning", "is not tried here", "token may read"),
        (429, (), "warning", "too many requests", "wait 42 s, or add HF_TOKEN"),
        (503, (), "warning", "in trouble (503)", "status.huggingface.co"),
    ],
)
def test_each_response_of_the_hub_has_a_message(
    read: Any, server: HTTPServer, code: int, secrets: tuple[str, ...], status: str, text: str, step: str
) -> None:
    address = f"http://127.0.0.1:{server.server_port}/{code}"
    result = hub_result(read, env={"HF_ENDPOINT": address, "no_proxy": "127.0.0.1"}, secrets=secrets)
    assert (result.status, text in result.text, step in result.next_step) == (status, True, True), result
    assert result.text.startswith(address)


def test_no_token_and_no_password_is_sent_or_shown(
    read: Any, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    env = {"HF_ENDPOINT": f"http://me:verysecret@127.0.0.1:{server.server_port}/200", "no_proxy": "127.0.0.1"}
    proxied = {**env, "https_proxy": "http://me:verysecret@proxy:3128"}
    [fact] = hub_access.facts(HostSpec("h", env=proxied, secrets=("HF_TOKEN",)))
    assert "verysecret" not in " ".join(fact.queries["hub"])
    result = hub_result(read, env=env, secrets=("HF_TOKEN",))
    assert result.status == "ok"
    assert "verysecret" not in str([result, server.requests])  # type: ignore[attr-defined]


def test_a_hub_that_nobody_serves_is_a_fault(read: Any, server: HTTPServer) -> None:
    result = hub_result(read, env={"HF_ENDPOINT": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"})
    assert (result.status, "refused" in result.text) == ("fault", True)


def test_a_proxy_is_reported(read: Any, server: HTTPServer) -> None:
    """The test's server, as a proxy, is asked for the whole address, which it takes for code 0: no such answer."""
    proxy = f"http://127.0.0.1:{server.server_port}"
    result = hub_result(read, env={"HF_ENDPOINT": "http://hub.invalid", "http_proxy": proxy, "no_proxy": ""})
    assert result.text.startswith("http://hub.invalid, through a proxy")


@pytest.mark.parametrize(
    ("record", "status", "step"),
    [
        (
            {"endpoint": "e", "error": "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"},
            "fault",
            "certificate",
        ),
        ({"endpoint": "e", "error": "[Errno -2] Name or service not known"}, "fault", "DNS"),
        ({"endpoint": "e", "error": "timed out"}, "fault", "HTTPS_PROXY"),
        ({"endpoint": "e", "proxy": True, "code": 407}, "fault", "HTTPS_PROXY with its login"),
        ({}, "unknown", ""),
    ],
)
def test_why_it_cannot_be_reached(read: Any, record: dict[str, Any], status: str, step: str) -> None:
    [result] = read(hub_access.facts(HostSpec("h")), {"hub": QueryAnswer(0, json.dumps(record))})
    assert (result.status, step in result.next_step) == (status, True)


def test_a_host_without_the_hub_is_not_queried(read: Any) -> None:
    assert [f.status for f in read(hub_access.facts(HostSpec("h", env={"HF_HUB_OFFLINE": "1"})), {})] == ["ok"]
    assert hub_access.facts(HostSpec("sim", simulate=True)) == []
