"""What `--url URL` reads from GitHub: the page that a URL means, its failed jobs, their logs, and what the API knows of
them. The token goes to the API of its own host alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count, islice
from typing import Any, BinaryIO

import requests
from requests import exceptions
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ci_tasks import __version__, safe_output
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError, short
from ci_tasks.logs.log_file import OpenLog, first_jobs, read_logs, temporary_copy, without_secrets

FAILED = ("failure", "timed_out")
INCONCLUSIVE = ("cancelled", "skipped", "neutral", "action_required", "stale")
GITHUB, PUBLIC_API = "github.com", "https://api.github.com"
# Server errors and broken connections are tried again, for 15 s in all; a rate limit may last an hour and is not.
_RETRIES = Retry(
    total=4, backoff_factor=1, status_forcelist=(500, 502, 503, 504), raise_on_status=False, redirect=False,
    respect_retry_after_header=False,
)  # fmt: skip
_URL_HINT = (
    "as https://github.com/OWNER/REPO/actions/runs/RUN, …/actions/runs/RUN/job/JOB, …/pull/N or …/commit/SHA, "
    "on any GitHub host"
)
_LOG_HINT = "re-run the job on GitHub, or pass its saved log"
_NETWORK_HINT = (
    "check the network; HTTPS_PROXY names a proxy, REQUESTS_CA_BUNDLE a file of certificates, GITHUB_API_URL another "
    "API; a saved log needs no network"
)
_ID, _SHA = "[0-9]{1,19}", "[0-9a-fA-F]{7,64}"
_URL = re.compile(
    r"(?:(?i:https?)://)?(?:[^/]*@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?)(?:/api/v3)?(?:/repos)?"
    r"/(?P<owner>[\w-]+)/(?P<repo>(?!\.\.?/)[\w.-]+)/(?P<page>[^?#]+)(?P<query>.*)",
    re.ASCII,
)
_PAGES = (
    rf"actions/runs/(?P<run>{_ID})(/job/(?P<job>{_ID})|/attempts/(?P<attempt>{_ID}))?(/.*)?",
    rf"(actions/jobs|runs|check-runs|commits?/{_SHA}/checks)/(?P<job>{_ID})(/.*)?",
    rf"(pull/{_ID}/)?commits?/(?P<commit>{_SHA})(/.*)?",
    rf"pulls?/(?P<pull>{_ID})(/.*)?",
)
_CHECK = re.compile(rf"[?&]check_run_id=({_ID})\b")  # the job that a pull request's page shows
_TIMEOUTS = (15.0, 60.0)  # seconds to connect, and between bytes
_GH_TIMEOUT = 15.0  # seconds; it may ask a keyring, which may ask the person
_CHUNK_BYTES, _JSON_CHUNKS = 1 << 18, 256
_MOST_REDIRECTS, _PAGE_SIZE = 5, 100
_MAX_RUNS = 300  # of a commit
_HEADERS = {
    "User-Agent": f"ci-tasks/{__version__}",
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
}


@dataclass(frozen=True)
class GitHubUrl:
    """At least one of `job`, `run`, `commit` and `pull` is set; the first of these that is set is meant. `host` is the
    web pages' host, with a port if one was given; `job` is the API's job id, which is its check run's too."""

    host: str
    repository: str
    run: int | None = None
    attempt: int | None = None
    job: int | None = None
    pull: int | None = None
    commit: str = ""


def parse_url(text: str) -> GitHubUrl:
    """Raises UsageError for what is no URL of a run, a job, a pull request or a commit."""
    url = _URL.fullmatch(text.strip())
    matches = (re.fullmatch(pattern, url["page"]) for pattern in _PAGES) if url else iter(())
    page = next((match.groupdict() for match in matches if match), None)
    if url is None or page is None:
        shown = without_secrets(text)
        raise UsageError(f"{shown!r} is no URL of a run, a job, a commit or a pull request on GitHub", hint=_URL_HINT)
    if check := _CHECK.search(url["query"]):
        page["job"] = check[1]
    ids = {name: int(value) for name, value in page.items() if value and name != "commit"}
    host = re.sub(rf"^(?:www|api)\.(?={re.escape(GITHUB)}$)", "", url["host"].lower())
    return GitHubUrl(host, f"{url['owner']}/{url['repo']}", commit=page.get("commit") or "", **ids)


