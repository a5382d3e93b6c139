"""The state of Slurm's jobs: commands of squeue and sacct, and pure parsers of their output. Pure."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Optional

from ..quick_dataclass import dataclass

# "JOB STATE CODES" of squeue(1). A job in any other state, also one that only a newer Slurm knows, is not over.
TERMINAL_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT",
)  # fmt: skip
UNKNOWN = "UNKNOWN"  # Slurm does not know the job any more; not one of its own states
ON_NODE_STATES = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_EMPTY = ("", "N/A", "None", "(null)", "Unknown", "None assigned")


@dataclass(frozen=True)
class SlurmJobState:
    """`state` is Slurm's name for it; `by` the user who cancelled it, from sacct; `start` when it started or is
    expected to; `node` where it is; `exit_code` that of an ended job, as a shell gives it."""

    state: str
    reason: str = ""
    start: str = ""
    node: str = ""
    by: str = ""
    exit_code: Optional[int] = None

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL_STATES or self.state == UNKNOWN

    @property
    def is_on_node(self) -> bool:
        """Whether the job has processes on a node."""
        return self.state in ON_NODE_STATES

    @property
    def description(self) -> str:
        """Slurm: PENDING (Resources), expected to start at 2026-11-21 18:30:00"""
        text = "Slurm: %s" % self.state
        if self.reason:
            text += " (%s)" % self.reason
        if self.state == "PENDING" and self.start:
            text += ", expected to start at %s" % self.start.replace("T", " ")
        elif self.node:
            text += " on %s" % self.node
        return text


def squeue_command(jobs: Iterable[str]) -> List[str]:
    """Lists these jobs, ended ones too as long as Slurm remembers them. The reason is the only field that may contain a
    `|`, so it comes last."""
    fields = ("JobID", "State", "StartTime", "NodeList", "exit_code", "Reason")
    return [
        *("squeue", "--noheader", "--states=all", "--jobs=" + ",".join(sorted(jobs))),
        "--Format=" + ",".join(field + ":|" for field in fields),
    ]


def parse_squeue(text: str) -> Dict[str, SlurmJobState]:
    """{job: its state}"""
    states = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6:
            job, state, start, node, code, reason = fields
            states[job] = SlurmJobState(
                state,
                _value(reason.rstrip("|")),
                _value(start),
                _value(node),
                exit_code=_exit_code(code) if state in TERMINAL_STATES else None,
            )
    return states


def are_forgotten(error: str) -> bool:
    """Whether squeue failed because Slurm remembers none of the jobs, which is an answer."""
    return "Invalid job id" in error


def jobs_by_name_command(name: str) -> List[str]:
    """Lists the ids of the jobs of that name."""
    return ["squeue", "--noheader", "--states=all", "--name=" + name, "--format=%A"]


def sacct_command(jobs: Iterable[str]) -> List[str]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode,NodeList"]
    return [*command, "--jobs=" + ",".join(sorted(jobs))]


def parse_sacct(text: str) -> Dict[str, SlurmJobState]:
    """12|CANCELLED by 1000|0:15|gpu1"""
    states = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4:
            state, _, by = fields[1].partition(" by ")
            code, node = _exit_code(fields[2]), _value(fields[3])
            states[fields[0]] = SlurmJobState(state.strip(), node=node, by=by.strip(), exit_code=code)
    return states


def _exit_code(text: str) -> Optional[int]:
    """`4:0` is exit code 4, `0:9` the signal 9. squeue may print what wait(2) gives instead: 1024, and 9."""
    code, _, number = text.partition(":")
    if not code.isdigit() or not (number or "0").isdigit():
        return None
    status = int(code) << 8 | int(number) if number else int(code)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _value(text: str) -> str:
    return "" if text in _EMPTY else text
