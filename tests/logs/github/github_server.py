"""A GitHub of our own: an API that gives prepared answers alone, and on another port the storage it sends us to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

SIGNATURE = "sig=verysecretsignature"
REPO = "/repos/THUDM/slime"


T = TypeVar("T", bound="Serving")


@dataclass(frozen=True)
class Answer:
    """`cut` is after how many bytes of the body the connection breaks."""

    code: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Serving:
    """Answers by path. Of several for one path each is given once, and the last for ever; others are 404."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.pages: dict[str, tuple[str, list[Any]]] = {}
        self.requests: list[Request] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, path: str, *answers: Any) -> None:
        self.answers[path] = [answer if isinstance(answer, Answer) else Answer(body=answer) for answer in answers]

    def on_list(self, path: str, key: str, items: list[Any]) -> None:
        self.pages[path] = (key, items)

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def answer(self, request: Request) -> Answer:
        if request.path in self.pages:
            key, items = self.pages[request.path]
            filters = request.query.get("head_sha"), request.query.get("branch")
            items = [item for item in items if filters == (None, None) or filters[0] == item["head_sha"] or filters[1]]
            size, page = int(request.query["per_page"]), int(request.query["page"])
            return Answer(body={"total_count": len(items), key: items[(page - 1) * size : page * size]})
        waiting = self.answers.get(request.path, [])
        if not waiting:
            return Answer(404, {"message": "Not Found"})
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


class Storage(Serving):
    """One log at every path."""

    def __init__(self, log: bytes) -> None:
        super().__init__()
        self.log = log

    def answer(self, request: Request) -> Answer:
        return super().answer(request) if request.path in self.answers else Answer(200, self.log)


def leads_to(storage: Serving) -> Answer:
    """As GitHub answers who asks for a log: the storage's address, with a signature that opens it."""
    return Answer(302, b"", {"Location": f"{storage.url}/log?{SIGNATURE}"})


class Server(ThreadingHTTPServer):
    """Speaks for one `Serving` after the other: to start a server for each test takes most of the test's time."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.state = Serving()

    def now_for(self, state: T) -> T:
        state.port, self.state = self.server_port, state
        return state


@contextmanager
def serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1  # head and body in one packet: else each answer takes 40 ms

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            host = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""  # we are its proxy
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, host + unquote(parts.path), query, headers)
            server.state.requests.append(request)
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
                self._send(server.state.answer(request))

        do_HEAD = do_GET

        def _send(self, answer: Answer) -> None:
            data = answer.data
            self.send_response_only(answer.code)  # without a date, which tests give
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: 0 if self.command == "HEAD" else answer.cut])
            self.close_connection = answer.cut is not None

        def log_message(self, *args: Any) -> None:
            pass

    with Server(Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def job(number: int, conclusion: str | None = "failure", **more: Any) -> dict[str, Any]:
    status = {"status": "completed" if conclusion else "in_progress", "conclusion": conclusion}
    code = {"run_id": 7, "run_attempt": 2, "head_sha": "a" * 40, "head_branch": "fix"}
    runner = {
        "runner_name": "h100-3",
        "labels": ["self-hosted", "h100"],
        "steps": [{"number": 1, "name": "Set up job"}],
    }
    url = f"https://github.com/THUDM/slime/actions/runs/7/job/{number}"
    return {"id": number, "name": f"job {number}", "html_url": url, **status, **code, **runner, **more}


def run(number: int = 7, conclusion: str | None = "failure", **more: Any) -> dict[str, Any]:
    status = {"status": "completed" if conclusion else "in_progress", "conclusion": conclusion, "run_attempt": 2}
    workflow = {"name": "PR Test", "path": ".github/workflows/pr-test.yml@refs/pull/45/merge", "event": "pull_request"}
    code = {"head_sha": "a" * 40, "head_branch": "fix", "head_repository": {"full_name": "someone/slime"}}
    url = f"https://github.com/THUDM/slime/actions/runs/{number}"
    return {"id": number, "html_url": url, "pull_requests": [], **status, **workflow, **code, **more}
