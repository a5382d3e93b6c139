"""What `--url URL` reads: the failed job at a URL, its log, and what GitHub's API knows of it. The API's JSON becomes
records here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import count, islice
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.logs.github import (
    GitHubClient,
    GitHubUrl,
    api_base,
    find_token,
    json_object,
    parse_url,
    text_at,
    token_variables,
)
from ci_tasks.logs.log_file import OpenLog, read_logs

FAILED = ("failure", "timed_out")
INCONCLUSIVE = ("cancelled", "skipped", "neutral", "action_required", "stale")
API_VARIABLE = "GITHUB_API_URL"
_PAGE_SIZE = 100
_MAX_RUNS = 300  # of a branch or a commit
_MAX_GREEN_RUNS = 8  # looked into for a green run of the job
_WITHOUT_FAILURE = ("success", "skipped", "neutral")


@dataclass(frozen=True)
class WorkflowRun:
    """A run of a workflow. What the API does not say is "", 0 or empty. `head_repository` is where the commit is
    from: a fork, maybe."""

    id: int
    conclusion: str = ""
    head_sha: str = ""
    head_branch: str = ""
    head_repository: str = ""
    event: str = ""
    pull_requests: tuple[int, ...] = ()
    workflow_path: str = ""


@dataclass(frozen=True)
class WorkflowJob:
    """A job of a run in `repository`. What the API does not say is "", 0 or empty.

    `head_sha` is the pull request's commit; CI checks out its merge, which only the log names.
    """

    repository: str
    run: WorkflowRun
    id: int
    name: str
    status: str
    conclusion: str
    head_sha: str
    head_branch: str
    pull_requests: tuple[int, ...]
    runner_name: str
    html_url: str

    @property
    def has_failed(self) -> bool:
        return self.conclusion in FAILED

    @property
    def title(self) -> str:
        return f"job {self.name!r} of {self.repository}"


def workflow_run(json: Any) -> WorkflowRun:
    pulls = [number_at(pull, "number") for pull in items(json, "pull_requests")]
    return WorkflowRun(
        number_at(json, "id"),
        head_repository=text_at(json, "head_repository", "full_name"),
        pull_requests=tuple(number for number in pulls if number),
        workflow_path=text_at(json, "path").partition("@")[0],
        **{name: text_at(json, name) for name in ("conclusion", "head_sha", "head_branch", "event")},
    )


def workflow_job(json: Any, run: WorkflowRun, repository: str) -> WorkflowJob:
    return WorkflowJob(
        repository,
        run,
        number_at(json, "id"),
        head_sha=text_at(json, "head_sha") or run.head_sha,
        head_branch=text_at(json, "head_branch") or run.head_branch,
        pull_requests=run.pull_requests,
        **{name: text_at(json, name) for name in ("name", "status", "conclusion", "runner_name", "html_url")},
    )


def items(json: Any, key: str) -> list[Any]:
    """One page of a listing, which is an object with its items under `key`, or a bare list."""
    value = json if isinstance(json, list) else json_object(json).get(key)
    return value if isinstance(value, list) else []


def number_at(json: Any, key: str) -> int:
    value = json_object(json).get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True)
class FailedJob:
    """A failed job and its log; `green` is that of the last run in which it passed, where it was asked for and found;
    `green_note` says which that is, or why there is none."""

    job: WorkflowJob
    log: OpenLog
    green: OpenLog | None = None
    green_note: str = ""


def print_to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


class SeveralFailed(UsageError):
    """Several jobs failed at a URL; `urls` are theirs."""

    def __init__(self, place: str, failed: Sequence[WorkflowJob]) -> None:
        listed = "\n".join(f"  {job.name}: {job.html_url}" for job in failed)
        super().__init__(f"{len(failed)} jobs failed in {place}; which one?", hint=f"--url takes:\n{listed}")
        self.urls = tuple(job.html_url for job in failed)


@contextmanager
def open_failed_job(
    url: str, notify: Callable[[str], None] = print_to_stderr, *, with_green: bool = False
) -> Iterator[FailedJob]:
    """The failed job at `url`, with its log on disk. `notify` gets a message each time GitHub has to be waited for.

    Raises UsageError for a URL that names no failed job, or several (the hint lists their URLs), and for a log that no
    longer exists; Blocked where GitHub cannot be reached, refuses access, or limits requests for too long. Neither is
    raised for the green run.
    """
    parsed = parse_url(url)
    base = api_base(parsed.host, os.environ.get(API_VARIABLE, ""))
    with ExitStack() as stack:
        with closing(GitHubClient(base, parsed.host, find_token(parsed), token_variables(parsed), notify)) as client:
            failed = FailedJob(job := find_failed_job(client, parsed), _open_job_log(client, job, stack))
            if with_green:
                failed = _with_green(failed, client, stack)
        yield failed


def _open_job_log(client: GitHubClient, job: WorkflowJob, stack: ExitStack) -> OpenLog:
    name = f"the log of {job.title}"
    file = stack.enter_context(client.download(f"/repos/{job.repository}/actions/jobs/{job.id}/logs", name))
    return stack.enter_context(read_logs(file, name))


def _with_green(failed: FailedJob, client: GitHubClient, stack: ExitStack) -> FailedJob:
    """With the log of the job's last green run; it is helpful, not necessary."""
    try:
        green = find_green_job(client, failed.job)
        if green is None:
            return replace(failed, green_note=f"what is normal: no green run of {failed.job.title} was found")
        log = _open_job_log(client, green, stack)
    except (UsageError, Blocked) as problem:
        return replace(failed, green_note=f"what is normal: no green run is used: {problem.message}")
    note = f"what is normal: the last green run of {green.title}, {green.html_url or f'run {green.run.id}'}"
    return replace(failed, green=log, green_note=note)


