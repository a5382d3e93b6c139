"""A job's log, from a file, a pipe, a zip or GitHub: what it tells of the job, and of the failure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.logs.causes import JobEnd, JobKnowledge
from ci_tasks.logs.job_facts import FAILURE, SUCCESS, TIMED_OUT, RecoveredJob
from ci_tasks.logs.job_lines import LogPart, PartOfLine, split_lines
from ci_tasks.logs.job_parser import MAX_HEADER_BYTES, JobLogReader
from ci_tasks.logs.lines import read
from ci_tasks.logs.log_file import JobLog, OpenLog, first_jobs, open_log
from ci_tasks.logs.triage.log_triage import analyse
from ci_tasks.records import Triage

_UNKNOWN_FAILURE = 1  # the exit code of a job that failed if the log does not show its code


@dataclass(frozen=True)
class AnalysedLog:
    """What one job's log says. `name` is its source."""

    name: str
    job: RecoveredJob
    triage: Triage


def from_file(
    path: str,
    job: str | None = None,
    *,
    exit_code: int | None = None,
    passed: Sequence[str] = (),
    only_one: bool = False,
) -> list[AnalysedLog]:
    """The jobs in a file, or on standard input for `-`, that may be meant, in their order; `only_one`: it has to be
    one. `exit_code` is the job's, if the caller knows it; `passed` are files with logs of runs of it that passed.
    Raises UsageError for what is no log or does not have the job."""
    with ExitStack() as stack:
        green = [_one(_selected(stack.enter_context(open_log(name)), job), name) for name in passed]
        log = stack.enter_context(open_log(path))
        selected = _selected(log, job)
        if only_one:
            selected = [_one(selected, log.name)]
        elif selected[0].has_failed:  # if no step failed, any of them may be the one
            selected = [*first_jobs(selected, log.name)]
        return [_analysed(log.name, one, exit_code, green) for one in selected]


@cache  # standard input is read once
def jobs_in(source: str) -> list[RecoveredJob]:
    """The jobs of a log that failed, else all, or those at a URL. Raises UsageError, Blocked."""
    return [one.job for one in (from_url if re.match("https?://", source) else from_file)(source)]


def from_url(
    url: str, *, exit_code: int | None = None, passed: Sequence[str] = (), only_one: bool = False
) -> list[AnalysedLog]:
    """The failed jobs at a URL of GitHub. Raises UsageError, Blocked."""
    from ci_tasks.logs.github import open_failed_jobs

    with ExitStack() as stack:
        green = [_one(_selected(stack.enter_context(open_log(name)), None), name) for name in passed]
        analysed = []
        for known, log in stack.enter_context(open_failed_jobs(url, only_one=only_one)):
            selected = _one(_selected(log, None), log.name)
            read_job = selected.job
            job = replace(
                read_job,
                repository=read_job.repository or known.repository,
                job_name=read_job.job_name or known.name,
                workflow=read_job.workflow or known.workflow,
                runner_name=read_job.runner_name or known.runner_name,
                pull_request=read_job.pull_request or known.pull_request,
                conclusion=read_job.conclusion or (FAILURE if known.has_failed else known.conclusion),
            )
            analysed.append(_analysed(log.name, replace(selected, job=job), exit_code, green))
        return analysed


@dataclass(frozen=True)
class _SelectedJob:
    """One job of a log, and what that tells of it. `part` is its part of the log, None if it is all of it."""

    log: JobLog
    name: str
    part: LogPart | None
    job: RecoveredJob
    has_failed: bool

    def pieces(self) -> Iterator[bytes]:
        """The log; a part of one without GitHub's prefixes, and lines of other jobs are empty, so that line numbers
        stay."""
        part_of = PartOfLine()
        if self.part is None:
            yield from self.log.chunks()
            return
        for line in split_lines(self.log.chunks()):
            yield line.text + b"\n" if part_of.of(line) == self.part else b"\n"


def _selected(log: OpenLog, name: str | None) -> list[_SelectedJob]:
    """The jobs of a log that may be meant: the named one, else the failed ones, else all; of several attempts
    of a job the last. Raises UsageError."""
    by_name: dict[str, _SelectedJob] = {}
    several, room = len(log.jobs) > 1, [MAX_HEADER_BYTES]
    for text in [log.job(name)] if several and name is not None else log.jobs:
        for one in _parts(text, name if several else None, room):
            by_name[one.name] = one
    if name is not None and not several and list(by_name) == [""]:
        print(f"{log.name}: it does not name its job; assuming {name!r}", file=sys.stderr)
    elif name is not None and name not in by_name:
        raise UnknownName("job", name, [*filter(None, by_name)], where=log.name)
    elif name is not None:
        by_name = {name: by_name[name]}
    return [one for one in by_name.values() if one.has_failed] or [*by_name.values()]


def _parts(log: JobLog, known_as: str | None, room: list[int]) -> list[_SelectedJob]:
    """The jobs and attempts in one text, each under its name in the log, else under the zip's."""
    reader = JobLogReader(room)
    read(log.chunks(), reader)
    found = []
    for part, job in reader.jobs.items():
        name = known_as or part.job or log.name or job.job_name
        found.append(_SelectedJob(log, name, None if reader.has_one_part else part, job, part in reader.failed))
    return found


def _one(selected: Sequence[_SelectedJob], where: str) -> _SelectedJob:
    """The only job that may be meant. Raises UsageError."""
    if len(selected) > 1:
        listed = "\n".join(f"  {one.name}" for one in selected)
        raise UsageError(f"{where!r} holds the logs of {len(selected)} jobs", hint=f"--job takes one of:\n{listed}")
    return selected[0]


def _analysed(name: str, selected: _SelectedJob, exit_code: int | None, passed: Sequence[_SelectedJob]) -> AnalysedLog:
    job = selected.job if selected.job.job_name else replace(selected.job, job_name=selected.name)
    ended = _job_end(job) if exit_code is None else replace(_job_end(job), exit_code=exit_code)
    known = JobKnowledge(passed=[green.pieces() for green in passed], is_own_module=own_modules(job.repository))
    return AnalysedLog(name, job, analyse(selected.pieces(), ended, known))


def own_modules(repository: str) -> Callable[[str], bool]:
    """Which modules belong to the repository under test (`owner/name`): its own package has that name, unless a suite
    says otherwise."""
    name = repository.rpartition("/")[2]
    named = (suite.packages[0] for suite in registry.suites() if suite.packages and suite.directory == name)
    package = next(named, name.lower().replace("-", "_"))
    return lambda module: bool(package) and module.startswith(f"{package}.")


def _job_end(job: RecoveredJob) -> JobEnd:
    """How the job ended; a step that ran into its limit ends it with a timeout."""
    code = job.exit_code
    if code is None and job.conclusion:
        code = 0 if job.conclusion == SUCCESS else _UNKNOWN_FAILURE
    step = next((step for step in job.steps if step.outcome == TIMED_OUT), None)
    if step is None:
        return JobEnd("exit", code)
    return JobEnd("timeout", code, timeout_minutes=step.minutes or 0)
