"""The processes of a run with their stacks, ranks and waits, from what its agent saw. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ci_tasks.agent.hang.facts import HangFacts, OpenFile, ProcessFacts, ThreadFacts
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.hang.lock_order import NO_LOCKS, LockUse, lock_use
from ci_tasks.features.failures.hang.stacks import Stack, read_stacks
from ci_tasks.features.failures.hang.waits import UNKNOWN, Wait, is_library, wait_of

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
CLIENTS = frozenset(("docker", "podman", "apptainer", "srun", "ssh"))  # what they wait for is not below them
_IN_BETWEEN = frozenset(("bash", "sh", "dash", "env", "timeout", "nohup", "tee", "tini", "docker-init")) | CLIENTS
BUSY = 0.1  # of the time between the looks; less is a timer, or the probe
_LARGEST_RANK = 1 << 20

Id = tuple[str, int]  # container and pid


@dataclass(frozen=True)
class ThreadState:
    stack: Stack | None
    kernel: ThreadFacts | None
    wait: Wait
    locks: LockUse = NO_LOCKS


@dataclass
class Process:
    """A process. `rank` is that of the topmost process that has it: its children inherit the variable."""

    facts: ProcessFacts
    machine: str
    seconds: float
    sources: Mapping[str, str]
    rank: int | None = None

    @property
    def id(self) -> Id:
        return (self.facts.place, self.facts.pid)

    @property
    def name(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"{self.program} (pid {self.facts.pid}{f' in {self.facts.place}' if self.facts.place else ''})"

    @property
    def program(self) -> str:
        """`train.py` for `python -u train.py --x`; else the name of the program."""
        words = self.facts.argv
        if self.facts.python:
            for before, word in zip(("", *words), words, strict=False):
                if before == "-m" or word.endswith(".py"):
                    return word.rpartition("/")[2]
        return words[0].rpartition("/")[2] if words else ""

    @property
    def stays(self) -> bool:
        """Whether its main thread was in the same functions in both looks; lines of a loop may differ."""
        return self._functions is None or len(self._functions) < 2 or self._functions[0] == self._functions[1]

    @cached_property
    def _functions(self) -> list[tuple[str, ...]] | None:
        """The functions of the main thread, outermost first, in each look; None where there is one look."""
        if not self.facts.stacks_before:
            return None
        looks = (read_stacks(self.facts.stacks_before), read_stacks(self.facts.stacks))
        mains = [stacks[-1] for stacks in looks if stacks]
        return [tuple(f.function for f in reversed(stack.python) if not is_library(f)) for stack in mains]

    @cached_property
    def stacks(self) -> list[Stack]:
        stacks = read_stacks(self.facts.stacks)
        return stacks if any(stack.frames for stack in stacks) else []

    @cached_property
    def threads(self) -> list[ThreadState]:
        kernel = {thread.tid: thread for thread in self.facts.threads}
        return [self._thread(stack, kernel) for stack in self.stacks] or [self._bare(kernel)]

    @property
    def main(self) -> ThreadState:
        mains = (thread for thread in self.threads if thread.stack and thread.stack.main)
        return next(mains, self.threads[0])

    @property
    def others(self) -> list[ThreadState]:
        return [thread for thread in self.threads if thread is not self.main]

    def file(self, fd: int | None) -> OpenFile | None:
        return next((file for file in self.facts.files if file.fd == fd), None)

    def _thread(self, stack: Stack, kernel: Mapping[int, ThreadFacts]) -> ThreadState:
        own = kernel.get(self.facts.pid if stack.main else stack.tid or -1)
        computes = self._cpu_of(own) >= BUSY
        still = bool(self.facts.stacks) and self.facts.same_stacks is not False
        wait = wait_of(stack, own, self.machine, self.sources, computes=computes, still=still)
        return ThreadState(stack, own, wait, lock_use(stack, self.sources))

    def _bare(self, kernel: Mapping[int, ThreadFacts]) -> ThreadState:
        own = kernel.get(self.facts.pid)
        computes = self._cpu_of(own) >= BUSY
        wait = wait_of(Stack(()), own, self.machine, {}, computes=computes) if own else Wait(UNKNOWN)
        return ThreadState(None, own, wait)

    def _cpu_of(self, thread: ThreadFacts | None) -> float:
        return thread.cpu / max(self.seconds, 0.1) if thread else 0.0


@dataclass(frozen=True)
class RunProcesses:
    """All processes of a run that lived in the second look, by place and pid."""

    facts: HangFacts
    by_id: Mapping[Id, Process]

    @property
    def ranks(self) -> dict[int, Process]:
        return {process.rank: process for process in self.by_id.values() if process.rank is not None}

    def children(self, process: Process) -> list[Process]:
        place, pid = process.id
        return [other for other in self.by_id.values() if (other.facts.place, other.facts.ppid) == (place, pid)]

    @property
    def world(self) -> int | None:
        """How many ranks there should be here; None where they do not say it, or are on several nodes."""
        sizes = {self._size(process) for process in self.ranks.values()}
        return sizes.pop() if len(sizes) == 1 else None

    def _size(self, process: Process) -> int | None:
        env = process.facts.env
        size = next((env[name] for name in _SIZES if name in env), "")
        local = env.get("LOCAL_WORLD_SIZE", size)
        return int(size) if size.isdigit() and size == local and int(size) < _LARGEST_RANK else None


def processes_of(facts: HangFacts) -> RunProcesses:
    seconds = facts.seconds_between
    made = [Process(item, facts.machine, seconds, facts.sources) for item in facts.processes]
    by_id = {process.id: process for process in made}
    for process in made:
        process.rank = _rank(process, by_id)
    _keep_one_of_each_rank(made)
    return RunProcesses(facts, {process.id: process for process in made if not _is_in_between(process, made)})


def _is_in_between(process: Process, others: Iterable[Process]) -> bool:
    """A shell or a container's client that waits for what is of interest."""
    is_shell = process.program in _IN_BETWEEN and process.facts.state not in "TD"
    return is_shell and any(other.facts.python for other in others)


def rank_in(env: Mapping[str, str]) -> int | None:
    text = next((env[name] for name in _RANKS if name in env), "")
    return int(text) if text.isdigit() and int(text) < _LARGEST_RANK else None


def _rank(process: Process, by_id: Mapping[Id, Process]) -> int | None:
    """A child with its parent's rank is a helper of it, where the parent is Python too."""
    rank, parent = rank_in(process.facts.env), by_id.get((process.facts.place, process.facts.ppid))
    if rank is None or not process.facts.python:
        return None
    while parent is not None and parent.facts.ppid != parent.facts.pid:
        if parent.facts.python and rank_in(parent.facts.env) == rank:
            return None
        above = by_id.get((parent.facts.place, parent.facts.ppid))
        parent = above if above is not parent else None
    return rank


def _keep_one_of_each_rank(processes: Iterable[Process]) -> None:
    """Two jobs in one run may have a rank 0 each: then a number names nobody."""
    found: dict[int, list[Process]] = {}
    for process in processes:
        if process.rank is not None:
            found.setdefault(process.rank, []).append(process)
    if any(len(same) > 1 for same in found.values()):
        for same in found.values():
            for process in same:
                process.rank = None