def find_green_job(client: GitHubClient, job: WorkflowJob) -> WorkflowJob | None:
    """The job of the same name that passed last, as far as the newest runs of its workflow show. Runs that passed as a
    whole come first: of a run that failed, few jobs passed. Raises UsageError, Blocked."""
    if not (job.name and job.run.workflow_path):
        return None
    github = _Repository(client, job.repository)
    runs = github.completed_runs(job.run.workflow_path.rpartition("/")[2])
    for run in sorted(runs, key=lambda run: run.conclusion != "success")[:_MAX_GREEN_RUNS]:
        for other in github.jobs(run):
            if other.name == job.name and other.conclusion == "success":
                return other
    return None


def find_failed_job(client: GitHubClient, url: GitHubUrl) -> WorkflowJob:
    """The job that `url` names, or the only failed one of its run, commit or pull request.

    Raises UsageError, Blocked.
    """
    github = _Repository(client, url.repository)
    if url.job:
        job = _checked(github.job(url.job, url.run or 0))
    elif url.run:
        job = _only_failed(github.jobs(github.run(url.run), url.attempt), f"run {url.run} of {url.repository}")
    elif url.commit:
        jobs = _newest_jobs(github, github.runs(head_sha=github.full_sha(url.commit)))
        job = _only_failed(jobs, f"commit {url.commit[:12]} of {url.repository}")
    else:
        job = _only_failed(_jobs_of_pull(github, url.pull or 0), f"pull request {url.pull} of {url.repository}")
    pulls = (url.pull,) if url.pull else job.pull_requests or github.pull_requests_of(job)
    return replace(job, pull_requests=pulls)


@dataclass(frozen=True)
class _Repository:
    """What the API knows of a repository's runs. Its methods raise UsageError and Blocked."""

    client: GitHubClient
    name: str

    def job(self, number: int, run: int) -> WorkflowJob:
        json = self.json(f"actions/jobs/{number}", f"job {number}")
        return workflow_job(json, self.run(number_at(json, "run_id") or run), self.name)

    def run(self, number: int) -> WorkflowRun:
        try:
            return workflow_run(self.json(f"actions/runs/{number}", f"run {number}"))
        except UsageError:  # its jobs are what counts; the request for them fails with a better message
            return WorkflowRun(number)

    def jobs(self, run: WorkflowRun, attempt: int | None = None) -> list[WorkflowJob]:
        """The jobs of an attempt of a run, else of its newest."""
        path, subject = f"actions/runs/{run.id}", f"run {run.id}"
        if attempt:
            path, subject = f"{path}/attempts/{attempt}", f"{subject}, attempt {attempt}"
        return [workflow_job(json, run, self.name) for json in self._pages(f"{path}/jobs", subject, "jobs")]

    def runs(self, **query: str) -> list[WorkflowRun]:
        """The newest runs of a commit or a branch, the newest first."""
        if not all(query.values()):
            return []
        pages = self._pages("actions/runs", "list of runs", "workflow_runs", **query)
        return [workflow_run(json) for json in islice(pages, _MAX_RUNS)]

    def completed_runs(self, workflow: str) -> list[WorkflowRun]:
        """The newest runs of a workflow file that have ended, the newest first."""
        json = self.json(
            f"actions/workflows/{workflow}/runs", f"runs of {workflow}", status="completed", per_page=_PAGE_SIZE
        )
        found = [workflow_run(item) for item in items(json, "workflow_runs")]
        return [run for run in found if run.conclusion not in INCONCLUSIVE]

    def full_sha(self, commit: str) -> str:
        return text_at(self.json(f"commits/{commit}", f"commit {commit}"), "sha") or commit

    def pull_requests_of(self, job: WorkflowJob) -> tuple[int, ...]:
        """Those of the job's commit, which GitHub does not name in a run of a fork."""
        owner = job.run.head_repository.partition("/")[0]
        if not (job.run.event.startswith("pull_request") and owner and job.head_branch):
            return ()
        query = {"head": f"{owner}:{job.head_branch}", "state": "all"}
        try:
            pulls = items(self.json("pulls", "list of pull requests", **query), "")
        except UsageError:  # helpful, not necessary
            return ()
        same = [pull for pull in pulls if text_at(pull, "head", "sha") == job.head_sha]
        return tuple(number_at(pull, "number") for pull in same or (pulls if len(pulls) == 1 else []))

    def _pages(self, path: str, subject: str, key: str, **query: str) -> Iterator[Any]:
        for page in count(1):
            found = items(self.json(path, subject, per_page=_PAGE_SIZE, page=page, **query), key)
            yield from found
            if len(found) < _PAGE_SIZE:
                return

    def json(self, path: str, subject: str, **query: str | int) -> Any:
        return self.client.json(f"/repos/{self.name}/{path}", f"{subject} of {self.name}", **query)


