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
from datetime import datetime
from itertools import count, islice
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

import requests
from requests import exceptions
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ci_tasks import __version__, known_secrets
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.logs.log_file import OpenLog, first_jobs, read_logs, temporary_copy, without_secrets

FAILED = ("failure", "timed_out")
INCONCLUSIVE = ("cancelled", "skipped", "neutral", "action_required", "stale")
GITHUB, PUBLIC_API = "github.com", "https://api.github.com"
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
_ID, _SHA = "[0-9]{1,19}", "[0-9a-fA-F]{7,64}"
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


# -- the API -----------------------------------------------------------------------------------------------------------


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
    found = {name: os.environ.get(name, "").strip() for name in token_variables(host)}
    source = next((name for name, value in found.items() if value), "gh")
    value = found.get(source) or _gh_auth_token(host)
    if not value:
        return "", ""
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"the value of {source} is no token: it contains blanks or control characters")
    known_secrets.add([value])
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
        """What a redirect's request gets. Raises ValueError for a URL that is unusable, or unencrypted where the API's
        is not."""
        url = prepared_request.url or ""
        parts = urlsplit(url)
        if parts.scheme not in ("https", urlsplit(self._base).scheme) or not parts.hostname or parts.port == 0:
            raise ValueError(url)
        if self.should_strip_auth(self._base, url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)

    def rebuild_proxies(
        self, prepared_request: requests.PreparedRequest, proxies: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Those of the environment for the redirect's own host, which NO_PROXY may name."""
        return dict(super().rebuild_proxies(prepared_request, None))  # type: ignore[no-untyped-call]


class GitHubClient:
    """Reads from the API of `host`. Its methods raise UsageError and Blocked."""

    def __init__(self, host: str) -> None:
        self._base, self._host = api_base(host, os.environ.get("GITHUB_API_URL", "")), host
        self._token, self._source = find_token(host)
        self._session = _Session(self._base, self._token)

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, subject: str, **params: str | int) -> Any:
        """The JSON at `path`; `subject` names it in messages, as in "run 7 of o/r"."""
        with self._response(path, subject, params) as response:
            return _json(response)

    def download(self, path: str, subject: str) -> BinaryIO:
        """The whole log at `path`, as a temporary file."""
        with self._response(path, subject, {}, is_log=True) as response:
            return temporary_copy(response.iter_content(_CHUNK_BYTES), subject)

    @contextmanager
    def _response(
        self, path: str, subject: str, params: Mapping[str, str | int], is_log: bool = False
    ) -> Iterator[requests.Response]:
        """A successful one, to be read. Raises UsageError, Blocked."""
        try:
            with self._session.get(self._base + path, params=params, stream=True, timeout=_TIMEOUTS) as response:
                if not response.ok:
                    raise self._refusal(response, subject, is_log)
                yield response
        except exceptions.TooManyRedirects:
            raise Blocked(f"{self._host} redirects too often", hint="is GITHUB_API_URL right?") from None
        except exceptions.RequestException as broken:
            raise _connection_error(broken, self._host) from None
        except ValueError:  # of a redirect, which requests reads too
            hint = "a saved log can be named instead"
            raise Blocked(f"{self._host} redirects to an unusable or unencrypted URL", hint=hint) from None
        except OSError as unreadable:  # REQUESTS_CA_BUNDLE names no file
            hint = "REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a file of certificates"
            raise UsageError(str(unreadable), hint=hint) from None

    def _refusal(self, response: requests.Response, subject: str, is_log: bool) -> CiTasksError:
        """What an unsuccessful answer means. A rate limit is one with 403 or 429, as GitHub documents it."""
        status, headers, message = response.status_code, response.headers, ""
        with suppress(exceptions.RequestException):
            message = text_at(_json(response), "message")
        quoted = f", {message[:200]!r}" if message else ""
        login = "gh auth login" + (f" --hostname {self._host}" if self._host != GITHUB else "")
        sign_in = f"set {token_variables(self._host)[0]} to a token that may read actions, or `{login}`"
        token = f"the token of {self._source}" if self._token else "a request without a token"
        is_exhausted = headers.get("x-ratelimit-remaining") == "0" or "rate limit" in message.lower()
        if status == 429 or (status == 403 and is_exhausted):
            until = ""
            with suppress(ValueError, OverflowError, OSError):
                reset = int(headers.get("x-ratelimit-reset", ""))
                until = f"; it resets at {datetime.fromtimestamp(reset).astimezone():%H:%M:%S %Z}"
            hint = "try again then" if self._token else f"{sign_in}: 5,000 requests an hour instead of 60"
            return Blocked(f"the rate limit of {self._host} is reached{until}", hint=hint)
        if status == 401:
            return Blocked(f"{self._host} does not accept {token} (401)", hint=sign_in)
        if status == 403:
            hint = "it needs the permission to read actions, or the scope `repo`, and SSO where the owner requires it"
            return Blocked(f"{token} may not read {subject} (403{quoted})", hint=hint if self._token else sign_in)
        if status == 410:
            return UsageError(f"{subject} has expired (410): logs are kept 90 days by default", hint=_LOG_HINT)
        if status == 404 and is_log:
            return UsageError(f"{subject} does not exist (404): deleted, or never written", hint=_LOG_HINT)
        if status == 404:
            why = f"it does not exist, or {token} may not see the repository"
            return UsageError(f"{subject} was not found (404): {why}", hint=f"check the URL, or {sign_in}")
        hint = "see https://www.githubstatus.com, try later; a saved log can be named instead"
        return Blocked(f"{self._host} answered {status} for {subject}{quoted}", hint=hint)


