"""What a thread waits for, from its stack and from what the kernel has of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ci_tasks.agent.hang.facts import ThreadFacts
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.hang.stacks import Stack, StackFrame

COLLECTIVE, GPU, BARRIER, LOCK, PROCESS_LOCK, IMPORT = "collective", "gpu", "barrier", "lock", "process lock", "import"
QUEUE, CONDITION, JOIN, CHILD, SLEEP = "queue", "condition", "join", "child", "sleep"
READ, WRITE, POLL, FILE_LOCK, C_CODE, COMPUTES, UNKNOWN = "read", "write", "poll", "file lock", "C code", "computes", ""

_COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "broadcast"),
        *("all_to_all_single", "barrier", "monitored_barrier", "broadcast_object_list", "gather", "gather_object"),
        *("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "recv"),
        *("all_reduce_coalesced", "batch_isend_irecv", "send_object_list", "recv_object_list"),
    )
)
_TORCH = re.compile(r"(^|/)torch/(distributed|cuda|autograd|utils|nn|_\w+)/")
_LIBRARY = re.compile(rf"/lib(64)?/python3|^<frozen |/(site|dist)-packages/|{_TORCH.pattern}|(^|/)ray/(_private|util)/")
_WRAPPERS = frozenset(("wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "_bootstrap"))
# Functions that wait, by the end of their file's path: the first that a stack has says what it waits for.
_WAITS = (
    ("queue.py", ("get", "put", "join"), QUEUE),
    ("multiprocessing/queues.py", ("get", "put"), QUEUE),
    ("multiprocessing/synchronize.py", ("acquire", "__enter__"), PROCESS_LOCK),
    ("multiprocessing/pool.py", ("get", "wait", "next"), CONDITION),
    ("multiprocessing/process.py", ("join",), CHILD),
    ("multiprocessing/popen_fork.py", ("wait", "poll"), CHILD),
    ("multiprocessing/connection.py", ("recv", "recv_bytes", "_recv", "_recv_bytes"), READ),
    ("subprocess.py", ("wait", "_wait", "_try_wait"), CHILD),
    ("subprocess.py", ("communicate", "_communicate"), CHILD),
    ("threading.py", ("join", "_shutdown", "_wait_for_tstate_lock", "_join"), JOIN),
    ("threading.py", ("wait", "wait_for", "acquire"), CONDITION),
    ("concurrent/futures/_base.py", ("result", "exception", "wait"), CONDITION),
    ("logging/__init__.py", ("acquire",), LOCK),
    ("selectors.py", ("select",), POLL),
    ("socket.py", ("readinto", "accept"), READ),
)
# Numbers of system calls, on x86-64 and on ARM.
_CALLS = {
    READ: ((0, 19, 43, 45, 47, 288, 299), (63, 65, 202, 207, 212, 242, 243)),
    WRITE: ((1, 20, 44, 46), (64, 66, 206, 211)),
    POLL: ((7, 23, 232, 270, 271, 281, 441), (22, 72, 73, 441)),
    SLEEP: ((35, 230), (101, 115)),
    CHILD: ((61, 247), (260, 95)),
    FILE_LOCK: ((72, 73), (25, 32)),
    LOCK: ((202,), (98,)),
}
_BY_NUMBER = [{number: kind for kind, numbers in _CALLS.items() for number in numbers[at]} for at in (0, 1)]
_CHANNELS = (
    (re.compile(r"pipe_read|unix_stream_read|sk_wait_data|wait_woken|tty_read|n_tty_read|accept"), READ),
    (re.compile(r"pipe_write|sock_alloc_send|sk_stream_wait"), WRITE),
    (re.compile(r"ep_poll|do_epoll|poll_schedule|do_select|do_sys_poll|do_poll"), POLL),
    (re.compile(r"nanosleep"), SLEEP),
    (re.compile(r"(?<!futex_)do_wait|kernel_wait"), CHILD),
    (re.compile(r"flock|locks_lock|posix_lock"), FILE_LOCK),
    (re.compile(r"futex"), LOCK),
)
_GPU = re.compile(r"cu(da)?(Stream|Event|Device|Ctx)Synchronize|cuMemcpyDtoH|hip\w*Synchronize")
_WORDS = {
    READ: "reads",
    WRITE: "writes",
    POLL: "waits for its files to be ready",
    SLEEP: "sleeps",
    CHILD: "waits for a child",
    FILE_LOCK: "waits for a lock on a file",
    LOCK: "waits for a lock",
}


@dataclass(frozen=True)
class Wait:
    """`call` is what the program called there, as a reader knows it: `queue.get`, `with lock_b`. `frame` is the
    innermost of the program's own, None where the process has none. `fd` is of what it reads or writes."""

    kind: str
    call: str = ""
    frame: StackFrame | None = None
    fd: int | None = None

    @property
    def text(self) -> str:
        """`queue.get at loader.py:88`."""
        call = self.call or _WORDS.get(self.kind, "")
        if self.frame is None:
            return call
        inside = "" if self.frame.function in ("<module>", call) else f", in {self.frame.function}"
        return f"{call} at {self.frame.place}{inside}" if call else f"{self.frame.function} at {self.frame.place}"


def is_library(frame: StackFrame) -> bool:
    """Whether it is not the program's own: of Python, of an installed package, of torch."""
    return frame.native or _LIBRARY.search(frame.file) is not None or frame.file.startswith("<frozen")


