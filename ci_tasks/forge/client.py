"""Conversation with GitHub's API over HTTP: who may see the token, when to ask again, a log that arrives whole."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from ci_tasks import __version__
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.forge import patience, refusals, spool
from ci_tasks.forge.connection import Broken, guarded
from ci_tasks.forge.refusals import Asked
from ci_tasks.forge.token import Token

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session

_TIMEOUTS = (15.0, 60.0)  # seconds to connect, and between bytes
_CHUNK = 1 << 15  # bytes; of a broken connection the last chunk is lost
_MOST_REDIRECTS = 5
_MESSAGE = 1 << 16  # bytes of a refusal that are looked at
_JSON = 1 << 26
_REDIRECTS = (301, 302, 303, 307, 308)
_RANGE_REFUSED = 416
_AGENT = {"User-Agent": f"ci-tasks/{__version__}"}
_API = {**_AGENT, "Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_NETWORK = "check the network; HTTPS_PROXY names a proxy, GITHUB_API_URL another API; --log FILE needs neither"

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """Time, which tests move by hand."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass
class Client:
    """Asks the API at `base`. `host` and `names` (variables for a token) are for errors; `say` is told, in plain lines,
    what is waited for. Its methods raise UsageError and Blocked.
    """

    base: str
    host: str
    token: Token | None
    names: tuple[str, ...]
    say: Callable[[str], None]
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        import requests

        self._session: Session = requests.Session()
        # Even where it is not to follow a redirect, it prepares to, and looks for a login in ~/.netrc there.
        self._session.get_redirect_target = lambda resp: None  # type: ignore[method-assign]
        self._waited = 0.0

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, what: str, **params: str | int) -> Any:
        """What the API says at `path`; `what` names it in errors, as in "run 7 of o/r"."""
        return self._answer(path, self._asked(what), params, dict, lambda answer: _json(answer, self.host, what))

    def download(self, path: str, what: str, into: BinaryIO) -> None:
        """All of the log at `path`, each byte once: a download that broke goes on where it stopped, or begins again."""
        tag, furthest = "", 0

        def wanted() -> dict[str, str]:
            rest = {"Range": f"bytes={into.tell()}-"} if into.tell() else {}
            return {"Accept-Encoding": "identity", **rest}

        def take(answer: Response) -> None:
            nonlocal tag, furthest
            before, tag = tag, answer.headers.get("etag", "")
            if answer.status_code == 200:
                _restart(into)
            elif tag != before or not _goes_on(answer, into.tell()):
                _restart(into)
                raise Broken("it came from another place than was asked for")
            try:
                _copy(answer, into)
            except Broken as broken:
                progress, furthest = into.tell() > furthest, max(into.tell(), furthest)
                raise Broken(str(broken), progress) from None

        self._answer(path, self._asked(what, is_log=True), {}, wanted, take)

    def _asked(self, what: str, is_log: bool = False) -> Asked:
        return Asked(what, self.host, self.token.source if self.token else "", self.names, is_log)

    def _answer(
        self,
        path: str,
        asked: Asked,
        params: Mapping[str, str | int],
        headers: Callable[[], Mapping[str, str]],
        take: Callable[[Response], T],
    ) -> T:
        """What `take` makes of the answer, after as many tries as that needs.

        A link to a log lives for a minute, so every try begins at the API.
        """
        tries = 0
        while True:
            try:
                with self._follow(self.base + path, headers(), params) as answer:
                    if answer.status_code < 300 or answer.status_code == _RANGE_REFUSED:
                        return take(answer)
                    pause, trouble, error = self._judge(asked, answer, tries)
            except Broken as broken:
                tries = 0 if broken.progress else tries
                pause = patience.pause_of(None, {}, tries, self.clock.now())
                trouble = f"{asked.what} does not arrive: {broken}"
                error = Blocked(trouble, hint=_NETWORK)
            if pause is None or self._waited + pause > patience.MOST_SECONDS:
                raise error
            self._wait(pause, trouble)
            tries += 1

    def _judge(self, asked: Asked, answer: Response, tries: int) -> tuple[float | None, str, CiTasksError]:
        """Of an answer that is none: how long to wait, why, and what to raise where that is too long."""
        status, headers, message, now = answer.status_code, answer.headers, _message(answer), self.clock.now()
        limit = patience.limit_of(status, headers, message, tries, now)
        if limit:
            return limit.seconds, f"{asked.host} limits our requests", refusals.limited(asked, limit, now)
        if self._is_ours(answer.url):
            pause = patience.pause_of(status, headers, tries, now)
            return pause, f"{asked.host} answered {status}", refusals.refusal(asked, status, headers, message)
        # A storage host knows no rights: its 403 is a link that has become too old.
        pause = patience.pause_of(503 if status == 403 else status, headers, tries, now)
        return pause, f"the storage of {asked.what} answered {status}", refusals.not_stored(asked, status)

    def _follow(self, url: str, headers: Mapping[str, str], params: Mapping[str, str | int]) -> Response:
        """The answer after redirects."""
        for _ in range(_MOST_REDIRECTS):
            answer = self._get(url, headers, params)
            target = answer.headers.get("location")
            if answer.status_code not in _REDIRECTS or not target:
                return answer
            answer.close()
            url, params = _next(url, target), {}
        raise Blocked(f"{self.host} sends us from one address to the next", hint="is GITHUB_API_URL right?")

    def _get(self, url: str, headers: Mapping[str, str], params: Mapping[str, str | int]) -> Response:
        ours = self._is_ours(url)
        with guarded(urlsplit(url).hostname or ""):
            return self._session.get(
                url,
                params=dict(params),
                headers={**(_API if ours else _AGENT), **headers},
                auth=self._identify if ours else _anonymous,
                allow_redirects=False,
                stream=True,
                timeout=_TIMEOUTS,
            )

    def _is_ours(self, url: str) -> bool:
        return _origin(url) == _origin(self.base)

    def _identify(self, request: PreparedRequest) -> PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token.value}"
        return request

    def _wait(self, seconds: float, why: str) -> None:
        self.say(f"{why}; trying again in {seconds:.0f} s")
        self._waited += seconds
        self.clock.sleep(seconds)


