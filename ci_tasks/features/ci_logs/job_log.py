"""A job's log, from a file, a pipe, a zip or GitHub: what it tells of the job, and of the failure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ci_tasks.agent import run_directory
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.features.ci_logs.parse.job_parser import parse_job
from ci_tasks.features.ci_logs.parse.recovered_job import FAILURE, SUCCESS, TIMED_OUT, RecoveredJob
from ci_tasks.features.ci_logs.parse.split_lines import LogLine, jobs_in, split_lines
from ci_tasks.features.ci_logs.sources.log_file import STANDARD_INPUT, JobLog, OpenLog, open_log
from ci_tasks.records import PASSED, Triage
from ci_tasks.results.analysis import CiJobLog, JobKnowledge, analyse
from ci_tasks.results.triage import NOT_ANALYSED, NOT_SEEN
from ci_tasks.results.verdict import JobEnd

_UNKNOWN_FAILURE = 1  # the exit code of a job that failed where the log does not show its code


@dataclass(frozen=True)
class AnalysedLog:
    """What one job's log says. `name` is where it is from. `triage` is empty where no feature analyses failures."""

    name: str
    job: RecoveredJob
    triage: Triage


def from_file(
    path: str, job: str | None = None, *, exit_code: int | None = None, passed: Sequence[str] = ()
) -> AnalysedLog:
    """The job in a file, or on standard input for `-`. `exit_code` is the job's, where the caller knows it; `passed`
    are files with logs of runs of it that passed. Raises UsageError for what is no log, or holds several jobs of which
    `job` names none."""
    with ExitStack() as stack:
        green = [_selected(stack.enter_context(open_log(name)), job) for name in passed]
        log = stack.enter_context(open_log(path))
        analysed = _analysed(log.name, _selected(log, job), RecoveredJob(), exit_code, green)
        if not log.cut:
            return analysed
        print(log.cut, file=sys.stderr)
        # What came later may have failed.
        return replace(analysed, triage=NOT_SEEN) if analysed.triage.verdict == PASSED else analysed


def from_url(url: str) -> AnalysedLog:
    """The failed job at a URL of GitHub. Raises UsageError, Blocked."""
    from ci_tasks.features.ci_logs.sources.failed_job import open_failed_job

    with open_failed_job(url) as failed:
        job = failed.job
        api_job = RecoveredJob(
            repository=job.repository,
            job_name=job.name,
            workflow=job.run.workflow_path,
            runner_name=job.runner_name,
            conclusion=FAILURE if job.has_failed else job.conclusion,
            pull_request=next(iter(job.pull_requests), None),
        )
        return _analysed(failed.log.name, _selected(failed.log, None), api_job)


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
    """One job of a log. `column` is its name in gh's first column where the log has lines of several jobs. Iterating
    gives its text without GitHub's prefixes; lines of other jobs are empty, so that line numbers stay."""

    log: JobLog
    column: str = ""

    def __iter__(self) -> Iterator[bytes]:
        for line in split_lines(self.log):
            yield line.text + b"\n" if not self.column or line.job == self.column else b"\n"

    def lines(self) -> Iterator[LogLine]:
        return (line for line in split_lines(self.log) if not self.column or line.job == self.column)


def _selected(log: OpenLog, name: str | None) -> _SelectedJob:
    if len(log.jobs) > 1:
        if name is not None:
            return _SelectedJob(log.job(name))
        raise _ambiguous(f"{log.name!r} holds the logs of {len(log.jobs)} jobs", [job.name for job in log.jobs])
    text = log.jobs[0]
    jobs = jobs_in(split_lines(text))
    names = [job.name for job in jobs]
    if name is not None and any(names):
        if name not in names:
            raise UnknownName("job", name, names, where=log.name)
        return _SelectedJob(text, name)
    if len(jobs) == 1:
        return _SelectedJob(text)
    failed = [job.name for job in jobs if job.failed] or names
    if len(failed) != 1:
        raise _ambiguous(f"{len(failed)} jobs failed in {log.name!r}; which one?", failed)
    return _SelectedJob(text, failed[0])


def _ambiguous(message: str, names: Sequence[str]) -> UsageError:
    return UsageError(message, hint="--job takes one of:\n" + "\n".join(f"  {name}" for name in names))


def _analysed(
    name: str,
    selected: _SelectedJob,
    api_job: RecoveredJob,
    exit_code: int | None = None,
    passed: Sequence[_SelectedJob] = (),
) -> AnalysedLog:
    job = _completed(parse_job(selected.lines()), api_job)
    ended = _job_end(job) if exit_code is None else replace(_job_end(job), exit_code=exit_code)
    known = JobKnowledge(passed=[_pieces(green) for green in passed])
    return AnalysedLog(name, job, analyse(_pieces(selected), ended, known) or NOT_ANALYSED)


def _pieces(selected: _SelectedJob) -> Iterable[bytes]:
    return iter(selected) if selected.column else selected.log.chunks()


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
