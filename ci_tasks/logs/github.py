"""GitHub's API: the page that a URL means, the token that its host may see, and answers that arrive whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qs, urljoin, urlsplit

import requests
from requests import exceptions
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ci_tasks import __version__, known_secrets
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs.log_file import temporary_copy, without_secrets

GITHUB, PUBLIC_API = "github.com", "https://api.github.com"
API_VARIABLE = "GITHUB_API_URL"
# Server errors and broken connections are tried again, for 15 s in all; a rate limit may last an hour and is not.
_RETRIES = Retry(
    total=4,
    backoff_factor=1,
    status_forcelist=(500, 502, 503, 504),
    raise_on_status=False,
    redirect=False,
    respect_retry_after_header=False,
)
_URL_HINT = (
    "as https://github.com/OWNER/REPO/actions/runs/RUN, …/actions/runs/RUN/job/JOB, …/pull/N or …/commit/SHA, "
    "on any GitHub host"
)
_LOG_HINT = "re-run the job there, or name its log if it was saved"
_NETWORK_HINT = "check the network; HTTPS_PROXY names a proxy, GITHUB_API_URL another API; a saved log needs neither"
_ID = "[0-9]{1,19}"
_SHA = "[0-9a-fA-F]{7,64}"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_REPOSITORY = re.compile(r"/(?P<owner>[A-Za-z0-9][A-Za-z0-9_-]*)/(?P<repo>(?!\.\.?/)[A-Za-z0-9._-]+)/(?P<page>.+?)/?")
_PAGES = (
    rf"actions/runs/(?P<run>{_ID})/attempts/(?P<attempt>{_ID})(/.*)?",
    rf"actions/runs/(?P<run>{_ID})/job/(?P<job>{_ID})(/.*)?",
    rf"actions/runs/(?P<run>{_ID})(/.*)?",
    rf"(actions/jobs|runs|check-runs)/(?P<job>{_ID})(/.*)?",
    rf"commits?/(?P<commit>{_SHA})/checks/(?P<job>{_ID})(/.*)?",
    rf"(pull/{_ID}/)?commits?/(?P<commit>{_SHA})(/.*)?",
    rf"pulls?/(?P<pull>{_ID})(/.*)?",
)
_TIMEOUTS = (15.0, 60.0)  # seconds to connect, and between bytes
_GH_TIMEOUT = 15.0  # seconds; it may ask a keyring, which may ask the person
_CHUNK_BYTES = 1 << 18
_MOST_REDIRECTS = 5
_HEADERS = {
    "User-Agent": f"ci-tasks/{__version__}",
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
}
T = TypeVar("T")


@dataclass(frozen=True)
class GitHubUrl:
    """At least one of `job`, `run`, `commit` and `pull` is set; the first of these that is set is meant. `host` is that
    of the web pages, with a port if one was given; `job` is the API's job id, which is its check run's too."""

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


def parse_url(text: str) -> GitHubUrl:
    """Raises UsageError for what is no URL of a run, a job, a pull request or a commit."""
    text = text.strip()
    error = UsageError(
        f"{without_secrets(text)!r} is no URL of a run, a job, a commit or a pull request on GitHub", hint=_URL_HINT
    )
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError:
        raise error from None
    host = re.sub(rf"^(?:www|api)\.(?={re.escape(GITHUB)}$)", "", parts.netloc.rpartition("@")[2].lower())
    repository = _REPOSITORY.fullmatch(re.sub(r"^/(?:api/v3/)?repos(?=/)", "", parts.path))
    pages = (re.fullmatch(pattern, repository["page"]) for pattern in _PAGES) if repository else iter(())
    page = next((match.groupdict() for match in pages if match), None)
    if parts.scheme not in ("http", "https") or not (repository and page and _HOST.fullmatch(host)):
        raise error
    ids = {name: int(page[name]) for name in ("run", "attempt", "job", "pull") if page.get(name)}
    shown = parse_qs(parts.query).get("check_run_id", [""])[-1]  # the job that a pull request's page shows
    if re.fullmatch(_ID, shown):
        ids["job"] = int(shown)
    return GitHubUrl(host, repository["owner"], repository["repo"], commit=page.get("commit") or "", **ids)


def api_base(host: str, override: str = "") -> str:
    """The URL of the host's API without a trailing slash; `override` is the value of GITHUB_API_URL. Raises UsageError
    for an override that is no URL of an API."""
    override = override.strip().rstrip("/")
    # Runners set it to the public one, which must not see another host's token.
    if not override or (override == PUBLIC_API and host != GITHUB):
        return PUBLIC_API if host == GITHUB else f"https://{host}/api/v3"
    if not re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[^@?\s]*)?", override):
        shown = without_secrets(override)
        raise UsageError(f"GITHUB_API_URL is {shown!r}, which is no URL of an API", hint="as https://HOST/api/v3")
    return override


def token_variables(host: str) -> tuple[str, str]:
    """The variables that hold a token for `host`. No host gets a token that is meant for another."""
    return ("GH_TOKEN", "GITHUB_TOKEN") if host == GITHUB else ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")


def find_token(host: str) -> tuple[str, str]:
    """(token, where it is from), both "" if there is none. Raises UsageError for a value that cannot be a token."""
    found = [(os.environ.get(name, "").strip(), name) for name in token_variables(host)]
    value, source = next((pair for pair in found if pair[0]), ("", "gh"))
    value = value or _gh_auth_token(host)
    if not value:
        return "", ""
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"the value of {source} is no token: it contains blanks or control characters")
    known_secrets.add([value])
    return value, source


def _gh_auth_token(host: str) -> str:
    program = shutil.which("gh")
    if program:
        with suppress(OSError, subprocess.TimeoutExpired):
            argv = [program, "auth", "token", "--hostname", host]
            result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GH_TIMEOUT)
            return result.stdout.decode("ascii", "replace").strip() if result.returncode == 0 else ""
    return ""


class GitHubClient:
    """Reads from the API of `host`. Its methods raise UsageError and Blocked."""

    def __init__(self, host: str) -> None:
        self._base, self._host = api_base(host, os.environ.get(API_VARIABLE, "")), host
        self._token, self._source = find_token(host)
        self._session = requests.Session()
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, subject: str, **params: str | int) -> Any:
        """The JSON at `path`; `subject` names it in messages, as in "run 7 of o/r"."""
        return self._get(path, subject, requests.Response.json, params)

    def download(self, path: str, subject: str) -> BinaryIO:
        """The whole file at `path`, as a temporary file."""
        return self._get(
            path, subject, lambda response: temporary_copy(response.iter_content(_CHUNK_BYTES), subject), is_log=True
        )

    def _get(
        self,
        path: str,
        subject: str,
        read: Callable[[requests.Response], T],
        params: Mapping[str, str | int] = MappingProxyType({}),
        is_log: bool = False,
    ) -> T:
        """What `read` makes of the response. Raises UsageError, Blocked."""
        try:
            with self._open(self._base + path, params) as response:
                if response.ok:
                    return read(response)
                raise self._refusal(response, subject, is_log)
        except exceptions.RequestException as broken:
            raise _connection_error(broken, self._host) from None
        except ValueError:  # of a redirect, which requests reads too
            hint = "a saved log can be named instead"
            raise Blocked(f"{self._host} redirects to an unusable or unencrypted URL", hint=hint) from None
        except OSError as unreadable:  # REQUESTS_CA_BUNDLE names no file
            hint = "REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a file of certificates"
            raise UsageError(str(unreadable), hint=hint) from None

    def _open(self, url: str, params: Mapping[str, str | int]) -> requests.Response:
        """The response. Another host than the API's, such as the storage of logs, gets no token, and none gets a login
        of ~/.netrc, which requests would send without an `auth`."""
        for _ in range(_MOST_REDIRECTS):
            is_api = urlsplit(url).netloc == urlsplit(self._base).netloc
            response = self._session.get(
                url,
                params=dict(params),
                headers=_HEADERS,
                auth=self._authorize if is_api else _without_login,
                stream=True,
                allow_redirects=False,
                timeout=_TIMEOUTS,
            )
            if not response.is_redirect:
                return response
            response.close()
            url, params = redirected(url, response.headers["location"], self._base), {}
        raise Blocked(f"{self._host} redirects too often", hint="is GITHUB_API_URL right?")

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _refusal(self, response: requests.Response, subject: str, is_log: bool) -> CiTasksError:
        """What an unsuccessful answer means. A rate limit is one with 403 or 429, as GitHub documents it."""
        status, headers, message = response.status_code, response.headers, _message(response)
        is_exhausted = headers.get("x-ratelimit-remaining") == "0" or "rate limit" in message.lower()
        if status == 429 or (status == 403 and is_exhausted):
            return self._rate_limit_error(headers.get("x-ratelimit-reset", ""))
        return self._status_error(status, subject, is_log, f", {message[:200]!r}" if message else "")

    @property
    def _sign_in(self) -> str:
        login = "gh auth login" + (f" --hostname {self._host}" if self._host != GITHUB else "")
        return f"set {token_variables(self._host)[0]} to a token that may read actions, or `{login}`"

    def _rate_limit_error(self, reset: str) -> Blocked:
        until = ""
        with suppress(ValueError, OverflowError, OSError):
            until = f"; it resets at {datetime.fromtimestamp(int(reset)).astimezone():%H:%M:%S %Z}"
        hint = "try again then" if self._token else f"{self._sign_in}: 5,000 requests an hour instead of 60"
        return Blocked(f"the rate limit of {self._host} is reached{until}", hint=hint)

    def _status_error(self, status: int, subject: str, is_log: bool, quoted: str) -> CiTasksError:
        """What an unsuccessful answer means; `quoted` is GitHub's own message."""
        token = f"the token of {self._source}" if self._token else "a request without a token"
        if status == 401:
            return Blocked(f"{self._host} does not accept {token} (401)", hint=self._sign_in)
        if status == 403:
            hint = "it needs the permission to read actions, or the scope `repo`, and SSO where the owner requires it"
            return Blocked(f"{token} may not read {subject} (403{quoted})", hint=hint if self._token else self._sign_in)
        if status == 410:
            return UsageError(f"{subject} has expired (410): logs are kept 90 days by default", hint=_LOG_HINT)
        if status == 404 and is_log:
            return UsageError(f"{subject} does not exist (404): deleted, or never written", hint=_LOG_HINT)
        if status == 404:
            why = f"it does not exist, or {token} may not see the repository"
            return UsageError(f"{subject} was not found (404): {why}", hint=f"check the URL, or {self._sign_in}")
        hint = "see https://www.githubstatus.com, try later; a saved log can be named instead"
        return Blocked(f"{self._host} answered {status} for {subject}{quoted}", hint=hint)