def _jobs_of_pull(github: _Repository, number: int) -> list[WorkflowJob]:
    """Jobs of its newest commit; of an earlier one while no run of the newest has ended."""
    pull = github.json(f"pulls/{number}", f"pull request {number}")
    newest = text_at(pull, "head", "sha")
    runs = github.runs(head_sha=newest)
    jobs = _newest_jobs(github, runs)
    if any(job.has_failed for job in jobs) or any(run.conclusion == "success" for run in runs):
        return jobs
    fork = text_at(pull, "head", "repo", "full_name")
    earlier = [
        run
        for run in github.runs(branch=text_at(pull, "head", "ref"))
        if run.head_repository == fork and run.conclusion in FAILED and run.event.startswith("pull_request")
    ]
    if not earlier:
        return jobs
    commit = earlier[0].head_sha
    github.client.notify(
        f"nothing has failed yet on the newest commit {newest[:12]}; these are failures of {commit[:12]}"
    )
    return _newest_jobs(github, [run for run in earlier if run.head_sha == commit])


def _newest_jobs(github: _Repository, runs: Sequence[WorkflowRun]) -> list[WorkflowJob]:
    """Jobs of each workflow's newest conclusive run; of `runs`, the newest is the first."""
    jobs: dict[str, list[WorkflowJob]] = {}
    for run in runs:
        if any(job.has_failed for job in jobs.get(run.workflow_path, [])) or run.conclusion in INCONCLUSIVE:
            continue
        if run.conclusion != "success":
            jobs[run.workflow_path] = github.jobs(run)
        else:
            jobs.setdefault(run.workflow_path, [])
    return [job for several in jobs.values() for job in several]


def _checked(job: WorkflowJob) -> WorkflowJob:
    """Raises UsageError for a job that has not failed."""
    if job.status and job.status != "completed":
        status = job.status.replace("_", " ")
        raise UsageError(f"{job.title} has no log yet: it is {status}", hint="try again when it has ended")
    if job.conclusion in _WITHOUT_FAILURE:
        outcome = "succeeded: nothing failed" if job.conclusion == "success" else f"was {job.conclusion}: it never ran"
        raise UsageError(f"{job.title} {outcome}", hint="pass the URL of a job that failed")
    return job


def _only_failed(jobs: Sequence[WorkflowJob], place: str) -> WorkflowJob:
    """Raises UsageError where none failed, or several."""
    failed = [job for job in jobs if job.has_failed]
    # A job that ran into its time limit counts as cancelled; beside a failure it is one that was stopped for it.
    failed = failed or [job for job in jobs if job.conclusion == "cancelled"]
    if len(failed) == 1:
        return failed[0]
    if failed:
        raise SeveralFailed(place, failed)
    waiting = sorted({job.name for job in jobs if job.status != "completed"})
    if waiting:
        names = ", ".join(waiting[:5])
        raise UsageError(
            f"nothing has failed yet in {place}; not completed: {names}", hint="try again when it has ended"
        )
    raise UsageError(
        f"nothing failed in {place}{'' if jobs else ' (no job of it ran)'}", hint="pass the URL of a job that failed"
    )
