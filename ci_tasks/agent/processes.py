"""Processes of this machine, as Linux's /proc describes them: whether a run's agent lives, and the end of all that a
run started.

The agent is the child subreaper of its job: whatever a process does to its environment, title, group or session, it
stays below the agent. A job begins in a session of its own, and no process can join a session that exists, so whatever
is below the agent in another session than its own is the job's. Where the agent is gone, a job's processes are found by
their group, and by the mark that the agent puts in their environment.

An agent holds the kernel's lock on its run directory, which its job cannot forge. A job may write into status.json what
it likes, so that file says how a run ended only when the lock is free; by then the agent has written its own. On a file
system without `flock` the status alone has to do.

Programs of ours have a time limit each. Signals come as a readable file descriptor, so that one wait serves the job's
output, its end, and a request to stop.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import run_directory
from .files import content_of, file_lock, is_locked
from .records import QueryAnswer, Status
from .run_directory import RunDir

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
    group: int
    session: int
    start: str

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def stat(pid: int) -> Optional[Stat]:
    # The command's name, in brackets, may itself hold spaces and brackets.
    fields = content_of("/proc/%d/stat" % pid).decode("utf-8", "replace").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    parent, group, session = map(int, fields[1:4])
    return Stat(fields[0], parent, group, session, fields[19])


def environ(pid: int) -> List[bytes]:
    """Its variables when it started."""
    return content_of("/proc/%d/environ" % pid).split(b"\0")


def children(pid: int) -> List[int]:
    """The children that are not reaped yet; none if the process has ended."""
    by_thread = glob.glob("/proc/%d/task/*/children" % pid)
    return [int(child) for path in by_thread for child in content_of(path).split()]


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


def alive(process: Union[Identity, Status]) -> bool:
    """Whether that very process, or the agent that wrote that status, still runs here."""
    started = start_time(process.pid) if process.pid is not None and process.boot_id == boot_id() else None
    return started is not None and started == process.pid_start


def orphaned_group(status: Status, run_dir: str) -> Optional[int]:
    """The process group of a job whose agent is gone, as long as it is still the job's: by now its number may belong
    to another process."""
    groups = [process.group for process in map(stat, of_run(run_dir, None)) if process is not None]
    return status.group if status.boot_id == boot_id() and status.group in groups else None


def of_run(run_dir: str, group: Optional[int]) -> List[int]:
    """The living processes of the run, this one excepted: those with its mark, and those of the group."""
    its_mark, found = mark(run_dir), []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        process = stat(pid) if pid != os.getpid() else None
        if process and process.is_alive and (process.group == (group or None) or its_mark in environ(pid)):
            found.append(pid)
    return found


def mark(run_dir: str) -> bytes:
    """What the environment of the run's processes has."""
    return os.fsencode("%s=%s" % (run_directory.ENV_RUN_DIR, run_directory.mark(run_dir)))


def terminate(run_dir: str, group: Optional[int], told: set[int]) -> bool:
    """SIGTERM to every process of the run that is not among the `told` ones: others may begin while these end. Returns
    whether any is alive."""
    living = set(of_run(run_dir, group))
    for pid in sorted(living - told):  # a parent first: else its child's end may look like the end of its work
        send(pid, signal.SIGTERM)
    told |= living
    return bool(living)


def kill_all(run_dir: str, group: Optional[int]) -> int:
    """Kill what is left of the run. Returns how many processes that were."""
    return _kill(lambda: iter(of_run(run_dir, group)))[0]


def kill_job(job: Optional[int]) -> Tuple[int, List[int]]:
    """Kill every process of the job below this process, and reap all but the job itself: those that fork and exit all
    the time would otherwise leave more than can be looked through. Returns how many, and those that did not end."""

    def find() -> Iterator[int]:
        yield from below(os.getpid(), os.getsid(0))
        reap_orphans(job)

    return _kill(find)


def kill_everything() -> None:
    """Kill every process below this one, its own programs too. Do not wait for any of them afterwards."""
    _kill(lambda: below(os.getpid()))


def _kill(find: Callable[[], Iterator[int]]) -> Tuple[int, List[int]]:
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


def below(top: int, except_session: Optional[int] = None) -> Iterator[int]:
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


# -- whether a run's agent lives, and a client that waits for it -------------------------------------------------------

_AGENT_SECONDS = 5.0  # who tests the lock holds it for a moment; the agent writes its status every 2 seconds
_CLIENT_SECONDS = 1.0
_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_CLIENT_FLAGS = os.O_RDWR | os.O_NOFOLLOW
_MAY_BE_LEFT = "its child processes were not searched for: `ci-tasks cancel` and `ci-tasks clean` end those they find"
_NOT_SEEN = "one that cleared its environment and left the job's process group is not seen without its agent"


