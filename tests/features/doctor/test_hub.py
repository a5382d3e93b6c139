"""The hub: what each of its answers means, and a real server that gives them to the script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Answers with the code that is the first part of the path, and keeps the headers that it was sent."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(dict(self.headers))
            self.send_response(int(self.path.split("/")[1]))
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


def test_the_script_asks_a_server_and_neither_sends_nor_shows_a_secret(
    read: Any, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    address = f"127.0.0.1:{server.server_port}"
    # With the server as its proxy, the script asks for the whole address, which is taken for code 0: no such answer.
    for env, status, text in (
        ({"HF_ENDPOINT": f"http://me:verysecret@{address}/200"}, "ok", f"http://{address}/200 answers"),
        ({"HF_ENDPOINT": f"http://{address}/429"}, "warning", f"http://{address}/429: HTTP Error 429"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "fault", "http://127.0.0.1:9: [Errno 111] Connection refused"),
        ({"HF_ENDPOINT": "http://hub.invalid", "http_proxy": f"http://{address}", "no_proxy": ""}, None, "http://hub."),
    ):
        env = {"no_proxy": "127.0.0.1", "https_proxy": "http://me:verysecret@proxy:3128", **env}
        host = HostSpec("h", env=env, secrets=("HF_TOKEN",))
        queries = next(hub(host))
        assert "verysecret" not in " ".join(queries["hub"])
        [result] = read(hub(host), LocalQueryRunner(env).run_queries(queries, 60))
        assert status in (result.status, None) and result.text.startswith(text), result
        assert ("wait some minutes" in result.next_step) == (status == "warning")
        assert (", through a proxy" in result.text) == (status is None)
        assert "verysecret" not in str([result, server.requests])  # type: ignore[attr-defined]
