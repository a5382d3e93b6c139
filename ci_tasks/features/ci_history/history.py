"""Whether a job's failure, or a row's, is new in CI, flaky there, or also on the base branch: by the last runs of its
workflow.

The rows of these runs are asked of GitHub each time, which is one request a run; the logs of jobs that failed are read
once, and what they showed is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ci_tasks import resources
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, UsageError, counted
from ci_tasks.logs.github import FAILED, GitHubClient, GitHubUrl, find_failed_jobs, parse_url, text_at
from ci_tasks.logs.job_log import from_url
from ci_tasks.logs.job_row import same_name
from ci_tasks.records import Triage

BROKEN, FLAKY, NEW, UNKNOWN = "already broken in CI", "flaky in CI", "new in CI", "CI's history shows nothing"
_MOST_RUNS, _MOST_LOGS = 20, 8
_ORIGIN = re.compile(r"(?:https?://|ssh://|)(?:[^/@]*@)?([\w.-]+)(?::\d+/|[:/])([\w-]+/[\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True)
class PastJob:
    """The job of the same name in another run, which passed or `failed`. `is_base`: no pull request started the run,
    and none is of its branch."""

    url: str
    failed: bool
    branch: str
    is_base: bool


def ci_history(url: str, triage: Triage) -> list[str]:
    """The lines that `triage --url` adds for the failed job at `url`. What GitHub refuses is a line too."""
    try:
        parsed = parse_url(url)
        with closing(GitHubClient(parsed)) as client:
            place, jobs = find_failed_jobs(client, parsed)
            if len(jobs) > 1:
                return [f"{UNKNOWN}: {len(jobs)} jobs failed in {place}, but one is needed"]
            of = jobs[0]
            past = [job for name, job in _past_jobs(client, of.workflow, of.repository, of.id) if name == of.name]
        return [judge(triage.signature, past, _signature)]
    except (UsageError, Blocked) as problem:
        return [f"{UNKNOWN}: {problem.message}"]


def ci_row_history(origin: str, workflow: str, rows: Mapping[str, tuple[Sequence[str], str]]) -> list[str]:
    """The lines that `compare --ci` prints. `rows` has the names that GitHub may show for each row, and the signature
    of its last failure here, "" for none. Raises UsageError for an `origin` that is no repository of GitHub's."""
    found = _ORIGIN.fullmatch(origin)
    if not found:
        hint = "run it without --ci, or set the remote `origin`"
        raise UsageError(f"--ci needs a checkout whose origin is on GitHub, not {origin or 'none'}", hint=hint)
    try:
        with closing(GitHubClient(GitHubUrl(found[1], found[2]))) as client:
            past = list(_past_jobs(client, workflow, found[2]))
    except (UsageError, Blocked) as problem:
        return [f"{UNKNOWN}: {problem.message}"]
    lines = []
    for row, (names, signature) in rows.items():
        jobs = [job for name, job in past if any(same_name(name, own) for own in names)]
        failed = [job for job in jobs if job.failed]
        last = f", the last on {failed[0].branch}, {failed[0].url}" if failed else ""
        often = f"{len(failed)} of its last {counted(len(jobs), 'run')} in CI failed{last}"
        lines.append(f"{row}: {judge(signature, jobs, _signature) if signature else often}")
    return lines


def judge(signature: str, past: Sequence[PastJob], signature_of: Callable[[str], str]) -> str:
    """The sentence for a failure with this signature. `past` is the newest first; `signature_of` reads a failed job's
    log."""
    failed = [job for job in past if job.failed]
    shown = [(job, there) for job in failed[:_MOST_LOGS] if (there := signature_of(job.url))]
    alike = [job for job, there in shown if there == signature]
    base = next((job for job in past if job.is_base), None)
    if base in alike and base is not None:
        return f"{BROKEN}: its last run on {base.branch} failed in the same way, {base.url}"
    if alike:
        others = f"{len(alike)} of {counted(len(past), 'other run')} failed in the same way"
        return f"{FLAKY}: {others}, the last on {alike[0].branch}, {alike[0].url}"
    if not past:
        return f"{UNKNOWN}: no other run of the job has ended"
    if len(shown) < len(failed):
        return f"{UNKNOWN}: {counted(len(failed), 'other run')} failed, of which {len(shown)} could be compared"
    return f"{NEW}: none of its last {counted(len(past), 'run')} failed in the same way"


def _past_jobs(client: GitHubClient, file: str, repository: str, own: int = 0) -> Iterator[tuple[str, PastJob]]:
    """The jobs of the workflow's last runs that ended, by name, but for the job with the id `own`."""

    def read(path: str, subject: str, key: str, size: int, **query: str) -> list[Any]:
        found = client.json(f"actions/{path}", subject, per_page=size, page=1, **query)
        return list(found.get(key) or []) if isinstance(found, dict) else []

    workflow = file.rpartition("/")[2]
    runs = read(f"workflows/{workflow}/runs", f"runs of {workflow}", "workflow_runs", _MOST_RUNS, status="completed")
    here = [run for run in runs if text_at(run, "head_repository", "full_name") == repository]
    pulls = {text_at(run, "head_branch") for run in here if text_at(run, "event").startswith("pull_request")}
    for run in runs:
        for other in read(f"runs/{run['id']}/jobs", f"run {run['id']}", "jobs", 100):
            conclusion = text_at(other, "conclusion")
            if other.get("id") != own and conclusion in (*FAILED, "success"):
                branch = text_at(run, "head_branch")
                is_base = not text_at(run, "event").startswith("pull_request") and branch not in pulls
                url = text_at(other, "html_url")
                yield text_at(other, "name"), PastJob(url, conclusion in FAILED, branch, is_base)


def _signature(url: str) -> str:
    """The failure in the log of the job at `url`, "" if its log is gone; kept for the next command."""
    path = Path(resources.home(), "ci-history.json")
    known = dict[str, str]()
    with suppress(OSError, ValueError, TypeError):
        known = {**json.loads(path.read_text())}
    if url not in known:
        try:
            known[url] = from_url(url, only_one=True)[0].triage.signature
        except UsageError:  # another token may see it
            return ""
        resources.make_home()
        replace_file(str(path), json.dumps(known).encode())
    return str(known[url])
