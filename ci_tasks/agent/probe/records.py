"""What the probe saw, as frozen dataclasses; `codec` converts them to JSON. Pure. All of it is the job's claim.

evidence/ has a file for each process while the job runs; at its end the agent puts them together into evidence.jsonl,
whose lines are parts of a `RunEvidence`: the counts, the packages, then a line for each process.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field, replace
from typing import Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from .. import codec
from ..quick_dataclass import dataclass

T = TypeVar("T")

# Kinds of exceptions: it was not caught; it was raised in a task of a worker, and whether it was handled is not seen.
UNCAUGHT, TASK = "uncaught", "task"


@dataclass(frozen=True)
class CodeFrame:
    """A place in a program."""

    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True)
class LinkedException:
    """One exception of a chain; `frames` begin with the outermost."""

    type: str = ""
    message: str = ""
    frames: Tuple[CodeFrame, ...] = ()


@dataclass(frozen=True)
class NotedException:
    """`where`: main, thread, or worker, which is a process of multiprocessing; pool, torch or ray.
    `kind` is one of those above, `name` that of the thread or task. `chain` begins with the one that was seen; causes,
    contexts and members of groups follow."""

    t: float = 0.0
    kind: str = UNCAUGHT
    where: str = ""
    name: str = ""
    chain: Tuple[LinkedException, ...] = ()


@dataclass(frozen=True)
class HookEvent:
    """What a suite's `hook` noted: a `kind` with its `fields`, the text of a JSON object; or its `failure`."""

    t: float = 0.0
    hook: str = ""
    kind: str = ""
    fields: str = "{}"
    failure: str = ""

    def decode(self, record: Type[T]) -> T:
        """The fields as a frozen dataclass. Raises RecordError."""
        return codec.from_json(record, self.fields, where="%s of %s" % (self.kind, self.hook))


@dataclass(frozen=True)
class ImportedModule:
    """`origin` is its file, or the directory of a namespace package; `package_version` that of the metadata beside
    it, or its `__version__`; `commit` that of the work tree around it. Empty where that is not known. `local`: it was
    installed from a directory."""

    name: str = ""
    origin: str = ""
    package_version: str = ""
    commit: str = ""
    local: bool = False


@dataclass(frozen=True)
class PeakMemory:
    """The most bytes that torch had allocated and reserved on a device, as the process counts them, since the program
    last reset these peaks."""

    device: int = 0
    allocated: int = 0
    reserved: int = 0
    uuid: str = ""


@dataclass(frozen=True)
class ProcessEvidence:
    """A Python process. `pid` counts in `namespace` (each container has its own), `start` is in the kernel's ticks:
    together they are nobody else's. `forked`: it runs on in the interpreter of its parent.

    `env` are the variables of ranks and devices, by name, as they were last. `signal` makes it write the stacks of all
    threads into its file, 0 where it has no such handler. Before it is sent: is the handler still there (SigCgt), and
    is `descriptor` still the process's file? A program may have closed it and opened another.
    `imports` are the watched packages as their import began, and again as they were at the end; then also parts of an
    overlay's packages from elsewhere. `packages` is the key of what is installed for its interpreter. `end` is `exit`,
    `worker`, or `exec` of what it was before it became another program; it is empty where the process was killed, left
    by `os._exit`, or lives.
    """

    pid: int = 0
    start: int = 0
    ppid: int = 0
    parent_start: int = 0
    namespace: str = ""
    argv: Tuple[str, ...] = ()
    executable: str = ""
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False
    signal: int = 0
    descriptor: int = -1
    started_at: float = 0.0
    end: str = ""
    imports: Tuple[ImportedModule, ...] = ()
    packages: str = ""
    exceptions: Tuple[NotedException, ...] = ()
    hook_events: Tuple[HookEvent, ...] = ()
    memory: Tuple[PeakMemory, ...] = ()

    @property
    def key(self) -> Tuple[str, int, int]:
        return self.namespace, self.pid, self.start

    @property
    def parent(self) -> Tuple[str, int, int]:
        """The key of its parent, if that is one of these processes."""
        return self.namespace, self.ppid, self.parent_start

    @property
    def rank(self) -> Optional[int]:
        """By its environment; None where that says none."""
        for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
            text = self.env.get(name, "")
            if text.isdecimal() and len(text) < 10:
                return int(text)
        return None


@dataclass(frozen=True)
class RunEvidence:
    """What the probe saw of a run; what is not in it was not seen. `counted` are all processes that loaded the probe;
    what `unread` of them noted could not be read, or was too much. `packages` are what is installed for an interpreter,
    by key: distributions with their versions, named as their metadata directories. The processes are in the order of
    their start."""

    counted: int = 0
    unread: int = 0
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    processes: Tuple[ProcessEvidence, ...] = ()


def parse_lines(text: str) -> RunEvidence:
    """The content of evidence.jsonl, without lines that are none."""
    counts = RunEvidence()
    packages: Dict[str, Mapping[str, str]] = {}
    processes: List[ProcessEvidence] = []
    for line in text.split("\n"):
        with suppress(codec.RecordError):
            part = codec.from_json(RunEvidence, line, where="evidence.jsonl")
            counts = part if part.counted else counts
            packages.update(part.packages)
            processes += part.processes
    return RunEvidence(counts.counted, counts.unread, packages, in_order(processes))


def in_order(processes: List[ProcessEvidence]) -> Tuple[ProcessEvidence, ...]:
    """By their start. A process that became another program (exec) has written twice: what it was before has the end
    `exec`, and is left out where it was but a fork on its way there."""
    ordered = sorted(processes, key=lambda process: (process.started_at, process.pid))
    last = {process.key: process for process in ordered}
    found = []
    for process in ordered:
        if process is last[process.key]:
            found.append(process)
        elif not process.forked or process.imports or process.exceptions:
            found.append(process if process.end else replace(process, end="exec"))
    return tuple(found)
