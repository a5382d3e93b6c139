"""GitHub's API: which host a URL means, which token it may see, when to retry, what a refusal means, and logs that
arrive whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import field
from datetime import datetime
from typing import Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, parse_qs, urljoin, urlsplit

import requests
from requests import exceptions
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from ci_tasks import __version__, known_secrets
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs.log_file import temporary_copy, without_secrets

GITHUB = "github.com"
PUBLIC_API = "https://api.github.com"
_CLOUD_DOMAIN = ".ghe.com"  # GitHub's own machines, with a subdomain for each company
_HINT = (
    "as https://github.com/OWNER/REPO/actions/runs/RUN, …/actions/runs/RUN/job/JOB, …/actions/runs/RUN/attempts/N, "
    "…/pull/N, …/pull/N/checks?check_run_id=JOB or …/commit/SHA/checks/JOB, on any GitHub host"
)
_ID = "[0-9]{1,19}"
_SHA = "[0-9a-fA-F]{7,64}"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_REPOSITORY = re.compile(r"/(?P<owner>[A-Za-z0-9][A-Za-z0-9_-]*)/(?P<repo>(?!\.\.?/)[A-Za-z0-9._-]+)/(?P<page>.+?)/?")
_PAGES = (
    rf"actions/runs/(?P<run>{_ID})/attempts/(?P<attempt>{_ID})(/.*)?",
    rf"actions/runs/(?P<run>{_ID})/job/(?P<job>{_ID})(/.*)?",
    rf"actions/runs/(?P<run>{_ID})(/.*)?",
    rf"(actions/jobs|runs|check-runs)/(?P<job>{_ID})(/.*)?",  # two of the API's, and what links once were
    rf"commits?/(?P<commit>{_SHA})/checks/(?P<job>{_ID})(/.*)?",
    rf"pull/{_ID}/commits/(?P<commit>{_SHA})",
    rf"commits?/(?P<commit>{_SHA})(/.*)?",
    rf"pulls?/(?P<pull>{_ID})(/.*)?",
)
_CLOUD_VARIABLES = ("GH_TOKEN", "GITHUB_TOKEN")
_ENTERPRISE_VARIABLES = ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
_GH_TIMEOUT = 15.0  # seconds; it may ask a keyring, which may ask the person
EXPIRED_HINT = "re-run the job there, or name its log if it was saved"
_NETWORK_HINT = "check the network; HTTPS_PROXY names a proxy, GITHUB_API_URL another API; a saved log needs neither"
MAX_WAIT = 300.0  # seconds that a command waits in all before it gives up
MAX_ATTEMPTS = 5  # of a request that fails for another reason than a rate limit
_RETRIED = (500, 502, 503, 504)
_BROKEN = (
    exceptions.ConnectionError,
    exceptions.Timeout,
    exceptions.ChunkedEncodingError,
    exceptions.ContentDecodingError,
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


@dataclass(frozen=True)
class GitHubUrl:
    """At least one of `job`, `run`, `commit` and `pull` is set; the first of these that is set is meant.

    `host` is that of the web pages, with a port if one was given; `job` is the API's job id, equal to its check run's.
    """

    host: str
    owner: str
    repo: str
    run: int | None = None
    attempt: int | None = None
    job: int | None = None
    pull: int | None = None
    commit: str = ""

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.repo}"

    @property
    def is_github_cloud(self) -> bool:
        """Whether GitHub itself runs the host. Tokens for it are not sent to an enterprise's own server."""
        return self.host == GITHUB or self.host.endswith(_CLOUD_DOMAIN)


def parse_url(text: str) -> GitHubUrl:
    """Raises UsageError for what is no URL of a run, a job, a pull request or a commit."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError:
        raise _not_github(text) from None
    host, path = _web_page(parts)
    repository = _REPOSITORY.fullmatch(path)
    pages = (re.fullmatch(pattern, repository["page"]) for pattern in _PAGES) if repository else iter(())
    page = next((match.groupdict() for match in pages if match), None)
    if parts.scheme not in ("http", "https") or not (repository and page and _HOST.fullmatch(host)):
        raise _not_github(text)
    ids = {name: int(page[name]) for name in ("run", "attempt", "job", "pull") if page.get(name)}
    commit = page.get("commit") or ""
    return GitHubUrl(host, repository["owner"], repository["repo"], commit=commit, **{**_ids_in_query(parts), **ids})


def api_base(host: str, override: str = "") -> str:
    """The URL of the host's API without a trailing slash; `override` is the value of GITHUB_API_URL.

    Raises UsageError for an override that is no URL of an API.
    """
    override = override.strip().rstrip("/")
    # Runners set it to the public one, which must not see another host's token.
    if override and (override != PUBLIC_API or host == GITHUB):
        return _checked(override)
    if host == GITHUB:
        return PUBLIC_API
    return f"https://api.{host}" if host.endswith(_CLOUD_DOMAIN) else f"https://{host}/api/v3"


def _checked(override: str) -> str:
    try:
        parts = urlsplit(override)
        valid = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and not parts.query
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"GITHUB_API_URL is {without_secrets(override)!r}, which is no URL of an API",
            hint="as https://HOST/api/v3; or unset it",
        )
    return override


def _web_page(parts: SplitResult) -> tuple[str, str]:
    """The web pages' host and path, also for a URL of the API."""
    host, path = parts.netloc.rpartition("@")[2].lower(), parts.path
    if host == f"www.{GITHUB}":
        return GITHUB, path
    web = host.removeprefix("api.")
    if web != host and path.startswith("/repos/") and (web == GITHUB or web.endswith(_CLOUD_DOMAIN)):
        return web, path.removeprefix("/repos")
    return host, path.removeprefix("/api/v3/repos") if path.startswith("/api/v3/repos/") else path


