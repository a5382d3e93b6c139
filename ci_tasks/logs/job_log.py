"""A job's log, from a file, a pipe, a zip or GitHub: what it tells of the job, and of the failure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ci_tasks.agent import run_directory
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.logs.causes import NOT_SEEN, JobEnd, JobKnowledge
from ci_tasks.logs.job_lines import JobInLog, LogLine, split_lines
from ci_tasks.logs.job_parser import JobLogReader, parse_job
from ci_tasks.logs.job_steps import FAILURE, SUCCESS, TIMED_OUT, RecoveredJob
from ci_tasks.logs.lines import read
from ci_tasks.logs.log_file import STANDARD_INPUT, JobLog, OpenLog, open_log
from ci_tasks.logs.own_modules import of_repository
from ci_tasks.logs.triage.log_triage import analyse
from ci_tasks.records import PASSED, Triage

_MOST_JOBS = 10  # whose logs are downloaded
_UNKNOWN_FAILURE = 1  # the exit code of a job that failed where the log does not show its code


@dataclass(frozen=True)
class AnalysedLog:
    """What one job's log says. `name` is where it is from."""

    name: str
    job: RecoveredJob
    triage: Triage


def from_file(path: str, job: str | None = None, *, attempt: int | None = None) -> AnalysedLog:
    """The job in a file, or on standard input for `-`; `attempt` is which one of the log's, else the last. Raises
    UsageError for what is no log, holds several jobs of which `job` names none, or does not have the attempt."""
    return all_from_file(path, job, attempt=attempt, only_one=True)[0]


def all_from_file(
    path: str,
    job: str | None = None,
    *,
    exit_code: int | None = None,
    passed: Sequence[str] = (),
    attempt: int | None = None,
    only_one: bool = False,
) -> list[AnalysedLog]:
    """The same of every job that may be meant, in their order. `exit_code` is the job's, where the caller knows it;
    `passed` are files with logs of runs of it that passed."""
    with ExitStack() as stack:
        green = [_selected(stack.enter_context(open_log(name)), job) for name in passed]
        log = stack.enter_context(open_log(path))
        try:
            selected = {"": _selected(log, job, attempt)}
        except SeveralJobs as several:
            if only_one:
                raise
            selected = {name: _selected(log, name, attempt) for name in several.names}
        for one in selected.values():
            if one.note:
                print(f"{log.name}: {one.note}", file=sys.stderr)
        analysed = [
            _analysed(log.name, one, RecoveredJob(job_name=name), exit_code, green) for name, one in selected.items()
        ]
        if not log.cut:
            return analysed
        print(log.cut, file=sys.stderr)
        # What came later may have failed.
        return [replace(one, triage=NOT_SEEN) if one.triage.verdict == PASSED else one for one in analysed]


def from_url(url: str, *, exit_code: int | None = None, passed: Sequence[str] = ()) -> AnalysedLog:
    """The failed job at a URL of GitHub. What its last green run printed is normal too; which run that was, or that
    there is none, is said on standard error. Raises UsageError, Blocked."""
    from ci_tasks.logs.failed_job import open_failed_job

    with ExitStack() as stack:
        green = [_selected(stack.enter_context(open_log(name)), None) for name in passed]
        failed = stack.enter_context(open_failed_job(url, with_green=True))
        print(failed.green_note, file=sys.stderr)
        if failed.green:
            green.append(_selected(failed.green, None))
        job = failed.job
        api_job = RecoveredJob(
            repository=job.repository,
            job_name=job.name,
            workflow=job.run.workflow_path,
            runner_name=job.runner_name,
            conclusion=FAILURE if job.has_failed else job.conclusion,
            pull_request=next(iter(job.pull_requests), None),
        )
        return _analysed(failed.log.name, _selected(failed.log, None), api_job, exit_code, green)


@dataclass(frozen=True)
class CiJobLog:
    """CI's log of one job. `text` are its bytes without CI's prefixes, which can be read again and again;
    `failing_line` is the 1-based line that says why it failed."""

    name: str
    text: Iterable[bytes]
    failing_line: int | None