def user_frame(stack: Stack) -> StackFrame | None:
    """The innermost frame of the program; without one the innermost that is not Python's own, or none."""
    python = stack.python
    own = next((frame for frame in python if not is_library(frame)), None)
    packages = (frame for frame in python if "-packages/" in frame.file and not _TORCH.search(frame.file))
    return own or next(packages, None)


def kernel_wait(thread: ThreadFacts | None, machine: str) -> tuple[str, int | None]:
    """(kind, file descriptor) of the system call that a thread is in."""
    if thread is None:
        return UNKNOWN, None
    words = thread.syscall.split()
    if words and words[0].isdigit() and machine in ("x86_64", "aarch64"):
        kind = _BY_NUMBER[machine == "aarch64"].get(int(words[0]), C_CODE)
        return kind, _fd(words) if kind in (READ, WRITE, FILE_LOCK) else None
    channels = (kind for pattern, kind in _CHANNELS if pattern.search(thread.wchan))
    return next(channels, UNKNOWN), None


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
    inner = _inner(stack, frame)
    kernel, fd = kernel_wait(thread, machine)
    collective = next((item.function for item in reversed(inner) if _is_collective(item)), "")
    if collective:
        return Wait(COLLECTIVE, collective, frame, fd)
    if any(_GPU.search(name) for name in stack.natives) or any(
        item.function == "synchronize" and _TORCH.search(item.file) for item in inner
    ):
        return Wait(GPU, "synchronize", frame)
    if any(item.file.startswith("<frozen importlib") and item.function == "acquire" for item in stack.python[:4]):
        return Wait(IMPORT, "import", frame)
    if any(item.name in ("threading.py", "synchronize.py") and _is_barrier(item, inner) for item in inner):
        return Wait(BARRIER, "barrier.wait", frame)
    kind = _library_wait(inner)
    if kind and not (computes and kind in (READ, POLL)):
        return Wait(kind, _call(inner), frame, fd)
    line = source_line(sources, frame)
    if computes:
        return Wait(COMPUTES, _call(inner), frame)
    if not inner and (kernel == LOCK or (thread is None and still and _takes_lock(line))):
        return _lock(line, frame)
    if kernel == C_CODE or (kernel == UNKNOWN and not inner):
        return Wait(C_CODE if kernel == C_CODE else UNKNOWN, _call(inner) or _short(line), frame)
    return Wait(kernel, _call(inner) or _short(line), frame, fd)


def source_line(sources: Mapping[str, str], frame: StackFrame | None) -> str:
    """The line of a frame; empty where its file is not known."""
    text = sources.get(frame.file, "") if frame else ""
    lines = text.splitlines()
    return lines[frame.line - 1].strip() if frame and frame.line and frame.line <= len(lines) else ""


def _lock(line: str, frame: StackFrame | None) -> Wait:
    """The innermost frame is the program's, and the kernel has it in a futex: a lock, if its line says so."""
    if _takes_lock(line):
        return Wait(LOCK, _short(line).rstrip(":"), frame)
    if re.search(r"\.(join|shutdown)\(", line):
        return Wait(JOIN, _short(line), frame)
    return Wait(C_CODE, _short(line), frame)


def _takes_lock(line: str) -> bool:
    return line.startswith("with ") or ".acquire(" in line


def _library_wait(inner: tuple[StackFrame, ...]) -> str:
    """Nearest to the program first: `Queue.get` waits in a condition, and is what was called."""
    for frame in reversed(inner):
        for end, functions, kind in _WAITS:
            if frame.function in functions and (frame.file == end or frame.file.endswith("/" + end)):
                return kind
    return UNKNOWN


def _inner(stack: Stack, frame: StackFrame | None) -> tuple[StackFrame, ...]:
    """The Python frames that the program's innermost one has called, the innermost first."""
    python = stack.python
    return python[: python.index(frame)] if frame is not None else python


def _call(inner: tuple[StackFrame, ...]) -> str:
    named = [frame for frame in inner if frame.function not in _WRAPPERS and not frame.function.startswith("__enter")]
    if not named:
        return ""
    frame = named[-1]
    module = frame.name.removesuffix(".py")
    if module in ("__init__", "_base"):
        module = frame.file.replace("\\", "/").split("/")[-2:-1][0] if "/" in frame.file else ""
    if _TORCH.search(frame.file) or module.startswith("<") or not module:
        return frame.function
    return f"{module}.{frame.function}"


def _is_collective(frame: StackFrame) -> bool:
    return frame.function in _COLLECTIVES and "torch/distributed/" in frame.file


def _is_barrier(frame: StackFrame, inner: tuple[StackFrame, ...]) -> bool:
    """`Barrier.wait` calls `_wait`, which waits in a condition."""
    functions = [item.function for item in inner]
    return (
        frame.function == "_wait" and "wait" in functions[functions.index("_wait") :] and frame.name == "threading.py"
    )


def _fd(words: list[str]) -> int | None:
    try:
        number = int(words[1], 16) & 0xFFFFFFFF
    except (IndexError, ValueError):
        return None
    return number if number < 1 << 20 else None


def _short(line: str) -> str:
    return line if len(line) <= 60 else line[:57] + "..."
