"""Stacks of threads, as faulthandler writes them, and what a thread waits for, by its stack and by the kernel.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ci_tasks.agent.hang.facts import ThreadFacts
from ci_tasks.agent.quick_dataclass import dataclass

MAX_TEXT = 1 << 22
_THREADS, _FRAMES = 2000, 300
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[([^\]]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"]*)", line (\d{1,8}) in (.{1,300})')
_STARTED = re.compile(r"(^|/)multiprocessing/process\.py:_bootstrap$")
COLLECTIVE, GPU, BARRIER, LOCK, PROCESS_LOCK, IMPORT = "collective", "gpu", "barrier", "lock", "process lock", "import"
QUEUE, CONDITION, JOIN, CHILD, SLEEP = "queue", "condition", "join", "child", "sleep"
READ, WRITE, POLL, FILE_LOCK, C_CODE, COMPUTES, UNKNOWN = "read", "write", "poll", "file lock", "C code", "computes", ""
FOR_RANKS = (COLLECTIVE, GPU, BARRIER)

_TORCH = re.compile(r"(^|/)torch/(distributed|cuda|autograd|utils|nn|_\w+)/")
_LIBRARY = re.compile(rf"/lib(64)?/python3|^<frozen |/(site|dist)-packages/|{_TORCH.pattern}|(^|/)ray/(_private|util)/")
_WRAPPERS = frozenset(("wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "_bootstrap"))
# Functions that wait, as FILE:FUNCTION. These decide wherever they are below the program's own innermost frame,
_DECISIVE = (
    (COLLECTIVE, r"torch/distributed/(distributed_c10d|_functional_collectives)\.py:\w+"),
    (GPU, r"torch/.*:synchronize"),
    (IMPORT, r"<frozen importlib.*:acquire"),
    (BARRIER, r"threading\.py:_wait"),
)
# and of these the one nearest to the program says what was called: `Queue.get` waits in a condition.
_CALLED = (
    (QUEUE, r"queue\.py:(get|put|join)|multiprocessing/queues\.py:(get|put)"),
    (PROCESS_LOCK, r"multiprocessing/synchronize\.py:(acquire|__enter__)"),
    (CHILD, r"multiprocessing/(process\.py:join|popen_fork\.py:(wait|poll))"),
    (CHILD, r"subprocess\.py:(_?wait|_try_wait|_?communicate)"),
    (READ, r"multiprocessing/connection\.py:_?recv(_bytes)?|socket\.py:(readinto|accept)"),
    (JOIN, r"threading\.py:(_?join|_shutdown|_wait_for_tstate_lock)"),
    (CONDITION, r"threading\.py:(wait|wait_for|acquire)|multiprocessing/pool\.py:(get|wait|next)"),
    (CONDITION, r"concurrent/futures/_base\.py:(result|exception|wait)"),
    (LOCK, r"logging/__init__\.py:acquire"),
    (POLL, r"selectors\.py:select"),
)
_FOR_WORKERS = re.compile(
    r"(^|/)(multiprocessing/(queues|pool)\.py|torch/utils/data/dataloader\.py|concurrent/futures/_base\.py):"
)
_MACHINES = ("x86_64", "aarch64")
# System calls by their numbers on these machines, and what the thread does in them.
_KERNEL = (
    (READ, ((0, 19, 43, 45, 47, 288, 299), (63, 65, 202, 207, 212, 242, 243)), "reads"),
    (WRITE, ((1, 20, 44, 46), (64, 66, 206, 211)), "writes"),
    (POLL, ((7, 23, 232, 270, 271, 281, 441), (22, 72, 73, 441)), "waits for its files to be ready"),
    (SLEEP, ((35, 230), (101, 115)), "sleeps"),
    (CHILD, ((61, 247), (260, 95)), "waits for a child"),
    (FILE_LOCK, ((72, 73), (25, 32)), "waits for a lock on a file"),
    (LOCK, ((202,), (98,)), "waits for a lock"),
)
_WORDS = {kind: word for kind, _, word in _KERNEL}


# -- stacks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StackFrame:
    """`function` without its class."""

    function: str
    file: str
    line: int | None = None

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def place(self) -> str:
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Stack:
    """A thread's frames, the innermost first. `is_worker`: it is the main thread of a process that multiprocessing
    started, without the frames of its parent, which a fork copies."""

    frames: tuple[StackFrame, ...]
    name: str = ""
    is_worker: bool = False


def read_stacks(text: str) -> list[Stack]:
    """The threads of the last dump in `text`. The last one is the main thread."""
    stacks: list[tuple[str, list[StackFrame]]] = []
    seen: set[str] = set()
    for line in text[-MAX_TEXT:].split("\n"):
        if head := _THREAD.match(line):
            if head[1] in seen or len(stacks) >= _THREADS:  # the next dump begins
                stacks, seen = [], set()
            seen.add(head[1])
            stacks.append((head[2] or "", []))
        elif stacks and len(stacks[-1][1]) < _FRAMES and (found := _FRAME.match(line)):
            stacks[-1][1].append(StackFrame(_last(found[3].strip()), found[1], int(found[2])))
    found_stacks = [Stack(tuple(frames), name) for name, frames in stacks]
    return [*found_stacks[:-1], *map(_without_start, found_stacks[-1:])]


def _without_start(main: Stack) -> Stack:
    start = next((at for at, frame in enumerate(main.frames) if _STARTED.search(frame.key)), None)
    return main if start is None else Stack(main.frames[:start], main.name, is_worker=True)


def _last(function: str) -> str:
    """`Queue.get` and `outer.<locals>.inner` as `get` and `inner`: faulthandler knows no more."""
    return function if function.endswith(">") else function.rpartition(".")[2]


# -- what a thread waits for -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """`call` is what the program called there, as a reader knows it: `queue.get`, `with lock_b`. `frame` is the
    innermost of the program's own, None where the process has none. `for_workers`:
    it waits for what processes of multiprocessing give it."""

    kind: str
    call: str = ""
    frame: StackFrame | None = None
    for_workers: bool = False

    @property
    def text(self) -> str:
        """`queue.get at loader.py:88, in load`."""
        call = self.call or _WORDS.get(self.kind, "")
        if self.frame is None:
            return call
        inside = "" if self.frame.function in ("<module>", call) else f", in {self.frame.function}"
        return f"{call} at {self.frame.place}{inside}" if call else f"{self.frame.function} at {self.frame.place}"


def is_library(frame: StackFrame) -> bool:
    """Whether it is not the program's own: of Python, of an installed package, of torch."""
    return _LIBRARY.search(frame.file) is not None or frame.file.startswith("<frozen")


