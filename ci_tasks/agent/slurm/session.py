"""Runs as Slurm jobs: submitted, one sbatch each, followed by one squeue for all, and ended.

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

from .. import run_directory as rd
from ..files import LockTimeout, file_lock
from ..log_file import log_traceback
from ..processes import run_program
from ..records import QueryAnswer, Secrets, SlurmAllocation, SlurmJob, Status
from ..run_directory import RunDir, read_status, write_record
from . import job_file
from .job_file import UNKNOWN, SlurmJobState

RunProgram = Callable[[Sequence[str], float], QueryAnswer]
Submission = Tuple[str, str, bool]  # the job's id, or "", why it has none, and whether to try again

INTERVAL = 2.0  # seconds between two queries
TIMEOUT = 150.0  # seconds for one of Slurm's programs: a busy controller delays its answers
UNKNOWN_AFTER = 60.0  # seconds until a job that Slurm does not know counts as gone: accounting lags behind
RETRY_SECONDS = 15.0  # until the next sbatch after a temporary rejection
NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
_PAUSE = 0.05
_LOCK_SECONDS = 2.0
_CACHE_SECONDS = 10.0  # until one node sees what another wrote last, on a file system that caches
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


# -- sbatch ----------------------------------------------------------------------------------------------------------


def prepare(run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
    """Write what `submit` needs, once."""
    if not os.path.lexists(RunDir(run_dir).status):
        with open(os.path.join(run_dir, job_file.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(script)
        if secrets:
            write_record(RunDir(run_dir).secrets, Secrets(secrets))
        name = "%s-%s" % (os.path.basename(os.path.dirname(run_dir)), uuid.uuid4().hex[:8])
        job_file.write(run_dir, replace(job, name=name))
        _write_waiting(run_dir, "Slurm: being submitted")


def submit(run_dir: str, again: bool, run: RunProgram = run_program, seconds: float = RETRY_SECONDS) -> None:
    """Offer a run to Slurm until that has the job, or rejects it, or the run has ended. Does nothing if another process
    does it already. `again`: it was offered before; a job that Slurm accepted although its answer was lost is found by
    its name."""
    output, script = os.path.join(run_dir, rd.SLURM_OUTPUT), os.path.join(run_dir, job_file.SCRIPT)
    try:
        with file_lock(os.path.join(run_dir, "submit.lock"), True, 0):
            while True:
                job = job_file.read(run_dir)
                if job is None or job.id or read_status(RunDir(run_dir)).has_ended:
                    return
                by_name = ["squeue", "--noheader", "--states=all", "--name=" + job.name, "--format=%A"]
                where = ["--job-name=" + job.name, "--chdir=" + run_dir, "--output=" + output]
                answer = run(by_name, TIMEOUT) if again else QueryAnswer(0)
                if not answer.out.strip():
                    answer = run(["sbatch", "--parsable", *where, script, run_dir], TIMEOUT)
                id, problem, again = parse_answer(answer)
                if id:
                    job_file.write(run_dir, replace(job, id=id))
                    if read_status(RunDir(run_dir)).has_ended:  # it was cancelled meanwhile
                        _scancel(id)
                elif again:
                    _write_waiting(run_dir, "%s: %s; next try in %g s" % (job_file.REJECTED, problem, seconds))
                    time.sleep(seconds)
                else:
                    _reject(run_dir, problem)
    except LockTimeout:
        return
    except Exception as bug:  # whatever it is, the run's status must say so
        log_traceback(run_dir, "sbatch", bug)
        with suppress(OSError, LockTimeout):  # the run was removed
            _reject(run_dir, str(bug) if isinstance(bug, OSError) else repr(bug))


def submit_left(run_dir: str) -> None:
    """The same for a run that is followed: a process that submits it just now has a moment to say so by its lock."""
    time.sleep(_LOCK_SECONDS)
    submit(run_dir, again=True)


def parse_answer(answer: QueryAnswer) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = job_file.last_line(answer.out).partition(";")[0]
    if answer.code == 0 and job.isdigit():
        return job, "", False
    lines = [line.strip() for line in answer.err.replace("sbatch: error: ", "").splitlines() if line.strip()]
    reason = "; ".join(lines[:2]) or "sbatch ended with %s" % answer.code
    return "", reason, bool(_TEMPORARY.search(answer.err.replace(_POLICY, "")))


def _reject(run_dir: str, problem: str) -> None:
    job_file.record_end(run_dir, ("exit", "Slurm rejects the job: %s" % problem, rd.EXIT_BLOCKED))


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    status = read_status(RunDir(run_dir))
    if not status.exists:
        status = Status("running", "waiting", started_at=time.time())
    if not status.has_ended:
        write_record(RunDir(run_dir).status, replace(status, waiting=(reason,), sequence=status.sequence + 1))


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
    """{job: whether it is not over}; True for all if Slurm does not answer."""
    known, problem = query(jobs)
    return {job: bool(problem) or (job in known and not known[job].is_over) for job in jobs}


class SlurmSession:
    """The states of the jobs of one connection, from a thread that starts with the first of them."""

    def __init__(self, run: RunProgram = run_program) -> None:
        self.problem = ""  # why Slurm does not answer
        self._run = run
        self._known: Dict[str, Tuple[Optional[SlurmJobState], float]] = {}  # job → its state, and since when
        self._final: Dict[str, Status] = {}  # by run directory
        self._thread = threading.Thread(target=self._work, daemon=True, name="slurm")

    def state(self, job: str) -> Tuple[Optional[SlurmJobState], float]:
        """The newest known state of a job, and for how many seconds it is known. Never blocks."""
        state, since = self._known.setdefault(job, (None, time.monotonic()))
        if not self._thread.is_alive():
            self._thread.start()
        return state, time.monotonic() - since

    def _work(self) -> None:
        while True:
            self.refresh(time.monotonic())
            time.sleep(INTERVAL)

    def refresh(self, now: float) -> None:
        """Ask for the jobs that are not over. What a query does not answer stays as it was."""
        is_over = {job: state is not None and state.is_over for job, (state, _) in list(self._known.items())}
        unknown = SlurmJobState(UNKNOWN)
        jobs = [job for job, over in is_over.items() if not over or self._known[job][0] == unknown]
        found, self.problem = query(jobs, self._run)
        for job in jobs if not self.problem else ():
            before, since = self._known[job]
            state = found.get(job, unknown)
            self._known[job] = (state, since if state == before else now)

    def join(self, run_dir: str, status: Status) -> Tuple[Status, bool]:
        """(status of the run, whether it is final), given the status that the agent wrote."""
        if run_dir in self._final:
            return self._final[run_dir], True
        job = job_file.read(run_dir)
        if job is None or not job.id:
            return status, status.concluded  # its submission writes the status
        status = replace(status, slurm=status.slurm or SlurmAllocation(job.id))
        state, seconds = self.state(job.id)
        if state == SlurmJobState(UNKNOWN) and seconds < UNKNOWN_AFTER and not status.has_ended:
            state = None
        if state is None and self.problem:
            return _waiting(status, "Slurm does not answer: %s" % self.problem), False
        if state is None or not state.is_over:
            return _with_state(status, state), False
        if state.node and not status.has_ended and seconds < _CACHE_SECONDS:
            return _waiting(status, state.description), False
        with suppress(OSError, LockTimeout):
            self._final[run_dir] = job_file.record_end(run_dir, state)
        return self._final.get(run_dir, status), run_dir in self._final


def _with_state(status: Status, state: Optional[SlurmJobState]) -> Status:
    """An agent's end does not count while Slurm says that the job goes on: it was interrupted, and may run again."""
    is_on_node = state is None or state.is_on_node
    if is_on_node and status.has_ended:  # Slurm has yet to say how the job ended
        return replace(_waiting(status, ""), phase="collecting", waiting=())
    if is_on_node and status.has_agent and (state is None or state.state != "SUSPENDED"):
        return status
    return _waiting(status, state.description if state is not None else "Slurm: submitted")


