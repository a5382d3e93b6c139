"""A model hub of a test's own on 127.0.0.1: the few addresses that downloads use.

with serving() as hub:
    hub.add("org/m", {"config.json": b"{}", "model.safetensors": LARGE})       # a file from LARGE bytes on is LFS
    hub.add("org/d", {...}, kind="dataset", gated="manual", private=True)
    hub.tokens = {"hf_good": {"org/m"}}        # who may read what is gated or private
    hub.held["model.safetensors"] = threading.Event()     # until it is set, nothing of the file is sent; then it is cut
    hub.contents                               # paths of the files whose content was sent, in order
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LARGE = 4096  # bytes from which a file is in LFS, so that its etag is a sha256


@dataclass
class Repo:
    kind: str
    id: str
    files: dict[str, bytes]
    gated: str = ""
    private: bool = False
    sha: str = "a" * 40


@dataclass
class Hub:
    """See above."""

    url: str = ""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    tokens: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, threading.Event] = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)

    def add(self, id: str, files: dict[str, bytes], kind: str = "model", **more: Any) -> Repo:
        repo = self.repos[kind, id] = Repo(kind, id, files, **more)
        return repo


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def etag(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        try:
            self._answer(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path), token)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def _answer(self, path: str, token: str) -> None:
        parts = path.strip("/").split("/")
        if token and parts[0] == "api" and self.hub.tokens and token not in self.hub.tokens:
            self._json({"error": "Invalid credentials"}, 401)
        elif parts[:1] == ["api"]:
            self._api(parts[1].removesuffix("s"), "/".join(parts[2:4]), parts[4:], token)
        elif "resolve" in parts:
            at = parts.index("resolve")
            kind = "dataset" if parts[0] == "datasets" else "model"
            self._file(kind, "/".join(parts[at - 2 : at]), "/".join(parts[at + 2 :]), token)
        else:
            self._json({"error": "not found"}, 404)

    def _api(self, kind: str, id: str, rest: list[str], token: str) -> None:
        repo = self.hub.repos.get((kind, id))
        if repo is None or (repo.private and not self._may(repo, token)):
            status = 404 if token else 401
            self._json({"error": "Repository not found"}, status, {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["auth-check"]:
            self._json({}, *(() if self._may(repo, token) else self._closed(token)))
        elif rest[:1] == ["tree"]:
            self._json([_entry(path, content) for path, content in repo.files.items()])
        else:
            siblings = [{"rfilename": path, "size": len(text)} for path, text in repo.files.items()]
            access = {"private": repo.private, "gated": repo.gated or False, "disabled": False}
            counts = {"_id": "1", "downloads": 0, "likes": 0, "tags": []}
            self._json({"id": repo.id, "modelId": repo.id, "sha": repo.sha, "siblings": siblings, **access, **counts})

    def _file(self, kind: str, id: str, path: str, token: str) -> None:
        repo = self.hub.repos.get((kind, id))
        if repo is None or path not in repo.files:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        if not self._may(repo, token):
            return self._json({"error": "closed"}, *self._closed(token))
        content, byte_range = repo.files[path], self.headers.get("Range")
        at = int(byte_range.removeprefix("bytes=").split("-")[0]) if byte_range else 0
        about = {"X-Repo-Commit": repo.sha, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        about |= {"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"} if byte_range else {}
        self._headers(206 if byte_range else 200, {**about, "Content-Length": str(len(content) - at)})
        if self.command == "HEAD":
            return None
        self.hub.contents.append(path)
        if gate := self.hub.held.pop(path, None):
            gate.wait(20)
            self.close_connection = True
            return None
        self.wfile.write(content[at:])
        return None

    def _may(self, repo: Repo, token: str) -> bool:
        return not (repo.gated or repo.private) or repo.id in self.hub.tokens.get(token, set())

    def _closed(self, token: str) -> tuple[int, dict[str, str]]:
        return (403 if token else 401), {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self._headers(status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _headers(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "oid": sha1, "size": len(content), "path": path}
    if len(content) >= LARGE:
        entry["lfs"] = {"oid": etag(content), "size": len(content), "pointerSize": 134}
    return entry
