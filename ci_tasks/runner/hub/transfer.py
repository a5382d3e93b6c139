"""One file over HTTP: gone on with where an earlier transfer stopped, and tried again as long as that helps.

The token goes to the hub alone: storage that the hub sends us to gets none.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Mapping, Optional

from .refused import LIMITED, OFFLINE, TROUBLE, HubRefused, of_status

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
TRIES = 5  # in a row that bring nothing
MOST_WAIT = 300.0  # seconds that a file waits for a hub that is asked too often
_TRANSIENT = (408, 500, 502, 503, 504)
_BROKEN = (OSError, http.client.HTTPException)


class Stopped(Exception):
    """Nobody wants it any more."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A repository that was renamed is on the same hub: the token goes there too, and to nobody else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        after = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if after is not None and token and _origin(req.full_url) == _origin(newurl):
            after.add_unredirected_header("Authorization", token)
        return after


class Client:
    """Transfers with one token. `stop` ends them; `say` hears why it takes longer than it should."""

    def __init__(
        self,
        token: Optional[str],
        proxies: Optional[Mapping[str, str]] = None,
        stop: Optional[threading.Event] = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._token = token
        self.stop = stop or threading.Event()
        self._say = say
        given = {**urllib.request.getproxies(), **(proxies or {})}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(given), _Redirects())

    def get(self, url: str, what: str, path: str, size: int, take: Callable[[bytes], None]) -> None:
        """Append the rest of the file at `url` to `path`, which ends with `size` bytes; `take` is given each piece.

        Raises HubRefused, Stopped, and OSError where `path` cannot be written."""
        tries, waited = 0, 0.0
        while True:
            before = os.path.getsize(path)
            if before == size:
                return
            try:
                self._some(url, what, path, before, size, take)
                problem = "the hub ends the transfer early"
            except _Again as again:
                problem = again.why
                if again.seconds is not None:
                    waited += again.seconds
                    if waited > MOST_WAIT:
                        raise again.refusal from None
                    self._say("%s; waiting %.0f s" % (problem, again.seconds))
                    self._pause(again.seconds)
                    continue
            tries = 0 if os.path.getsize(path) > before else tries + 1
            if tries >= TRIES:
                raise HubRefused(OFFLINE, "%s: %s, %d times" % (what, problem, tries))
            if tries:
                self._pause(min(2.0 ** (tries - 1), 8.0))

    def _some(self, url: str, what: str, path: str, at: int, size: int, take: Callable[[bytes], None]) -> None:
        request = urllib.request.Request(url, headers={"User-Agent": "ci-tasks", "Accept-Encoding": "identity"})
        if at:
            request.add_header("Range", "bytes=%d-" % at)
        if self._token:
            request.add_unredirected_header("Authorization", "Bearer " + self._token)
        with self._open(request, what) as answer:
            if at and answer.status != 206:
                raise HubRefused(TROUBLE, "%s: the hub cannot go on in the middle of a file" % what)
            with open(path, "ab") as out:
                self._copy(answer, out, what, size - at, take)

    def _open(self, request: urllib.request.Request, what: str) -> Any:
        try:
            return self._opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                headers = error.headers
                refusal = of_status(error.code, headers.get("X-Error-Code") or "", what, bool(self._token))
                if error.code == 429:
                    seconds = _retry_after(headers)
                    limit = HubRefused(LIMITED, "%s; it asks us to wait %.0f s" % (refusal, seconds))
                    raise _Again(str(refusal), limit, seconds) from None
                if error.code in _TRANSIENT:
                    raise _Again(str(refusal), refusal) from None
                raise refusal from None
        except urllib.error.URLError as error:
            raise _Again(_reason(error.reason), HubRefused(OFFLINE, _reason(error.reason))) from None
        except _BROKEN as error:
            raise _Again(_reason(error), HubRefused(OFFLINE, _reason(error))) from None

    def _copy(self, answer: Any, out: Any, what: str, left: int, take: Callable[[bytes], None]) -> None:
        while True:
            if self.stop.is_set():
                raise Stopped
            try:
                chunk = answer.read(min(CHUNK, left + 1))
            except http.client.IncompleteRead as cut:
                chunk, left = cut.partial, min(left, len(cut.partial))
            except _BROKEN as error:
                raise _Again(_reason(error), HubRefused(OFFLINE, _reason(error))) from None
            if len(chunk) > left:
                raise HubRefused(TROUBLE, "%s: the hub sends more than it says the file has" % what)
            if not chunk:
                return
            out.write(chunk)
            out.flush()
            take(chunk)
            left -= len(chunk)

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Stopped


class _Again(Exception):
    """Worth another try; after `seconds`, where the hub names them."""

    def __init__(self, why: str, refusal: HubRefused, seconds: Optional[float] = None) -> None:
        super().__init__(why)
        self.why, self.refusal, self.seconds = why, refusal, seconds


def address(endpoint: str, kind: str, id: str, commit: str, path: str) -> str:
    """Where the hub has a file."""
    below = "/".join([*(["datasets"] if kind == "dataset" else []), id, "resolve", commit, path])
    return endpoint.rstrip("/") + "/" + urllib.parse.quote(below)


def _retry_after(headers: Any) -> float:
    """Seconds, or a date; half a minute where the hub does not say."""
    said = headers.get("Retry-After") or ""
    try:
        return min(max(float(said), 0.0), MOST_WAIT * 2)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 30.0


def _origin(url: str) -> "tuple[str, str]":
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _reason(error: Any) -> str:
    """An OSError's own words; of others only the kind, since they may repeat an address with what is secret in it."""
    if isinstance(error, OSError):
        return error.strerror or str(getattr(error, "reason", "")) or type(error).__name__
    return type(error).__name__