def _anonymous(request: PreparedRequest) -> PreparedRequest:
    """Tells nobody who we are. Without an `auth`, requests would look for a login in ~/.netrc."""
    return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _next(url: str, target: str) -> str:
    """Where a redirect of `url` leads. Raises Blocked for where nobody should follow."""
    try:
        found = urljoin(url, target)
        scheme, host, _ = _origin(found)
    except ValueError:
        scheme, host = "", ""
    if not host or scheme not in ("https", urlsplit(url).scheme):
        raise Blocked(
            f"{urlsplit(url).netloc} sends us on to an address that is none, or is not encrypted",
            hint="--log FILE reads a log that was saved",
        )
    return found


def _restart(into: BinaryIO) -> None:
    into.seek(0)
    into.truncate()


def _goes_on(answer: Response, at: int) -> bool:
    begins = re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
    return answer.status_code == 206 and bool(begins and int(begins[1]) == at) and not _packed(answer)


def _packed(answer: Response) -> bool:
    return answer.headers.get("content-encoding", "identity") != "identity"


def _copy(answer: Response, into: BinaryIO) -> None:
    """Raises Broken where less came than was announced."""
    at, announced = into.tell(), answer.headers.get("content-length", "")
    host = urlsplit(answer.url).hostname or ""
    with guarded(host):
        for chunk in answer.iter_content(_CHUNK):
            spool.append(into, chunk)
    if announced.isdigit() and not _packed(answer) and into.tell() - at < int(announced):
        raise Broken(f"{host}: it ended early")


def _json(answer: Response, host: str, what: str) -> Any:
    import json

    with guarded(host):
        body = answer.raw.read(_JSON, decode_content=True)
    try:
        return json.loads(body)
    except ValueError:
        raise Blocked(
            f"{host} answered something else than JSON for {what}", hint="a proxy, or a login page, may stand between"
        ) from None


def _message(answer: Response) -> str:
    """What an API says of its refusal; "" where it says nothing for people to read."""
    import json

    try:
        with guarded(""):
            found = json.loads(answer.raw.read(_MESSAGE, decode_content=True))
    except (Broken, ValueError):
        return ""
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) else ""
