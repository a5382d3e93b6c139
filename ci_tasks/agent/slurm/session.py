"""The Slurm jobs of one connection: submits runs, one sbatch each, and follows their states by one squeue for all.

Slurm's state of a waiting job is added to the status that clients see, never written to the file: once a job has
started, its agent is the only writer of its status. A query that fails is repeated, and changes nothing: only what
Slurm says counts.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple

from .. import run_directory
from ..agent_log import log_traceback
from ..file_lock import LockTimeout, file_lock
from ..programs import run_program
from ..quick_dataclass import dataclass
from ..records import QueryAnswer, SlurmAllocation, SlurmJob, Status
from ..run_directory import EXIT_BLOCKED, SLURM_OUTPUT
from . import job_file, states
from .states import UNKNOWN, JobOutcome, SlurmJobState, is_final

RunProgram = Callable[[Sequence[str], float], QueryAnswer]

INTERVAL = 2.0  # seconds between two queries
TIMEOUT = 60.0  # seconds for one of Slurm's programs: a busy controller delays its answers
UNKNOWN_AFTER = 60.0  # seconds until a job that Slurm does not know counts as gone: accounting lags behind
PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # seconds until the next sbatch, the last one again and again
_IDLE = 30.0  # seconds after which a job that nobody asks for is not queried any more
_CACHE_SECONDS = 10.0  # until one node sees what another wrote last, on a file system that caches
_SBATCH_TIMEOUT = 150.0  # sbatch itself tries again for a while
_LOCK_TIMEOUT = 300.0
# Not about this job: it may be accepted in a while, and the controller may even have it already.
_TEMPORARY = (
    *("MaxSubmit", "MaxJobCount", "job submit limit", "temporarily unable to accept job", "Socket timed out"),
    *("Unable to contact slurm controller", "Resource temporarily unavailable", "Zero Bytes were transmitted"),
    *("Connection refused", "Connection reset", "Connection timed out", "Communication connection failure"),
    *(
        "Transport endpoint",
        "Slurm backup controller",
        "Message receive failure",
        "rate limit",
        "Too many",
        "no answer",
    ),
)
# A permanent rejection by policy mentions a "submit limit" too: "(job submit limit, user's size and/or time limits)".
_POLICY = ("user's size and/or time limits", "(job submit limit,")
_NOISE = "Batch job submission failed: Job violates accounting/QOS policy"


class SlurmSession:
    """The submitter and the squeue poller that all runs of a connection share. Nothing happens before there is a
    job."""

    def __init__(self, run: RunProgram = run_program, pauses: Sequence[float] = PAUSES) -> None:
        self._queue, self._run, self._pauses = SqueuePoller(), run, pauses
        self._waiting: Dict[str, None] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._submit_all, daemon=True, name="sbatch")

    def submit(self, run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
        """Submit a run; one that already has a status is only queued again."""
        if not os.path.lexists(run_directory.RunDir(run_dir).status):
            with open(os.path.join(run_dir, job_file.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(script)
            job_file.write_secrets(run_dir, secrets)
            job_file.write(run_dir, job)
            _write_waiting(run_dir, "Slurm: being submitted")
        self._add(run_dir)

    def run_state(self, run_dir: str) -> Optional[SlurmRunState]:
        """None for a run that is not a Slurm job. One that a broken connection left is queued again."""
        job = job_file.read(run_dir)
        if job is not None and not job.id:
            self._add(run_dir)
        return SlurmRunState(run_dir, self._queue) if job is not None else None

    def finish(self, until: float) -> None:
        """The client has disconnected: submit what is queued, if that is possible before `until` (monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, max(0.0, until - time.monotonic()))

    def _add(self, run_dir: str) -> None:
        with self._changed:
            self._waiting[run_dir] = None
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    def _submit_all(self) -> None:
        tries = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                run = next(iter(self._waiting))
            try:
                submission = submit(run, self._run)
            except Exception as bug:  # whatever it is, the run's status must say so
                log_traceback(run, "sbatch", bug)
                submission = Submission(reason=str(bug) if isinstance(bug, OSError) else repr(bug))
            if submission.is_temporary:
                self._pause(submission.reason, self._pauses[min(tries, len(self._pauses) - 1)])
                tries += 1
                continue
            tries = 0
            if submission.reason and _is_unsubmitted(run):
                reason = "Slurm rejects the job: %s" % submission.reason
                with suppress(OSError, LockTimeout):
                    job_file.record_end(run, JobOutcome(run_directory.END_EXIT, reason, EXIT_BLOCKED))
            with self._changed:
                del self._waiting[run]
                self._changed.notify_all()

    def _pause(self, reason: str, seconds: float) -> None:
        with self._changed:
            runs = list(self._waiting)
        for run in runs:
            with suppress(OSError):  # it was removed, or the disk is full
                _write_waiting(run, "%s: %s; next try in %g s" % (job_file.REJECTED, reason, seconds))
        time.sleep(seconds)


