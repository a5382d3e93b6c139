"""A run's Slurm job: what Slurm says of it (squeue, sacct), `slurm.json` of the run directory on the shared file system
and the files beside it, and the end of the run as Slurm knows it.

The agent's own status counts, unless Slurm ended the job: it sends the same signal for scancel, a time limit, a
preemption and a requeue, and only Slurm knows which. Nor does it count if Slurm saw another exit code: the job can
write that file too, but not the exit code of its batch script.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from .. import run_directory
from ..artifacts import mask_run
from ..codec import masked_record
from ..files import file_lock, pieces_of
from ..log_file import RunLog
from ..probe.evidence import collect_left_evidence
from ..quick_dataclass import dataclass
from ..records import End, Secrets, SlurmAllocation, SlurmJob, SlurmStart, Status
from ..run_directory import EXIT_BLOCKED, RunDir

SCRIPT = "batch.sh"  # the script for sbatch
REJECTED = "Slurm accepts no more jobs now"  # start of the status of a run that will be submitted again
UNKNOWN = "UNKNOWN"  # Slurm does not know the job any more; not one of its own states
_MEMORY = "it used more memory than the job may; `sbatch: [--mem=…]` in hosts.yaml asks for more"
# Slurm's state of a job that Slurm itself ended → how the run ended (None: lost), its exit code, and why.
_ENDED_BY_SLURM: Mapping[str, Tuple[Optional[End], Optional[int], str]] = {
    "TIMEOUT": ("timeout", None, "it reached the time limit of the job"),
    "DEADLINE": ("timeout", None, "it reached the job's deadline"),
    "CANCELLED": ("cancelled", None, ""),
    "OUT_OF_MEMORY": ("exit", 137, _MEMORY),
    "PREEMPTED": ("exit", EXIT_BLOCKED, "another job took its place, and it is not queued again"),
    "BOOT_FAIL": ("exit", EXIT_BLOCKED, "its node did not start"),
    "LAUNCH_FAILED": ("exit", EXIT_BLOCKED, ""),
    "RECONFIG_FAIL": ("exit", EXIT_BLOCKED, ""),
    "NODE_FAIL": (None, None, "its node failed"),
}
# "JOB STATE CODES" of squeue(1). A job in any other state, also one that only a newer Slurm knows, is not over.
_OVER = (*_ENDED_BY_SLURM, "COMPLETED", "FAILED", UNKNOWN)
_ON_NODE = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_EMPTY = ("", "N/A", "None", "(null)", "Unknown", "None assigned")
_LOCK_TIMEOUT = 20.0
_MAX_OUTPUT = 4096

Outcome = Tuple[Optional[End], str, Optional[int]]  # how a run ended (None: it is lost), why, and its exit code


@dataclass(frozen=True)
class SlurmJobState:
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


def batch_exit_code(status: Status) -> int:
    """What the batch script exits with after the run has ended so."""
    if status.end == "exit" and status.exit_code is not None:
        return status.exit_code
    return {"cancelled": 130, "timeout": 124}.get(status.end or "", 1)


def claimed_code(state: SlurmJobState, status: Status) -> Optional[int]:
    """The exit code that a status claims; None if Slurm does not contradict it. sacct subtracts 128 from those that may
    be a signal's."""
    if state.state not in ("COMPLETED", "FAILED") or state.exit_code is None or not status.has_ended:
        return None
    claimed = batch_exit_code(status)
    return None if state.exit_code in (claimed, claimed - 128) else claimed


def job_outcome(state: SlurmJobState, status: Status, output: str = "") -> Optional[Outcome]:
    """The outcome of the run; None if the agent's own status holds. `output`: its batch script's last line."""
    where = " on %s" % state.node if state.node else ""
    if state.state in _ENDED_BY_SLURM:
        end, code, why = _ENDED_BY_SLURM[state.state]
        more = ": %s%s" % (why, "," + where if where else "") if why else ""
        return end, "Slurm ended the job (%s)%s" % (state.state, more), code
    claimed = claimed_code(state, status)
    if claimed is not None and state.exit_code:
        sentence = "status.json says that the job ended with %d, Slurm says %d" % (claimed, state.exit_code)
        return "exit", sentence, state.exit_code
    # Only Slurm knew who sent the signal, which ends the job's own processes first or the agent first.
    is_signalled = status.end == "cancelled" or status.exit_code == 128 + signal.SIGTERM
    if status.has_ended and not (is_signalled and state.state == UNKNOWN):
        return None
    if state.state == UNKNOWN:
        return None, "the job vanished: neither squeue nor sacct knows it", None
    if status.has_agent:
        return None, "the agent was killed (%s)" % state.state, None
    hint = ": " + output if output else "; is the workspace of hosts.yaml on a file system of all nodes?"
    return "exit", "the job could not start%s (%s)%s" % (where, state.state, hint), EXIT_BLOCKED


# -- squeue and sacct --------------------------------------------------------------------------------------------------


def squeue_command(jobs: Iterable[str]) -> List[str]:
    """Lists these jobs, ended ones too as long as Slurm remembers them. The reason is the only field that may contain a
    `|`, so it comes last."""
    fields = ("JobID", "State", "StartTime", "NodeList", "exit_code", "Reason")
    form = "--Format=" + ",".join(field + ":|" for field in fields)
    return ["squeue", "--noheader", "--states=all", "--jobs=" + ",".join(sorted(jobs)), form]