# -- the API -----------------------------------------------------------------------------------------------------------


def api_base(host: str, override: str = "") -> str:
    """The URL of the host's API without a trailing slash; `override` is the value of GITHUB_API_URL."""
    override = override.strip().rstrip("/")
    # Runners set it to the public one, which must not see another host's token.
    if override and (override != PUBLIC_API or host == GITHUB):
        return override
    return PUBLIC_API if host == GITHUB else f"https://{host}/api/v3"


def token_variables(host: str) -> tuple[str, str]:
    """The variables that hold a token for `host`. No host gets a token that is meant for another."""
    return ("GH_TOKEN", "GITHUB_TOKEN") if host == GITHUB else ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")


def find_token(host: str) -> tuple[str, str]:
    """(token, its source), both "" if there is none. Raises UsageError for a value that cannot be a token."""
    found = {name: os.environ.get(name, "").strip() for name in token_variables(host)}
    source = next((name for name, value in found.items() if value), "gh")
    value = found.get(source) or _gh_auth_token(host)
    if not value:
        return "", ""
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"the value of {source} is no token: it contains blanks or control characters")
    safe_output.add_secrets([value])
    return value, source


def _gh_auth_token(host: str) -> str:
    if program := shutil.which("gh"):
        with suppress(OSError, subprocess.SubprocessError):
            argv = [program, "auth", "token", "--hostname", host]
            shown = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GH_TIMEOUT, check=True)
            return shown.stdout.decode("ascii", "replace").strip()
    return ""


