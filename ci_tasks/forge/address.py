"""What `--url URL` names: an address of GitHub's web pages or API → host, repository, and the run, job, commit or pull
request there. Pure: text in, a record out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit

from ci_tasks.errors import UsageError

GITHUB = "github.com"
PUBLIC_API = "https://api.github.com"
_TENANTS = ".ghe.com"  # GitHub's own machines, under a name per company
_HINT = (
    "as https://github.com/OWNER/REPO/actions/runs/RUN, …/actions/runs/RUN/job/JOB, …/actions/runs/RUN/attempts/N, "
    "…/pull/N, …/pull/N/checks?check_run_id=JOB or …/commit/SHA/checks/JOB, on any GitHub host"
)
_ID = "[0-9]{1,19}"
_SHA = "[0-9a-fA-F]{7,64}"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_REPOSITORY = re.compile(r"/(?P<owner>[A-Za-z0-9][A-Za-z0-9_-]*)/(?P<repo>[A-Za-z0-9._-]+)/(?P<rest>.+)")
_PAGES = [
    re.compile(pattern)
    for pattern in (
        rf"actions/runs/(?P<run>{_ID})/attempts/(?P<attempt>{_ID})(/.*)?",
        rf"actions/runs/(?P<run>{_ID})/job/(?P<job>{_ID})(/.*)?",
        rf"actions/runs/(?P<run>{_ID})(/.*)?",
        rf"(actions/jobs|runs|check-runs)/(?P<job>{_ID})(/.*)?",  # two of the API's, and what links once were
        rf"commits?/(?P<commit>{_SHA})/checks/(?P<job>{_ID})(/.*)?",
        rf"pull/{_ID}/commits/(?P<commit>{_SHA})",
        rf"commits?/(?P<commit>{_SHA})(/.*)?",
        rf"pulls?/(?P<pull>{_ID})(/.*)?",
    )
]
_NUMBERS = ("run", "attempt", "job", "pull")


@dataclass(frozen=True)
class Address:
    """One of `job`, `run`, `commit` and `pull` is there; a job says more than its run, which says more than the others.

    `host` is the web pages', with its port if one was given; `job` is the API's id of a job, equal to its check run's.
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
    def is_public_host(self) -> bool:
        """Whether it is GitHub's own machine, whose tokens are not those of an enterprise's server."""
        return self.host == GITHUB or self.host.endswith(_TENANTS)


def parse(url: str) -> Address:
    """Raises UsageError for what is no address of a run, a job, a pull request or a commit."""
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        fault = parts.scheme not in ("http", "https")
    except ValueError:
        fault = True
    if fault:
        raise _not_one(text)
    host, path = _place(parts)
    found = _REPOSITORY.fullmatch(path)
    page = _page(found["rest"]) if found and found["repo"] not in (".", "..") else None
    if not (found and page and _HOST.fullmatch(host)):
        raise _not_one(text)
    numbers = {name: int(page[name]) for name in _NUMBERS if page.get(name)}
    return Address(host, found["owner"], found["repo"], commit=page.get("commit") or "", **{**_asked(parts), **numbers})


def api_base(host: str, override: str = "") -> str:
    """Where the API of `host` is, without a slash at its end; `override` is what GITHUB_API_URL says.

    Raises UsageError for an override that is no address.
    """
    override = override.strip().rstrip("/")
    # Runners set it to the public one, which must not see another host's token.
    if override and (override != PUBLIC_API or host == GITHUB):
        return _checked(override)
    if host == GITHUB:
        return PUBLIC_API
    return f"https://api.{host}" if host.endswith(_TENANTS) else f"https://{host}/api/v3"


def shown(url: str) -> str:
    """`url` without what may be secret in it: a login, a query."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0][:300]


def _checked(override: str) -> str:
    try:
        parts = urlsplit(override)
        fault = parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query
    except ValueError:
        fault = True
    if fault:
        raise UsageError(
            f"GITHUB_API_URL is {shown(override)!r}, no address of an API", hint="as https://HOST/api/v3; or unset it"
        )
    return override


def _place(parts: SplitResult) -> tuple[str, str]:
    """The web pages' host and the path there, also of an address of the API."""
    host, path = parts.netloc.rpartition("@")[2].lower(), parts.path
    if host == f"www.{GITHUB}":
        return GITHUB, path
    tenant = host.removeprefix("api.")
    if tenant != host and path.startswith("/repos/") and (tenant == GITHUB or tenant.endswith(_TENANTS)):
        return tenant, path.removeprefix("/repos")
    return host, path.removeprefix("/api/v3/repos") if path.startswith("/api/v3/repos/") else path


def _page(rest: str) -> dict[str, str] | None:
    matches = (pattern.fullmatch(rest.rstrip("/")) for pattern in _PAGES)
    return next((match.groupdict() for match in matches if match), None)


def _asked(parts: SplitResult) -> dict[str, int]:
    """What a query adds: the job that a pull request's page shows, the pull request that a run's page came from."""
    query = parse_qs(parts.query)
    names = {"check_run_id": "job", "pr": "pull"}
    found = {names[name]: values[-1] for name, values in query.items() if name in names}
    return {name: int(value) for name, value in found.items() if re.fullmatch(_ID, value)}


def _not_one(text: str) -> UsageError:
    return UsageError(f"{shown(text)!r} is no address of a run, a job or a pull request on GitHub", hint=_HINT)
