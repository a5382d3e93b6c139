"""The file of this process, PID-START-RANDOM.jsonl: lines of JSON, the first of which says what the process is. Between
them are the stacks of all threads, which faulthandler writes when the process gets the signal SIGRTMIN+7.
"""

import os
import sys
import time

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

OFF = "CI_TASKS_NO_PROBE"  # set for processes that are the agent's own
COUNT = "count"  # a byte for each process
MAX_FILES = 2000  # of a run; further processes are counted
MAX_BYTES = 1 << 18  # of a process, without what a suite's hooks note
MAX_HOOKS = 1 << 22  # of a process for these: some 500 steps with 100 metrics each
RESERVED = 1 << 15  # of MAX_BYTES for the end, and as much twice for exceptions that nothing caught
MAX_TEXT = 4000
_SIGNAL = 7  # above SIGRTMIN
_HIGH_FD = 1000  # which a job's own files do not get
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RAY_JOB_ID", "RAY_NODE_ID", "PYTEST_XDIST_WORKER"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)


class EvidenceFile:
    def __init__(self, directory: str) -> None:
        self.directory, self.path = directory, ""
        self.number = -1  # open for as long as the process lives, for faulthandler
        self.identity: "Any" = None  # (device, inode) of the file: the job may have closed it
        self.signal = 0
        self.left = {"": 0, "hook": 0}  # bytes
        self.environ: "dict[str, str]" = {}

    def open(self, forked: bool = False) -> bool:
        """Begin the file of this process, also after a fork; False if the run has too many."""
        self.left = {"": 0, "hook": 0}
        # An appended byte a process: cheaper than to list the directory, and right with several processes at once.
        count = os.open(os.path.join(self.directory, COUNT), _APPEND | os.O_CREAT, 0o666)
        os.write(count, b".")
        size = os.fstat(count).st_size
        os.close(count)
        if size > MAX_FILES:
            return False
        pid, parent = os.getpid(), os.getppid()
        self.path = os.path.join(self.directory, "%d-%d-%s.jsonl" % (pid, _start_of(pid), os.urandom(4).hex()))
        file = os.open(self.path, _APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(file, 0o644)  # the agent reads it, whatever the job's umask is
        if self.is_open():  # the parent's: faulthandler keeps its number
            os.dup2(file, self.number, False)
            os.close(file)
        else:
            self.number = _moved_up(file)
            self._register_signal()
        info = os.fstat(self.number)
        self.identity = info.st_dev, info.st_ino
        self.left = {"": MAX_BYTES, "hook": MAX_HOOKS}
        self.environ = _rank_variables()
        words = read_bytes("/proc/self/cmdline", 1 << 14).split(b"\0")[:-1]
        values: "dict[str, Any]" = {"started_at": round(time.time(), 3), "pid": pid, "start": _start_of(pid)}
        values.update({"ppid": parent, "parent_start": _start_of(parent), "env": self.environ, "forked": forked})
        values["argv"] = [word.decode("utf-8", "backslashreplace")[:1000] for word in words[:100]]
        values.update({"directory": os.readlink("/proc/self/cwd"), "executable": sys.executable, "prefix": sys.prefix})
        values.update({"python": "%d.%d.%d" % sys.version_info[:3], "namespace": os.readlink("/proc/self/ns/pid")})
        return self.write("start", dict(values, signal=self.signal, descriptor=self.number))

    def is_open(self) -> bool:
        """Whether the number is still that of our file."""
        try:
            info = os.fstat(self.number)
        except OSError:
            return False
        return bool((info.st_dev, info.st_ino) == self.identity)

    def write(self, event: str, values: "dict[str, Any]", reserved: int = RESERVED) -> bool:
        """Append a line with fields of ProcessEvidence, unless fewer than `reserved` bytes were left. Returns whether
        it was written. The event `hook` has room of its own."""
        line = json_text(dict({"event": event}, **values)).encode("ascii") + b"\n"
        room = event if event in self.left else ""
        if len(line) > self.left[room] - reserved:
            return False
        self.left[room] -= len(line)
        file = self.number if self.is_open() else os.open(self.path, _APPEND)
        os.write(file, line)
        if file != self.number:
            os.close(file)
        return True

    def note_environ(self) -> None:
        """Ray's workers get their rank and devices long after they have started."""
        now = _rank_variables()
        if now != self.environ:
            self.environ = now
            self.write("environ", {"env": now})

    def _register_signal(self) -> None:
        """Let the signal write the stacks, unless the program has a handler."""
        import faulthandler

        signal = __import__("_signal")  # the module `signal` brings others along
        number = int(signal.SIGRTMIN) + _SIGNAL
        if self.signal or signal.getsignal(number) == signal.SIG_DFL:
            faulthandler.register(number, file=self.number, all_threads=True, chain=False)
            self.signal = number


def _moved_up(file: int) -> int:
    if os.path.exists("/proc/self/fd/%d" % _HIGH_FD):
        return file
    try:
        os.dup2(file, _HIGH_FD, False)
    except OSError:  # over the limit
        return file
    os.close(file)
    return _HIGH_FD


def _rank_variables() -> "dict[str, str]":
    return {name: os.environ[name][:500] for name in _VARIABLES if name in os.environ}


def _start_of(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it is unique. 0 where that is not known."""
    try:
        return int(read_bytes("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def read_bytes(path: str, most: int = 1 << 20) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def write_whole(path: str, content: bytes) -> None:
    """It appears whole, for every user to read."""
    beside = "%s.%s" % (path, os.urandom(4).hex())
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    os.fchmod(file, 0o644)
    os.write(file, content)
    os.close(file)
    os.rename(beside, path)


def json_text(value: "Any") -> str:
    """JSON in ASCII; what is of no such type, as its text. The module `json` takes longer to import than all this."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (json_text(str(key)), json_text(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(json_text, value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) is int or (type(value) is float and abs(value) < float("inf")):
        return repr(value)
    text = value if isinstance(value, str) else str(value)[:MAX_TEXT]
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"%s"' % text
    units = memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]
    return '"%s"' % "".join(chr(unit) if 31 < unit < 127 and unit not in b'"\\' else "\\u%04x" % unit for unit in units)
