"""Questions to the hub: does a repository exist, may we read it, which commit is it, what is in it.

A repository that is gated answers all of that to anybody: only the last question, whether its files are given, needs
the right token. The hub says how long to wait when it is asked too often (Retry-After, or its own `RateLimit`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ci_tasks.hub.found import Found, Refusal, refusal
from ci_tasks.runner.hub.folders import File
from ci_tasks.runner.hub.names import check_file
from ci_tasks.runner.hub.refused import LIMITED, MISSING, OFFLINE, TROUBLE, HubRefused, of_status
from ci_tasks.suites.prefetch.wants import Repository

DEFAULT = "https://huggingface.co"
TRIES = 4  # of what may pass by itself
MOST_WAIT = 300.0  # seconds for a hub that is asked too often, in all
_TRANSIENT = (408, 500, 502, 503, 504)
_CLIENTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # whose errors are those of the network
_T = TypeVar("_T")


class Hub:
    """One hub, with one token, which is nowhere but in its requests. `say` hears why an answer takes long."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        say: Callable[[str], None],
        pause: Callable[[float], object] = threading.Event().wait,
    ) -> None:
        from huggingface_hub import HfApi

        self.endpoint, self.token = endpoint, token
        self._api = HfApi(endpoint=endpoint, token=token or False, library_name="ci-tasks")
        self._say, self._pause = say, pause
        self._waited = 0.0

    def find(self, wanted: Repository) -> Found | Refusal:
        """What the hub has of it."""
        try:
            return self._find(wanted)
        except HubRefused as refused:
            return self.refusal(refused.code, refused.message, wanted)

    def refusal(self, code: str, message: str, wanted: Repository) -> Refusal:
        return refusal(code, message, shown(self.endpoint), wanted.id, wanted.kind, bool(self.token))

    def _find(self, wanted: Repository) -> Found:
        api, name = self._api, wanted.name
        info = self._ask(name, lambda: api.repo_info(wanted.id, repo_type=wanted.kind, revision=wanted.revision))
        gated = str(getattr(info, "gated", "") or "")
        closed = self._closed(wanted) if gated else None
        tree = self._ask(
            name,
            lambda: list(api.list_repo_tree(wanted.id, recursive=True, revision=str(info.sha), repo_type=wanted.kind)),
        )
        files = tuple(file for entry in tree if (file := _file(entry)) is not None and wanted.takes(file.path))
        for file in files:
            check_file(file.path)
        if not files:
            raise HubRefused(MISSING, f"{name} has no file that the test asks for")
        return Found(str(info.sha), files, gated, bool(getattr(info, "private", False)), closed)

    def _closed(self, wanted: Repository) -> Refusal | None:
        """Why we are not let in, if we are not."""
        try:
            self._ask(wanted.name, lambda: self._api.auth_check(wanted.id, repo_type=wanted.kind))
        except HubRefused as refused:
            return self.refusal(refused.code, refused.message, wanted)
        return None

    def _ask(self, what: str, question: Callable[[], _T]) -> _T:
        """Its answer, asked again as long as that may help. Raises HubRefused."""
        for tries in range(1, TRIES + 1):
            try:
                return question()
            except Exception as error:
                seconds, refused = self._read(error, what, tries)
                if seconds is None or self._waited + seconds > MOST_WAIT or tries == TRIES:
                    raise refused from None
                if seconds >= 1:
                    self._say(f"{refused.message}; asking again in {seconds:.0f} s")
                self._waited += seconds
                self._pause(seconds)
        raise AssertionError("the last try raises")

    def _read(self, error: Exception, what: str, tries: int) -> tuple[float | None, HubRefused]:
        """Seconds until it may be otherwise, None where it will not be, and what it means."""
        from huggingface_hub import errors

        if isinstance(error, errors.OfflineModeIsEnabled):
            return None, HubRefused(OFFLINE, "HF_HUB_OFFLINE is set here")
        if isinstance(error, errors.RevisionNotFoundError):
            return None, HubRefused(MISSING, f"{what} has no such revision (404)")
        if isinstance(error, errors.GatedRepoError):
            return None, of_status(403, "GatedRepo", what, bool(self.token))
        answer = getattr(error, "response", None)
        status = getattr(answer, "status_code", None)
        pause = 2.0 ** (tries - 1)
        if status == 429:
            pause = wait_of(getattr(answer, "headers", {}), tries)
            return pause, HubRefused(LIMITED, f"the hub answers no more for now (429); it names {pause:.0f} s")
        if isinstance(status, int) and status >= 400:
            code = str(getattr(answer, "headers", {}).get("X-Error-Code", ""))
            refused = of_status(status, code, what, bool(self.token))
            return (pause if status in _TRANSIENT else None), refused
        if isinstance(error, OSError) or type(error).__module__.split(".")[0] in _CLIENTS:
            why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            return pause, HubRefused(OFFLINE, f"{shown(self.endpoint)} cannot be reached: {why}")
        if isinstance(error, ValueError):
            return None, HubRefused(MISSING, f"{what} is no repository's id")
        return None, HubRefused(TROUBLE, f"{what}: the hub's answer cannot be read: {type(error).__name__}")


def endpoint_of(host_env: Mapping[str, str]) -> str:
    """HF_ENDPOINT of the host, or of this machine."""
    return (host_env.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")


def token_here() -> str | None:
    """HF_TOKEN of the environment, or the login of huggingface_hub's own."""
    from huggingface_hub import get_token

    return get_token()


def shown(endpoint: str) -> str:
    """Without a password that it may hold."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def wait_of(headers: Mapping[str, str], tries: int) -> float:
    """Seconds that the hub asks for: `Retry-After`, or `RateLimit: "api";r=0;t=55`; else growing ones."""
    said = re.search(r"\bt=(\d+)", headers.get("ratelimit", "") or headers.get("RateLimit", ""))
    after = headers.get("retry-after", "") or headers.get("Retry-After", "")
    if after.replace(".", "", 1).isdigit():
        return float(after)
    if said:
        return float(said[1]) + 1
    return 5.0 * 2.0**tries


def _file(entry: Any) -> File | None:
    """None for a directory."""
    if getattr(entry, "blob_id", None) is None:
        return None
    large = getattr(entry, "lfs", None)
    if large is None:
        return File(str(entry.path), int(entry.size), str(entry.blob_id))
    return File(str(entry.path), int(large.size), str(large.sha256))