def redirected(url: str, target: str, base: str) -> str:
    """Where a redirect leads. Raises ValueError for none, and for an unencrypted URL where that of the API is not."""
    parts = urlsplit(urljoin(url, target))
    if parts.scheme in ("https", urlsplit(base).scheme) and parts.hostname and parts.port != 0:
        return parts.geturl()
    raise ValueError(target)


def _without_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _connection_error(error: exceptions.RequestException, host: str) -> CiTasksError:
    """The error for a request without a response. It repeats no URL: signatures and logins are part of them."""
    if isinstance(error, (exceptions.InvalidProxyURL, exceptions.InvalidSchema)):
        return UsageError("the proxy of the environment cannot be used", hint="correct HTTPS_PROXY")
    if isinstance(error, exceptions.JSONDecodeError):
        return Blocked(f"{host} did not answer with JSON", hint="a proxy or a login page may interfere")
    if "certificate" in str(error).lower():
        hint = "REQUESTS_CA_BUNDLE names a file with that of a proxy between; or is the clock wrong?"
        return Blocked(f"the certificate of {host} is not trusted here", hint=hint)
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    said = cause.strerror if isinstance(cause, OSError) else ""
    broken = "timed out" if isinstance(error, exceptions.Timeout) else "the connection broke"
    return Blocked(f"{host} cannot be read: {said or broken}", hint=_NETWORK_HINT)


def _message(response: requests.Response) -> str:
    """GitHub's explanation of an error; "" without one."""
    try:
        return text_at(response.json(), "message")
    except exceptions.RequestException:
        return ""


def text_at(json: Any, *keys: str) -> str:
    """The text at the path `keys`, "" where there is none."""
    for key in keys:
        json = json.get(key) if isinstance(json, dict) else None
    return json if isinstance(json, str) else ""
