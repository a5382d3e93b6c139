"""Processes of this machine, as Linux's /proc describes them, and the end of all that a run started.

The agent is the child subreaper of its job: whatever a process does to its environment, title, group or session, it
stays below the agent. A job begins in a session of its own, and no process can join a session that exists, so whatever
is below the agent in another session than its own is the job's. Where the agent is gone, a job's processes are found by
their group, and by the mark that the agent puts in their environment.

Programs of ours have a time limit each. Signals come as a readable file descriptor, so that one wait serves the job's
output, its end, and a request to stop.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import run_directory
from .files import content_of
from .records import QueryAnswer, Status

if TYPE_CHECKING:
    import subprocess

KILL_SECONDS = 5.0  # for killed processes to be gone; one that a driver or a file system holds never is
_EMPTY_PASSES = 2  # the kernel may leave out a process while another one beside it ends
_PAUSE_SECONDS = 0.005
_PR_SET_CHILD_SUBREAPER = 36
MAX_BYTES = 1 << 20  # of an output, its last ones

own_session = True  # of programs that are started: ^C at a terminal does not reach them; a supervisor's share its own


class Stat(NamedTuple):
    """`start`: in clock ticks since boot, which tells a process from a later one with its pid."""

    state: str
    parent: int
    session: int
    start: str

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid: int) -> Optional[Stat]:
    # The command's name, in brackets, may itself hold spaces and brackets.
    fields = content_of("/proc/%d/stat" % pid).decode("utf-8", "replace").rpartition(")")[2].split()
    return Stat(fields[0], int(fields[1]), int(fields[3]), fields[19]) if len(fields) > 19 else None


def environ(pid: int) -> List[bytes]:
    """Its variables when it started."""
    return content_of("/proc/%d/environ" % pid).split(b"\0")


def children(pid: int) -> List[int]:
    directory = "/proc/%d/task" % pid
    threads: List[str] = []
    with suppress(OSError):  # it has ended
        threads = os.listdir(directory)
    return [int(child) for thread in threads for child in content_of("%s/%s/children" % (directory, thread)).split()]


def boot_id() -> Optional[str]:
    return content_of("/proc/sys/kernel/random/boot_id").decode("ascii").strip() or None


def oom_kills() -> Optional[int]:
    """How many processes the kernel has killed for their memory since boot; None before Linux 4.13."""
    count = re.search(rb"^oom_kill (\d+)$", content_of("/proc/vmstat"), re.M)
    return int(count[1]) if count else None


class Identity(NamedTuple):
    """What tells a process from a later one with the same pid, also across a reboot."""

    pid: int
    pid_start: Optional[str]
    boot_id: Optional[str]


def identity() -> Identity:
    """This process."""
    return Identity(os.getpid(), start_time(os.getpid()), boot_id())


def start_time(pid: int) -> Optional[str]:
    """When the process started; None if it has ended."""
    found = stat(pid)
    return found.start if found is not None and found.is_alive else None


def alive(status: Status) -> bool:
    """Whether the agent that wrote `status` still runs here."""
    return status.pid is not None and is_running(Identity(status.pid, status.pid_start, status.boot_id))


def is_running(process: Identity) -> bool:
    """Whether that very process runs here."""
    started = start_time(process.pid) if process.boot_id == boot_id() else None
    return started is not None and started == process.pid_start


def orphaned_group(status: Status, run_dir: str) -> Optional[int]:
    """The process group of a job whose agent is gone, as long as it is still the job's: by now its number may belong
    to another process."""
    group = status.group if status.boot_id == boot_id() else None
    return group if any(_in_group(pid, group) for pid in of_run(run_dir, None)) else None


def of_run(run_dir: str, group: Optional[int]) -> List[int]:
    """The living processes of the run, this one excepted: those with its mark, and those of the group."""
    mark = os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))
    others = (pid for pid in pids() if pid != os.getpid())
    return [pid for pid in others if (_in_group(pid, group) or mark in environ(pid)) and start_time(pid)]


def terminate(run_dir: str, group: Optional[int]) -> None:
    """SIGTERM to every process of the run."""
    for pid in of_run(run_dir, group):
        send(pid, signal.SIGTERM)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run. Returns how many processes that were."""
    return _kill(lambda: of_run(run_dir, group))[0]


def kill_job() -> Tuple[int, List[int]]:
    """Kill every process of the job below this process. Returns how many, and those of them that did not end."""
    return _kill(lambda: of_job(os.getpid()))


def kill_everything() -> None:
    """Kill every process below this one, its own programs too. Do not wait for any of them afterwards."""
    _kill(lambda: below(os.getpid()))