def _json(response: requests.Response) -> Any:
    """The JSON of a response, of which no more is read than the API ever sends. Raises RequestException."""
    content = b"".join(islice(response.iter_content(_CHUNK_BYTES), _JSON_CHUNKS))
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise exceptions.InvalidJSONError(str(error)) from None


def _connection_error(error: exceptions.RequestException, host: str) -> CiTasksError:
    """The error for a request without a response. It repeats no URL: signatures and logins are part of them."""
    if isinstance(error, (exceptions.InvalidProxyURL, exceptions.InvalidSchema)):
        return UsageError("the proxy of the environment cannot be used", hint="correct HTTPS_PROXY")
    if isinstance(error, exceptions.InvalidJSONError):
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


def text_at(json: Any, *keys: str) -> str:
    """The text at the path `keys`, "" where there is none."""
    for key in keys:
        json = json.get(key) if isinstance(json, dict) else None
    return json if isinstance(json, str) else ""


def number_at(json: Any, key: str) -> int:
    value = json.get(key) if isinstance(json, dict) else None
    return value if isinstance(value, int) else 0


def items(json: Any, key: str) -> list[Any]:
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


@dataclass(frozen=True)
class FailedJob:
    job: WorkflowJob
    log: OpenLog


class SeveralFailed(UsageError):
    """One job is asked for, and several failed at a URL."""

    def __init__(self, place: str, failed: Sequence[WorkflowJob]) -> None:
        listed = "\n".join(f"  {job.name}: {job.html_url}" for job in failed)
        super().__init__(f"{len(failed)} jobs failed in {place}; which one?", hint=f"--url takes:\n{listed}")


@contextmanager
def open_failed_jobs(url: str, *, only_one: bool = False) -> Iterator[list[FailedJob]]:
    """The failed jobs at `url`, MOST_JOBS at most, with their logs on disk.

    Raises UsageError for a URL that names no failed job, or several if `only_one` may be meant (the hint lists their
    URLs), and for a log that no longer exists; Blocked if GitHub cannot be reached, refuses access, or limits requests
    for too long.
    """
    parsed = parse_url(url)
    with ExitStack() as stack:
        with closing(GitHubClient(parsed.host)) as client:
            place, jobs = find_failed_jobs(client, parsed)
            if only_one and len(jobs) > 1:
                raise SeveralFailed(place, jobs)
            failed = [FailedJob(job, _open_job_log(client, job, stack)) for job in first_jobs(jobs, place)]
        yield failed


def _open_job_log(client: GitHubClient, job: WorkflowJob, stack: ExitStack) -> OpenLog:
    name = f"the log of {job.title}"
    file = stack.enter_context(client.download(f"/repos/{job.repository}/actions/jobs/{job.id}/logs", name))
    return stack.enter_context(read_logs(file, name))


