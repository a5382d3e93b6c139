"""What `--url URL` names: a URL of GitHub's web pages or API → host, repository, and the run, job, commit or pull
request. Pure.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qs, urlsplit

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError

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


def without_secrets(url: str) -> str:
    """`url` without its login and its query."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0][:300]


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
