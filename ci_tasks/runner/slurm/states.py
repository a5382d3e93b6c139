"""What Slurm says of a job: the questions put to squeue, sacct and its completion log, and pure parsers of the answers.

A job is named `ARRAY_INDEX`, as in `squeue --array`: everything of ours is an array, be it of one row.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List

# "JOB STATE CODES" of squeue(1). Whatever is not among these goes on, by whatever name a newer Slurm calls it.
OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "TIMEOUT",
)
UNKNOWN = "UNKNOWN"  # nobody knows the job any more: not a word of Slurm's
# Where a job of these states is, its processes are too.
ON_NODE = ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING")
# What Slurm says of one job that it has forgotten, where it says it of a whole question.
_FORGOTTEN = "Invalid job id"
_NOTHING = ("", "N/A", "None", "(null)", "Unknown", "None assigned")


@dataclasses.dataclass(frozen=True)
class State:
    """`state` is Slurm's word for it; `by` the user who cancelled it, as sacct says; `start` when it started or is
    expected to; `node` where it is."""

    state: str
    reason: str = ""
    start: str = ""
    node: str = ""
    by: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in OVER or self.state == UNKNOWN

    @property
    def is_on_node(self) -> bool:
        return self.state in ON_NODE

    def sentence(self) -> str:
        """For a person who waits: PENDING (Resources), expected to start at …"""
        said = "Slurm: %s" % self.state
        if self.reason:
            said += " (%s)" % self.reason
        if self.state == "PENDING" and self.start:
            said += ", expected to start at %s" % self.start.replace("T", " ")
        elif self.node:
            said += " on %s" % self.node
        return said


def squeue(arrays: Iterable[str]) -> List[str]:
    """Asks for every job of these arrays, ended ones too as long as Slurm remembers them. The reason, which is the one
    field of free words, comes last."""
    ids = ",".join(sorted(arrays))
    return ["squeue", "--noheader", "--array", "--states=all", "--jobs=" + ids, "--format=%F|%K|%T|%S|%N|%r"]


def parse_squeue(text: str) -> Dict[str, State]:
    """job → how it stands."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6:
            array, index, state, start, node, reason = fields
            found["%s_%s" % (array, index)] = State(state, _word(reason), _word(start), _word(node))
    return found


def forgot(error: str) -> bool:
    """Whether squeue failed since it was asked for nothing that Slurm still knows: it does know that."""
    return _FORGOTTEN in error


def named(name: str) -> List[str]:
    """Asks for the arrays of that name."""
    return ["squeue", "--noheader", "--states=all", "--name=" + name, "--format=%F"]


def sacct(jobs: Iterable[str]) -> List[str]:
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,NodeList"]
    return [*words, "--jobs=" + ",".join(sorted(jobs))]


def parse_sacct(text: str) -> Dict[str, State]:
    """12_3|CANCELLED by 1000|gpu1"""
    found = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            state, _, by = fields[1].partition(" by ")
            found[fields[0]] = State(state.strip(), node=_word(fields[2]), by=by.strip())
    return found


CONFIG = ["scontrol", "show", "config"]


def parse_config(text: str) -> Dict[str, str]:
    """JobCompLoc              = /var/log/slurm/jobcomp.log"""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def completion_log(config: Dict[str, str]) -> str:
    """The file in which this Slurm notes jobs that ended; empty where it notes them elsewhere or nowhere."""
    return config.get("JobCompLoc", "") if config.get("JobCompType") == "jobcomp/filetxt" else ""


def parse_jobcomp(text: str) -> Dict[str, State]:
    """JobId=4 UserId=root(0) … JobState=TIMEOUT … NodeList=gpu1 … ArrayJobId=3 ArrayTaskId=0 …

    A job that was requeued has a line for each time, the last of which counts.
    """
    found = {}
    for line in text.splitlines():
        fields: Dict[str, Any] = dict(word.partition("=")[::2] for word in line.split())
        if "ArrayJobId" in fields and "ArrayTaskId" in fields and "JobState" in fields:
            job = "%s_%s" % (fields["ArrayJobId"], fields["ArrayTaskId"])
            found[job] = State(fields["JobState"], node=_word(fields.get("NodeList", "")))
    return found


def _word(text: str) -> str:
    return "" if text in _NOTHING else text
