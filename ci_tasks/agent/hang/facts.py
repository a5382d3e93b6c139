"""What was seen of a run that may hang: the content of hang/facts.json. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, Mapping, Optional, Tuple

from ..quick_dataclass import dataclass

Reason = Literal["request", "stall", "timeout"]


@dataclass(frozen=True)
class ThreadFacts:
    """A thread as the kernel shows it in the second look. `still`: state, wait channel and system call were the same in
    both. `syscall` has number and arguments, or is "running", or empty if it may not be read. `cpu` are the seconds of
    processor time between the looks."""

    tid: int
    state: str = ""
    wchan: str = ""
    syscall: str = ""
    still: bool = False
    cpu: float = 0.0


@dataclass(frozen=True)
class ProcessFacts:
    """A process of the run that was there in both looks. `place` is its container, empty for none; pids count there.
    `namespace_pid` is its number in its innermost namespace. `env` are the variables that say its rank.

    `stacks` are those of its threads as faulthandler writes them, the main thread last; the line of a native frame is
    `???`. `same_stacks`: its main thread was in the same functions of the program in both looks, None if there was one
    look. `cpu_seconds` is its processor time since it started, `busy_since` the share of a processor that it used since
    the last look at the same silence of the log, None if there was none."""

    pid: int
    ppid: int
    start: int = 0
    namespace_pid: int = 0
    place: str = ""
    argv: Tuple[str, ...] = ()
    state: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    python: bool = False
    threads: Tuple[ThreadFacts, ...] = ()
    stacks: str = ""
    same_stacks: Optional[bool] = None
    cpu_seconds: float = 0.0
    busy_since: Optional[float] = None


@dataclass(frozen=True)
class DeadProcess:
    """A process that the probe saw start, and that is gone. `how` is what the probe wrote at its end, or empty: then it
    was killed. `error` is its last exception."""

    pid: int
    env: Mapping[str, str] = field(default_factory=dict)
    how: str = ""
    error: str = ""


@dataclass(frozen=True)
class RecordedCollective:
    """The last collective, or message, that a rank has started, by torch's flight recorder: its `number` in the process
    `group`. `operation` as torch names it, `all_reduce` or `recv 0<-1` (places in the
    group). `state` is scheduled until its GPU comes to it, then started, if torch notes times; and completed."""

    rank: int
    operation: str
    number: int
    state: str = ""
    group: str = ""


@dataclass(frozen=True)
class HangFacts:
    """Everything that was seen, of a run or by `inspector` in one place. `seconds_between` are those between the two
    looks, `seconds` those that all of it took. `sources` are the texts of files that frames are in. `ras` is NCCL's
    answer, by container. `could_not` has a line for each part that failed."""

    taken_at: float = 0.0
    reason: Reason = "request"
    request: str = ""
    seconds: float = 0.0
    seconds_between: float = 0.0
    machine: str = ""
    processes: Tuple[ProcessFacts, ...] = ()
    dead: Tuple[DeadProcess, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    ras: Mapping[str, str] = field(default_factory=dict)
    collectives: Tuple[RecordedCollective, ...] = ()
    could_not: Tuple[str, ...] = ()