def user_frame(stack: Stack) -> StackFrame | None:
    """The innermost frame of the program; without one the innermost that is not Python's own, or none."""
    own = next((frame for frame in stack.frames if not is_library(frame)), None)
    packages = (frame for frame in stack.frames if "-packages/" in frame.file and not _TORCH.search(frame.file))
    return own or next(packages, None)


def wait_of(
    stack: Stack,
    thread: ThreadFacts | None,
    machine: str,
    sources: Mapping[str, str],
    *,
    computes: bool = False,
    still: bool = False,
) -> Wait:
    """What the thread with that stack waits for. `computes`: it uses the processor; `still`: its stack was the same in
    both looks."""
    frame = user_frame(stack)
    # What the program has called, the innermost first.
    inner = stack.frames[: stack.frames.index(frame)] if frame else stack.frames
    kernel = _kernel_wait(thread, machine)
    for kind, pattern in _DECISIVE:
        if found := _match(((kind, pattern),), inner):
            call = {COLLECTIVE: found[1].function, GPU: "synchronize", IMPORT: "import", BARRIER: "barrier.wait"}[kind]
            return Wait(kind, call, frame)
    call, line = _call(inner), _source_line(sources, frame)
    found = _match(_CALLED, inner)
    if found and not (computes and found[0] in (READ, POLL)):
        return Wait(found[0], call, frame, any(_FOR_WORKERS.search(item.key) for item in inner))
    if computes:
        return Wait(COMPUTES, call, frame)
    takes_lock = line.startswith("with ") or ".acquire(" in line
    if not inner and (kernel == LOCK or (thread is None and still and takes_lock)):
        is_join = re.search(r"\.(join|shutdown)\(", line) is not None
        return Wait(LOCK if takes_lock else JOIN if is_join else C_CODE, line.rstrip(":"), frame)
    return Wait(kernel, call or line, frame)


def _match(waits: Sequence[tuple[str, str]], frames: Sequence[StackFrame]) -> tuple[str, StackFrame] | None:
    """The first of these waits in the frames, from the program's own frame on, and its frame."""
    for frame in reversed(frames):
        for kind, pattern in waits:
            if re.search(rf"(^|/)({pattern})$", frame.key):
                return kind, frame
    return None


def _kernel_wait(thread: ThreadFacts | None, machine: str) -> str:
    """The kind of the system call that a thread is in."""
    number = thread.syscall.partition(" ")[0] if thread else ""
    if not number.isdigit() or machine not in _MACHINES:
        return UNKNOWN
    at = _MACHINES.index(machine)
    return next((kind for kind, numbers, _ in _KERNEL if int(number) in numbers[at]), C_CODE)


def _source_line(sources: Mapping[str, str], frame: StackFrame | None) -> str:
    """The line of a frame, shortened; empty if its file is not known."""
    lines = sources.get(frame.file, "").splitlines() if frame else []
    line = lines[frame.line - 1].strip() if frame and frame.line and frame.line <= len(lines) else ""
    return line if len(line) <= 60 else f"{line[:57]}..."


def _call(inner: Sequence[StackFrame]) -> str:
    """The outermost library function that the program has called: `queue.get`; of torch without its module."""
    named = [frame for frame in inner if frame.function not in _WRAPPERS and not frame.function.startswith("__enter")]
    if not named:
        return ""
    folder, _, name = named[-1].file.replace("\\", "/").rpartition("/")
    module = name.removesuffix(".py")
    if module in ("__init__", "_base"):
        module = folder.rpartition("/")[2]
    if _TORCH.search(named[-1].file) or module.startswith("<") or not module:
        return named[-1].function
    return f"{module}.{named[-1].function}"