def find_failed_jobs(client: GitHubClient, url: GitHubUrl) -> tuple[str, list[WorkflowJob]]:
    """(place, jobs): the job that `url` names, or those that failed in its run, or in the newest runs of its commit or
    pull request. Raises UsageError, Blocked."""
    github = _Repository(client, url.repository, url.pull)
    if url.job:
        job = github.job(url.job)
        return job.title, [_checked(job)]
    if url.run:
        place = f"run {url.run} of {url.repository}"
        jobs = github.jobs(github.run(url.run), url.attempt)
    elif url.commit:
        place = f"commit {url.commit[:12]} of {url.repository}"
        jobs = github.jobs_of_commit(github.full_sha(url.commit))
    else:
        place = f"pull request {url.pull} of {url.repository}"
        pull = github.json(f"pulls/{url.pull}", f"pull request {url.pull}")
        jobs = github.jobs_of_commit(text_at(pull, "head", "sha"))
    return place, _only_failed(jobs, place)


@dataclass(frozen=True)
class _Repository:
    """What the API knows of a repository's runs. `pull` is the pull request that a URL names. Its methods raise
    UsageError and Blocked."""

    client: GitHubClient
    name: str
    pull: int | None

    def job(self, number: int) -> WorkflowJob:
        json = self.json(f"actions/jobs/{number}", f"job {number}")
        return self._job(json, self.run(number_at(json, "run_id")))

    def run(self, number: int) -> Any:
        try:
            return self.json(f"actions/runs/{number}", f"run {number}")
        except UsageError:  # its jobs are what counts; the request for them fails with a better message
            return {"id": number}

    def jobs(self, run: Any, attempt: int | None = None) -> list[WorkflowJob]:
        """The jobs of an attempt of a run, else of its newest."""
        number = number_at(run, "id")
        path, subject = f"actions/runs/{number}", f"run {number}"
        if attempt:
            path, subject = f"{path}/attempts/{attempt}", f"{subject}, attempt {attempt}"
        return [self._job(json, run) for json in self._pages(f"{path}/jobs", subject, "jobs")]

    def jobs_of_commit(self, sha: str) -> list[WorkflowJob]:
        """The jobs of each workflow's newest run that says something: a label that starts nothing makes a newer run
        without a result. A run that passed has no failed job and is not asked for."""
        pages = self._pages("actions/runs", "list of runs", "workflow_runs", head_sha=sha)
        jobs: dict[str, list[WorkflowJob]] = {}
        for run in islice(pages, _MAX_RUNS):
            workflow, conclusion = text_at(run, "path"), text_at(run, "conclusion")
            if conclusion in INCONCLUSIVE or any(job.has_failed for job in jobs.get(workflow, [])):
                continue
            if conclusion != "success":
                jobs[workflow] = self.jobs(run)
            else:
                jobs.setdefault(workflow, [])
        return [job for several in jobs.values() for job in several]

    def full_sha(self, commit: str) -> str:
        return text_at(self.json(f"commits/{commit}", f"commit {commit}"), "sha") or commit

    def json(self, path: str, subject: str, **query: str | int) -> Any:
        return self.client.json(f"/repos/{self.name}/{path}", f"{subject} of {self.name}", **query)

    def _job(self, json: Any, run: Any) -> WorkflowJob:
        pulls = [number_at(pull, "number") for pull in items(run, "pull_requests")]
        return WorkflowJob(
            self.name,
            text_at(run, "path").partition("@")[0],
            number_at(json, "id"),
            pull_request=self.pull or next(iter(pulls), None),
            **{name: text_at(json, name) for name in ("name", "status", "conclusion", "runner_name", "html_url")},
        )

    def _pages(self, path: str, subject: str, key: str, **query: str) -> Iterator[Any]:
        for page in count(1):
            found = items(self.json(path, subject, per_page=_PAGE_SIZE, page=page, **query), key)
            yield from found
            if len(found) < _PAGE_SIZE:
                return


def _checked(job: WorkflowJob) -> WorkflowJob:
    """Raises UsageError for a job that has not failed."""
    if job.status and job.status != "completed":
        status = job.status.replace("_", " ")
        raise UsageError(f"{job.title} has no log yet: it is {status}", hint="try again when it has ended")
    if job.conclusion in ("success", "skipped", "neutral"):
        outcome = "succeeded: nothing failed" if job.conclusion == "success" else f"was {job.conclusion}: it never ran"
        raise UsageError(f"{job.title} {outcome}", hint="pass the URL of a job that failed")
    return job


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