class _Session(requests.Session):
    """Sends the token to the API at `base`: not to the storage of logs, to which it redirects. No login of ~/.netrc is
    sent."""

    def __init__(self, base: str, token: str) -> None:
        super().__init__()
        self._base, self.max_redirects = base, _MOST_REDIRECTS
        self.headers.update(_HEADERS | ({"Authorization": f"Bearer {token}"} if token else {}))
        self.auth = lambda request: request  # without one, requests looks into ~/.netrc
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(max_retries=_RETRIES))

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        if self.should_strip_auth(self._base, prepared_request.url or ""):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class GitHubClient:
    """Reads what the API of a URL's host knows of its repository. Its methods raise UsageError and Blocked."""

    def __init__(self, url: GitHubUrl) -> None:
        self._url, self._host, self._repository = url, url.host, url.repository
        self._token, self._source = find_token(url.host)
        base = api_base(url.host, os.environ.get("GITHUB_API_URL", ""))
        self._base, self._session = f"{base}/repos/{url.repository}/", _Session(base, self._token)

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, subject: str, **params: str | int) -> Any:
        """The JSON at `path` below the repository; `subject` names it in messages, as in "run 7"."""
        with self._response(path, f"{subject} of {self._repository}", params) as response:
            return _json(response)

    def pages(self, path: str, subject: str, key: str, **query: str) -> Iterator[Any]:
        """The entries of a list that comes in pages."""
        for page in count(1):
            found = _items(self.json(path, subject, per_page=_PAGE_SIZE, page=page, **query), key)
            yield from found
            if len(found) < _PAGE_SIZE:
                return

    def log(self, job: WorkflowJob) -> BinaryIO:
        """The whole log of a job, as a temporary file."""
        with self._response(f"actions/jobs/{job.id}/logs", job.log_name, {}, is_log=True) as response:
            return temporary_copy(response.iter_content(_CHUNK_BYTES), job.log_name)

    def job(self, number: int) -> WorkflowJob:
        job = self.json(f"actions/jobs/{number}", f"job {number}")
        return self._job(job, self.run(_number(job, "run_id")))

    def run(self, number: int) -> Any:
        return self.json(f"actions/runs/{number}", f"run {number}")

    def jobs(self, run: Any, attempt: int | None = None) -> list[WorkflowJob]:
        """The jobs of an attempt of a run, else of its newest."""
        number = _number(run, "id")
        path, subject = f"actions/runs/{number}", f"run {number}"
        if attempt:
            path, subject = f"{path}/attempts/{attempt}", f"{subject}, attempt {attempt}"
        return [self._job(job, run) for job in self.pages(f"{path}/jobs", subject, "jobs")]

    def jobs_of_commit(self, sha: str) -> list[WorkflowJob]:
        """The jobs of each workflow's newest run that says something: a label that starts nothing makes a newer run
        without a result. A run that passed has no failed job and is not asked for."""
        jobs: dict[str, list[WorkflowJob]] = {}
        for run in islice(self.pages("actions/runs", "list of runs", "workflow_runs", head_sha=sha), _MAX_RUNS):
            workflow, conclusion = text_at(run, "path"), text_at(run, "conclusion")
            if conclusion in INCONCLUSIVE or any(job.has_failed for job in jobs.get(workflow, [])):
                continue
            jobs[workflow] = jobs.get(workflow, []) if conclusion == "success" else self.jobs(run)
        return [job for several in jobs.values() for job in several]

    def _job(self, job: Any, run: Any) -> WorkflowJob:
        pulls = [_number(pull, "number") for pull in _items(run, "pull_requests")]
        return WorkflowJob(
            self._repository,
            text_at(run, "path").partition("@")[0],
            _number(job, "id"),
            pull_request=self._url.pull or next(iter(pulls), None),
            **{name: text_at(job, name) for name in ("name", "status", "conclusion", "runner_name", "html_url")},
        )

    @contextmanager
    def _response(
        self, path: str, subject: str, params: Mapping[str, str | int], is_log: bool = False
    ) -> Iterator[requests.Response]:
        """A successful one, to be read."""
        try:
            with self._session.get(self._base + path, params=params, stream=True, timeout=_TIMEOUTS) as response:
                if not response.ok:
                    raise self._refusal(response, subject, is_log)
                yield response
        except (OSError, ValueError) as broken:  # requests' own are OSErrors; ValueError is of a redirect's URL
            raise Blocked(f"{self._host} cannot be read: {_why(broken)}", hint=_NETWORK_HINT) from None

    def _refusal(self, response: requests.Response, subject: str, is_log: bool) -> CiTasksError:
        """What an unsuccessful answer means. A rate limit is one with 403 or 429, as GitHub documents it."""
        status, message = response.status_code, ""
        with suppress(exceptions.RequestException):
            message = text_at(_json(response), "message")
        quoted = f", {message[:200]!r}" if message else ""
        login = "gh auth login" + (f" --hostname {self._host}" if self._host != GITHUB else "")
        sign_in = f"set {token_variables(self._host)[0]} to a token that may read actions, or `{login}`"
        token = f"the token of {self._source}" if self._token else "a request without a token"
        is_exhausted = response.headers.get("x-ratelimit-remaining") == "0" or "rate limit" in message.lower()
        if status == 429 or (status == 403 and is_exhausted):
            hint = "try again in an hour" if self._token else f"{sign_in}: 5,000 requests an hour instead of 60"
            return Blocked(f"the rate limit of {self._host} is reached", hint=hint)
        if status == 401:
            return Blocked(f"{self._host} does not accept {token} (401)", hint=sign_in)
        if status == 403:
            hint = "it needs the permission to read actions, or the scope `repo`, and SSO where the owner requires it"
            return Blocked(f"{token} may not read {subject} (403{quoted})", hint=hint if self._token else sign_in)
        if is_log and status in (404, 410):
            return UsageError(f"{subject} is gone ({status}): logs are kept 90 days by default", hint=_LOG_HINT)
        if status == 404:
            why = f"it does not exist, or {token} cannot see the repository"
            return UsageError(f"{subject} was not found (404): {why}", hint=f"check the URL, or {sign_in}")
        hint = "see https://www.githubstatus.com, try later, or pass a saved log"
        return Blocked(f"{self._host} answered {status} for {subject}{quoted}", hint=hint)


def _json(response: requests.Response) -> Any:
    """The JSON of a response. It reads no more than the API sends at most. Raises RequestException."""
    content = b"".join(islice(response.iter_content(_CHUNK_BYTES), _JSON_CHUNKS))
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise exceptions.InvalidJSONError(str(error)) from None


def _why(error: BaseException) -> str:
    """Why there is no answer. It repeats no URL: signatures and logins are part of them."""
    kinds = {
        exceptions.InvalidJSONError: "its answer is not JSON; is it the login page of a proxy?",
        exceptions.TooManyRedirects: "too many redirects",
        exceptions.Timeout: "timed out",
    }
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    said = cause.strerror if isinstance(cause, OSError) else ""
    return said or next((why for kind, why in kinds.items() if isinstance(error, kind)), "the connection was lost")