# -- sbatch ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """`job` is the id that Slurm gave; empty where it rejected the job, and then `reason` is sbatch's message, and
    `is_temporary` says whether to try again."""

    job: str = ""
    reason: str = ""
    is_temporary: bool = False


def submit(run_dir: str, run: RunProgram) -> Submission:
    """What Slurm says; nothing for a run that is not to be submitted any more. A job that Slurm accepted although its
    answer was lost (a login node went down, a socket timed out) is found by its name."""
    job = job_file.read(run_dir)
    if job is None or not _is_unsubmitted(run_dir):
        return Submission()
    os.makedirs(os.path.dirname(job.lock), exist_ok=True)
    try:
        with file_lock(job.lock, True, _LOCK_TIMEOUT):
            job = job_file.read(run_dir) or job
            if not _is_unsubmitted(run_dir):
                return Submission()
            by_name = ["squeue", "--noheader", "--states=all", "--name=" + job.name, "--format=%A"]
            found = run(by_name, _SBATCH_TIMEOUT).out.split() if job.name else []
            if found:
                submission = Submission(found[0])
            else:
                batch = os.path.basename(os.path.dirname(run_dir))
                job = job_file.write(run_dir, replace(job, name=job.name or "%s-%s" % (batch, uuid.uuid4().hex[:8])))
                output, script = os.path.join(run_dir, SLURM_OUTPUT), os.path.join(run_dir, job_file.SCRIPT)
                where = ["--job-name=" + job.name, "--chdir=" + run_dir, "--output=" + output]
                submission = parse_answer(run(["sbatch", "--parsable", *where, script, run_dir], _SBATCH_TIMEOUT))
            if submission.job:
                job_file.write(run_dir, replace(job, id=submission.job))
            return submission
    except LockTimeout:
        return Submission(reason="another command's submission takes too long", is_temporary=True)


def parse_answer(answer: QueryAnswer) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = states.last_line(answer.out).partition(";")[0]
    if answer.code == 0 and job.isdigit():
        return Submission(job)
    lines = [line.strip() for line in answer.err.replace("sbatch: error: ", "").splitlines() if line.strip()]
    specific = [line for line in lines if not line.startswith(_NOISE)]
    reason = "; ".join(dict.fromkeys((specific or lines)[-2:])) or "sbatch ended with %s" % answer.code
    text = answer.err
    for phrase in _POLICY:
        text = text.replace(phrase, "")
    return Submission("", reason, any(part in text for part in _TEMPORARY))


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    status = job_file.status_of(run_dir)
    if status.has_ended:
        return
    if not status.exists:
        status = Status(run_directory.STATE_RUNNING, "waiting", started_at=time.time())
    status = replace(status, waiting=(reason,), sequence=status.sequence + 1)
    run_directory.write_record(run_directory.RunDir(run_dir).status, status)


def _is_unsubmitted(run_dir: str) -> bool:
    """Whether it is neither submitted nor ended: it may have been cancelled, or removed, meanwhile."""
    job = job_file.read(run_dir)
    return job is not None and not job.id and not job_file.status_of(run_dir).has_ended


# -- squeue ----------------------------------------------------------------------------------------------------------


class SqueuePoller:
    """`state` never blocks: it returns the newest known state. Jobs that squeue has forgotten are looked up by sacct.
    `problem` is why Slurm does not answer."""

    def __init__(self, run: RunProgram = run_program, interval: float = INTERVAL) -> None:
        self.problem, self._run, self._interval = "", run, interval
        self._asked: Dict[str, float] = {}
        self._known: Dict[str, SlurmJobState] = {}
        self._over_since: Dict[str, float] = {}
        self._missing_since: Dict[str, float] = {}
        self._thread = threading.Thread(target=self._poll, daemon=True, name="squeue")

    def state(self, job: str) -> Optional[SlurmJobState]:
        """None as long as nothing is known of the job."""
        self._asked[job] = time.monotonic()
        if not self._thread.is_alive():
            self._thread.start()
        return self._known.get(job)

    def seconds_over(self, job: str) -> float:
        """For how long the job has been known to be over."""
        return time.monotonic() - self._over_since.get(job, time.monotonic())

    def is_missing(self, job: str) -> bool:
        """Whether the last answer did not know the job."""
        return job in self._missing_since

    def query(self, jobs: Sequence[str]) -> Dict[str, SlurmJobState]:
        """Ask Slurm now. Jobs that it does not know are missing, all of them where it does not answer."""
        answer = self._run(states.squeue_command(jobs), TIMEOUT) if jobs else QueryAnswer(0)
        # That Slurm remembers none of the jobs is an answer.
        has_answered = answer.code == 0 or "Invalid job id" in answer.err
        self.problem = "" if has_answered else states.last_line(answer.err) or "squeue ended with %s" % answer.code
        known = states.parse_squeue(answer.out) if has_answered else {}
        missing = [job for job in jobs if job not in known] if has_answered else []
        if missing:
            history = self._run(states.sacct_command(missing), TIMEOUT)
            known.update(states.parse_sacct(history.out) if history.code == 0 else {})
        return {job: state for job, state in known.items() if job in jobs}

    def may_run(self, jobs: Sequence[str]) -> Dict[str, bool]:
        """{job: whether it is not over}; True for all where Slurm does not answer."""
        known = self.query(jobs)
        return {job: bool(self.problem) or (job in known and not known[job].is_over) for job in jobs}

    def _poll(self) -> None:
        while True:
            try:
                self.refresh()
            except Exception as bug:  # the next query may succeed
                self.problem = repr(bug)
            time.sleep(self._interval)

    def refresh(self) -> None:
        now = time.monotonic()
        asked = list(self._asked.items())
        jobs = [job for job, at in asked if now - at < _IDLE and job not in self._over_since]
        current = self.query(jobs)
        for job in jobs:
            if job in current:
                self._missing_since.pop(job, None)
            elif self.problem or time.monotonic() - self._missing_since.setdefault(job, now) <= UNKNOWN_AFTER:
                continue
            self._known[job] = current.get(job) or SlurmJobState(UNKNOWN)
            if self._known[job].is_over:
                self._over_since[job] = time.monotonic()


class SlurmRunState:
    """Joins the status of one run with the state of its job."""

    def __init__(self, run_dir: str, queue: SqueuePoller) -> None:
        self._run_dir, self._queue = run_dir, queue
        self._job: Optional[SlurmJob] = None
        self._final: Optional[Status] = None

    def join(self, status: Status) -> Tuple[Status, bool]:
        """(status, whether it is final), given the status that the agent wrote."""
        if self._final is not None:
            return self._final, True
        if self._job is None or not self._job.id:
            self._job = job_file.read(self._run_dir)
        if self._job is None or not self._job.id:
            return status, status.concluded  # its submission writes the status
        job = self._job.id
        status = replace(status, slurm=status.slurm or SlurmAllocation(job))
        state = self._queue.state(job)
        if state is None and is_final(status) and self._queue.is_missing(job):
            state = SlurmJobState(UNKNOWN)  # it ended long ago
        if state is None and self._queue.problem:
            return _waiting(status, "Slurm does not answer: %s" % self._queue.problem), False
        if state is None or not state.is_over:
            return _with_state(status, state), False
        if not status.has_ended and self._queue.seconds_over(job) < _CACHE_SECONDS:
            return _waiting(status, state.description), False
        try:
            self._final = job_file.record_end(self._run_dir, state)
            return self._final, True
        except (OSError, LockTimeout):
            return status, False


def _with_state(status: Status, state: Optional[SlurmJobState]) -> Status:
    """An agent's end does not count while Slurm says that the job goes on: it was interrupted, and may run again."""
    is_on_node = state is None or state.is_on_node
    if is_on_node and is_final(status):  # Slurm has yet to say how the job ended
        return replace(_waiting(status, ""), phase="collecting", waiting=())
    if is_on_node and status.has_agent and not status.has_ended and (state is None or state.state != "SUSPENDED"):
        return status
    return _waiting(status, state.description if state is not None else "Slurm: submitted")


def _waiting(status: Status, reason: str) -> Status:
    """The status as that of a run which has not ended."""
    status = replace(status, state=run_directory.STATE_RUNNING, phase="waiting", waiting=(reason,), signalled=False)
    return replace(status, end=None, exit_code=None, ended_at=None, log_sha256=None)
