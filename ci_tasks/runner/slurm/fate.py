"""What it means for a run that Slurm has ended its job: the words for its log and its status. Pure.

The runner's own word counts, unless a signal cut it short: Slurm sends the same one for scancel, a time limit, a
preemption and a requeue, and only it knows which.

Slurm's state             the run
TIMEOUT, DEADLINE         timeout, as if the runner had ended it
CANCELLED                 cancelled
OUT_OF_MEMORY             exit code 137
PREEMPTED, BOOT_FAIL, …   blocked: exit code 125 and the line that says so
NODE_FAIL                 no end: lost
COMPLETED, FAILED         the runner's word; where there is none it never began (blocked), or was killed (lost)
nobody knows              the runner's word, or lost; cancelled where it had not begun, of which Slurm keeps no record
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional

from .. import layout
from ..docker.adapter import BLOCKED, EXIT_BLOCKED
from . import states
from .states import State

_MEMORY = 137
_SIGNALLED = 128  # an exit code from here on may be that of a signal
_TIMES = ("TIMEOUT", "DEADLINE")
_BLOCKED = ("PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
_WHY = {
    "TIMEOUT": "it reached the time limit of the job",
    "DEADLINE": "it reached the job's deadline",
    "PREEMPTED": "another job took its place, and it is not queued again",
    "BOOT_FAIL": "its node did not start",
    "OUT_OF_MEMORY": "it used more memory than the job may; `sbatch: [--mem=…]` in hosts.yaml asks for more",
    "NODE_FAIL": "its node failed",
}


@dataclasses.dataclass(frozen=True)
class Fate:
    """`end` is None for a run that is lost. `sentence` is what the log says of it."""

    end: Optional[str]
    sentence: str
    exit_code: Optional[int] = None

    @property
    def line(self) -> str:
        return (BLOCKED if self.exit_code == EXIT_BLOCKED else "ci-tasks: ") + self.sentence


def is_sure(status: Dict[str, Any]) -> bool:
    """Whether a status says how its run ended, and Slurm need not be asked. What Slurm was asked about stays so."""
    if status.get("state") != layout.STATE_ENDED:
        return False
    if status.get("concluded") or status.get("end") == layout.END_TIMEOUT:
        return True
    cut = status.get("signalled") or (status.get("exit_code") or 0) >= _SIGNALLED
    return status.get("end") == layout.END_EXIT and not cut


def fate(state: State, status: Dict[str, Any], said: str = "") -> Optional[Fate]:
    """What becomes of the run; None where the runner's own word holds. `said` is what its batch script wrote last."""
    ended = status.get("state") == layout.STATE_ENDED
    why = "Slurm ended the job (%s%s)" % (state.state, " by uid " + state.by if state.by else "")
    if state.state in _WHY:
        why += ": " + _WHY[state.state]
    if state.node and state.state not in ("CANCELLED", "PREEMPTED"):
        why += ", on %s" % state.node
    if state.state in _TIMES:
        return Fate(layout.END_TIMEOUT, why)
    if state.state == "CANCELLED":
        return Fate(layout.END_CANCELLED, why)
    if state.state == "OUT_OF_MEMORY":
        return Fate(layout.END_EXIT, why, _MEMORY)
    if state.state in _BLOCKED:
        return Fate(layout.END_EXIT, why, EXIT_BLOCKED)
    if state.state == "NODE_FAIL":
        return Fate(None, why)
    if ended:
        return None
    if state.state == states.UNKNOWN and not has_begun(status):
        return Fate(layout.END_CANCELLED, "the job is gone from Slurm's queue, as one is that somebody cancels there")
    if state.state == states.UNKNOWN:
        return Fate(None, "the job is gone without a word, and neither squeue nor sacct nor a completion log knows it")
    if not has_begun(status):
        where = " on %s" % state.node if state.node else ""
        last = ": " + said if said else "; is the workspace of hosts.yaml on a file system of all nodes?"
        return Fate(layout.END_EXIT, "the job could not begin%s (%s)%s" % (where, state.state, last), EXIT_BLOCKED)
    return Fate(None, "the runner was killed (%s)" % state.state)


def has_begun(status: Dict[str, Any]) -> bool:
    """Whether the runner has put the run on record, on its node."""
    return "boot_id" in status
