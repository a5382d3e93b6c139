"""The processes of a run with their ranks and threads, what each thread waits for, and which thread that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from ci_tasks.agent.gpus.locks import numbered
from ci_tasks.agent.hang.facts import HangFacts, ProcessFacts, ThreadFacts
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.hang import waits
from ci_tasks.features.hang.waits import Stack, Wait, read_stacks, user_frame, wait_of

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
CLIENTS = frozenset(("docker", "podman", "apptainer", "srun", "ssh"))  # what they wait for is not below them
_IN_BETWEEN = frozenset(("bash", "sh", "dash", "env", "timeout", "nohup", "tee", "tini", "docker-init")) | CLIENTS
BUSY = 0.1  # of the time between the looks; less is a timer, or the probe
_LARGEST_RANK = 1 << 16

Id = tuple[str, int]  # container and pid


@dataclass(eq=False)
class Thread:
    process: Process
    stack: Stack
    kernel: ThreadFacts | None
    wait: Wait

    @property
    def name(self) -> str:
        if self is self.process.main:
            return "the main thread"
        return f"thread {self.stack.name}" if self.stack.name else "a thread"

    @property
    def where(self) -> str:
        """`all_reduce at train.py:61`; the kernel's words without a stack."""
        channel = f", {self.kernel.wchan}" if self.kernel and self.kernel.wchan else ""
        return self.wait.text or f"state {self.process.facts.state}{channel}"

    @property
    def does(self) -> str:
        """`waits in queue.get at loader.py:88`."""
        if self.wait.frame is None:
            return self.where
        named = "" if self is self.process.main else f"{self.name} "
        verbs = {waits.COMPUTES: "computes in", waits.C_CODE: "is in", waits.UNKNOWN: "is in"}
        return f"{named}{verbs.get(self.wait.kind, 'waits in')} {self.wait.text}"


class Process:
    """A process that was there in both looks. `rank` is None in all but the topmost process that has the number, since
    its children inherit the variable; `parent` is the process that started it, of those that were seen."""

    def __init__(self, facts: ProcessFacts, seen: HangFacts) -> None:
        self.facts, self._seen = facts, seen
        self.rank: int | None = None
        self.parent: Process | None = None

    @property
    def id(self) -> Id:
        return (self.facts.place, self.facts.pid)

    @property
    def name(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}"
        place = f" in {self.facts.place}" if self.facts.place else ""
        below = next((f", below rank {above.rank}" for above in self.ancestors if above.rank is not None), "")
        return f"{self.program} (pid {self.facts.pid}{place}{below})"

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
    def ancestors(self) -> list[Process]:
        """From its parent upwards."""
        found: list[Process] = []
        above = self.parent
        while above is not None and above not in found:
            found.append(above)
            above = above.parent
        return found

    @cached_property
    def threads(self) -> list[Thread]:
        """Those with a stack, the main thread last; without any the main thread alone, of which the kernel knows."""
        facts, found = self.facts, list[Thread]()
        main = next((thread for thread in facts.threads if thread.tid == facts.pid), None)
        stacks = [stack for stack in read_stacks(facts.stacks) if stack.frames] or [Stack(())]
        for stack in stacks:
            kernel = main if stack is stacks[-1] else None
            computes = kernel is not None and kernel.cpu / max(self._seen.seconds_between, 0.1) >= BUSY
            seen = self._seen
            wait = wait_of(stack, kernel, seen.machine, seen.sources, computes=computes, still=self.stays)
            found.append(Thread(self, stack, kernel, wait))
        return found

    @property
    def main(self) -> Thread:
        return self.threads[-1]

    @property
    def stays(self) -> bool:
        """Whether its main thread was in the same functions in both looks, as far as that was seen."""
        return self.facts.same_stacks is not False


