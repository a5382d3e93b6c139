"""What a run needs of its host: named locks of the host (such as for Ray on the host's network), and GPUs; and their
lock files: taking one, and who holds one, in words, from /proc/locks and /proc/PID.

The files are those of the checkout's lock script, one `flock` each. Nothing is ever written into them, and none is ever
removed: a lock on a file without a name excludes no process. What cannot be read of a holder is "an unknown process".

Either the agent takes the locks of the lowest free GPUs, all or none, for a suite without a lock script. Or the job's
own script does, and the agent *blocks* GPUs meanwhile: it holds the locks of those that do not exist here and of those
that processes use without a lock, until the job has its own. A GPU whose lock another process holds is left alone, the
job's own among them.

That a script has its locks, or waits for them, it says in the log; while it waits, `waiting` says for whom. If it says
nothing the GPUs stay blocked, which harms no run: no job should take them.

Why no GPU is given twice, and why there is no deadlock:
- Whatever uses a GPU holds an exclusive flock on its file; it ends with its holder, however that ends.
- A run that waits for GPUs holds none: the script and the agent take all that they need, or none. A run that needs all
  GPUs of a host waits until all are free at one moment, as in CI.
- Locks are taken in one order: the host's named ones first, by name, then GPUs. A run that has GPUs waits for no named
  lock.
- GPUs are blocked with *shared* locks. The agents of several runs do not wait for each other, and when one of them ends
  there is no gap in which a script could take a GPU that does not exist: while any of them is left, the script's
  exclusive lock is refused.
"""

from __future__ import annotations

import fcntl
import math
import os
import pwd
import random
import re
import shlex
import stat
import threading
import time
from contextlib import suppress
from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple

from . import files, mask, nvidia_smi, processes, run_directory
from .files import content_of
from .records import AGENT, GpuRequest, Phase, Plan

LOCKS = "/proc/locks"
UNKNOWN = "an unknown process"
POLL_SECONDS = 0.05  # between two looks at the locks
REFRESH_SECONDS = 2.0  # between two looks at the GPUs
# The messages of the checkout's lock script. Any other than "Acquired" means that it waits.
_MESSAGE = re.compile(rb"^\[gpu_lock_exec\] (?:Acquired GPUs: (\d+(?:,\d+)*)\s*$)?", re.M)
_MAX_LINE = 4096  # bytes of an unfinished line that are kept
_MAX_COMMAND = 60  # characters of a command line
# Neither follows a symbolic link nor blocks on something that is no regular file.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FLOCK = re.compile(r"^\d+: FLOCK +\w+ +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.M)


class ResourcesUnavailable(Exception):
    """The run is not possible on this host, or a lock file cannot be used; the message says why, and what to do."""


