"""The state of Slurm's jobs: commands of squeue, sacct and scontrol, and pure parsers of their output. Pure.

A job is named `ARRAY_INDEX`, as in `squeue --array`: every submission is an array, even one of a single row.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Dict, Iterable, List

# "JOB STATE CODES" of squeue(1). A job in any other state, also one that only a newer Slurm knows, is not over.
TERMINAL_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT",
)  # fmt: skip
UNKNOWN = "UNKNOWN"  # Slurm does not know the job any more; not one of its own states
ON_NODE_STATES = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
_EMPTY = ("", "N/A", "None", "(null)", "Unknown", "None assigned")
SCONTROL_CONFIG = ["scontrol", "show", "config"]


@dataclasses.dataclass(frozen=True)
class SlurmJobState:
    """`state` is Slurm's name for it; `by` the user who cancelled it, from sacct; `start` when it started or is
    expected to; `node` where it is."""

    state: str
    reason: str = ""
    start: str = ""
    node: str = ""
    by: str = ""

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


def squeue_command(arrays: Iterable[str]) -> List[str]:
    """Lists all jobs of these arrays, ended ones too as long as Slurm remembers them. The reason is the only field that
    may contain a `|`, so it comes last."""
    ids = ",".join(sorted(arrays))
    return ["squeue", "--noheader", "--array", "--states=all", "--jobs=" + ids, "--format=%F|%K|%T|%S|%N|%r"]


def parse_squeue(text: str) -> Dict[str, SlurmJobState]:
    """{job: its state}"""
    states = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6:
            array, index, state, start, node, reason = fields
            states["%s_%s" % (array, index)] = SlurmJobState(state, _value(reason), _value(start), _value(node))
    return states


def are_forgotten(error: str) -> bool:
    """Whether squeue failed because Slurm remembers none of the jobs, which is an answer."""
    return "Invalid job id" in error


def arrays_by_name_command(name: str) -> List[str]:
    """Lists the ids of the arrays of that name."""
    return ["squeue", "--noheader", "--states=all", "--name=" + name, "--format=%F"]


def sacct_command(jobs: Iterable[str]) -> List[str]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,NodeList"]
    return [*command, "--jobs=" + ",".join(sorted(jobs))]


def parse_sacct(text: str) -> Dict[str, SlurmJobState]:
    """12_3|CANCELLED by 1000|gpu1"""
    states = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            state, _, by = fields[1].partition(" by ")
            states[fields[0]] = SlurmJobState(state.strip(), node=_value(fields[2]), by=by.strip())
    return states


def completion_log(config: str) -> str:
    """The file to which Slurm writes jobs that ended, given the output of SCONTROL_CONFIG, which has lines such as
    `JobCompLoc = /var/log/slurm/jobcomp.log`; empty where it writes them elsewhere or nowhere."""
    pairs = (line.partition("=") for line in config.splitlines())
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    return settings.get("JobCompLoc", "") if settings.get("JobCompType") == "jobcomp/filetxt" else ""


def parse_completion_log(text: str) -> Dict[str, SlurmJobState]:
    """JobId=4 UserId=root(0) … JobState=TIMEOUT … NodeList=gpu1 … ArrayJobId=3 ArrayTaskId=0 …

    A job that was requeued has a line for each time, the last of which counts.
    """
    states = {}
    for line in text.splitlines():
        fields: Dict[str, str] = dict(word.partition("=")[::2] for word in line.split())
        if "ArrayJobId" in fields and "ArrayTaskId" in fields and "JobState" in fields:
            job = "%s_%s" % (fields["ArrayJobId"], fields["ArrayTaskId"])
            states[job] = SlurmJobState(fields["JobState"], node=_value(fields.get("NodeList", "")))
    return states


def show_job_command(job: str) -> List[str]:
    return ["scontrol", "show", "job", "--oneliner", job]


def parse_queue_seconds(text: str) -> float:
    """JobId=4 … SubmitTime=2026-11-21T18:30:00 … StartTime=2026-11-21T18:30:02 …; 0 where it does not say."""
    fields: Dict[str, str] = dict(word.partition("=")[::2] for word in text.split())
    try:
        return max(0.0, _seconds(fields.get("StartTime", "")) - _seconds(fields.get("SubmitTime", "")))
    except (ValueError, OverflowError):
        return 0.0


def _seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _value(text: str) -> str:
    return "" if text in _EMPTY else text