def _ids_in_query(parts: SplitResult) -> dict[str, int]:
    """The job that a pull request's page shows, the pull request that a run's page was opened from."""
    names = {"check_run_id": "job", "pr": "pull"}
    query = {names[name]: values[-1] for name, values in parse_qs(parts.query).items() if name in names}
    return {name: int(value) for name, value in query.items() if re.fullmatch(_ID, value)}


def _not_github(text: str) -> UsageError:
    return UsageError(
        f"{without_secrets(text)!r} is no URL of a run, a job, a commit or a pull request on GitHub", hint=_HINT
    )


@dataclass(frozen=True)
class GitHubToken:
    """`source` is the variable, or gh, that it is from."""

    value: str = field(repr=False)
    source: str


def token_variables(url: GitHubUrl) -> tuple[str, ...]:
    """The variables that hold a token for the host of `url`. No host gets a token that is meant for another."""
    return _CLOUD_VARIABLES if url.is_github_cloud else _ENTERPRISE_VARIABLES


def find_token(url: GitHubUrl) -> GitHubToken | None:
    """Raises UsageError where a variable holds something that cannot be a token."""
    for name in token_variables(url):
        value = os.environ.get(name, "").strip()
        if value:
            return _token(value, name)
    value = _gh_auth_token(url.host)
    return _token(value, "gh") if value else None


def _token(value: str, source: str) -> GitHubToken:
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"the value of {source} is no token: it contains blanks or control characters")
    known_secrets.add([value])
    return GitHubToken(value, source)


