"""What was seen of a run that may hang: the content of hang/facts.json. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, Mapping, Optional, Tuple

from ..quick_dataclass import dataclass

Reason = Literal["request", "stall", "timeout"]
PROBE, NATIVE = "probe", "native"


@dataclass(frozen=True)
class StackText:
    """The stacks of a process, as `by` wrote them: the probe (faulthandler's text), or py-spy (JSON), with native
    frames or without. `same`: in the second look they were the same, None where they were not taken twice; `before` are
    those of the first look, where they were others."""

    by: str
    text: str
    same: Optional[bool] = None
    before: str = ""


@dataclass(frozen=True)
class ThreadFacts:
    """A thread as the kernel has it, in the second look. `still`: state, wait channel and system call were the same in
    both. `syscall` has number and arguments, or is "running", or empty where it may not be read. `cpu` are seconds of
    the processor between the looks."""

    tid: int
    name: str = ""
    state: str = ""
    wchan: str = ""
    syscall: str = ""
    still: bool = False
    cpu: float = 0.0


@dataclass(frozen=True)
class OpenFile:
    """A pipe or a socket that a process has open; `target` as /proc/PID/fd has it, `inode` of a named pipe too."""

    fd: int
    target: str
    inode: int = 0
    reads: bool = False
    writes: bool = False


@dataclass(frozen=True)
class ProcessFacts:
    """A process of the run. `place` is the container that it is in, empty for none; pids count there. `namespace_pid`
    is its number in the innermost namespace that it is in. `env` are the variables that say its rank. `forked`: it is a
    copy of its parent, as the probe saw. `ended`: it was gone in the second look. `cpu_seconds` are those of the
    processor since it began, `cpu_since` those since the look before in the same silence of the log, None where there
    was none. `could_not` says what could not be had of it, and why."""

    pid: int
    ppid: int
    start: int = 0
    namespace_pid: int = 0
    place: str = ""
    name: str = ""
    argv: Tuple[str, ...] = ()
    state: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False
    ended: bool = False
    python: bool = False
    threads: Tuple[ThreadFacts, ...] = ()
    files: Tuple[OpenFile, ...] = ()
    stacks: Tuple[StackText, ...] = ()
    cpu_seconds: float = 0.0
    cpu_since: Optional[float] = None
    could_not: Tuple[str, ...] = ()


@dataclass(frozen=True)
class SocketFacts:
    """A connected TCP socket of a process; addresses as the kernel writes them. `net` tells network namespaces
    apart."""

    inode: int
    local: str
    remote: str
    net: str = ""


@dataclass(frozen=True)
class FileLockWait:
    """A process that waits for a lock on a file, and the one that has it."""

    waiter: int
    holder: int
    kind: str = ""
    place: str = ""


@dataclass(frozen=True)
class DeadProcess:
    """A process of which the probe saw the beginning, and that is no more. `how` is what the probe wrote at its end, or
    empty: then it was killed. `error` is its last exception."""

    pid: int
    env: Mapping[str, str] = field(default_factory=dict)
    argv: Tuple[str, ...] = ()
    how: str = ""
    error: str = ""
    place: str = ""


@dataclass(frozen=True)
class RecordedCollective:
    """The last collective, or message, that a rank has begun, by torch's flight recorder: its `number` in the process
    `group`, whose ranks are `members`. `sizes` are those of its inputs with their types, `65536x4 Float`; `peer` is
    the rank of the other side of a send or recv, -1 for a collective."""

    rank: int
    operation: str
    number: int
    state: str = ""
    group: str = ""
    sizes: str = ""
    members: Tuple[int, ...] = ()
    peer: int = -1


@dataclass(frozen=True)
class HangFacts:
    """Everything that was seen, of a run or by `inspector` in one place. `seconds_between` are those between the two
    looks, `seconds` those that all of it took, `seconds_since` those since the look before in the same silence of the
    log, 0 where there was none. `sources` are the texts of files that frames are in. `ras` is NCCL's answer, by
    container. `could_not` has a line for each part that could not be had."""

    taken_at: float = 0.0
    reason: Reason = "request"
    request: str = ""
    seconds: float = 0.0
    seconds_between: float = 0.0
    seconds_since: float = 0.0
    machine: str = ""
    processes: Tuple[ProcessFacts, ...] = ()
    dead: Tuple[DeadProcess, ...] = ()
    sockets: Tuple[SocketFacts, ...] = ()
    locks: Tuple[FileLockWait, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    ras: Mapping[str, str] = field(default_factory=dict)
    collectives: Tuple[RecordedCollective, ...] = ()
    could_not: Tuple[str, ...] = ()
