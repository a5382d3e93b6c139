"""Questions to the hub: does a repository exist, may we read it, which commit is it, what is in it.

A gated repository answers all of that to anybody; only whether its files are given needs the right token. The hub says
how long to wait when it is asked too often (Retry-After, or its own `RateLimit`). Its answers are kept, so that a
prefetch without the hub knows what complete means.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ci_tasks import debug_log, known_secrets
from ci_tasks.agent.run_directory import write_json
from ci_tasks.features.prefetch.hub_errors import (
    HOSTILE,
    LIMITED,
    MISSING,
    OFFLINE,
    TRANSIENT,
    TROUBLE,
    HubError,
    HubFile,
    HubRefusal,
    RepoSnapshot,
    of_status,
    refusal,
)
from ci_tasks.features.prefetch.repositories import HubRepository

DEFAULT = "https://huggingface.co"
TRIES = 4  # of what may pass by itself
MOST_WAIT = 300.0  # seconds for a hub that is asked too often, in all
_RETRIED = (408, 500, 502, 503, 504)
_CLIENTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # whose errors are those of the network
_T = TypeVar("_T")


class Hub:
    """One hub, with one token, which is nowhere but in its requests. `say` hears why an answer takes long; `memory` is
    the directory in which answers are kept."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        say: Callable[[str], None],
        memory: Path,
        pause: Callable[[float], object] = threading.Event().wait,
    ) -> None:
        from huggingface_hub import HfApi

        self.endpoint, self.token = endpoint, token
        self._api = HfApi(endpoint=endpoint, token=token or False, library_name="ci-tasks")
        self._say, self._memory, self._pause = say, memory, pause
        self._waited = 0.0
        self._said: set[str] = set()

    def find(self, repository: HubRepository) -> RepoSnapshot | HubRefusal:
        try:
            snapshot = self._find(repository)
        except HubError as error:
            refused = self.refusal(error, repository)
            return replace(refused, last=self._recall(repository)) if error.code in TRANSIENT else refused
        self._remember(repository, snapshot)
        return snapshot

    def refusal(self, error: HubError, repository: HubRepository) -> HubRefusal:
        return refusal(error, shown(self.endpoint), repository.id, repository.kind, bool(self.token))

    def offline(self, message: str, repository: HubRepository) -> HubRefusal:
        """For a hub that is not to be asked."""
        return replace(self.refusal(HubError(OFFLINE, message), repository), last=self._recall(repository))

    def _file(self, repository: HubRepository) -> Path:
        key = (repository.kind, repository.id, repository.revision, repository.include, repository.exclude)
        return self._memory / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"

    def _remember(self, repository: HubRepository, snapshot: RepoSnapshot) -> None:
        with suppress(OSError):
            self._memory.mkdir(parents=True, exist_ok=True)
            files = [[file.path, file.size, file.etag] for file in snapshot.files]
            write_json(str(self._file(repository)), {"commit": snapshot.commit, "files": files})

    def _recall(self, repository: HubRepository) -> RepoSnapshot | None:
        try:
            stored = json.loads(self._file(repository).read_text(encoding="utf-8"))
            return RepoSnapshot(stored["commit"], tuple(HubFile(*file) for file in stored["files"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _find(self, repository: HubRepository) -> RepoSnapshot:
        api, name = self._api, repository.name
        info = self._ask(
            name, lambda: api.repo_info(repository.id, repo_type=repository.kind, revision=repository.revision)
        )
        gated = str(getattr(info, "gated", "") or "")
        closed = self._closed(repository) if gated else None
        tree = self._ask(
            name,
            lambda: list(
                api.list_repo_tree(repository.id, recursive=True, revision=str(info.sha), repo_type=repository.kind)
            ),
        )
        files = tuple(file for entry in tree if (file := _file(entry)) is not None and repository.takes(file.path))
        for file in files:
            _check(file.path)
        if not files:
            raise HubError(MISSING, f"{name} has none of the files that the test asks for")
        return RepoSnapshot(str(info.sha), files, gated, bool(getattr(info, "private", False)), closed)

    def _closed(self, repository: HubRepository) -> HubRefusal | None:
        try:
            self._ask(repository.name, lambda: self._api.auth_check(repository.id, repo_type=repository.kind))
        except HubError as refused:
            return self.refusal(refused, repository)
        return None

    def _ask(self, subject: str, request: Callable[[], _T]) -> _T:
        """Its answer, asked again as long as that may help. Raises HubError."""
        for tries in range(1, TRIES + 1):
            try:
                return request()
            except Exception as error:
                seconds, refused = self._read(error, subject, tries)
                if seconds is None or self._waited + seconds > MOST_WAIT or tries == TRIES:
                    raise refused from error
                if seconds >= 1:
                    self._say_once(f"{refused.message}; asking again in {seconds:.0f} s")
                self._waited += seconds
                self._pause(seconds)
        raise AssertionError("the last try raises")

    def _say_once(self, message: str) -> None:
        """Of questions that wait for the same reason, one says so."""
        if message not in self._said:
            self._said.add(message)
            self._say(message)

    def _read(self, error: Exception, subject: str, tries: int) -> tuple[float | None, HubError]:
        """Seconds until it may be otherwise, None where it will not be, and what it means."""
        from huggingface_hub import errors

        if isinstance(error, errors.OfflineModeIsEnabled):
            return None, HubError(OFFLINE, "HF_HUB_OFFLINE is set on this machine")
        if isinstance(error, errors.RevisionNotFoundError):
            return None, HubError(MISSING, f"{subject} has no such revision (404)")
        if isinstance(error, errors.GatedRepoError):
            return None, of_status(403, "GatedRepo", subject, bool(self.token))
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        pause = 2.0 ** (tries - 1)
        if status == 429:
            pause = wait_of(getattr(response, "headers", {}), tries)
            return pause, HubError(LIMITED, f"too many requests (429): the hub says to wait {pause:.0f} s")
        if isinstance(status, int) and status >= 400:
            code = str(getattr(response, "headers", {}).get("X-Error-Code", ""))
            refused = of_status(status, code, subject, bool(self.token))
            return (pause if status in _RETRIED else None), refused
        if isinstance(error, OSError) or type(error).__module__.split(".")[0] in _CLIENTS:
            why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            return pause, HubError(OFFLINE, f"{shown(self.endpoint)} cannot be reached: {why}")
        if isinstance(error, ValueError):
            return None, HubError(MISSING, f"{subject} is not a valid repository id")
        debug_log.LOGGER.error("the hub's answer about %s", subject, exc_info=error)
        return None, HubError(TROUBLE, f"{subject}: the hub's answer cannot be read: {type(error).__name__}")


def endpoint_of(host_env: Mapping[str, str]) -> str:
    """HF_ENDPOINT of the host, or of this machine."""
    return (host_env.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")


def token_here() -> str | None:
    """HF_TOKEN of the environment, or the login of huggingface_hub's own."""
    from huggingface_hub import get_token

    token = get_token()
    known_secrets.add([token] if token else [])
    return token


def shown(endpoint: str) -> str:
    """Without a password that it may hold."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def wait_of(headers: Mapping[str, str], tries: int) -> float:
    """Seconds that the hub asks for: `Retry-After`, or `RateLimit: "api";r=0;t=55`; else growing ones."""
    reset = re.search(r"\bt=(\d+)", headers.get("ratelimit", "") or headers.get("RateLimit", ""))
    after = headers.get("retry-after", "") or headers.get("Retry-After", "")
    if after.replace(".", "", 1).isdigit():
        return float(after)
    if reset:
        return float(reset[1]) + 1
    return 5.0 * 2.0**tries


def _file(entry: Any) -> HubFile | None:
    """None for a directory."""
    if getattr(entry, "blob_id", None) is None:
        return None
    large = getattr(entry, "lfs", None)
    if large is None:
        return HubFile(str(entry.path), int(entry.size), str(entry.blob_id))
    return HubFile(str(entry.path), int(large.size), str(large.sha256))


def _check(path: str) -> None:
    """Raises HubError for a name that leads out of its directory, or that cannot be a file's."""
    odd = "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path)
    if odd or any(part in ("", ".", "..") for part in path.split("/")) or path.startswith(".cache/huggingface/"):
        raise HubError(HOSTILE, f"the hub names a file {path!a}, which could write outside its directory")