def parse_squeue(text: str) -> Dict[str, SlurmJobState]:
    """{job: its state}"""
    states = {}
    for line in text.splitlines():
        job, state, start, node, code, reason = [_value(field.strip(" |")) for field in (line + "|" * 5).split("|", 5)]
        states[job] = SlurmJobState(state, reason, start, node, _exit_code(code) if state in _OVER else None)
    return states


def sacct_command(jobs: Iterable[str]) -> List[str]:
    form = "--format=JobID,State,ExitCode,NodeList"
    return ["sacct", "--noheader", "--parsable2", "--allocations", form, "--jobs=" + ",".join(sorted(jobs))]


def parse_sacct(text: str) -> Dict[str, SlurmJobState]:
    """12|CANCELLED by 1000|0:15|gpu1"""
    states = {}
    for job, state, code, node in (line.split("|") for line in text.splitlines() if line.count("|") == 3):
        states[job] = SlurmJobState(state.split(" ")[0], node=_value(node), exit_code=_exit_code(code))
    return states


def _exit_code(text: str) -> Optional[int]:
    """`4:0` is exit code 4, `0:9` the signal 9. squeue may print what wait(2) gives instead: 1024, and 9."""
    code, _, number = text.partition(":")
    if not code.isdigit() or not (number or "0").isdigit():
        return None
    status = int(code) << 8 | int(number) if number else int(code)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _value(text: str) -> str:
    return "" if text in _EMPTY else text


# -- the files of a run directory --------------------------------------------------------------------------------------


def read(run_dir: str) -> Optional[SlurmJob]:
    """None for a run that is not a Slurm job."""
    return run_directory.read_record(SlurmJob, RunDir(run_dir).slurm_job)


def write(run_dir: str, job: SlurmJob) -> None:
    run_directory.write_record(RunDir(run_dir).slurm_job, job)


def read_attempt(run_dir: str) -> Optional[SlurmStart]:
    """Which agent has the run: a requeued job runs again, while its first agent may still run on another node."""
    return run_directory.read_record(SlurmStart, RunDir(run_dir).attempt)


def read_secrets(run_dir: str) -> Mapping[str, str]:
    """Of a file that only its owner can read, and that goes with the run's end: Slurm would keep an environment in its
    controller."""
    return (run_directory.read_record(Secrets, RunDir(run_dir).secrets) or Secrets()).values


def delete_secrets(run_dir: str) -> None:
    with suppress(OSError):
        os.unlink(RunDir(run_dir).secrets)


# -- the end: the run has no processes any more, as Slurm says, or Slurm never had the job ----------------------------


def record_end(run_dir: str, end: SlurmJobState | Outcome) -> Status:
    """Write the end of a run whose job is over, or that was never submitted. Returns its status, which is final from
    now on."""
    paths = RunDir(run_dir)
    with file_lock(os.path.join(run_dir, "slurm.lock"), True, _LOCK_TIMEOUT):
        before = status = run_directory.read_status(paths)
        values = [value for value in read_secrets(run_dir).values() if value]
        if isinstance(end, SlurmJobState):
            outcome = job_outcome(end, status, _last_output(run_dir))
            job = status.slurm or SlurmAllocation((read(run_dir) or SlurmJob()).id or None, end.node or None)
            claimed = claimed_code(end, status)
            if claimed is None and status.concluded:
                claimed = job.claimed
            status = replace(status, slurm=replace(job, exit_code=end.exit_code, claimed=claimed))
        else:
            outcome = None if status.has_ended else end
        if outcome is not None:
            if not (status.concluded and outcome[1] == status.error):
                status = _ended(status, outcome, AppendedLog(paths.log, values))
            collect_left_evidence(paths)
        if values and not status.masked:  # what an agent that died could not
            status = replace(masked_record(status, values), masked=True)
            shutil.rmtree(mask_run(paths, values) or os.devnull, ignore_errors=True)
        status = replace(status, concluded=True)
        if status != before:
            status = replace(status, sequence=status.sequence + 1)
            run_directory.write_record(paths.status, status)
    delete_secrets(run_dir)
    return status


def _last_output(run_dir: str) -> str:
    """The last line of what the batch script printed."""
    output = b""
    for piece in pieces_of(os.path.join(run_dir, run_directory.SLURM_OUTPUT)):
        output = (output + piece)[-_MAX_OUTPUT:]
    return last_line(output.decode(errors="replace"))


def _ended(status: Status, outcome: Outcome, log: AppendedLog) -> Status:
    end, why, code = outcome
    log.write_line((run_directory.BLOCKED if code == EXIT_BLOCKED else "ci-tasks: ") + why)
    log.close()
    # The clock is that of the node that began the run, not this machine's.
    now = status.heartbeat_at or time.time()
    status = replace(status, state="ended", phase="ended", end=end, exit_code=code, error=why, ended_at=now, waiting=())
    return replace(status, log_bytes=log.bytes, log_error=status.log_error or log.error, log_sha256=log.sha256)


class AppendedLog(RunLog):
    """The log of a run that already has one: of a requeued job, or one whose agent could not say how it ended. Count
    and digest include what the file already contains. Raises OSError."""

    def __init__(self, path: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(path, secrets)
        last = b"\n"
        for piece in pieces_of(path):
            self._digest.update(piece)
            self.bytes += len(piece)
            last = piece[-1:]
        self._start = b"" if last == b"\n" else b"\n"

    def write_line(self, text: str) -> None:
        """A line of its own; call it before `write`."""
        self.write(self._start + (" ".join(text.split()) + "\n").encode("utf-8", "backslashreplace"))
