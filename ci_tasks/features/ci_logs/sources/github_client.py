"""Requests to GitHub's API: which host may see the token, when to retry, and logs that arrive whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from ci_tasks import __version__
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.features.ci_logs.sources import http_errors
from ci_tasks.features.ci_logs.sources.github_records import text_at
from ci_tasks.features.ci_logs.sources.github_token import GitHubToken
from ci_tasks.features.ci_logs.sources.http_errors import ApiRequest
from ci_tasks.features.ci_logs.sources.temporary_copy import temporary_copy

MAX_WAIT = 300.0  # seconds that a command waits in all before it gives up
MAX_ATTEMPTS = 5  # of a request that fails for another reason than a rate limit
_RETRIED = (500, 502, 503, 504)
_BROKEN = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
)
_TIMEOUTS = (15.0, 60.0)  # seconds to connect, and between bytes
_CHUNK_BYTES = 1 << 18
_SECONDARY_LIMIT = 60.0  # seconds; what GitHub's documentation tells clients to wait at least
_HEADERS = {
    "User-Agent": f"ci-tasks/{__version__}",
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
}

T = TypeVar("T")


class GitHubClient:
    """Reads from the API at `base_url`. `notify` gets a message each time GitHub has to be waited for. Its methods
    raise UsageError and Blocked."""

    def __init__(
        self,
        base_url: str,
        host: str,
        token: GitHubToken | None,
        token_variables: tuple[str, ...],
        notify: Callable[[str], None],
    ) -> None:
        self._base_url, self._host, self._token, self._token_variables = base_url, host, token, token_variables
        self.notify = notify
        self._session = _Session(token)
        self._waited = 0.0

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, subject: str, **params: str | int) -> Any:
        """The JSON at `path`; `subject` names it in messages, as in "run 7 of o/r"."""
        request = self._request(subject)

        def parse(response: requests.Response) -> Any:
            try:
                return response.json()
            except requests.exceptions.JSONDecodeError:
                raise Blocked(
                    f"{self._host} did not answer with JSON for {subject}", hint="a proxy or a login page may interfere"
                ) from None

        return self._get(path, request, params, parse)

    def download(self, path: str, subject: str) -> BinaryIO:
        """The whole file at `path`, as a temporary file. A download that breaks is started again."""

        def save(response: requests.Response) -> BinaryIO:
            file = temporary_copy(response.iter_content(_CHUNK_BYTES), subject)
            expected = response.headers.get("content-length", "")  # urllib3 1 does not compare it
            if expected.isdigit() and "content-encoding" not in response.headers and file.tell() < int(expected):
                file.close()
                raise requests.exceptions.ConnectionError("incomplete")
            return file

        return self._get(path, self._request(subject, is_log=True), {}, save)

    def _request(self, subject: str, is_log: bool = False) -> ApiRequest:
        return ApiRequest(subject, self._host, self._token.source if self._token else "", self._token_variables, is_log)

    def _get(
        self,
        path: str,
        request: ApiRequest,
        params: Mapping[str, str | int],
        read: Callable[[requests.Response], T],
    ) -> T:
        """What `read` makes of the response. Retries after rate limits, server errors and broken connections.

        Every attempt begins at the API, since a link to a log is valid for a minute.
        """
        url, attempt = self._base_url + path, 0
        while True:
            try:
                with self._session.get(url, params=dict(params), stream=True, timeout=_TIMEOUTS) as response:
                    if response.ok:
                        return read(response)
                    failure = self._failure(request, response, attempt)
            except requests.RequestException as broken:
                error = http_errors.connection_error(broken, _host_of(broken) or self._host)
                failure = _Failure(error, error.message, _backoff(attempt) if isinstance(broken, _BROKEN) else None)
            except OSError as unreadable:  # REQUESTS_CA_BUNDLE names no file
                hint = "REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a file of certificates"
                raise UsageError(str(unreadable), hint=hint) from None
            if failure.delay is None or self._waited + failure.delay > MAX_WAIT:
                raise failure.error
            self.notify(f"{failure.reason}; trying again in {failure.delay:.0f} s")
            self._waited += failure.delay
            time.sleep(failure.delay)
            attempt += 1

    def _failure(self, request: ApiRequest, response: requests.Response, attempt: int) -> _Failure:
        status, headers, message = response.status_code, response.headers, _message(response)
        delay = rate_limit_delay(status, headers, message, attempt)
        if delay is not None:
            return _Failure(http_errors.rate_limit_error(request, delay), f"{self._host} limits requests", delay)
        if status in _RETRIED:
            delay = _backoff(attempt, _retry_after(headers))
        if urlsplit(response.url).netloc == urlsplit(self._base_url).netloc:
            error = http_errors.status_error(request, status, headers, message)
            return _Failure(error, f"{self._host} answered {status}", delay)
        error = http_errors.storage_error(request, status)
        return _Failure(error, f"the storage of {request.subject} answered {status}", delay)


@dataclass(frozen=True)
class _Failure:
    """A failed attempt: what to raise, why the next one has to wait, and for how many seconds; None to give up."""

    error: CiTasksError
    reason: str
    delay: float | None


class _Session(requests.Session):
    """Sends the token to the API's host alone, and never a login from ~/.netrc."""

    max_redirects = 5

    def __init__(self, token: GitHubToken | None) -> None:
        super().__init__()
        self.headers.update(_HEADERS)
        self._token = token
        self.auth = self._authorize  # without an `auth`, requests uses ~/.netrc

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)

    def rebuild_proxies(
        self, prepared_request: requests.PreparedRequest, proxies: MutableMapping[str, str] | None
    ) -> MutableMapping[str, str]:
        # With the first request's proxies, no_proxy would not count for the host of a redirect.
        return dict(super().rebuild_proxies(prepared_request, {}))  # type: ignore[no-untyped-call]

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Raises InvalidURL for a redirect to an unencrypted URL, or to none."""
        target: str | None = super().get_redirect_target(resp)
        if target is None:
            return None
        try:
            parts = urlsplit(urljoin(resp.url, target))
            valid = parts.scheme in ("https", urlsplit(resp.url).scheme) and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise requests.exceptions.InvalidURL("redirect")
        return target

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token.value}"
        return request


def rate_limit_delay(status: int, headers: Mapping[str, str], message: str, attempt: int) -> float | None:
    """Seconds until a rate limit may be over, as GitHub documents it: Retry-After, else x-ratelimit-reset where nothing
    remains, else a minute, doubling. None for a response that is no rate limit."""
    exhausted = headers.get("x-ratelimit-remaining") == "0"
    after = _retry_after(headers)
    is_named = "rate limit" in message.lower() or "abuse detection" in message.lower()
    if status != 429 and not (status == 403 and (exhausted or after is not None or is_named)):
        return None
    if after is not None:
        return after
    reset = headers.get("x-ratelimit-reset", "")
    if exhausted and reset.isdecimal():
        return max(int(reset) - time.time(), 0) + 1
    return _SECONDARY_LIMIT * float(2**attempt)


def _backoff(attempt: int, retry_after: float | None = None) -> float | None:
    if attempt + 1 >= MAX_ATTEMPTS:
        return None
    return float(2**attempt) if retry_after is None else retry_after


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return float(Retry().parse_retry_after(headers.get("retry-after", "")))
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _host_of(error: requests.RequestException) -> str:
    return urlsplit(error.request.url or "").hostname or "" if error.request is not None else ""


def _message(response: requests.Response) -> str:
    """GitHub's explanation of an error; "" without one."""
    try:
        return text_at(response.json(), "message")
    except requests.RequestException:
        return ""