def _kill(find: Callable[[], Iterable[int]]) -> Tuple[int, List[int]]:
    """Kill what `find` finds until nothing is left or KILL_SECONDS have passed: a process may fork meanwhile."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    empty = 0
    while True:
        left = []
        for pid in find():  # each at once: of processes that fork and exit, the newest counts
            left.append(pid)
            send(pid, signal.SIGKILL)
        empty = 0 if left else empty + 1
        if empty == _EMPTY_PASSES or time.monotonic() > deadline:
            return len(killed), left
        if killed.issuperset(left):
            time.sleep(_PAUSE_SECONDS)
        killed.update(left)


def send(pid: int, number: int) -> None:
    """Send a signal, if the process still exists and is ours."""
    with suppress(OSError):
        os.kill(pid, number)


def _in_group(pid: int, group: Optional[int]) -> bool:
    try:
        return bool(group) and os.getpgid(pid) == group
    except OSError:
        return False


def become_subreaper() -> None:
    """Orphans below this process become its children, not init's. What is not of its session is its job's."""
    import ctypes

    global own_session
    own_session = False
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(job: Optional[int]) -> None:
    """Reap what the job's dead processes left to this process; not the job itself, whose exit code is waited for."""
    session = os.getsid(0)
    for pid in children(os.getpid()):
        dead = stat(pid)
        if dead and dead.state == "Z" and dead.session != session and pid != job:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def is_below(pid: int, top: int) -> bool:
    """Whether `top` started the process, or one that did."""
    process = stat(pid)
    while process is not None and process.parent not in (0, top):
        process = stat(process.parent)
    return process is not None and process.parent == top


def of_job(agent: int) -> List[int]:
    """The processes below a run's agent that are not its own programs."""
    found = stat(agent)
    return list(below(agent, found.session)) if found is not None else []


def below(top: int, except_session: Optional[int] = None) -> Iterable[int]:
    """The processes below `top` that have not ended; without those of a session."""
    pending = children(top)
    while pending:
        pid = pending.pop()
        found = stat(pid)
        if found is None or not found.is_alive:
            continue
        if found.session != except_session:
            yield pid
        pending += children(pid)


# -- the agent's own programs ------------------------------------------------------------------------------------------


def start(
    argv: Sequence[str], environ: Optional[Mapping[str, str]], cwd: str, **more: object
) -> "subprocess.Popen[bytes]":
    """Start a program for `ended`, with further arguments of Popen. Raises OSError."""
    import subprocess

    options: dict[str, object] = {"env": environ, "cwd": cwd, "start_new_session": own_session, **more}
    process: subprocess.Popen[bytes] = subprocess.Popen(list(argv), **options)  # type: ignore[call-overload]
    return process


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """The block waits for the program; if it raises, the program is killed."""
    try:
        yield
    except BaseException:
        end_program(process)
        raise


def end_program(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program and what is below it, such as the ssh of DOCKER_HOST=ssh://..., which would keep its pipes open.
    One that a driver holds is not waited for."""
    import subprocess

    for other in below(process.pid):
        send(other, signal.SIGKILL)
    with suppress(OSError):  # it leads no session
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
        with suppress(OSError):  # what it did not read stays unread
            pipe.close()
    with suppress(subprocess.TimeoutExpired):  # the kernel may hold it
        process.wait(1.0)


def run_program(
    argv: Sequence[str],
    timeout: float,
    environ: Optional[Mapping[str, str]] = None,
    *,
    cwd: str = "/",  # Python loads what `-c` and `-m` import from here first: not from a checkout
    stdin: bytes = b"",
) -> QueryAnswer:
    """Output and exit code of a program. `code` is None if it is missing or did not end within `timeout` seconds; `err`
    says which. `environ` is its environment (default: our own). Never raises OSError."""
    import subprocess

    pipe, source = subprocess.PIPE, subprocess.PIPE if stdin else subprocess.DEVNULL
    try:
        process = start(argv, environ, cwd, stdin=source, stdout=pipe, stderr=pipe)
    except OSError as error:
        return QueryAnswer(None, err="%s: %s" % (argv[0], error.strerror))
    try:
        with ended(process):
            out, err = (output[-MAX_BYTES:].decode(errors="replace") for output in process.communicate(stdin, timeout))
    except subprocess.TimeoutExpired:
        return QueryAnswer(None, err="no answer from %s within %g s" % (argv[0], timeout))
    return QueryAnswer(process.returncode, out, err)


def ask(
    commands: Mapping[str, Sequence[str]], timeout: float, environ: Optional[Mapping[str, str]] = None
) -> Mapping[str, QueryAnswer]:
    """The same for several programs at the same time: name → argv, and name → answer."""
    from concurrent.futures import ThreadPoolExecutor  # most commands ask nothing

    with ThreadPoolExecutor(max(1, len(commands))) as pool:
        answers = pool.map(lambda argv: run_program(argv, timeout, environ), commands.values())
        return dict(zip(commands, answers))  # noqa: B905  # Python 3.8


# -- signals -----------------------------------------------------------------------------------------------------------

# Blocked while a run starts: they arrive before it exists or after it handles them, never in between.
BLOCKED_AT_START = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalPipe:
    """`fd` becomes readable at every signal, the end of a child included; `stop_requested` after SIGTERM or SIGINT."""

    def __enter__(self) -> SignalPipe:
        self.fd, self._write = os.pipe()
        self.stop_requested = False
        # Each has a handler, since an ignored signal stays ignored in the job, which CI's is not.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._handle)
        for end in (self.fd, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_START)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)

    def clear(self) -> None:
        """Make `fd` unreadable until the next signal."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass

    def wait(self, seconds: float) -> None:
        """Wait so long, or until any signal."""
        select.select([self.fd], [], [], max(0.0, seconds))
        self.clear()

    def _handle(self, number: int, _frame: object) -> None:
        self.stop_requested = self.stop_requested or number in (signal.SIGTERM, signal.SIGINT)
