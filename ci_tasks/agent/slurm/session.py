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
_PAUSE = 0.05
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
    """One thread submits the runs of a connection and follows their jobs. It starts with the first of them."""

    def __init__(self, run: RunProgram = run_program, pauses: Sequence[float] = PAUSES) -> None:
        self.problem = ""  # why Slurm does not answer
        self._run, self._pauses, self._tries, self._next_try = run, pauses, 0, 0.0
        self._waiting: Dict[str, None] = {}  # runs to submit, in their order
        self._known: Dict[str, Tuple[Optional[SlurmJobState], float]] = {}  # job → its state, and since when
        self._thread = threading.Thread(target=self._work, daemon=True, name="slurm")

    def submit(self, run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
        """Submit a run; one that already has a status is only queued again."""
        if not os.path.lexists(run_directory.RunDir(run_dir).status):
            with open(os.path.join(run_dir, job_file.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(script)
            job_file.write_secrets(run_dir, secrets)
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
        state, since = self._known.setdefault(job, (None, time.monotonic()))
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
            if self._waiting and time.monotonic() >= self._next_try:
                self.submit_next(next(iter(self._waiting)))
            elif self._known and time.monotonic() >= next_query:
                try:
                    self.refresh()
                except Exception as bug:  # the next query may succeed
                    self.problem = repr(bug)
                next_query = time.monotonic() + INTERVAL
            else:
                time.sleep(_PAUSE)

    def submit_next(self, run_dir: str) -> None:
        try:
            submission = submit(run_dir, self._run)
        except Exception as bug:  # whatever it is, the run's status must say so
            log_traceback(run_dir, "sbatch", bug)
            submission = Submission(reason=str(bug) if isinstance(bug, OSError) else repr(bug))
        if submission.is_temporary:
            seconds = self._pauses[min(self._tries, len(self._pauses) - 1)]
            self._tries, self._next_try = self._tries + 1, time.monotonic() + seconds
            for waiting in list(self._waiting):
                with suppress(OSError):  # it was removed, or the disk is full
                    why = "%s: %s; next try in %g s" % (job_file.REJECTED, submission.reason, seconds)
                    _write_waiting(waiting, why)
            return
        self._tries = 0
        if submission.reason and _is_unsubmitted(run_dir):
            reason = "Slurm rejects the job: %s" % submission.reason
            with suppress(OSError, LockTimeout):
                job_file.record_end(run_dir, JobOutcome(run_directory.END_EXIT, reason, EXIT_BLOCKED))
        self._waiting.pop(run_dir, None)

    def refresh(self) -> None:
        """Ask Slurm for the jobs that are not over. What a query does not answer stays as it was."""
        before = {job: state for job, (state, _) in list(self._known.items())}
        jobs = [job for job, state in before.items() if state is None or not state.is_over or state.state == UNKNOWN]
        found, self.problem = query(jobs, self._run)
        for job in jobs if not self.problem else ():
            state = found.get(job) or SlurmJobState(UNKNOWN)
            if state != before[job]:
                self._known[job] = (state, time.monotonic())


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


def query(jobs: Sequence[str], run: RunProgram = run_program) -> Tuple[Dict[str, SlurmJobState], str]:
    """{job: its state} of those that squeue, or else sacct, knows, and why Slurm does not answer, or ""."""
    answer = run(states.squeue_command(jobs), TIMEOUT) if jobs else QueryAnswer(0)
    if answer.code != 0 and "Invalid job id" not in answer.err:  # that Slurm remembers none of them is an answer
        return {}, states.last_line(answer.err) or "squeue ended with %s" % answer.code
    known = states.parse_squeue(answer.out)
    missing = [job for job in jobs if job not in known]
    history = run(states.sacct_command(missing), TIMEOUT) if missing else QueryAnswer(1)
    known.update(states.parse_sacct(history.out) if history.code == 0 else {})
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