class SeveralJobs(UsageError):
    """One job is asked for, and several of a log may be meant: `names`."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message, hint="--job takes one of:\n" + "\n".join(f"  {name}" for name in names))
        self.names = tuple(names)


def all_from_url(url: str, *, exit_code: int | None = None, passed: Sequence[str] = ()) -> list[AnalysedLog]:
    """The same of every failed job at the URL, of the first _MOST_JOBS at most."""
    from ci_tasks.logs.failed_job import SeveralFailed

    try:
        return [from_url(url, exit_code=exit_code, passed=passed)]
    except SeveralFailed as several:
        if len(several.urls) > _MOST_JOBS:
            print(f"{several.message.partition(';')[0]}: the first {_MOST_JOBS} are read", file=sys.stderr)
        return [from_url(one, exit_code=exit_code, passed=passed) for one in several.urls[:_MOST_JOBS]]


@contextmanager
def open_text(path: str) -> Iterator[Iterable[bytes]]:
    """The lines of the job that `from_file` takes, without GitHub's prefixes. Raises UsageError as that does."""
    with open_log(path) as log:
        yield _selected(log, None)


@contextmanager
def open_ci_log(path: str, job: str | None) -> Iterator[CiJobLog]:
    """The log in a file for a report. Raises UsageError for standard input, what is no log, and several jobs of which
    `job` names none."""
    if path == STANDARD_INPUT:
        raise UsageError("--ci-log reads a file several times", hint="save what is piped in, and name the file")
    with open_log(path) as log:
        selected = _selected(log, job)
        failing_line = _analysed(log.name, selected, RecoveredJob()).triage.line_no
        yield CiJobLog(log.name, selected, failing_line)


@dataclass(frozen=True)
class _SelectedJob:
    """One job of a log. `column` is its name in gh's first column where the log has lines of several jobs, `first` and
    `last` are its lines where others are before or behind it. Iterating gives its text without GitHub's prefixes; lines
    of other jobs are empty, so that line numbers stay. `note` says why this job was taken of several. `read` is what
    the log tells of it, where that is known already."""

    log: JobLog
    column: str = ""
    first: int = 1
    last: int | None = None
    note: str = ""
    read: RecoveredJob | None = None

    def __iter__(self) -> Iterator[bytes]:
        for line in split_lines(self.log.chunks()):
            yield line.text + b"\n" if self._has(line) else b"\n"

    def parsed(self) -> RecoveredJob:
        return self.read or parse_job(filter(self._has, split_lines(self.log.chunks())))

    @property
    def is_whole_log(self) -> bool:
        return not self.column and self.first == 1 and self.last is None

    def _has(self, line: LogLine) -> bool:
        is_within = self.first <= line.number and (self.last is None or line.number <= self.last)
        return is_within and (not self.column or line.job == self.column)


def _selected(log: OpenLog, name: str | None, attempt: int | None = None) -> _SelectedJob:
    if len(log.jobs) == 1:
        return _in_text(log.jobs[0], name, log.name, attempt)
    if name is not None:
        return _in_text(log.job(name), None, log.name, attempt)
    names = [job.name for job in log.jobs]
    failed = [job for job in log.jobs if any(part.failed for part in _read_jobs(job).jobs)]
    if len(failed) != 1:
        raise SeveralJobs(f"{log.name!r} holds the logs of {len(names)} jobs", [job.name for job in failed] or names)
    return _noted(
        _in_text(failed[0], None, log.name, attempt),
        f"of {len(names)} jobs only {failed[0].name!r} failed: it is meant",
    )


def _read_jobs(text: JobLog) -> JobLogReader:
    reader = JobLogReader()
    read(text.chunks(), reader)
    return reader


def _in_text(text: JobLog, name: str | None, where: str, attempt: int | None) -> _SelectedJob:
    """The job in a text: the one that is named, the only one, or the only one that failed."""
    found = _read_jobs(text)
    jobs, job_read = found.jobs, found.job
    names = [job.name for job in jobs]
    if name is not None and any(names):
        if name not in names:
            raise UnknownName("job", name, names, where=where)
        return _attempt_of(text, jobs[names.index(name)], None, where, attempt)
    if len(jobs) == 1:
        selected = _attempt_of(text, jobs[0], name, where, attempt)
        if jobs[0].parts:
            return selected
        return _noted(replace(selected, read=job_read), _check_name(name, job_read, where))
    failed = [job for job in jobs if job.failed] or list(jobs)
    if len(failed) != 1:
        raise SeveralJobs(f"{len(failed)} jobs failed in {where!r}; which one?", [job.name for job in failed])
    return _attempt_of(text, failed[0], None, where, attempt)


