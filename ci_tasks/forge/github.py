"""What `--url URL` reads: the failed job at an address, its log, and what GitHub's API knows beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ci_tasks.errors import UsageError
from ci_tasks.forge import address as addresses
from ci_tasks.forge import facts, logsource, spool, token
from ci_tasks.forge.address import Address
from ci_tasks.forge.client import Client, Clock
from ci_tasks.forge.facts import JobFacts, RunFacts
from ci_tasks.forge.logsource import LogText
from ci_tasks.forge.spool import Spool

API_VARIABLE = "GITHUB_API_URL"
_PAGE = 100
_MOST_RUNS = 300  # of a branch or a commit that are looked through
_NO_LOG = ("success", "skipped", "neutral")


@dataclass(frozen=True)
class Fetched:
    """A failed job. `log` is to be closed; it goes with this process in any case."""

    job: JobFacts
    log: LogText


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def fetch(url: str, say: Callable[[str], None] = to_stderr, clock: Clock | None = None) -> Fetched:
    """The failed job at `url`, with its log on disk. `say` gets a plain line for each time that GitHub lets us wait.

    Raises UsageError for an address that names no failed job, or several (the hint has an address of each), and for a
    log that is gone; Blocked where GitHub cannot be reached, does not let us in, or limits us for too long.
    """
    place = addresses.parse(url)
    with _conversation(place, say, clock or Clock()) as client:
        job = find_job(client, place)
        return Fetched(job, _log(client, job))


def find_job(client: Client, place: Address) -> JobFacts:
    """Raises UsageError, Blocked."""
    jobs = _candidates(client, place)
    job = _named(jobs[0]) if place.job else _only_failed(jobs, place)
    if place.pull:
        return replace(job, pull_requests=(place.pull,))
    return job if job.pull_requests else replace(job, pull_requests=_pull_requests(client, place, job))


@contextmanager
def _conversation(place: Address, say: Callable[[str], None], clock: Clock) -> Iterator[Client]:
    base = addresses.api_base(place.host, os.environ.get(API_VARIABLE, ""))
    client = Client(base, place.host, token.find(place), token.names_for(place), say, clock)
    try:
        yield client
    finally:
        client.close()


def _candidates(client: Client, place: Address) -> list[JobFacts]:
    """The job that `place` names, or all that it may mean."""
    if place.job:
        said = client.json(f"{_repo(place)}/actions/jobs/{place.job}", f"job {place.job} of {place.repository}")
        run = _run(client, place, facts.number_at(said, "run_id") or place.run or 0)
        return [facts.job_facts(said, run, place.repository)]
    if place.run:
        return _jobs(client, place, _run(client, place, place.run), place.attempt)
    return _jobs_of_commit(client, place) if place.commit else _jobs_of_pull(client, place)


def _run(client: Client, place: Address, number: int) -> RunFacts:
    try:
        return facts.run_facts(client.json(f"{_repo(place)}/actions/runs/{number}", _title(place, number)))
    except UsageError:  # its jobs are what was asked for, and say themselves if they are not there
        return facts.run_facts({"id": number})


def _jobs(client: Client, place: Address, run: RunFacts, attempt: int | None = None) -> list[JobFacts]:
    """The jobs of an attempt of a run, else of its newest."""
    part = f"/attempts/{attempt}" if attempt else ""
    path = f"{_repo(place)}/actions/runs/{run.run_id}{part}/jobs"
    title = _title(place, run.run_id) + (f", attempt {attempt}" if attempt else "")
    return [facts.job_facts(said, run, place.repository) for said in _pages(client, path, title, "jobs")]


def _jobs_of_commit(client: Client, place: Address) -> list[JobFacts]:
    said = client.json(f"{_repo(place)}/commits/{place.commit}", f"commit {place.commit} of {place.repository}")
    return _jobs_of(client, place, _runs(client, place, head_sha=facts.text_at(said, "sha") or place.commit))


def _jobs_of_pull(client: Client, place: Address) -> list[JobFacts]:
    """Jobs of its newest commit; of an earlier one where nothing has come to an end on the newest."""
    pull = client.json(f"{_repo(place)}/pulls/{place.pull}", f"pull request {place.pull} of {place.repository}")
    newest = facts.text_at(pull, "head", "sha")
    runs = _runs(client, place, head_sha=newest)
    jobs = _jobs_of(client, place, runs)
    if any(job.has_failed for job in jobs) or any(run.conclusion == "success" for run in runs):
        return jobs
    source = facts.text_at(pull, "head", "repo", "full_name")
    earlier = [
        run
        for run in _runs(client, place, branch=facts.text_at(pull, "head", "ref"))
        if run.head_repository == source and run.conclusion in facts.FAILED and run.event.startswith("pull_request")
    ]
    if not earlier:
        return jobs
    commit = earlier[0].head_sha
    client.say(f"nothing has failed on {newest[:12]}, its newest commit, so far; these are failures of {commit[:12]}")
    return _jobs_of(client, place, [run for run in earlier if run.head_sha == commit])


def _jobs_of(client: Client, place: Address, runs: Sequence[RunFacts]) -> list[JobFacts]:
    """Jobs of each workflow's newest run that says something; of `runs`, the newest is the first."""
    found: dict[str, list[JobFacts]] = {}
    for run in runs:
        workflow = run.workflow_path or run.workflow
        if any(job.has_failed for job in found.get(workflow, [])) or run.conclusion in facts.UNDECIDED:
            continue
        if run.conclusion != "success":
            found[workflow] = _jobs(client, place, run)
        elif workflow not in found:
            found[workflow] = []
    return [job for jobs in found.values() for job in jobs]


