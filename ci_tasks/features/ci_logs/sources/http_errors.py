"""HTTP errors of GitHub as messages: what a response or a broken connection means, and the next step."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime

from requests import exceptions

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError

EXPIRED_HINT = "re-run the job there, or name its log if somebody saved it"
_NETWORK_HINT = "check the network; HTTPS_PROXY names a proxy, GITHUB_API_URL another API; a saved log needs neither"


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
