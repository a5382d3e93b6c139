"""Submitting runs, each with an sbatch of its own, one after another.

What Slurm rejects temporarily is submitted again after growing pauses; meanwhile the status of each run says so. What
it rejects for good is blocked.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Dict, List, Optional, Sequence

from .. import run_directory
from ..agent_log import log_traceback
from ..file_lock import LockTimeout, file_lock
from ..programs import ask
from ..quick_dataclass import dataclass
from ..records import SlurmJob, Status
from ..run_directory import EXIT_BLOCKED
from . import job_file, states
from .outcome import JobOutcome
from .record_end import record_outcome
from .squeue import RunPrograms

PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # seconds until the next try, the last one again and again
_TIMEOUT = 150.0  # sbatch itself tries again for a while
_LOCK_TIMEOUT = 300.0
_TEMPORARY = (  # not about this job: it may be accepted in a while, and the controller may even have it already
    "MaxSubmit",
    "MaxJobCount",
    "job submit limit",
    "temporarily unable to accept job",
    "Socket timed out",
    "Unable to contact slurm controller",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Communication connection failure",
    "Transport endpoint",
    "Slurm backup controller",
    "Message receive failure",
    "rate limit",
    "Too many",
    "no answer from",
)
# A permanent rejection by policy mentions a "submit limit" too: "(job submit limit, user's size and/or time limits)".
_POLICY = ("user's size and/or time limits", "(job submit limit,")
_NOISE = ("Batch job submission failed: Job violates accounting/QOS policy",)


@dataclass(frozen=True)
class Submission:
    """`job` is the id that Slurm gave; empty where it rejected the job, and then `reason` is sbatch's message, and
    `is_temporary` says whether to try again."""

    job: str = ""
    reason: str = ""
    is_temporary: bool = False


def enqueue(run_dir: str, job: SlurmJob) -> None:
    """Record that a run is to be submitted: from now on it waits."""
    job_file.write(run_dir, job)
    _write_waiting(run_dir, "Slurm: being submitted")


class Submitter:
    """Takes runs with `add`, and submits them in a thread of its own. `is_busy`: some are not submitted yet."""

    def __init__(self, run_programs: RunPrograms = ask, pauses: Sequence[float] = PAUSES) -> None:
        self._run_programs, self._pauses = run_programs, pauses
        self._runs: Dict[str, None] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="sbatch")

    def add(self, run_dir: str) -> None:
        with self._changed:
            self._runs[run_dir] = None
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._runs)

    def _run(self) -> None:
        tries = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._runs))
                run = next(iter(self._runs))
            try:
                submission = self._submit(run)
            except Exception as bug:  # whatever it is, the run's status must say so
                log_traceback(run, "sbatch", bug)
                submission = Submission(reason=str(bug) if isinstance(bug, OSError) else repr(bug))
            if submission.is_temporary:
                self._wait(submission.reason, self._pauses[min(tries, len(self._pauses) - 1)])
                tries += 1
                continue
            tries = 0
            if submission.reason and _is_unsubmitted(run):
                reason = "Slurm rejects the job: %s" % submission.reason
                with suppress(OSError, LockTimeout):
                    record_outcome(run, JobOutcome(run_directory.END_EXIT, reason, EXIT_BLOCKED))
            with self._changed:
                del self._runs[run]

    def _wait(self, reason: str, seconds: float) -> None:
        with self._changed:
            runs = list(self._runs)
        for run in runs:
            with suppress(OSError):  # it was removed, or the disk is full
                _write_waiting(run, "%s: %s; next try in %g s" % (job_file.REJECTED, reason, seconds))
        time.sleep(seconds)

    def _submit(self, run: str) -> Submission:
        """What Slurm says; nothing for a run that is not to be submitted any more."""
        if not _is_unsubmitted(run):
            return Submission()
        lock = _job(run).lock
        os.makedirs(os.path.dirname(lock), exist_ok=True)
        try:
            with file_lock(lock, True, _LOCK_TIMEOUT):
                return self._sbatch(run) if _is_unsubmitted(run) else Submission()
        except LockTimeout:
            return Submission(reason="another command's submission takes too long", is_temporary=True)

    def _sbatch(self, run: str) -> Submission:
        job = _job(run)
        submission = self._find_submitted(job.name)
        if not submission.job:
            if not job.name:
                batch = os.path.basename(os.path.dirname(run))
                job = job_file.write(run, replace(job, name="%s-%s" % (batch, uuid.uuid4().hex[:8])))
            answer = self._run_programs({"": sbatch_command(run, job.name)}, _TIMEOUT)[""]
            submission = parse_answer(answer.code, answer.out, answer.err)
        if submission.job:
            job_file.write(run, replace(job, id=submission.job))
        return submission

    def _find_submitted(self, name: str) -> Submission:
        """The job that Slurm accepted although its answer was lost: a login node went down, a socket timed out."""
        if not name:
            return Submission()
        answer = self._run_programs({"": states.jobs_by_name_command(name)}, _TIMEOUT)[""]
        jobs = answer.out.split() if answer.code == 0 else []
        return Submission(jobs[0] if jobs else "")


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    run = run_directory.RunDir(run_dir)
    status = run_directory.read_status(run)
    if status.has_ended:
        return
    if not status.exists:
        status = Status(run_directory.STATE_RUNNING, "waiting", started_at=time.time())
    run_directory.write_record(run.status, replace(status, waiting=(reason,), sequence=status.sequence + 1))


def _job(run: str) -> SlurmJob:
    job = job_file.read(run)
    assert job is not None  # the run was enqueued
    return job


def _is_unsubmitted(run: str) -> bool:
    """Whether it is neither submitted nor ended: it may have been cancelled, or removed, meanwhile."""
    job = job_file.read(run)
    has_ended = run_directory.read_status(run_directory.RunDir(run)).has_ended
    return job is not None and not job.id and not has_ended


# -- sbatch ----------------------------------------------------------------------------------------------------------


def sbatch_command(run_dir: str, name: str) -> List[str]:
    return [
        "sbatch",
        "--parsable",
        "--job-name=" + name,
        "--chdir=" + run_dir,
        "--output=" + os.path.join(run_dir, run_directory.SLURM_OUTPUT),
        os.path.join(run_dir, job_file.SCRIPT),
        run_dir,
    ]


def parse_answer(code: Optional[int], out: str, err: str) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = out.strip().splitlines()[-1].partition(";")[0] if out.strip() else ""
    if code == 0 and job.isdigit():
        return Submission(job)
    reason = _reason(err) or "sbatch ended with %s and no message" % ("no exit code" if code is None else code)
    text = err
    for phrase in _POLICY:
        text = text.replace(phrase, "")
    return Submission("", reason, any(part in text for part in _TEMPORARY))


def _reason(err: str) -> str:
    """The lines that say why, without sbatch's prefix."""
    lines = [line.strip().partition("sbatch: error: ")[2] or line.strip() for line in err.splitlines() if line.strip()]
    specific = [line for line in lines if not line.startswith(_NOISE)]
    return "; ".join(dict.fromkeys((specific or lines)[-2:]))