def _gh_auth_token(host: str) -> str:
    program = shutil.which("gh")
    if not program:
        return ""
    try:
        result = subprocess.run(
            [program, "auth", "token", "--hostname", host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GH_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("ascii", "replace").strip() if result.returncode == 0 else ""


@dataclass(frozen=True)
class ApiRequest:
    """What was requested, for messages: `subject` as in "job 7 of o/r"; `token` is the source of the token, "" without
    one, and `variables` are those that may hold one."""

    subject: str
    host: str
    token: str
    variables: tuple[str, ...]
    is_log: bool = False

    @property
    def sign_in_hint(self) -> str:
        login = "gh auth login" + (f" --hostname {self.host}" if self.host != "github.com" else "")
        return f"set {self.variables[0]} to a token that may read the repository and its actions, or `{login}`"


def status_error(request: ApiRequest, status: int, headers: Mapping[str, str], message: str) -> CiTasksError:
    """The error for an unsuccessful response of the API; `message` is GitHub's own."""
    if status == 401:
        credentials = f"the token of {request.token}" if request.token else "requests without a token"
        return Blocked(f"{request.host} does not accept {credentials} (401)", hint=request.sign_in_hint)
    if status == 403:
        return _forbidden(request, headers, message)
    if status == 404:
        return _missing_error(request)
    if status == 410:
        return UsageError(f"{request.subject} has expired (410): logs are kept 90 days by default", hint=EXPIRED_HINT)
    if status == 407:
        return Blocked("the proxy requires a login (407)", hint="set HTTPS_PROXY with its login")
    if status >= 500:
        return Blocked(f"{request.host} is in trouble ({status})", hint="see https://www.githubstatus.com, try later")
    return Blocked(
        f"{request.host} answered {status} for {request.subject}{_quoted(message)}",
        hint="a saved log can be named instead",
    )


def storage_error(request: ApiRequest, status: int) -> CiTasksError:
    """The error for a response of the storage that GitHub redirects to for a log; its URL is secret."""
    if status in (404, 410):
        return _missing_error(request)
    return Blocked(f"the storage of {request.host} refuses {request.subject} ({status})", hint="try later")


def rate_limit_error(request: ApiRequest, delay: float) -> Blocked:
    """The error for a rate limit that takes `delay` seconds more, which is too long to wait."""
    try:
        resets = f"; it resets at {datetime.fromtimestamp(time.time() + delay).astimezone():%H:%M:%S %Z}"
    except (ValueError, OverflowError, OSError):
        resets = ""
    hint = "try again then; the limit is per token" if request.token else ""
    anonymous = f"{request.sign_in_hint}: 5,000 requests an hour instead of 60"
    return Blocked(f"the rate limit of {request.host} is reached{resets}", hint=hint or anonymous)


def connection_error(error: exceptions.RequestException, host: str) -> CiTasksError:
    """The error for a request without a response. It repeats no URL: signatures and logins are part of them."""
    if isinstance(error, (exceptions.InvalidProxyURL, exceptions.InvalidSchema)):
        hint = "pip install 'requests[socks]', or unset it" if "SOCKS" in str(error) else "correct HTTPS_PROXY"
        return UsageError("the proxy of the environment cannot be used", hint=hint)
    if isinstance(error, exceptions.InvalidURL):
        return Blocked(
            f"{host} redirects to an unusable or unencrypted URL",
            hint="a saved log can be named instead",
        )
    if isinstance(error, exceptions.TooManyRedirects):
        return Blocked(f"{host} redirects too often", hint="is GITHUB_API_URL right?")
    if "certificate" in str(error).lower():
        return Blocked(
            f"the certificate of {host} is not trusted here",
            hint="REQUESTS_CA_BUNDLE names a file with that of a proxy between; or is the clock wrong?",
        )
    return Blocked(f"{host} cannot be read: {_cause(error)}", hint=_NETWORK_HINT)


def _cause(error: BaseException) -> str:
    """The operating system's message behind an error of requests."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return "timed out" if isinstance(error, exceptions.Timeout) else "the connection broke"


def _forbidden(request: ApiRequest, headers: Mapping[str, str], message: str) -> Blocked:
    sso = headers.get("x-github-sso", "")
    if sso:
        page = re.search(r"url=(https://\S+)", sso)
        return Blocked(
            f"{request.subject} requires a token authorised for SSO; that of {request.token or 'nobody'} is not (403)",
            hint=f"authorise it at {page[1] if page else f'https://{request.host}/settings/tokens'}",
        )
    if not request.token:
        reason = "logs can only be read with a login" if request.is_log else "no token was sent"
        return Blocked(f"{request.host} refuses {request.subject}: {reason} (403)", hint=request.sign_in_hint)
    return Blocked(
        f"the token of {request.token} may not read {request.subject} (403{_quoted(message)})",
        hint="give it the permission to read actions (fine-grained) or the scope `repo` (classic), or save its log",
    )


def _missing_error(request: ApiRequest) -> UsageError:
    if request.is_log:
        return UsageError(f"{request.subject} does not exist (404): deleted, or never written", hint=EXPIRED_HINT)
    if request.token:
        reason = f"it does not exist, or the token of {request.token} may not see the repository"
    else:
        reason = "it does not exist, or the repository is private and no token was sent"
    return UsageError(
        f"{request.subject} was not found (404): {reason}",
        hint=f"check the URL; for a private repository {request.sign_in_hint}",
    )


def _quoted(message: str) -> str:
    return f", {message[:200]!r}" if message else ""


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
            except exceptions.JSONDecodeError:
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
                raise exceptions.ConnectionError("incomplete")
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
            except exceptions.RequestException as broken:
                error = connection_error(broken, _host_of(broken) or self._host)
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
            return _Failure(rate_limit_error(request, delay), f"{self._host} limits requests", delay)
        if status in _RETRIED:
            delay = _backoff(attempt, _retry_after(headers))
        if urlsplit(response.url).netloc == urlsplit(self._base_url).netloc:
            error = status_error(request, status, headers, message)
            return _Failure(error, f"{self._host} answered {status}", delay)
        error = storage_error(request, status)
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
            raise exceptions.InvalidURL("redirect")
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


def _host_of(error: exceptions.RequestException) -> str:
    return urlsplit(error.request.url or "").hostname or "" if error.request is not None else ""


def _message(response: requests.Response) -> str:
    """GitHub's explanation of an error; "" without one."""
    try:
        return text_at(response.json(), "message")
    except exceptions.RequestException:
        return ""


def text_at(json: Any, *keys: str) -> str:
    """The text at the path `keys`, "" where there is none."""
    for key in keys:
        json = json_object(json).get(key)
    return json if isinstance(json, str) else ""


def json_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
