"""What `--url URL` reads: the failed jobs at a URL, their logs, and what GitHub's API knows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count, islice
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.logs.github import GitHubClient, GitHubUrl, parse_url, text_at
from ci_tasks.logs.log_file import OpenLog, first_jobs, read_logs

FAILED = ("failure", "timed_out")
INCONCLUSIVE = ("cancelled", "skipped", "neutral", "action_required", "stale")
_PAGE_SIZE = 100
_MAX_RUNS = 300  # of a commit


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


def items(json: Any, key: str) -> list[Any]:
    value = json.get(key) if isinstance(json, dict) else None
    return value if isinstance(value, list) else []


def number_at(json: Any, key: str) -> int:
    value = json.get(key) if isinstance(json, dict) else None
    return value if isinstance(value, int) else 0


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