class RunResources:
    """The supervisor calls `poll` at `next_poll_at`, which never blocks, `read_output` with what the job writes, and
    `close` at the end.

    `are_ready`: the job may start. `waiting`: what is missing and who holds it. `gpu_ids`: the job's GPUs, once known.
    `locks` are {GPU id: descriptor}: of the run's GPUs if the agent takes them, of blocked ones if the job's script
    does. `latest` is what nvidia-smi showed.
    """

    latest: Optional[nvidia_smi.GpuSnapshot] = None

    def __init__(self, plan: Plan, poll_seconds: float = POLL_SECONDS) -> None:
        self.are_ready = False
        self.next_poll_at = -math.inf
        self.waiting: List[str] = []
        self.gpu_ids: Optional[List[int]] = None
        self.locks: Dict[int, int] = {}
        self._plan, self._poll_seconds = plan, poll_seconds
        self._request = plan.gpu_locks or GpuRequest(0)
        self._stopped = threading.Event()
        self._host_locks: List[int] = []
        self._takes = self._waits = self._request.by == AGENT
        self._describe_at = -math.inf
        self._line = b""
        self._steps = self._acquire()

    @property
    def phase(self) -> Phase:
        return "waiting" if self.waiting else "running" if self.are_ready else "starting"

    @property
    def gpu_uuids(self) -> List[str]:
        """The UUIDs of `gpu_ids`; none of simulated GPUs, or without nvidia-smi."""
        gpus = self.latest.gpus if self.latest is not None else ()
        return [gpu.uuid for gpu in gpus if gpu.index in (self.gpu_ids or ()) and gpu.driver]

    @property
    def environ(self) -> Dict[str, str]:
        """Variables for the job, on top of its environment: the GPUs that the agent has taken."""
        gpus = ",".join(map(str, self.gpu_ids or ()))
        return {run_directory.VISIBLE_GPUS: gpus, run_directory.ENV_GPU_IDS: gpus} if self._takes and gpus else {}

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: these locks last as long as it lives, even if its agent is killed."""
        return [*self._host_locks, *(self.locks.values() if self._takes else ())]

    def poll(self) -> None:
        """Raises ResourcesUnavailable if the job cannot start; once it has started, nothing here ends it."""
        if time.monotonic() < self.next_poll_at:
            return
        try:
            if self.are_ready:
                self._poll_gpus()
            else:
                self.are_ready = next(self._steps, True)
        except (ResourcesUnavailable, OSError) as error:
            if not self.are_ready:
                raise ResourcesUnavailable(str(error)) from None
        if self.are_ready and (self.gpu_ids is not None or not self._request.count):
            self._stop_polling()
        else:
            # Not in step with others.
            self.next_poll_at = time.monotonic() + self._poll_seconds * random.uniform(1.0, 1.5)

    def read_output(self, chunk: bytes) -> None:
        """What the job wrote: its lock script says there which GPUs it has."""
        if self.next_poll_at == math.inf:
            return
        lines, _, self._line = (self._line + chunk).rpartition(b"\n")
        self._line = self._line[:_MAX_LINE]
        for message in _MESSAGE.finditer(lines):
            gpus = [int(gpu) for gpu in message[1].split(b",")] if message[1] else []
            # A test may print such a line too; the job cannot have what we hold.
            if gpus and not set(self.locks).intersection(gpus):
                self.gpu_ids = sorted(gpus)
                self.stop_waiting()
                return
            self._waits = True

    def stop_waiting(self) -> None:
        """The job has its GPUs, or is about to be stopped: keep none from others."""
        if self.next_poll_at < math.inf:
            self._release()
            self._stop_polling()

    def close(self) -> None:
        """Release everything, whichever process has inherited it."""
        self.stop_waiting()
        self._release()
        while self._host_locks:
            release(self._host_locks.pop())

    def _release(self, except_for: Iterable[int] = ()) -> None:
        for gpu in set(self.locks) - set(except_for):
            release(self.locks.pop(gpu))

    def _stop_polling(self) -> None:
        self.waiting, self.next_poll_at = [], math.inf
        self._stopped.set()  # the thread is not waited for: the end of the agent ends its program

    def _acquire(self) -> Iterator[bool]:
        """Yields False as long as something is missing."""
        request = self._request
        for name in sorted(set(self._plan.exclusive)):
            yield from self._lock_host(name)
        if not request.count:
            return
        if request.simulated is not None:
            self.latest = nvidia_smi.simulated_gpus(request.simulated)
        else:
            threading.Thread(target=self._watch_gpus, name="nvidia-smi", daemon=True).start()
        while self.latest is None:
            yield False
        if self.latest.problem == nvidia_smi.NO_PROGRAM and request.declared is not None:
            self._stopped.set()
            self.latest = nvidia_smi.simulated_gpus(request.declared)
        if not self.latest.gpus:
            raise ResourcesUnavailable("nvidia-smi shows no GPUs: %s" % self.latest.problem)
        here = [gpu for gpu in self.latest.ids if gpu < request.total]
        if len(here) < request.count:
            words = (len(here), "s"[: len(here) != 1], request.count)
            raise ResourcesUnavailable("this host has %d GPU%s, the job needs %d" % words)
        if self._takes:
            create_missing([request.paths[gpu] for gpu in here])
        self._poll_gpus()  # what must not be used is blocked before the job starts
        while self._takes and self.gpu_ids is None:
            yield False
            self._poll_gpus()

    def _lock_host(self, name: str) -> Iterator[bool]:
        """A file `ci-tasks-NAME.lock`, which any user may lock; of names with `|` between them one that is free."""
        simulated = os.path.dirname(self._request.pattern) if self._request.simulated is not None else ""
        directory = simulated or os.environ.get("CI_TASKS_LOCK_DIR") or "/dev/shm"  # tests must not block real runs
        names = name.split("|")
        safe = [re.sub(r"[^A-Za-z0-9_.-]", "_", each) for each in names]
        paths = [os.path.join(directory, "ci-tasks-%s.lock" % each) for each in safe]
        while True:
            for path in paths:
                if (descriptor := try_lock(path, own=True)) is not None:
                    self._host_locks.append(descriptor)
                    self.waiting = []
                    return
            holder = holders({0: paths[0]}).get(0, 0)
            self.waiting = ["%s held by %s" % (names[0], describe_process(holder))]
            yield False

    # -- GPUs --------------------------------------------------------------------------------------------------------

    def _watch_gpus(self) -> None:
        """Query nvidia-smi as long as GPUs are waited for or blocked. A later query that fails or hangs only adds its
        problem: an unknown state does not make GPUs free. After one without an answer the next one waits, since it may
        hang in the driver for ever."""
        while not self._stopped.is_set():
            found = nvidia_smi.query_gpus()
            if not self._stopped.is_set():
                self.latest = self.latest._replace(problem=found.problem) if found.problem and self.latest else found
            self._stopped.wait(300.0 if found.problem.startswith("no answer") else REFRESH_SECONDS)

    def _poll_gpus(self) -> None:
        request, snapshot, now = self._request, self.latest, time.monotonic()
        assert snapshot is not None
        in_use = nvidia_smi.gpus_in_use(snapshot.gpus, snapshot.apps)
        usable = {gpu for gpu in snapshot.ids if gpu < request.total and gpu not in in_use}
        if not self._takes:
            unusable = set(request.paths) - usable
            self._release(except_for=unusable)
            self._lock(unusable - set(self.locks), request.total)
        elif self._lock(usable, request.count):
            self.gpu_ids, self.waiting = sorted(self.locks), []
            return
        else:
            self._release()  # all or none
        if self._waits and now >= self._describe_at:
            self._describe_at = now + REFRESH_SECONDS
            self.waiting = [*self._reasons(snapshot.ids, in_use), *filter(None, [snapshot.problem])]

    def _lock(self, gpus: Set[int], most: int) -> bool:
        """Lock those of the GPUs that are free, the lowest first, until there are `most`. Returns whether there are."""
        for gpu in sorted(gpus):
            if len(self.locks) < most:
                descriptor = try_lock(self._request.paths[gpu], shared=not self._takes)
                if descriptor is not None:
                    self.locks[gpu] = descriptor
        return len(self.locks) >= most

    def _reasons(self, ids: Iterable[int], in_use: Dict[int, str]) -> List[str]:
        """What keeps the request from being met now, a sentence for all GPUs with the same reason."""
        missing = set(self._request.paths) - set(ids)
        others = holders(self._request.paths)
        reasons: Dict[str, List[int]] = {}
        for gpu in sorted(set(self._request.paths) - missing):
            if gpu in others:
                reasons.setdefault(" held by " + describe_process(others[gpu]), []).append(gpu)
            elif gpu in in_use:
                reasons.setdefault(": %s without a lock" % in_use[gpu], []).append(gpu)
            elif is_held(self._request.paths[gpu]):
                reasons.setdefault(" held by " + UNKNOWN, []).append(gpu)
        if missing:
            reasons[" do%s not exist here" % ("es" if len(missing) == 1 else "")] = sorted(missing)
        return [numbered("GPU", gpus) + reason for reason, gpus in reasons.items()]


# -- lock files --------------------------------------------------------------------------------------------------------


def try_lock(path: str, shared: bool = False, own: bool = False) -> Optional[int]:
    """The descriptor that holds the lock, or None if another process holds it. Read access is enough, so that a file of
    root's serves every user. `own`: only ci-tasks uses the file, so any user may create it."""
    try:
        create_missing([path], own)
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        remedy = "; run once as root: chmod 666 %s" % shlex.quote(path) if isinstance(error, PermissionError) else ""
        raise ResourcesUnavailable("lock file %s: %s%s" % (path, error.strerror, remedy)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ResourcesUnavailable("lock file %s is not a regular file" % path)
    if files.try_lock(descriptor, exclusive=not shared):
        return descriptor
    os.close(descriptor)
    return None


def release(descriptor: int) -> None:
    """Release the lock at once, even if a child process has inherited the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_held(path: str) -> bool:
    """Whether another process holds an exclusive lock at this moment, as far as the file can be opened."""
    with suppress(OSError):
        return files.is_locked(path, _FLAGS, exclusive=False) is True
    return False


def create_missing(paths: Iterable[str], own: bool = False) -> None:
    """Create the lock files that do not exist, for every user. Raises ResourcesUnavailable, OSError."""
    missing = [path for path in paths if not os.path.lexists(path)]
    for path in missing:
        directory = os.path.dirname(path) or "."
        os.makedirs(directory, exist_ok=True)
        if not own and blocks_other_users(os.stat(directory), os.geteuid()):
            quoted = " ".join(map(shlex.quote, missing))
            raise ResourcesUnavailable(
                "the lock file %s is missing, and containers of root could not open a file that this user creates; "
                "run once as root: touch %s && chmod 666 %s" % (path, quoted, quoted)
            )
        # The umask must not keep others out; another user may have created it meanwhile.
        with suppress(PermissionError), os.fdopen(os.open(path, _FLAGS | os.O_CREAT, 0o666)) as lock:
            os.fchmod(lock.fileno(), 0o666)


def blocks_other_users(directory: os.stat_result, user: int) -> bool:
    """Whether other users may be unable to open a file that `user` creates in `directory` the way the lock script does.

    It opens with O_CREAT. Under fs.protected_regular the kernel refuses that for a file in a sticky, world-writable
    directory that belongs neither to the opener nor to the directory's owner, even to root: a lock file created by a
    person would break every job of root's on this machine.
    """
    shared = stat.S_ISVTX | stat.S_IWOTH
    return directory.st_mode & shared == shared and user != directory.st_uid


# -- who holds them ----------------------------------------------------------------------------------------------------


def parse_locks(text: str) -> Dict[Tuple[int, int, int], int]:
    """{file as (major, minor, inode): pid} of the exclusive flocks in /proc/locks; processes that only wait (`->`) hold
    nothing. A holder in another container's process namespace may be missing, or have PID 0.

    1: FLOCK  ADVISORY  WRITE 21234 00:1b:8 0 EOF
    """
    locks = _FLOCK.findall(text)
    return {(int(major, 16), int(minor, 16), int(inode)): int(pid) for pid, major, minor, inode in locks}


def holders(paths: Dict[int, str]) -> Dict[int, int]:
    """{key: pid} of another process with an exclusive lock on the file, as far as this system shows them."""
    held = parse_locks(content_of(LOCKS).decode("ascii", "replace"))
    found = {}
    for key, path in paths.items():
        with suppress(OSError, KeyError):
            file = os.stat(path)
            found[key] = held[os.major(file.st_dev), os.minor(file.st_dev), file.st_ino]
    return {key: pid for key, pid in found.items() if pid != os.getpid()}


def run_dir_of(pid: int) -> Optional[str]:
    """The run directory that a process belongs to: by its environment, or as the run's own agent, which has that
    directory as its working directory. None if it belongs to no run, or nothing can be read."""
    mark = os.fsencode(run_directory.ENV_RUN_DIR + "=")
    for entry in processes.environ(pid):
        if entry.startswith(mark):
            return os.path.realpath(os.fsdecode(entry[len(mark) :]))
    with suppress(OSError, ValueError):
        directory = os.readlink("/proc/%d/cwd" % pid)
        if run_directory.read_status(run_directory.RunDir(directory)).pid == pid:
            return directory
    return None


def describe_process(pid: int) -> str:
    """`run 20260102-030405-ckpt.03`, `pid 4242 of root (python train.py)`, or UNKNOWN."""
    directory = run_dir_of(pid)
    if directory is not None:
        return "run " + ".".join(directory.split("/")[-2:])
    argv = [os.fsdecode(word) for word in content_of("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]
    text = " ".join(shlex.quote(word) for word in mask.masked(argv))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if len(text) <= _MAX_COMMAND else text[: _MAX_COMMAND - 1] + "…"
    owner = ""
    with suppress(OSError, KeyError):
        owner = " of " + pwd.getpwuid(os.stat("/proc/%d" % pid).st_uid).pw_name
    return "pid %d%s (%s)" % (pid, owner, text) if text else UNKNOWN


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """`GPU 5`, `GPUs 0-3`, `ranks 0, 2, 5-7`."""
    ranges: List[List[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    text = ", ".join("%d-%d" % (part[0], part[-1]) if len(part) > 1 else str(part[0]) for part in ranges)
    return "%s%s %s" % (noun, "s" if sum(map(len, ranges)) > 1 else "", text)