def _waiting(status: Status, reason: str) -> Status:
    """The status as that of a run which has not ended."""
    status = replace(status, state="running", phase="waiting", waiting=(reason,))
    return replace(status, end=None, exit_code=None, ended_at=None, log_sha256=None)


# -- scancel ---------------------------------------------------------------------------------------------------------


def cancel(run_dir: str, job: SlurmJob) -> None:
    """Ask the agent, which is the batch script, to end its job in order; a job without one is ended at once. Raises
    ScancelError."""
    is_over = read_status(RunDir(run_dir)).concluded  # the job can write that too, so it is ended all the same
    state = query([job.id])[0].get(job.id) if job.id and not is_over else None
    if state is not None and state.is_on_node:
        _scancel("--batch", "--signal=TERM", job.id)
    else:
        kill(run_dir, job)


def kill(run_dir: str, job: SlurmJob) -> None:
    """End the job at once; one that was not submitted yet never is. Raises ScancelError."""
    if not job.id:
        try:
            job_file.record_end(run_dir, ("cancelled", NEVER_SUBMITTED, None))
        except LockTimeout:
            raise ScancelError("its status is being written for too long") from None
    job = job_file.read(run_dir) or job
    if job.id:
        _scancel(job.id)


def end_before_removal(run_dir: str, seconds: float = 60.0) -> None:
    """Returns when the run's job is over, as far as Slurm can say in that time, so that the run can be removed."""
    job = job_file.read(run_dir)
    if job is not None and not read_status(RunDir(run_dir)).concluded:
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
