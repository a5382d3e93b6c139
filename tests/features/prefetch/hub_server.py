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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.logs.github import github_server
from tests.logs.github.github_server import Answer, Request, Serving

LARGE = 4096  # bytes from which a file is in LFS, so that its etag is a sha256


@dataclass
class Repo:
    kind: str
    id: str
    files: dict[str, bytes]
    gated: str = ""
    private: bool = False
    sha: str = "a" * 40


class Hub(Serving):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self.repos: dict[tuple[str, str], Repo] = {}
        self.tokens: dict[str, set[str]] = {}
        self.held: dict[str, threading.Event] = {}
        self.contents: list[str] = []

    def add(self, id: str, files: dict[str, bytes], kind: str = "model", **more: Any) -> Repo:
        repo = self.repos[kind, id] = Repo(kind, id, files, **more)
        return repo

    def answer(self, request: Request) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        parts = request.path.strip("/").split("/")
        if token and parts[0] == "api" and self.tokens and token not in self.tokens:
            return Answer(401, {"error": "Invalid credentials"})
        if parts[0] == "api":
            sizes = "blobs" in request.query
            return self._api(parts[1].removesuffix("s"), "/".join(parts[2:4]), parts[4:], token, sizes)
        at = parts.index("resolve")
        repo = self.repos["dataset" if parts[0] == "datasets" else "model", "/".join(parts[at - 2 : at])]
        return self._file(request, repo, "/".join(parts[at + 2 :]), token)

    def _api(self, kind: str, id: str, rest: list[str], token: str, sizes: bool) -> Answer:
        repo = self.repos.get((kind, id))
        if repo is None or (repo.private and not self._may(repo, token)):
            return _error(404 if token else 401, "RepoNotFound")
        if rest[:1] == ["auth-check"]:
            return Answer(body={}) if self._may(repo, token) else self._closed(token)
        if rest[:1] == ["tree"]:
            return Answer(body=[_entry(path, content) for path, content in repo.files.items()])
        siblings = [{"rfilename": path, "size": len(text) if sizes else None} for path, text in repo.files.items()]
        access = {"private": repo.private, "gated": repo.gated or False, "disabled": False}
        counts = {"_id": "1", "downloads": 0, "likes": 0, "tags": []}
        about = {"id": repo.id, "modelId": repo.id, "sha": repo.sha}
        return Answer(body={**about, "siblings": siblings, **access, **counts})

    def _file(self, request: Request, repo: Repo, path: str, token: str) -> Answer:
        if path not in repo.files:
            return _error(404, "EntryNotFound")
        if not self._may(repo, token):
            return self._closed(token)
        content, byte_range = repo.files[path], request.headers.get("range")
        at = int(byte_range.removeprefix("bytes=").split("-")[0]) if byte_range else 0
        about = {"X-Repo-Commit": repo.sha, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        about |= {"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"} if byte_range else {}
        gate = None
        if request.method == "GET":
            self.contents.append(path)
            if gate := self.held.pop(path, None):
                gate.wait(20)
        return Answer(206 if byte_range else 200, content[at:], about, cut=0 if gate else None)

    def _may(self, repo: Repo, token: str) -> bool:
        return not (repo.gated or repo.private) or repo.id in self.tokens.get(token, set())

    def _closed(self, token: str) -> Answer:
        return _error(403 if token else 401, "GatedRepo")


@contextmanager
def serving() -> Iterator[Hub]:
    with github_server.serving() as server:
        yield server.now_for(Hub())


def etag(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _error(status: int, code: str) -> Answer:
    return Answer(status, {"error": code}, {"X-Error-Code": code, "X-Error-Message": "Access is restricted"})


def _entry(path: str, content: bytes) -> dict[str, Any]:
    sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "oid": sha1, "size": len(content), "path": path}
    if len(content) >= LARGE:
        entry["lfs"] = {"oid": etag(content), "size": len(content), "pointerSize": 134}
    return entry
