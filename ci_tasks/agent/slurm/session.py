"""The Slurm jobs of one connection: submits runs, one sbatch each, follows their states by one squeue for all, and ends
them.

Slurm's state of a waiting job is added to the status that clients see, never written to the file: once a job has
started, its agent is the only writer of its status. A query that fails is repeated, and changes nothing: only what
Slurm says counts.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple

from ..files import LockTimeout, file_lock
from ..log_file import log_traceback
from ..processes import run_program
from ..records import QueryAnswer, Secrets, SlurmAllocation, SlurmJob, Status
from ..run_directory import END_CANCELLED, END_EXIT, EXIT_BLOCKED, SLURM_OUTPUT, STATE_RUNNING, RunDir, write_record
from . import job_file
from .job_file import UNKNOWN, SlurmJobState, is_final, status_of

RunProgram = Callable[[Sequence[str], float], QueryAnswer]
Submission = Tuple[str, str, bool]  # the job's id, or "", why it has none, and whether to try again

INTERVAL = 2.0  # seconds between two queries
TIMEOUT = 60.0  # seconds for one of Slurm's programs: a busy controller delays its answers
UNKNOWN_AFTER = 60.0  # seconds until a job that Slurm does not know counts as gone: accounting lags behind
PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # seconds until the next sbatch, the last one again and again
NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
_PAUSE = 0.05
_UNKNOWN_INTERVAL = 10.0  # the longest time between two questions for a job that Slurm does not know
_CACHE_SECONDS = 10.0  # until one node sees what another wrote last, on a file system that caches
_SBATCH_TIMEOUT = 150.0  # sbatch itself tries again for a while
_LOCK_TIMEOUT = 300.0
_ORDERLY_END = 90.0  # seconds, beside the plan's patience, that an agent gets to end in order
# Not about this job: it may be accepted in a while, and the controller may even have it already.
_TEMPORARY = re.compile(
    "MaxSubmit|MaxJobCount|job submit limit|temporarily unable to accept job|timed out|Unable to contact slurm"
    "|Resource temporarily unavailable|Zero Bytes were transmitted|Connection re(?:fused|set)|connection failure"
    "|Transport endpoint|Slurm backup controller|Message receive failure|rate limit|Too many|no answer"
)
# A permanent rejection by policy mentions a "submit limit" too.
_POLICY = "(job submit limit, user's size and/or time limits)"


class ScancelError(Exception):
    """Slurm does not end the job; the message says why."""


class SlurmSession:
    """One thread submits the runs of a connection and follows their jobs. It starts with the first of them."""

    def __init__(self, run: RunProgram = run_program, pauses: Sequence[float] = PAUSES) -> None:
        self.problem = ""  # why Slurm does not answer
        self._run, self._pauses, self._tries, self._next_try = run, pauses, 0, 0.0
        self._waiting: Dict[str, None] = {}  # runs to submit, in their order
        # job → its state, since when, and when it is asked for next
        self._known: Dict[str, Tuple[Optional[SlurmJobState], float, float]] = {}
        self._thread = threading.Thread(target=self._work, daemon=True, name="slurm")

    def submit(self, run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
        """Submit a run; one that already has a status is only queued again."""
        if not os.path.lexists(RunDir(run_dir).status):
            with open(os.path.join(run_dir, job_file.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(script)
            if secrets:
                write_record(RunDir(run_dir).secrets, Secrets(secrets))
            job_file.write(run_dir, job)
            _write_waiting(run_dir, "Slurm: being submitted")
        self._waiting[run_dir] = None
        self._start()

    def run_state(self, run_dir: str) -> Optional[SlurmRunState]:
        """None for a run that is not a Slurm job. One that a broken connection left is queued again."""
        job = job_file.read(run_dir)
        if job is not None and not job.id:
            self._waiting[run_dir] = None
            self._start()
        return SlurmRunState(run_dir, self) if job is not None else None

    def state(self, job: str) -> Tuple[Optional[SlurmJobState], float]:
        """The newest known state of a job, and for how many seconds it is known. Never blocks."""
        state, since, _ = self._known.setdefault(job, (None, time.monotonic(), 0.0))
        self._start()
        return state, time.monotonic() - since

    def finish(self, until: float) -> None:
        """The client has disconnected: submit what is queued, if that is possible before `until` (monotonic)."""
        while self._waiting and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def _work(self) -> None:
        next_query = 0.0
        while True:
            now = time.monotonic()
            if self._waiting and now >= self._next_try:
                self._submit_next(next(iter(self._waiting)))
            elif self._known and now >= next_query:
                try:
                    self.refresh(now)
                except Exception as bug:  # the next query may succeed
                    self.problem = repr(bug)
                next_query = time.monotonic() + INTERVAL
            else:
                time.sleep(_PAUSE)

    def _submit_next(self, run_dir: str) -> None:
        try:
            _, reason, is_temporary = submit(run_dir, self._run)
        except Exception as bug:  # whatever it is, the run's status must say so
            log_traceback(run_dir, "sbatch", bug)
            reason, is_temporary = str(bug) if isinstance(bug, OSError) else repr(bug), False
        if is_temporary:
            seconds = self._pauses[min(self._tries, len(self._pauses) - 1)]
            self._tries, self._next_try = self._tries + 1, time.monotonic() + seconds
            for waiting in list(self._waiting):
                with suppress(OSError):  # it was removed, or the disk is full
                    _write_waiting(waiting, "%s: %s; next try in %g s" % (job_file.REJECTED, reason, seconds))
            return
        self._tries = 0
        if reason and _is_unsubmitted(run_dir):
            with suppress(OSError, LockTimeout):
                job_file.record_end(run_dir, (END_EXIT, "Slurm rejects the job: %s" % reason, EXIT_BLOCKED))
        self._waiting.pop(run_dir, None)

    def refresh(self, now: float) -> None:
        """Ask Slurm for the jobs that are not over, and less and less often, to an end, for those that it does not
        know. What a query does not answer stays as it was."""
        jobs = [job for job, (_, _, next_time) in list(self._known.items()) if now >= next_time]
        found, self.problem = query(jobs, self._run)
        for job in jobs if not self.problem else ():
            before, since, _ = self._known[job]
            state = found.get(job) or SlurmJobState(UNKNOWN)
            since = since if state == before else now
            next_time = float("inf") if state.is_over else 0.0
            if state.state == UNKNOWN and now - since < UNKNOWN_AFTER:
                next_time = now + min(max(INTERVAL, now - since), _UNKNOWN_INTERVAL)
            self._known[job] = (state, since, next_time)


# -- sbatch ----------------------------------------------------------------------------------------------------------


def submit(run_dir: str, run: RunProgram) -> Submission:
    """What Slurm says; nothing for a run that is not to be submitted any more. A job that Slurm accepted although its
    answer was lost (a login node went down, a socket timed out) is found by its name."""
    job = job_file.read(run_dir)
    if job is None or not _is_unsubmitted(run_dir):
        return "", "", False
    os.makedirs(os.path.dirname(job.lock), exist_ok=True)
    try:
        with file_lock(job.lock, True, _LOCK_TIMEOUT):
            job = job_file.read(run_dir) or job
            if not _is_unsubmitted(run_dir):
                return "", "", False
            by_name = ["squeue", "--noheader", "--states=all", "--name=" + job.name, "--format=%A"]
            found = run(by_name, _SBATCH_TIMEOUT).out.split() if job.name else []
            submission = (found[0], "", False) if found else ("", "", False)
            if not found:
                batch = os.path.basename(os.path.dirname(run_dir))
                job = job_file.write(run_dir, replace(job, name=job.name or "%s-%s" % (batch, uuid.uuid4().hex[:8])))
                output, script = os.path.join(run_dir, SLURM_OUTPUT), os.path.join(run_dir, job_file.SCRIPT)
                where = ["--job-name=" + job.name, "--chdir=" + run_dir, "--output=" + output]
                submission = parse_answer(run(["sbatch", "--parsable", *where, script, run_dir], _SBATCH_TIMEOUT))
            if submission[0]:
                job_file.write(run_dir, replace(job, id=submission[0]))
            return submission
    except LockTimeout:
        return "", "another command's submission takes too long", True


def parse_answer(answer: QueryAnswer) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = job_file.last_line(answer.out).partition(";")[0]
    if answer.code == 0 and job.isdigit():
        return job, "", False
    lines = [line.strip() for line in answer.err.replace("sbatch: error: ", "").splitlines() if line.strip()]
    reason = "; ".join(lines[:2]) or "sbatch ended with %s" % answer.code
    return "", reason, bool(_TEMPORARY.search(answer.err.replace(_POLICY, "")))


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    status = status_of(run_dir)
    if not status.exists:
        status = Status(STATE_RUNNING, "waiting", started_at=time.time())
    if not status.has_ended:
        write_record(RunDir(run_dir).status, replace(status, waiting=(reason,), sequence=status.sequence + 1))


def _is_unsubmitted(run_dir: str) -> bool:
    """Whether it is neither submitted nor ended: it may have been cancelled, or removed, meanwhile."""
    job = job_file.read(run_dir)
    return job is not None and not job.id and not status_of(run_dir).has_ended


# -- squeue ----------------------------------------------------------------------------------------------------------


def query(jobs: Sequence[str], run: RunProgram = run_program) -> Tuple[Dict[str, SlurmJobState], str]:
    """{job: its state} of those that squeue, or else sacct, knows, and why Slurm does not answer, or ""."""
    answer = run(job_file.squeue_command(jobs), TIMEOUT) if jobs else QueryAnswer(0)
    if answer.code != 0 and "Invalid job id" not in answer.err:  # that Slurm remembers none of them is an answer
        return {}, job_file.last_line(answer.err) or "squeue ended with %s" % answer.code
    known = job_file.parse_squeue(answer.out)
    missing = [job for job in jobs if job not in known]
    history = run(job_file.sacct_command(missing), TIMEOUT) if missing else QueryAnswer(1)
    known.update(job_file.parse_sacct(history.out) if history.code == 0 else {})
    return {job: state for job, state in known.items() if job in jobs}, ""


def may_run(jobs: Sequence[str]) -> Dict[str, bool]:
    """{job: whether it is not over}; True for all where Slurm does not answer."""
    known, problem = query(jobs)
    return {job: bool(problem) or (job in known and not known[job].is_over) for job in jobs}


class SlurmRunState:
    """Joins the status of one run with the state of its job."""

    def __init__(self, run_dir: str, session: SlurmSession) -> None:
        self._run_dir, self._session = run_dir, session
        self._job = ""
        self._final: Optional[Status] = None

    def join(self, status: Status) -> Tuple[Status, bool]:
        """(status, whether it is final), given the status that the agent wrote."""
        if self._final is not None:
            return self._final, True
        job = job_file.read(self._run_dir) if not self._job else None
        self._job = self._job or (job.id if job is not None else "")
        if not self._job:
            return status, status.concluded  # its submission writes the status
        status = replace(status, slurm=status.slurm or SlurmAllocation(self._job))
        state, seconds = self._session.state(self._job)
        if state == SlurmJobState(UNKNOWN) and seconds < UNKNOWN_AFTER and not is_final(status):
            state = None
        if state is None and self._session.problem:
            return _waiting(status, "Slurm does not answer: %s" % self._session.problem), False
        if state is None or not state.is_over:
            return _with_state(status, state), False
        if not status.has_ended and seconds < _CACHE_SECONDS:
            return _waiting(status, state.description), False
        with suppress(OSError, LockTimeout):
            self._final = job_file.record_end(self._run_dir, state)
        return self._final or status, self._final is not None


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
    status = replace(status, state=STATE_RUNNING, phase="waiting", waiting=(reason,), signalled=False)
    return replace(status, end=None, exit_code=None, ended_at=None, log_sha256=None)


# -- scancel: first to the agent, which is the batch script, so that it ends its job in order; then to the whole job --


def cancel(run_dir: str, job: SlurmJob, timeout: float) -> None:
    """Returns when the run has ended, or Slurm was asked to end it. Raises ScancelError."""
    before = status_of(run_dir)
    state = None if is_final(before) or not job.id else query([job.id])[0].get(job.id)
    if state is None or not state.is_on_node:  # it is over, or about to be, or waits
        kill(run_dir, job)
        return
    _scancel("--batch", "--signal=TERM", job.id)
    until = time.monotonic() + timeout + _ORDERLY_END
    while time.monotonic() < until:
        status = status_of(run_dir)
        if status.has_ended and status != before:  # the end that stood there before is one before a requeue
            return
        time.sleep(_PAUSE)
    _scancel(job.id)


def kill(run_dir: str, job: SlurmJob) -> None:
    """End the job at once; one that was not submitted yet never is. Raises ScancelError."""
    if not job.id:
        try:
            with file_lock(job.lock, True, _LOCK_TIMEOUT):
                job = job_file.read(run_dir) or job
                if not job.id:
                    job_file.record_end(run_dir, (END_CANCELLED, NEVER_SUBMITTED, None))
                    return
        except LockTimeout:
            raise ScancelError("its submission takes too long") from None
    _scancel(job.id)
    # A job that is cancelled while it waits has no agent that writes its end, or that of one before a requeue.
    status = status_of(run_dir)
    if not is_final(status) and (status.has_ended or not status.has_agent):
        known, problem = query([job.id])
        state = known.get(job.id, SlurmJobState("CANCELLED"))
        if state.is_over and not problem:
            job_file.record_end(run_dir, state if status.has_ended else SlurmJobState("CANCELLED"))


def end_before_removal(run_dir: str, seconds: float = 60.0) -> None:
    """Returns when the run's job is over, as far as Slurm can say in that time, so that the run can be removed."""
    job = job_file.read(run_dir)
    if job is not None and not status_of(run_dir).concluded:
        with suppress(ScancelError):
            kill(run_dir, job)
            until = time.monotonic() + seconds
            while job.id and time.monotonic() < until and any(may_run([job.id]).values()):
                time.sleep(_PAUSE * 10)


def _scancel(*words: str) -> None:
    answer = run_program(["scancel", *words], TIMEOUT)
    # A job that has ended this moment is as good.
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise ScancelError(job_file.last_line(answer.err) or "scancel ended with %s" % answer.code)
