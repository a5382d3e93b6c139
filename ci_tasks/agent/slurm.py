"""Runs as Slurm jobs: submitted, one sbatch each, followed by one squeue for all, and ended; what Slurm says of a job,
and the end of the run as Slurm knows it.

Slurm's state of a waiting job is added to the status that clients see, never written to the file: once a job has
started, its agent is the only writer of its status. A query that fails is repeated, and changes nothing: only what
Slurm says counts. The agent's own status counts, unless Slurm ended the job: it sends the same signal for scancel, a
time limit, a preemption and a requeue, and only Slurm knows which. Nor does it count if Slurm saw the script fail in
another way: the job can write that file too, but not the exit code of its batch script.

And the end of any run from outside: one that is cancelled or removed, or whose agent has died.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import processes
from . import run_directory as rd
from .codec import masked_record
from .containers import RunContainers, remove_tree
from .evidence import collect_left_evidence
from .files import LockTimeout, content_of, file_lock
from .finish import RootContainer, mask_run, root_container
from .processes import run_program
from .records import End, QueryAnswer, Secrets, SlurmAllocation, SlurmJob, Status
from .run_directory import RunDir, RunLog, log_traceback, read_record, read_status, write_record
from .workspace import forget

SCRIPT = "batch.sh"  # the script for sbatch
TIMEOUT = 150.0  # seconds for one of Slurm's programs: a busy controller delays its answers
UNKNOWN_AFTER = 60.0  # seconds until a job that Slurm does not know counts as gone: accounting lags behind
RETRY_SECONDS = 15.0  # until the next sbatch after a temporary rejection
NEVER_SUBMITTED = "cancelled before it was submitted to Slurm"
UNKNOWN = "UNKNOWN"  # Slurm does not know the job any more; not one of its own states
_MEMORY = "it used more memory than the job's limit; `sbatch: [--mem=…]` in hosts.yaml asks for more"
# Slurm's state of a job that Slurm itself ended → how the run ended (None: lost), its exit code, and why.
_ENDED_BY_SLURM: Mapping[str, Tuple[Optional[End], Optional[int], str]] = {
    "TIMEOUT": ("timeout", None, "it reached the time limit of the job"),
    "DEADLINE": ("timeout", None, "it reached the job's deadline"),
    "CANCELLED": ("cancelled", None, ""),
    "OUT_OF_MEMORY": ("exit", 137, _MEMORY),
    "PREEMPTED": ("exit", rd.EXIT_BLOCKED, "another job preempted it, and it is not requeued"),
    "BOOT_FAIL": ("exit", rd.EXIT_BLOCKED, "its node did not start"),
    "LAUNCH_FAILED": ("exit", rd.EXIT_BLOCKED, ""),
    "RECONFIG_FAIL": ("exit", rd.EXIT_BLOCKED, ""),
    "NODE_FAIL": (None, None, "its node failed"),
}
# "JOB STATE CODES" of squeue(1). A job in any other state, also one that only a newer Slurm knows, is not over.
_OVER = (*_ENDED_BY_SLURM, "COMPLETED", "FAILED", UNKNOWN)
_ON_NODE = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_EMPTY = ("", "N/A", "None", "(null)", "Unknown", "None assigned")
# Not about this job: it may be accepted in a while, and the controller may even have it already.
_TEMPORARY = re.compile(
    "MaxSubmit|MaxJobCount|job submit limit|temporarily unable to accept job|timed out|Unable to contact slurm"
    "|Resource temporarily unavailable|Zero Bytes were transmitted|Connection re(?:fused|set)|connection failure"
    "|Transport endpoint|Slurm backup controller|Message receive failure|rate limit|Too many|no answer"
)
_CACHE_SECONDS = 10.0  # until one node sees what another wrote last, on a file system that caches

RunProgram = Callable[[Sequence[str], float], QueryAnswer]
Submission = Tuple[str, str, bool]  # the job's id, or "", why it has none, and whether to try again
Outcome = Tuple[Optional[End], str, Optional[int]]  # how a run ended (None: it is lost), why, and its exit code


class CancelError(Exception):
    """A run that cannot be cancelled from here; the message says why."""


class SlurmJobState(NamedTuple):
    """`state` is Slurm's name for it; `start` when it started or is expected to; `node` where it is; `exit_code` that
    of an ended job, as a shell gives it."""

    state: str
    reason: str = ""
    start: str = ""
    node: str = ""
    exit_code: Optional[int] = None

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def is_on_node(self) -> bool:
        """Whether the job has processes on a node."""
        return self.state in _ON_NODE

    @property
    def description(self) -> str:
        """Slurm: PENDING (Resources), expected to start at 2026-11-21 18:30:00"""
        place = " on %s" % self.node if self.node else ""
        if self.state == "PENDING" and self.start:
            place = ", expected to start at %s" % self.start.replace("T", " ")
        return "Slurm: %s%s%s" % (self.state, " (%s)" % self.reason if self.reason else "", place)


_UNKNOWN_JOB = SlurmJobState(UNKNOWN)


def read(run_dir: str) -> Optional[SlurmJob]:
    """None for a run that is not a Slurm job."""
    return read_record(SlurmJob, RunDir(run_dir).slurm_job)


def read_secrets(run_dir: str) -> Mapping[str, str]:
    """Of a file that only its owner can read, and that goes with the run's end: Slurm would keep an environment in its
    controller."""
    return (read_record(Secrets, RunDir(run_dir).secrets) or Secrets()).values


def delete_secrets(run_dir: str) -> None:
    with suppress(OSError):
        os.unlink(RunDir(run_dir).secrets)


# -- sbatch ------------------------------------------------------------------------------------------------------------


def prepare(run_dir: str, job: SlurmJob, script: str, secrets: Mapping[str, str]) -> None:
    """Write what `submit` needs, once."""
    if not os.path.lexists(RunDir(run_dir).status):
        with open(os.path.join(run_dir, SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(script)
        if secrets:
            write_record(RunDir(run_dir).secrets, Secrets(secrets))
        name = "%s-%s" % (os.path.basename(os.path.dirname(run_dir)), os.urandom(4).hex())
        write_record(RunDir(run_dir).slurm_job, replace(job, name=name))
        _write_waiting(run_dir, "Slurm: being submitted")


def submit(run_dir: str, again: bool, run: RunProgram = run_program, seconds: float = RETRY_SECONDS) -> None:
    """Offer a run to Slurm until that has the job, or rejects it, or the run has ended. Does nothing if another process
    does it already. `again`: it was offered before; a job that Slurm accepted although its answer was lost is found by
    its name."""
    output, script = os.path.join(run_dir, rd.SLURM_OUTPUT), os.path.join(run_dir, SCRIPT)
    try:
        with file_lock(os.path.join(run_dir, "submit.lock"), True, 0):
            while True:
                job = read(run_dir)
                if job is None or job.id or read_status(RunDir(run_dir)).has_ended:
                    return
                by_name = ["squeue", "--noheader", "--states=all", "--name=" + job.name, "--format=%A"]
                where = ["--job-name=" + job.name, "--chdir=" + run_dir, "--output=" + output]
                answer = run(by_name, TIMEOUT) if again else QueryAnswer(0)
                if not answer.out.strip():
                    answer = run(["sbatch", "--parsable", *where, script, run_dir], TIMEOUT)
                id, problem, again = parse_answer(answer)
                if id:
                    write_record(RunDir(run_dir).slurm_job, replace(job, id=id))
                    if read_status(RunDir(run_dir)).has_ended:  # it was cancelled meanwhile
                        _scancel(id)
                elif again:
                    _write_waiting(run_dir, "Slurm accepts no more jobs now: %s; next try in %g s" % (problem, seconds))
                    time.sleep(seconds)
                else:
                    _reject(run_dir, problem)
    except LockTimeout:
        return
    except Exception as bug:  # whatever it is, the run's status must say so
        log_traceback(run_dir, "sbatch", bug)
        with suppress(OSError):  # the run was removed
            _reject(run_dir, str(bug) if isinstance(bug, OSError) else repr(bug))


def submit_left(run_dir: str) -> None:
    """The same for a run that is followed: a process that submits it just now has a moment to say so by its lock."""
    time.sleep(2.0)
    submit(run_dir, again=True)


def parse_answer(answer: QueryAnswer) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = ([""] + answer.out.strip().split("\n"))[-1].strip().partition(";")[0]
    if answer.code == 0 and job.isdigit():
        return job, "", False
    lines = [line.strip() for line in answer.err.replace("sbatch: error: ", "").splitlines() if line.strip()]
    reason = "; ".join(lines[:2]) or "sbatch ended with %s" % answer.code
    # A permanent rejection by policy mentions a "submit limit" too.
    rest = answer.err.replace("(job submit limit, user's size and/or time limits)", "")
    return "", reason, bool(_TEMPORARY.search(rest))


def _reject(run_dir: str, problem: str) -> None:
    record_end(run_dir, ("exit", "Slurm rejects the job: %s" % problem, rd.EXIT_BLOCKED))


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    status = read_status(RunDir(run_dir))
    if not status.exists:
        status = Status("running", "waiting", started_at=time.time())
    if not status.has_ended:
        write_record(RunDir(run_dir).status, replace(status, waiting=(reason,), sequence=status.sequence + 1))


# -- squeue and sacct --------------------------------------------------------------------------------------------------


def query(jobs: Sequence[str], run: RunProgram = run_program) -> Tuple[Dict[str, SlurmJobState], str]:
    """{job: its state} of those that squeue, or else sacct, knows, and why Slurm does not answer, or ""."""
    fields = ("JobID", "State", "NodeList", "exit_code", "StartTime", "Reason")
    form = "--Format=" + ",".join(field + ":|" for field in fields)
    squeue = ["squeue", "--noheader", "--states=all", "--jobs=" + ",".join(sorted(jobs)), form]
    answer = run(squeue, TIMEOUT) if jobs else QueryAnswer(0)
    if answer.code != 0 and "Invalid job id" not in answer.err:  # that Slurm remembers none of them is an answer
        return {}, answer.last_line
    known = parse_states(answer.out)
    missing = [job for job in jobs if job not in known]
    sacct = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,NodeList,ExitCode"]
    history = run([*sacct, "--jobs=" + ",".join(sorted(missing))], TIMEOUT) if missing else QueryAnswer(1)
    known.update(parse_states(history.out) if history.code == 0 else {})
    return {job: state for job, state in known.items() if job in jobs}, ""


def parse_states(text: str) -> Dict[str, SlurmJobState]:
    """{job: its state} of lines as `12|CANCELLED by 1000|gpu1|0:15`, of squeue with when it starts, and the reason, the
    only field that may contain a `|`."""
    states = {}
    for line in text.splitlines():
        fields = [field.strip(" |") for field in (line + "|" * 5).split("|", 5)]
        job, state, node, code, start, reason = ["" if field in _EMPTY else field for field in fields]
        state = state.partition(" ")[0]
        states[job] = SlurmJobState(state, reason, start, node, _exit_code(code) if state in _OVER else None)
    return states


def _exit_code(text: str) -> Optional[int]:
    """`4:0` is exit code 4, `0:9` the signal 9. squeue may print what wait(2) gives instead: 1024, and 9."""
    code, _, number = text.partition(":")
    if not code.isdigit() or not (number or "0").isdigit():
        return None
    status = int(code) << 8 | int(number) if number else int(code)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


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
            time.sleep(2.0)

    def refresh(self, now: float) -> None:
        """Ask for the jobs that are not over. What a query does not answer stays as it was."""
        known = list(self._known.items())
        jobs = [job for job, (state, _) in known if state in (None, _UNKNOWN_JOB) or not state.is_over]
        found, self.problem = query(jobs, self._run)
        for job in jobs if not self.problem else ():
            before, since = self._known[job]
            state = found.get(job, _UNKNOWN_JOB)
            self._known[job] = (state, since if state == before else now)

    def join(self, run_dir: str, status: Status) -> Tuple[Status, bool]:
        """(status of the run, whether it is final), given the status that the agent wrote."""
        job = read(run_dir)
        if run_dir in self._final or job is None or not job.id:  # its submission writes the status
            return self._final.get(run_dir, status), run_dir in self._final or status.concluded
        status = replace(status, slurm=status.slurm or SlurmAllocation(job.id))
        state, seconds = self.state(job.id)
        if state == _UNKNOWN_JOB and seconds < UNKNOWN_AFTER and not status.has_ended:
            state = None
        if state is None or not state.is_over or (state.node and not status.has_ended and seconds < _CACHE_SECONDS):
            return _unfinished(status, state, self.problem), False
        with suppress(OSError):
            self._final[run_dir] = record_end(run_dir, state)
        return self._final.get(run_dir, status), run_dir in self._final


def _unfinished(before: Status, state: Optional[SlurmJobState], problem: str) -> Status:
    """The status of a run that Slurm may go on with. An agent's end does not count: it may have been interrupted, and
    run again."""
    reason = "Slurm does not answer: %s" % problem if problem else "Slurm: submitted"
    is_on_node = state.is_on_node if state is not None else not problem  # as far as is known
    if is_on_node and before.has_agent and not before.has_ended and (state is None or state.state != "SUSPENDED"):
        return before
    status = replace(before, state="running", phase="waiting", waiting=(state.description if state else reason,))
    if is_on_node and before.has_ended:  # Slurm has yet to say how the job ended
        status = replace(status, phase="collecting", waiting=())
    return replace(status, end=None, exit_code=None, ended_at=None, log_sha256=None)


# -- scancel -----------------------------------------------------------------------------------------------------------


def _cancel_job(run_dir: str, job: SlurmJob, kill: bool) -> None:
    """Ask the agent, which is the batch script, to end its job in order. A job without one (a prolog may still run), or
    with `kill`, is ended at once; one that was not submitted yet never is. Raises CancelError, OSError."""
    status = read_status(RunDir(run_dir))
    asks = status.has_agent and not status.concluded  # the job can write that too, so it is ended all the same
    state = query([job.id])[0].get(job.id) if job.id and asks and not kill else None
    if not job.id:
        record_end(run_dir, ("cancelled", NEVER_SUBMITTED, None))
        job = read(run_dir) or job
    if job.id:
        _scancel(*(("--batch", "--signal=TERM") if state and state.is_on_node else ()), job.id)


def _scancel(*words: str) -> None:
    answer = run_program(["scancel", *words], TIMEOUT)
    # A job that has ended this moment is as good.
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise CancelError("Slurm did not cancel it: %s" % answer.last_line)


# -- the end: the run has no processes any more, as Slurm says, or Slurm never had the job -----------------------------


def batch_exit_code(status: Status) -> int:
    """What the batch script exits with after the run has ended so."""
    if status.end == "exit" and status.exit_code is not None:
        return status.exit_code
    return {"cancelled": 130, "timeout": 124}.get(status.end or "", 1)


def job_outcome(state: SlurmJobState, status: Status, output: str = "") -> Optional[Outcome]:
    """The outcome of the run; None if the agent's own status holds. `output`: its batch script's last line."""
    where = " on %s" % state.node if state.node else ""
    if state.state in _ENDED_BY_SLURM:
        end, code, why = _ENDED_BY_SLURM[state.state]
        more = ": %s%s" % (why, "," + where if where else "") if why else ""
        return end, "Slurm ended the job (%s)%s" % (state.state, more), code
    code, claimed = state.exit_code, batch_exit_code(status)
    # sacct subtracts 128 from a code that may be a signal's.
    if status.has_ended and state.state == "FAILED" and code and code not in (claimed, claimed - 128):
        sentence = "status.json says that the job ended with %d, Slurm says %d" % (claimed, code)
        return "exit", sentence, code
    # Only Slurm knew who sent the signal, which ends the job's own processes first or the agent first.
    is_signalled = status.end == "cancelled" or status.exit_code == 128 + signal.SIGTERM
    if status.has_ended and not (is_signalled and state.state == UNKNOWN):
        return None
    if state.state == UNKNOWN:
        return None, "the job vanished: unknown to squeue and sacct", None
    if status.has_agent:
        return None, "the agent was killed (%s)" % state.state, None
    hint = ": " + output if output else "; is the workspace of hosts.yaml on a file system of all nodes?"
    return "exit", "the job could not start%s (%s)%s" % (where, state.state, hint), rd.EXIT_BLOCKED


def record_end(run_dir: str, end: SlurmJobState | Outcome) -> Status:
    """Write the end of a run whose job is over, or that was never submitted. Returns its status, which is final from
    now on."""
    paths = RunDir(run_dir)
    with file_lock(os.path.join(run_dir, "slurm.lock"), True, 20.0):
        before = status = read_status(paths)
        values = [value for value in read_secrets(run_dir).values() if value]
        if isinstance(end, SlurmJobState):
            outcome = job_outcome(end, status, _last_output(run_dir))
            job = status.slurm or SlurmAllocation((read(run_dir) or SlurmJob()).id or None, end.node or None)
            status = replace(status, slurm=replace(job, exit_code=end.exit_code))
        else:
            outcome = None if status.has_ended else end
        if outcome is not None:
            if not (status.concluded and outcome[1] == status.error):
                status = _ended(status, outcome, RunLog(paths.log, values))
            if not status.masked:
                collect_left_evidence(paths)
        if values and not status.masked:  # what an agent that died could not
            status = replace(masked_record(status, values), masked=True)
            mask_run(paths, values)
        status = replace(status, concluded=True)
        if status != before:
            status = replace(status, sequence=status.sequence + 1)
            write_record(paths.status, status)
    delete_secrets(run_dir)
    return status


def _last_output(run_dir: str) -> str:
    """The last line of what the batch script printed."""
    answer = run_program(["tail", "-c", "4096", os.path.join(run_dir, rd.SLURM_OUTPUT)], 10.0)
    return ([""] + answer.out.strip().splitlines())[-1].strip()


def _ended(status: Status, outcome: Outcome, log: RunLog) -> Status:
    end, why, code = outcome
    log.write_line((rd.BLOCKED if code == rd.EXIT_BLOCKED else "ci-tasks: ") + why)
    log.close()
    # The clock of the node that started the run counts, not this machine's.
    now = status.heartbeat_at or time.time()
    status = replace(status, state="ended", phase="ended", end=end, exit_code=code, error=why, ended_at=now, waiting=())
    return replace(status, log_bytes=log.bytes, log_error=status.log_error or log.error, log_sha256=log.sha256)


# -- any run, from outside ---------------------------------------------------------------------------------------------

NOTICE_SECONDS = 1.0  # an agent gets so long to note that its job is cancelled
CLEANUP_SECONDS = 120.0  # an agent gets so long after the grace period to collect and to remove
_SLURM_SECONDS = 60.0  # Slurm gets so long to end a job that is removed


def cancel(run_dir: str, kill: bool = False) -> None:
    """Ask the agent to cancel its job; if it has died, stop what it left. `kill`: without a grace period. Raises
    CancelError, OSError."""
    paths = RunDir(run_dir)
    if (job := read(run_dir)) is not None:
        _cancel_job(run_dir, job, kill)
        return
    status = rd.read_status_if_readable(paths)
    if status.pid is not None and processes.alive(status):
        try:
            os.kill(status.pid, signal.SIGTERM)
        except ProcessLookupError:  # it has ended, or died, this moment
            return
        except OSError as error:
            raise CancelError("the agent, process %d, cannot be signalled: %s" % (status.pid, error.strerror)) from None
        if kill:  # else it would take the job's death for its own end, and the row would count as failed
            _wait_while(lambda: b'"cancelled"' not in content_of(paths.events), NOTICE_SECONDS)
            processes.kill_all(paths.path, rd.read_status_if_readable(paths).group)
    elif (status := rd.read_status_if_readable(paths)).gone or not status.has_ended:  # it may have ended this moment
        group, containers = processes.orphaned_group(status, paths.path), RunContainers(paths.path)
        found = len(processes.of_run(paths.path, group))
        if not kill:
            told: set[int] = set()
            _wait_while(lambda: processes.terminate(paths.path, group, told), containers.plan.grace_seconds)
        processes.kill_all(paths.path, group)
        processes.record_cleanup(paths, found, containers.remove())


def _wait_while(condition: Callable[[], bool], seconds: float, poll_seconds: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(poll_seconds)


def remove_run(run_dir: str) -> List[str]:
    """End the run and remove everything that it left, and its run directory. Returns a line for each thing that
    could not be removed.

    While containers may be left, as if docker does not answer, the directory stays: it leads to them."""
    paths = RunDir(run_dir)
    left, root = _end(paths)
    if left:
        return [*left, "%s: kept until its containers are gone" % paths.path]
    forget(paths.workspace)
    return remove_tree(paths.path, *root)


def end_and_clean(run_dir: str) -> List[str]:
    """End the run; remove its containers and its workspace. Log and status stay. Returns a line for each thing that
    could not be removed."""
    paths = RunDir(run_dir)
    left, root = _end(paths)
    if (status := rd.read_status_if_readable(paths)).kept is not None:
        write_record(paths.status, replace(status, kept=None))
    forget(paths.workspace)
    return left + remove_tree(paths.workspace, *root)


def _end(paths: RunDir) -> Tuple[List[str], RootContainer]:
    """End the run through its agent or Slurm, kill an agent that hangs, and remove the containers. Returns what is
    left. Raises RecordError if it cannot be known whether Slurm has a job of the run."""
    status, containers = rd.read_status_if_readable(paths), RunContainers(paths.path, thorough=True)
    plan, job = containers.plan, read(paths.path)
    with suppress(OSError, ValueError, CancelError):
        cancel(paths.path, kill=True)
        if job is not None and job.id and not status.concluded:
            _wait_while(lambda: may_run([job.id])[job.id], _SLURM_SECONDS, poll_seconds=0.5)
    _wait_while(lambda: processes.alive(status), plan.grace_seconds + CLEANUP_SECONDS)
    if status.pid is not None and processes.alive(status):
        for pid in [*processes.below(status.pid), status.pid]:
            processes.send(pid, signal.SIGKILL)
    processes.kill_all(paths.path, processes.orphaned_group(rd.read_status_if_readable(paths), paths.path))
    found = containers.find()
    return containers.remove(), root_container(found, plan)
