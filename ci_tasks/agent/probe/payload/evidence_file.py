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
MAX_BYTES = 1 << 22  # of a process
RESERVED = 1 << 15  # bytes that are left for the end of the process
FOR_FAILURES = 1 << 19  # bytes that hooks and tasks leave for uncaught exceptions and the end
MAX_TEXT = 4000
_SIGNAL = 7  # above SIGRTMIN
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "PYTEST_XDIST_WORKER"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "CUDA_VISIBLE_DEVICES"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)


class EvidenceFile:
    def __init__(self, directory: str) -> None:
        self.directory, self.path = os.path.realpath(directory), ""
        self.number = -1  # open for as long as the process lives, for faulthandler
        self.signal = self.left = 0  # bytes that are left
        self.environ: "dict[str, str]" = {}

    def open(self, forked: bool = False) -> None:
        """Begin the file of this process, also after a fork."""
        self.left = 0
        is_inherited, pid, parent = self.is_open(), os.getpid(), os.getppid()
        start = _start_of(pid)
        self.path = os.path.join(self.directory, "%d-%d-%s.jsonl" % (pid, start, os.urandom(4).hex()))
        file = os.open(self.path, _APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(file, 0o644)  # the agent reads it, whatever the job's umask is
        if is_inherited:  # from the parent: faulthandler keeps its number
            os.dup2(file, self.number, False)
            os.close(file)
        else:
            self.number = file
            self._register_signal()
        self.left = MAX_BYTES
        self.environ = _rank_variables()
        words = read_bytes("/proc/self/cmdline", 1 << 14).split(b"\0")[:-1]
        values: "dict[str, Any]" = {"started_at": round(time.time(), 3), "pid": pid, "start": start, "forked": forked}
        values.update({"ppid": parent, "parent_start": _start_of(parent), "env": self.environ})
        values["argv"] = [word.decode("utf-8", "backslashreplace")[:1000] for word in words[:100]]
        values.update({"executable": sys.executable, "python": "%d.%d.%d" % sys.version_info[:3]})
        values.update({"namespace": os.readlink("/proc/self/ns/pid"), "signal": self.signal, "descriptor": self.number})
        self.write("start", values)

    def is_open(self) -> bool:
        """Whether the number is still that of our file, which the job may have closed."""
        return os.path.realpath("/proc/self/fd/%d" % self.number) == self.path

    def write(self, event: str, values: "dict[str, Any]", reserved: int = RESERVED) -> bool:
        """Append a line with fields of ProcessEvidence, unless fewer than `reserved` bytes were left. Returns whether
        it was written."""
        self.note_environ()
        line = json_text(dict({"event": event}, **values)).encode("ascii") + b"\n"
        if len(line) > self.left - reserved:
            return False
        self.left -= len(line)
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


def _rank_variables() -> "dict[str, str]":
    return {name: os.environ[name][:500] for name in _VARIABLES if name in os.environ}


def _start_of(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it is unique. 0 where that is not known."""
    try:
        return int(read_bytes("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def read_bytes(path: str, most: int = 1 << 20) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(most)


def write_whole(path: str, content: bytes) -> None:
    """It appears whole, for every user to read."""
    beside = "%s.%s" % (path, os.urandom(4).hex())
    with open(beside, "xb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
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
    units = memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]
    return '"%s"' % "".join(chr(unit) if 31 < unit < 127 and unit not in b'"\\' else "\\u%04x" % unit for unit in units)