def text_at(json: Any, *keys: str) -> str:
    """The text at the path `keys`, "" if there is none."""
    for key in keys:
        json = json.get(key) if isinstance(json, dict) else None
    return json if isinstance(json, str) else ""


def _number(json: Any, key: str) -> int:
    value = json.get(key) if isinstance(json, dict) else None
    return value if isinstance(value, int) else 0


def _items(json: Any, key: str) -> list[Any]:
    value = json.get(key) if isinstance(json, dict) else None
    return value if isinstance(value, list) else []


# -- failed jobs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkflowJob:
    """A job of a run in `repository`. What the API does not say is "", 0 or None. `workflow` is the path of the
    workflow's file."""

    repository: str
    workflow: str
    id: int
    name: str
    status: str
    conclusion: str
    runner_name: str
    html_url: str
    pull_request: int | None = None

    @property
    def has_failed(self) -> bool:
        return self.conclusion in FAILED

    @property
    def title(self) -> str:
        return f"job {self.name!r} of {self.repository}"

    @property
    def log_name(self) -> str:
        return f"the log of {self.title}"


@contextmanager
def open_failed_jobs(url: str, *, only_one: bool = False) -> Iterator[list[tuple[WorkflowJob, OpenLog]]]:
    """The failed jobs at `url`, MOST_JOBS at most, with their logs on disk.

    Raises UsageError for a URL that names no failed job, or several if `only_one` may be meant (the hint lists their
    URLs), and for a log that no longer exists; Blocked if GitHub cannot be reached, refuses access, or limits requests
    for too long.
    """
    parsed = parse_url(url)
    with ExitStack() as stack:
        with closing(GitHubClient(parsed)) as client:
            place, jobs = find_failed_jobs(client, parsed)
            if only_one and len(jobs) > 1:
                listed = "\n".join(f"  {job.name}: {job.html_url}" for job in jobs)
                raise UsageError(f"{len(jobs)} jobs failed in {place}; which one?", hint=f"--url takes:\n{listed}")
            failed = []
            for job in first_jobs(jobs, place):
                failed.append((job, read_logs(stack.enter_context(client.log(job)), job.log_name, stack)))
        yield failed


def find_failed_jobs(client: GitHubClient, url: GitHubUrl) -> tuple[str, list[WorkflowJob]]:
    """(place, jobs): the job that `url` names, or the failed jobs of its run, or of the newest runs of its commit or
    pull request. Raises UsageError, Blocked."""
    if url.job:
        job = client.job(url.job)
        ran_well = job.conclusion in ("success", "skipped", "neutral") or job.status not in ("", "completed")
        return job.title, _only_failed([job], job.title) if ran_well else [job]
    if url.run:
        place = f"run {url.run}"
        jobs = client.jobs(client.run(url.run), url.attempt)
    elif url.commit:
        place = f"commit {short(url.commit)}"
        jobs = client.jobs_of_commit(text_at(client.json(f"commits/{url.commit}", place), "sha"))
    else:
        place = f"pull request {url.pull}"
        jobs = client.jobs_of_commit(text_at(client.json(f"pulls/{url.pull}", place), "head", "sha"))
    place = f"{place} of {url.repository}"
    return place, _only_failed(jobs, place)


def _only_failed(jobs: Sequence[WorkflowJob], place: str) -> list[WorkflowJob]:
    """Raises UsageError if none failed."""
    # A job that ran into its time limit counts as cancelled; beside a failure it is one that was stopped for it.
    failed = [job for job in jobs if job.has_failed] or [job for job in jobs if job.conclusion == "cancelled"]
    if failed:
        return failed
    if waiting := sorted({job.name for job in jobs if job.status != "completed"}):
        names = ", ".join(waiting[:5])
        hint = "try again when it has ended"
        raise UsageError(f"nothing has failed yet in {place}; not completed: {names}", hint=hint)
    none_ran = "" if jobs else " (no job of it ran)"
    raise UsageError(f"nothing failed in {place}{none_ran}", hint="pass the URL of a job that failed")
