"""The processes of a run with their ranks and threads, and what each thread waits for, by its stack as faulthandler
writes it and by the kernel. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ci_tasks.agent.gpu_locks import numbered
from ci_tasks.agent.hang import HangFacts, ProcessFacts
from ci_tasks.agent.quick_dataclass import dataclass

# What a thread does: it waits for other ranks, for another process or thread, for its files, for something else.
COLLECTIVE, GPU, BARRIER = "collective", "gpu", "barrier"
CHILD, WORKERS, JOIN, POLL, WAITS = "child", "workers", "join", "poll", "waits"
COMPUTES, UNKNOWN = "computes", ""
FOR_RANKS = (COLLECTIVE, GPU, BARRIER)
BUSY = 0.1  # of the time between the looks; less is a timer, or the probe
CLIENTS = frozenset(("docker", "podman", "apptainer", "srun", "ssh"))  # what they wait for is not below them
_IN_BETWEEN = frozenset(("bash", "sh", "dash", "env", "timeout", "nohup", "tee", "tini", "docker-init")) | CLIENTS
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LARGEST_RANK = 1 << 16
_THREAD = re.compile(r"(Current thread|Thread) 0x.* \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"]*)", line (\d{1,8}) in (.{1,300})')
_HELPER = re.compile("resource_tracker|forkserver")
_STARTED = re.compile(r"(^|/)multiprocessing/process\.py:_bootstrap$")
_TORCH = re.compile(r"(^|/)torch/(distributed|cuda|autograd|utils|nn|_\w+)/")
_LIBRARY = re.compile(rf"/lib(64)?/python3|^<frozen |/(site|dist)-packages/|{_TORCH.pattern}|(^|/)ray/(_private|util)/")
_WRAPPERS = frozenset(("wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "_bootstrap"))
_WRAPPERS |= {"_run_code", "_run_module_as_main"}  # of `python -m`
# Functions that wait, as FILE:FUNCTION: the first of these kinds below the program's own innermost frame counts.
_WAITING = (
    (COLLECTIVE, r"torch/distributed/(distributed_c10d|_functional_collectives)\.py:\w+"),
    (GPU, r"torch/.*:synchronize"),
    (BARRIER, r"threading\.py:_wait"),
    (WORKERS, r"(multiprocessing/(queues|pool)|torch/utils/data/dataloader|concurrent/futures/_base)\.py:\w+"),
    (CHILD, r"multiprocessing/(process\.py:join|popen_fork\.py:(wait|poll))"),
    (CHILD, r"subprocess\.py:(_?wait|_try_wait|_?communicate)"),
    (JOIN, r"threading\.py:(_?join|_shutdown|_wait_for_tstate_lock)"),
)
_IN_LOCKS = re.compile(r"(^|/)(queue|threading|selectors|socket|multiprocessing/\w+)\.py:|<frozen importlib.*:acquire")


@dataclass(frozen=True)
class StackFrame:
    """`function` without its class."""

    function: str
    file: str
    line: int

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}"


def read_stacks(text: str) -> list[list[StackFrame]]:
    """The frames of each thread, the innermost first. The last one is the main thread."""
    stacks: list[list[StackFrame]] = []
    for line in text.split("\n"):
        if _THREAD.match(line):
            stacks.append([])
        elif stacks and (found := _FRAME.match(line)):
            name = found[3].strip()  # of a class, and of a function inside of another one, the last part counts
            function = name if name.endswith(">") else name.rpartition(".")[2]
            stacks[-1].append(StackFrame(function, found[1], int(found[2])))
    return stacks


class Thread:
    """A thread of a process, and what it waits for: the `kind`, and the `call` that the program has made there, as a
    reader knows it: `queue.get`, `with lock_b`. `frame` is the innermost of the program's own, None if it has none.

    `is_worker`: it is the main thread of a process that multiprocessing started, without the frames of its parent,
    which a fork copies."""

    def __init__(self, process: Process, stack: Sequence[StackFrame], is_main: bool, lines: Mapping[str, str]) -> None:
        start = next((at for at, each in enumerate(stack) if is_main and _STARTED.search(each.key)), None)
        self.process, self.is_main, self.is_worker = process, is_main, start is not None
        self.frames = stack[:start]
        own = (each for each in self.frames if not _LIBRARY.search(each.file))
        packages = (each for each in self.frames if "-packages/" in each.file and not _TORCH.search(each.file))
        self.frame = next(own, None) or next(packages, None)
        self.kind, self.call = self._wait(lines)

    def _wait(self, lines: Mapping[str, str]) -> tuple[str, str]:
        frame, facts = self.frame, self.process.facts
        # What the program has called, the innermost first.
        inner = self.frames[: self.frames.index(frame)] if frame else self.frames
        for kind, pattern in _WAITING:
            if found := [each for each in inner if re.search(rf"(^|/)({pattern})$", each.key)]:
                return kind, found[-1].function if kind in (COLLECTIVE, GPU) else _call(inner)
        if self.is_main and facts.main_cpu >= BUSY:
            return COMPUTES, _call(inner)
        line = lines.get(f"{frame.file}:{frame.line}", "").rstrip(":") if frame else ""
        takes_lock = line.startswith("with ") or ".acquire(" in line
        is_in_lock = takes_lock or any(_IN_LOCKS.search(each.key) for each in inner)
        wchan = facts.wchan if self.is_main else "futex" if is_in_lock else ""  # the kernel tells of the main thread
        if not inner and "futex" in wchan and re.search(r"\.(join|shutdown)\(", line):
            return JOIN, line
        kernel = ((CHILD, "^(do|kernel)_wait"), (POLL, "poll|select"), (WAITS, "."))
        return next((kind for kind, name in kernel if re.search(name, wchan)), UNKNOWN), _call(inner) or line

    @property
    def text(self) -> str:
        """`queue.get at loader.py:88, in load`."""
        if self.frame is None:
            return self.call
        place, function = f"{self.frame.file.rpartition('/')[2]}:{self.frame.line}", self.frame.function
        inside = "" if function in ("<module>", self.call) else f", in {function}"
        return f"{self.call} at {place}{inside}" if self.call else f"{function} at {place}"

    @property
    def where(self) -> str:
        """`all_reduce at train.py:61`; the kernel's words without a stack."""
        facts = self.process.facts
        return self.text or f"state {facts.state}{f', {facts.wchan}' if facts.wchan else ''}"

    @property
    def does(self) -> str:
        """`waits in queue.get at loader.py:88`."""
        if self.frame is None:
            return self.where
        verb = {COMPUTES: "computes in", UNKNOWN: "is in"}.get(self.kind, "waits in")
        return f"{'' if self.is_main else 'a thread '}{verb} {self.text}"


