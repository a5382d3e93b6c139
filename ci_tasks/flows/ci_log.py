"""A failed job's log, from a file, a pipe, a zip or GitHub: what it tells of the job, and of the failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.forge.logsource import JobLog, LogText, open_log
from ci_tasks.judge.triage import Triage, triage
from ci_tasks.judge.verdict import Ended, read_as
from ci_tasks.runner import layout
from ci_tasks.workflow.cilog import lines, reader
from ci_tasks.workflow.cilog.lines import JobLines
from ci_tasks.workflow.cilog.recovered import FAILURE, SUCCESS, TIMED_OUT, Recovered

_PIECE = 1 << 18
_SOME_CODE = 1  # of a job that is known to have failed, and not with which code


@dataclass(frozen=True)
class CiLog:
    """What one job's log says. `name` is where it is from."""

    name: str
    recovered: Recovered
    triage: Triage


def from_file(what: str, job: str | None = None) -> CiLog:
    """The job in a file, or on standard input for `-`. Raises UsageError for what is no log, or holds several jobs
    of which `job` names none."""
    with open_log(what) as log:
        return _read(log, job, Recovered())


def from_url(url: str) -> CiLog:
    """The failed job at an address of GitHub. Raises UsageError, Blocked."""
    from ci_tasks.forge.github import fetch

    found = fetch(url)
    facts = found.job
    known = Recovered(
        repository=facts.repository,
        job_name=facts.name,
        workflow=facts.workflow_path,
        runner_name=facts.runner_name,
        conclusion=FAILURE if facts.conclusion in ("failure", "timed_out") else facts.conclusion,
        pull_request=next(iter(facts.pull_requests), None),
    )
    with found.log as log:
        return _read(log, None, known)


def _read(log: LogText, job: str | None, known: Recovered) -> CiLog:
    text, inside = _chosen(log, job)
    recovered = _known_better(
        reader.recover(lines.of_job(lines.read(text), inside) if inside else lines.read(text)), known
    )
    with _pieces(text, inside) as pieces:
        found = triage(pieces, _exit_code(recovered))
    return CiLog(log.name, recovered, _timed_out(recovered, found))


def _chosen(log: LogText, job: str | None) -> tuple[JobLog, str]:
    """The log of one job, and its name in gh's column where the log has the lines of several."""
    if len(log.jobs) > 1:
        if job is not None:
            return log.job(job), ""
        names = "\n".join(f"  {one.name}" for one in log.jobs)
        raise UsageError(f"{log.name!r} holds the logs of {len(log.jobs)} jobs", hint=f"--job takes one of:\n{names}")
    text = log.jobs[0]
    jobs = lines.jobs_in(lines.read(text))
    failed = [one for one in jobs if one.failed] or list(jobs)
    if job is not None and any(one.name for one in jobs):
        if all(one.name != job for one in jobs):
            raise UnknownName("job", job, [one.name for one in jobs], where=log.name)
        return text, job
    return text, _only(failed, log.name) if len(jobs) > 1 else ""


def _only(failed: list[JobLines], where: str) -> str:
    if len(failed) == 1:
        return failed[0].name
    names = "\n".join(f"  {one.name}" for one in failed)
    raise UsageError(f"{len(failed)} jobs failed in {where!r}; which one?", hint=f"--job takes one of:\n{names}")


@contextmanager
def _pieces(text: JobLog, inside: str) -> Iterator[Iterator[bytes]]:
    """The log's bytes; lines of other jobs become empty, so that line numbers stay those of the log."""
    with ExitStack() as held:
        if inside:
            yield (line.text + b"\n" if line.job == inside else b"\n" for line in lines.read(text))
        else:
            source = held.enter_context(text.open())
            yield iter(lambda: source.read(_PIECE), b"")


def _known_better(recovered: Recovered, known: Recovered) -> Recovered:
    """What GitHub's API says of the job fills what its log does not."""
    return replace(
        recovered,
        repository=recovered.repository or known.repository,
        job_name=recovered.job_name or known.job_name,
        workflow=recovered.workflow or known.workflow,
        runner_name=recovered.runner_name or known.runner_name,
        pull_request=recovered.pull_request or known.pull_request,
        conclusion=recovered.conclusion or known.conclusion,
    )


def _exit_code(recovered: Recovered) -> int | None:
    if recovered.exit_code is not None:
        return recovered.exit_code
    if not recovered.conclusion:
        return None
    return 0 if recovered.conclusion == SUCCESS else _SOME_CODE


def _timed_out(recovered: Recovered, found: Triage) -> Triage:
    """A step that ran into its limit hangs, unless its log knows better."""
    step = next((step for step in recovered.steps if step.outcome == TIMED_OUT), None)
    return read_as(Ended(layout.END_TIMEOUT, None, timeout_minutes=step.minutes or 0), found) if step else found