def _check_name(name: str | None, job: RecoveredJob, where: str) -> str:
    """A note where a log does not say whose it is. Raises UnknownName where it is not that of the job `name`."""
    if name is None or name == job.job_name:
        return ""
    if job.job_name:
        raise UnknownName("job", name, [job.job_name], where=where)
    return f"it does not name its job: it is read as that of {name!r}"


def _attempt_of(text: JobLog, job: JobInLog, name: str | None, where: str, attempt: int | None) -> _SelectedJob:
    """An attempt of a job, the last one where none is chosen; where logs of several jobs were put together, of the job
    that is named or alone failed."""
    column = job.name
    if not job.parts:
        _check_attempt(attempt, 1, where)
        return _SelectedJob(text, column)
    names = list(dict.fromkeys(part.name for part in job.parts if part.name))
    wanted = name
    if name is not None and name not in names:
        raise UnknownName("job", name, names, where=where)
    if name is None and len(names) > 1:
        failed = list(dict.fromkeys(part.name for part in job.parts if part.failed))
        if len(failed) != 1 or not failed[0]:
            raise SeveralJobs(f"{where!r} holds the logs of {len(names)} jobs", [*filter(None, failed)] or names)
        wanted = failed[0]
    own = [at for at, part in enumerate(job.parts) if wanted is None or part.name == wanted]
    _check_attempt(attempt, len(own), where)
    at = own[(attempt or len(own)) - 1]
    first = job.parts[at].first
    last = job.parts[at + 1].first - 1 if at + 1 < len(job.parts) else None
    notes = [f"of {len(names)} jobs only {wanted!r} failed: it is meant"] if name is None and wanted else []
    if len(own) > 1:
        which = "the last one" if attempt is None else f"attempt {attempt}"
        notes.append(f"it has {len(own)} attempts: {which} counts, from line {first}; --attempt N chooses")
    return _SelectedJob(text, column, first, last, "; ".join(notes))


def _check_attempt(attempt: int | None, count: int, where: str) -> None:
    if attempt is not None and attempt > count:
        has = "1 attempt" if count == 1 else f"{count} attempts"
        raise UsageError(f"{where!r} has {has} of the job, not {attempt}", hint="without --attempt the last one counts")


def _noted(selected: _SelectedJob, note: str) -> _SelectedJob:
    return replace(selected, note="; ".join(part for part in (note, selected.note) if part))


def _analysed(
    name: str,
    selected: _SelectedJob,
    api_job: RecoveredJob,
    exit_code: int | None = None,
    passed: Sequence[_SelectedJob] = (),
) -> AnalysedLog:
    job = _completed(selected.parsed(), api_job)
    ended = _job_end(job) if exit_code is None else replace(_job_end(job), exit_code=exit_code)
    known = JobKnowledge(passed=[_pieces(green) for green in passed], is_own_module=of_repository(job.repository))
    return AnalysedLog(name, job, analyse(_pieces(selected), ended, known))


def _pieces(selected: _SelectedJob) -> Iterable[bytes]:
    return selected.log.chunks() if selected.is_whole_log else iter(selected)


def _completed(job: RecoveredJob, api_job: RecoveredJob) -> RecoveredJob:
    """What the log does not say is filled with what GitHub's API says."""
    return replace(
        job,
        repository=job.repository or api_job.repository,
        job_name=job.job_name or api_job.job_name,
        workflow=job.workflow or api_job.workflow,
        runner_name=job.runner_name or api_job.runner_name,
        pull_request=job.pull_request or api_job.pull_request,
        conclusion=job.conclusion or api_job.conclusion,
    )


def _job_end(job: RecoveredJob) -> JobEnd:
    """How the job ended; a step that ran into its limit ends it with a timeout."""
    code = job.exit_code
    if code is None and job.conclusion:
        code = 0 if job.conclusion == SUCCESS else _UNKNOWN_FAILURE
    step = next((step for step in job.steps if step.outcome == TIMED_OUT), None)
    if step is None:
        return JobEnd(run_directory.END_EXIT, code)
    return JobEnd(run_directory.END_TIMEOUT, code, timeout_minutes=step.minutes or 0)