def _kept_lock(path: str, flags: int, seconds: float, exclusive: bool) -> ExitStack:
    """A lock that is held until `close`, or until this process ends: no program that it starts inherits it. Who looks
    whether it is free holds it for a moment, so it is tried for `seconds`. Nothing where `path` cannot be opened."""
    lock = ExitStack()
    with suppress(OSError):
        lock.enter_context(file_lock(path, exclusive, seconds, flags))
    return lock


def agent_lock(run_dir: str) -> ExitStack:
    """The agent's own."""
    return _kept_lock(run_dir, _FLAGS, _AGENT_SECONDS, exclusive=True)


def client_lock(run_dir: str) -> ExitStack:
    """That of a client which waits for a run that is of no use without one, as install steps are; several may. It is
    released however the client ends. Nothing if the run goes on without a client."""
    return _kept_lock(RunDir(run_dir).client, _CLIENT_FLAGS, _CLIENT_SECONDS, exclusive=False)


def has_client(run_dir: str) -> bool:
    """Whether a client waits for the run; also where a file system without locks cannot tell."""
    with suppress(OSError):  # without the file nothing tells of a client
        return is_locked(RunDir(run_dir).client, _CLIENT_FLAGS) is not False
    return False


def has_agent(run_dir: str) -> bool:
    """Whether an agent holds the run directory's lock."""
    with suppress(OSError):
        return is_locked(run_dir, _FLAGS, exclusive=False) is True
    return False


def is_alive(run: RunDir, status: Status) -> bool:
    """Whether the agent of a run of this host lives; `status` is what its status.json says."""
    return has_agent(run.path) or (not status.has_ended and alive(status))


def conclude(run: RunDir) -> Status:
    """The status of a run of this host. If its agent died without an end, status.json says so from now on. Raises
    OSError."""
    status = _read(run)
    if not is_alive(run, status):
        status = _read(run)  # it may have ended meanwhile
        if not status.has_ended and os.path.lexists(run.status) and not os.path.islink(run.path):  # a job's link
            return _write(run, _lost(status))
    return status


def record_cleanup(run: RunDir, ended: int, left: List[str]) -> None:
    """Add to the status of a lost run what was ended of it, and what is left."""
    status = conclude(run)
    if status.gone:
        found = "%d of its processes %s ended" % (ended, "was" if ended == 1 else "were")
        _write(run, replace(status, error="; ".join([status.error or "", found, _NOT_SEEN]), left=tuple(left)))


def _read(run: RunDir) -> Status:
    try:
        return run_directory.read_status(run)
    except ValueError:  # a job has written something else; a disk may answer the next time
        return Status()


def _lost(status: Status) -> Status:
    restarted = status.boot_id not in (None, boot_id())
    seen = status.heartbeat_at
    last = time.strftime(" (last heartbeat %Y-%m-%d %H:%M:%S UTC)", time.gmtime(seen)) if seen else ""
    error = "%s before the job ended%s" % ("the host restarted" if restarted else "the agent died", last)
    ended = replace(status, state="ended", phase="ended", waiting=(), ended_at=seen, error=error)
    return replace(ended, left=(_MAY_BE_LEFT,), gone=True)


def _write(run: RunDir, status: Status) -> Status:
    status = replace(status, sequence=status.sequence + 1)
    with suppress(OSError):  # a full disk, a directory of another user
        run_directory.write_record(run.status, status)
    return status


# -- the agent's own programs ------------------------------------------------------------------------------------------


def start(argv: Sequence[str], env: Optional[Mapping[str, str]], cwd: str, **more: Any) -> "subprocess.Popen[bytes]":
    """Start a program for `ended`, with further arguments of Popen. Raises OSError."""
    import subprocess

    return subprocess.Popen(list(argv), env=env, cwd=cwd, **{"start_new_session": own_session, **more})


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
    most: int = MAX_BYTES,
) -> QueryAnswer:
    """Output and exit code of a program. `code` is None if it is missing or did not end within `timeout` seconds; `err`
    says which. `environ` is its environment (default: our own). Of each output the last `most` bytes count. Never
    raises OSError."""
    import subprocess

    pipe, source = subprocess.PIPE, subprocess.PIPE if stdin else subprocess.DEVNULL
    try:
        process = start(argv, environ, cwd, stdin=source, stdout=pipe, stderr=pipe)
    except OSError as error:
        return QueryAnswer(None, err="%s: %s" % (argv[0], error.strerror))
    try:
        with ended(process):
            out, err = (output[-most:].decode(errors="replace") for output in process.communicate(stdin, timeout))
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

    def _handle(self, number: int, _frame: object) -> None:
        self.stop_requested = self.stop_requested or number in (signal.SIGTERM, signal.SIGINT)
