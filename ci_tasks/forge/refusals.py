"""GitHub's refusals, in words: what an answer means for whoever gave the address, and the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.forge.patience import Limit

EXPIRED_HINT = "re-run the job there, or --log FILE if somebody saved its log"
_A_YEAR = 365 * 86400.0


@dataclass(frozen=True)
class Asked:
    """Who asked whom for what: `what` as in "job 7 of o/r"; `token` is where ours is from, `names` where it may be."""

    what: str
    host: str
    token: str
    names: tuple[str, ...]
    is_log: bool = False

    @property
    def sign_in(self) -> str:
        login = "gh auth login" + (f" --hostname {self.host}" if self.host != "github.com" else "")
        return f"set {self.names[0]} to a token that may read the repository and its actions, or `{login}`"


def refusal(asked: Asked, status: int, headers: Mapping[str, str], message: str) -> CiTasksError:
    """The error for an answer that no waiting changes."""
    if status == 401:
        whose = f"the token of {asked.token}" if asked.token else "us without a token"
        return Blocked(f"{asked.host} does not accept {whose} (401)", hint=asked.sign_in)
    if status == 403:
        return _forbidden(asked, headers, message)
    if status == 404:
        return _not_found(asked)
    if status == 410:
        return UsageError(f"{asked.what} has expired (410): logs are kept 90 days by default", hint=EXPIRED_HINT)
    if status == 407:
        return Blocked("the proxy wants a login (407)", hint="set HTTPS_PROXY with its login")
    if status >= 500:
        return Blocked(f"{asked.host} is in trouble ({status})", hint="see https://www.githubstatus.com, try later")
    return Blocked(
        f"{asked.host} answered {status} for {asked.what}{_quoted(message)}",
        hint="--log FILE reads a log that was saved",
    )


def not_stored(asked: Asked, status: int) -> CiTasksError:
    """The error for the answer of the storage that GitHub sends us to for a log; its address is secret."""
    if status in (404, 410):
        return _not_found(asked)
    return Blocked(f"{asked.host} sends us to a storage that does not give {asked.what} ({status})", hint="try later")


def limited(asked: Asked, limit: Limit, now: float) -> Blocked:
    """The error for a limit that is too long to wait for."""
    when = f"; it resets at {_clock(now + limit.seconds)}" if limit.known and limit.seconds < _A_YEAR else ""
    hint = "try again then; its limits for each hour are by token" if asked.token else ""
    more = f"{asked.sign_in}: 5,000 requests an hour instead of 60"
    return Blocked(f"{asked.host} answers no more for now: its rate limit is reached{when}", hint=hint or more)


def _forbidden(asked: Asked, headers: Mapping[str, str], message: str) -> Blocked:
    sso = re.search(r"url=(https://\S+)", headers.get("x-github-sso", ""))
    if headers.get("x-github-sso"):
        at = sso[1] if sso else f"https://{asked.host}/settings/tokens"
        return Blocked(
            f"the owner of {asked.what} wants the token of {asked.token or 'nobody'} authorised for SSO (403)",
            hint=f"authorise it at {at}",
        )
    if not asked.token:
        why = "logs are only for those who are signed in" if asked.is_log else "without a token"
        return Blocked(f"{asked.host} does not give {asked.what}: {why} (403)", hint=asked.sign_in)
    return Blocked(
        f"the token of {asked.token} may not read {asked.what} (403{_quoted(message)})",
        hint="give it the right to read actions (fine-grained) or the scope `repo` (classic), or --log FILE",
    )


def _not_found(asked: Asked) -> UsageError:
    if asked.is_log:
        return UsageError(f"{asked.what} is not there (404): it was deleted, or never written", hint=EXPIRED_HINT)
    if asked.token:
        why = f"there is none, or the token of {asked.token} does not see the repository"
        return UsageError(
            f"no {asked.what} (404): {why}", hint=f"check the address; if the repository is private, {asked.sign_in}"
        )
    return UsageError(
        f"no {asked.what} (404): there is none, or the repository is private and no token was sent",
        hint=f"check the address; for a private repository {asked.sign_in}",
    )


def _quoted(message: str) -> str:
    return f", {message[:200]!r}" if message else ""


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S %Z")