def _call(inner: Sequence[StackFrame]) -> str:
    """The outermost library function that the program has called: `queue.get`; of torch without its module."""
    named = [frame for frame in inner if frame.function not in _WRAPPERS and not frame.function.startswith("__enter")]
    if named and named[-1].function == "<module>":  # of `python -m`
        named.pop()
    if not named:
        return ""
    file, function = named[-1].file, named[-1].function
    folder, _, name = file.rpartition("/")
    module = name.removesuffix(".py")
    if module in ("__init__", "_base"):
        module = folder.rpartition("/")[2]
    if file.startswith("<frozen"):
        return "import"
    return function if _TORCH.search(file) else f"{module}.{function}"


class Process:
    """A process that was there in both looks. `rank` is None in all but the topmost process that has the number, since
    its children inherit the variable; `parent` is the process that started it, if that was seen. `threads` are the
    threads with a stack, the main thread last; without any, only the main thread, as the kernel shows it."""

    def __init__(self, facts: ProcessFacts, lines: Mapping[str, str]) -> None:
        self.facts = facts
        self.rank: int | None = None
        self.parent: Process | None = None
        stacks = list(filter(None, read_stacks(facts.stacks))) or [[]]
        self.threads = [Thread(self, stack, stack is stacks[-1], lines) for stack in stacks]
        self.main = self.threads[-1]
        self.stays = facts.same_stacks is not False  # in the same functions in both looks, as far as that was seen

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

    @property
    def waits_for_ranks(self) -> bool:
        return self.main.kind in FOR_RANKS


class RunProcesses:
    """All processes of a run that were there in both looks, by container and pid, without processes that are only in
    between."""

    def __init__(self, facts: HangFacts) -> None:
        self.facts = facts
        every = {(item.place, item.pid): Process(item, facts.lines) for item in facts.processes}
        for process in every.values():
            process.parent = every.get((process.facts.place, process.facts.ppid))
        for process in every.values():
            process.rank = _rank(process)
        ranks = [process.rank for process in every.values() if process.rank is not None]
        for process in every.values() if len(ranks) > len(set(ranks)) else ():
            process.rank = None  # two jobs in one run may have a rank 0 each: then a number names no process
        has_python = any(process.facts.python for process in every.values())
        # A shell or a container's client that waits for what is of interest.
        idle = {n for n, p in every.items() if p.program in _IN_BETWEEN and p.facts.state != "T" and not p.facts.held}
        self.by_id = {id: process for id, process in every.items() if not (has_python and id in idle)}
        self.ranks = {process.rank: process for process in self.by_id.values() if process.rank is not None}

    @property
    def world(self) -> int | None:
        """How many ranks there should be here; None if they do not say it, or are on several nodes."""
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

    def _targets(self, thread: Thread) -> list[Thread]:
        """The threads that it may wait for; none if that is not seen."""
        process = thread.process
        if thread.kind == JOIN:
            return [other for other in process.threads if other not in (thread, process.main) and other.frame]
        if thread.kind == WORKERS:
            # Workers of multiprocessing in code of the program: an idle one is in none. Of several at the same place
            # one stands for all.
            workers = [each.main for each in self.by_id.values() if process in each.ancestors]
            busy = [worker for worker in workers if worker.is_worker and worker.frame]
            return busy[:1] if len({worker.where for worker in busy}) == 1 else busy
        children = [each for each in self.by_id.values() if each.parent is process and each.facts.state != "Z"]
        others = [each.main for each in children if not _HELPER.search(" ".join(each.facts.argv))]
        return others if thread.kind == CHILD else []


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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _LARGEST_RANK


def _rank(process: Process) -> int | None:
    """A child with its parent's rank is a helper of it, if the parent is Python too."""
    rank, *above = [rank_in(each.facts.env) if each.facts.python else None for each in (process, *process.ancestors)]
    return None if rank in above else rank


def rank_in(env: Mapping[str, str]) -> int | None:
    text = next((env[name] for name in _RANKS if name in env), "")
    return int(text) if _is_number(text) else None