class RunProcesses:
    """All processes of a run that were there in both looks, without those that only stand in between."""

    def __init__(self, facts: HangFacts) -> None:
        self.facts = facts
        every = {(item.place, item.pid): Process(item, facts) for item in facts.processes}
        for process in every.values():
            process.parent = every.get((process.facts.place, process.facts.ppid))
        for process in every.values():
            process.rank = _rank(process)
        ranks = [process.rank for process in every.values() if process.rank is not None]
        for process in every.values() if len(ranks) > len(set(ranks)) else ():
            process.rank = None  # two jobs in one run may have a rank 0 each: then a number names no process
        self.by_id = {id: process for id, process in every.items() if not _is_in_between(process, every.values())}
        self._below: dict[Id, list[Process]] = {}
        for process in self.by_id.values():
            for above in process.ancestors:
                self._below.setdefault(above.id, []).append(process)
        self.ranks = {process.rank: process for process in self.by_id.values() if process.rank is not None}

    @property
    def world(self) -> int | None:
        """How many ranks there should be here; None where they do not say it, or are on several nodes."""
        sizes = set()
        for env in (process.facts.env for process in self.ranks.values()):
            size = next((env[name] for name in _SIZES if name in env), "")
            sizes.add(int(size) if env.get("LOCAL_WORLD_SIZE", size) == size and _is_number(size) else None)
        return sizes.pop() if len(sizes) == 1 else None

    def chain(self, first: Thread) -> list[Thread]:
        """From a thread to the one that it waits for, and so on, as long as it is shown which one that is."""
        way = [first]
        while len(targets := self._targets(way[-1])) == 1 and targets[0] not in way:
            way.append(targets[0])
        return way

    def last(self, process: Process) -> Thread:
        return self.chain(process.main)[-1]

    def _targets(self, thread: Thread) -> list[Thread]:
        """The threads that it may wait for; none if that is not seen."""
        process, wait = thread.process, thread.wait
        if wait.kind == waits.JOIN:
            others = [other for other in process.threads if other not in (thread, process.main)]
            return [other for other in others if user_frame(other.stack)]
        below = self._below.get(process.id, ())
        if wait.for_workers:
            # Workers of multiprocessing in code of the program: an idle one is in none. Of several at the same place
            # one stands for all.
            workers = [each.main for each in below]
            busy = [worker for worker in workers if worker.stack.is_worker and worker.wait.frame]
            return busy[:1] if len({worker.where for worker in busy}) == 1 else busy
        if wait.kind != waits.CHILD:
            return []
        children = [each for each in below if each.parent is process and each.facts.state != "Z"]
        return [each.main for each in children if not any(map(_is_helper, each.facts.argv))]


def names(processes: Sequence[Process]) -> str:
    numbers = [process.rank for process in processes if process.rank is not None]
    others = [process.name for process in processes if process.rank is None]
    shown = others[:4] + ([f"{len(others) - 4} more"] if len(others) > 4 else [])
    return ", ".join([*([numbered("rank", numbers)] if numbers else []), *shown])


def that(processes: Sequence[Process], one: str, several: str) -> str:
    """`rank 3 waits`, `ranks 0-2 wait`: the processes with a verb."""
    return f"{names(processes)} {one if len(processes) == 1 else several}"


def waiting(processes: Sequence[Process]) -> str:
    return f"{that(processes, 'waits', 'wait')} in {processes[0].main.where}"


def rank_in(env: Mapping[str, str]) -> int | None:
    text = next((env[name] for name in _RANKS if name in env), "")
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _LARGEST_RANK


def _rank(process: Process) -> int | None:
    """A child with its parent's rank is a helper of it, where the parent is Python too."""
    rank = rank_in(process.facts.env) if process.facts.python else None
    above = [other for other in process.ancestors if other.facts.python and rank_in(other.facts.env) == rank]
    return None if above else rank


def _is_in_between(process: Process, others: Iterable[Process]) -> bool:
    """A shell or a container's client that waits for what is of interest."""
    is_shell = process.program in _IN_BETWEEN and process.facts.state not in "TD"
    return is_shell and any(other.facts.python for other in others)


def _is_helper(word: str) -> bool:
    return "resource_tracker" in word or "forkserver" in word
