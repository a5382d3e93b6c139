"""The outcome of a run whose job Slurm ended: its status and the line for its log. Pure.

The agent's own status counts, unless a signal interrupted it: Slurm sends the same signal for scancel, a time limit, a
preemption and a requeue, and only Slurm knows which. Nor does it count where Slurm saw the job end otherwise: the job
can write that file too, but not the exit code of its batch script.

Slurm's state             the run
TIMEOUT, DEADLINE         timeout, as if the agent had ended it
CANCELLED                 cancelled
OUT_OF_MEMORY             exit code 137
PREEMPTED, BOOT_FAIL, …   blocked: exit code 125 and the line that says so
NODE_FAIL                 no end: lost
COMPLETED, FAILED         the agent's status; without one it never started (blocked), or was killed (lost)
FAILED with another code  failed: exit code of Slurm, whatever status.json says
not known any more        the agent's status; lost where a signal ended it, or it wrote none
"""

from __future__ import annotations

from typing import Optional

from ..quick_dataclass import dataclass
from ..records import End, Status
from ..run_directory import BLOCKED, END_CANCELLED, END_EXIT, END_TIMEOUT, EXIT_BLOCKED
from .states import UNKNOWN, SlurmJobState

_EXIT_OUT_OF_MEMORY = 137
_EXIT_CANCELLED, _EXIT_TIMEOUT, _EXIT_NONE = 130, 124, 1
_FIRST_SIGNAL = 128  # exit codes from here on may be those of a signal
_BLOCKED = ("PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
_REASONS = {
    "TIMEOUT": "it reached the time limit of the job",
    "DEADLINE": "it reached the job's deadline",
    "PREEMPTED": "another job took its place, and it is not queued again",
    "BOOT_FAIL": "its node did not start",
    "OUT_OF_MEMORY": "it used more memory than the job may; `sbatch: [--mem=…]` in hosts.yaml asks for more",
    "NODE_FAIL": "its node failed",
}


@dataclass(frozen=True)
class JobOutcome:
    """`end` is None for a run that is lost. `sentence` is the line for the log."""

    end: Optional[End]
    sentence: str
    exit_code: Optional[int] = None

    @property
    def line(self) -> str:
        return (BLOCKED if self.exit_code == EXIT_BLOCKED else "ci-tasks: ") + self.sentence


def is_final(status: Status) -> bool:
    """Whether a status says how its run ended, so that Slurm need not be asked (again)."""
    if not status.has_ended:
        return False
    if status.concluded or status.end == END_TIMEOUT:
        return True
    interrupted = status.signalled or (status.exit_code or 0) >= _FIRST_SIGNAL
    return status.end == END_EXIT and not interrupted


def batch_exit_code(status: Status) -> int:
    """What the batch script exits with after the run has ended so."""
    if status.end == END_EXIT and status.exit_code is not None:
        return status.exit_code
    return {END_CANCELLED: _EXIT_CANCELLED, END_TIMEOUT: _EXIT_TIMEOUT}.get(status.end or "", _EXIT_NONE)


def claimed_code(state: SlurmJobState, status: Status) -> Optional[int]:
    """The exit code that a status claims; None where Slurm does not contradict it. sacct subtracts 128 from those that
    may be a signal's."""
    if state.state not in ("COMPLETED", "FAILED") or state.exit_code is None or not status.has_ended:
        return None
    claimed = batch_exit_code(status)
    return None if state.exit_code in (claimed, claimed - _FIRST_SIGNAL) else claimed


def job_outcome(state: SlurmJobState, status: Status, output: str = "") -> Optional[JobOutcome]:
    """The outcome of the run; None where the agent's own status holds. `output`: its batch script's last line."""
    by_slurm = _ended_by_slurm(state)
    if by_slurm is not None:
        return by_slurm
    claimed = claimed_code(state, status)
    if claimed is not None and state.exit_code:
        sentence = "status.json says that the job ended with %d, Slurm says %d" % (claimed, state.exit_code)
        return JobOutcome(END_EXIT, sentence, state.exit_code)
    if state.state == UNKNOWN and not is_final(status):  # a signal may have ended it, and only Slurm knew whose
        return JobOutcome(None, "the job vanished: neither squeue nor sacct knows it")
    if status.has_ended:
        return None
    if status.has_agent:
        return JobOutcome(None, "the agent was killed (%s)" % state.state)
    where = " on %s" % state.node if state.node else ""
    hint = ": " + output if output else "; is the workspace of hosts.yaml on a file system of all nodes?"
    return JobOutcome(END_EXIT, "the job could not start%s (%s)%s" % (where, state.state, hint), EXIT_BLOCKED)


def _ended_by_slurm(state: SlurmJobState) -> Optional[JobOutcome]:
    sentence = "Slurm ended the job (%s%s)" % (state.state, " by uid " + state.by if state.by else "")
    if state.state in _REASONS:
        sentence += ": " + _REASONS[state.state]
    if state.node and state.state not in ("CANCELLED", "PREEMPTED"):
        sentence += ", on %s" % state.node
    if state.state in ("TIMEOUT", "DEADLINE"):
        return JobOutcome(END_TIMEOUT, sentence)
    if state.state == "CANCELLED":
        return JobOutcome(END_CANCELLED, sentence)
    if state.state == "OUT_OF_MEMORY":
        return JobOutcome(END_EXIT, sentence, _EXIT_OUT_OF_MEMORY)
    if state.state in _BLOCKED:
        return JobOutcome(END_EXIT, sentence, EXIT_BLOCKED)
    return JobOutcome(None, sentence) if state.state == "NODE_FAIL" else None