def _runs(client: Client, place: Address, **which: str) -> list[RunFacts]:
    if not all(which.values()):
        return []
    title = f"list of runs of {place.repository}"
    said = _pages(client, f"{_repo(place)}/actions/runs", title, "workflow_runs", **which)
    return [facts.run_facts(run) for run in islice(said, _MOST_RUNS)]


def _pages(client: Client, path: str, what: str, key: str, **params: str | int) -> Iterator[Any]:
    page, seen = 1, 0
    while True:
        said = client.json(path, what, per_page=_PAGE, page=page, **params)
        found = facts.items(said, key)
        yield from found
        page, seen = page + 1, seen + len(found)
        total = facts.number_at(said, "total_count")
        if not found or (seen >= total if total else len(found) < _PAGE):
            return


def _named(job: JobFacts) -> JobFacts:
    """The job that the address names, if it has failed. Raises UsageError."""
    if job.status and job.status != "completed":
        raise UsageError(f"{job.title} has no log yet: it is {_spaced(job.status)}", hint="ask again when it has ended")
    if job.conclusion in _NO_LOG:
        what = "succeeded: nothing failed" if job.conclusion == "success" else f"was {job.conclusion}: it never ran"
        raise UsageError(f"{job.title} {what}", hint="give the address of a job that failed")
    return job


def _only_failed(jobs: Sequence[JobFacts], place: Address) -> JobFacts:
    """Raises UsageError where none failed, or several."""
    failed = [job for job in jobs if job.has_failed]
    # A job that ran into its time limit counts as cancelled; beside a failure it is one that was stopped for it.
    failed = failed or [job for job in jobs if job.conclusion == "cancelled"]
    if len(failed) == 1:
        return failed[0]
    if failed:
        names = "\n".join(f"  {job.name}: {job.html_url}" for job in failed)
        raise UsageError(f"{len(failed)} jobs failed in {_words(place)}; which one?", hint=f"--url takes:\n{names}")
    waiting = [job for job in jobs if job.status != "completed"]
    if waiting:
        names = ", ".join(sorted({job.name for job in waiting})[:5])
        raise UsageError(
            f"nothing has failed so far in {_words(place)}; still to come: {names}", hint="ask again when it has ended"
        )
    ended = "" if jobs else " (it has no jobs that ran)"
    raise UsageError(f"nothing failed in {_words(place)}{ended}", hint="give the address of a job that failed")


def _pull_requests(client: Client, place: Address, job: JobFacts) -> tuple[int, ...]:
    """Those of the job's commit, which GitHub does not name beside a run of a fork."""
    owner = job.head_repository.partition("/")[0]
    if not (job.event.startswith("pull_request") and owner and job.head_branch):
        return ()
    query = {"head": f"{owner}:{job.head_branch}", "state": "all"}
    try:
        said = client.json(f"{_repo(place)}/pulls", f"list of pull requests of {place.repository}", **query)
    except UsageError:  # nice to know, no more
        return ()
    found = facts.items(said, "")
    same = [pull for pull in found if facts.text_at(pull, "head", "sha") == job.head_sha]
    return tuple(facts.number_at(pull, "number") for pull in same or (found if len(found) == 1 else []))


def _log(client: Client, job: JobFacts) -> LogText:
    file = spool.temporary()
    try:
        path = f"/repos/{job.repository}/actions/jobs/{job.job_id}/logs"
        client.download(path, f"the log of {job.title}", file)
    except BaseException:
        file.close()
        raise
    return logsource.of_spool(Spool(file), f"the log of {job.title}")


def _repo(place: Address) -> str:
    return f"/repos/{place.repository}"


def _title(place: Address, run: int) -> str:
    return f"run {run} of {place.repository}"


def _words(place: Address) -> str:
    if place.run:
        return _title(place, place.run)
    named = f"commit {place.commit[:12]}" if place.commit else f"pull request {place.pull}"
    return f"{named} of {place.repository}"


def _spaced(status: str) -> str:
    return status.replace("_", " ")
