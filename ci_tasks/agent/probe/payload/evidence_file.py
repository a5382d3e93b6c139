"""The file of this process: lines of JSON, and between them the stacks of all threads as faulthandler writes them when
the process gets the signal SIGRTMIN+7. Its name is PID-START-RANDOM.jsonl.
"""

import os

from .json_text import json_text
from .limits import COUNT, MAX_BYTES, MAX_FILES, MAX_HOOKS, RESERVED
from .process import moved_up, start_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIGNAL = 7  # above SIGRTMIN
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class EvidenceFile:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.number = -1  # open for as long as the process lives, for faulthandler
        self.identity: "Any" = None  # (device, inode) of the file: the job may have closed it
        self.path = ""
        self.signal = 0
        self.left = self.left_for_hooks = 0

    def open(self) -> bool:
        """Open the file of this process; False where there are too many."""
        # An appended byte a process: cheaper than to list the directory, and right with several processes at once.
        count = os.open(os.path.join(self.directory, COUNT), _APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            os.write(count, b".")
            if os.fstat(count).st_size > MAX_FILES:
                return False
        finally:
            os.close(count)
        pid = os.getpid()
        name = "%d-%s-%s.jsonl" % (pid, start_of(pid) or 0, os.urandom(4).hex())
        path = os.path.join(self.directory, name)
        file = os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(file, 0o644)  # the agent reads it, whatever the job's umask is
        if self.is_open():
            os.dup2(file, self.number, False)  # after a fork: faulthandler keeps its number
            os.close(file)
        else:
            self.number = moved_up(file)
            if self.signal:
                self.register_signal()
        info = os.fstat(self.number)
        self.identity, self.path = (info.st_dev, info.st_ino), path
        self.left, self.left_for_hooks = MAX_BYTES, MAX_HOOKS
        return True

    def is_open(self) -> bool:
        """Whether the number is still that of our file."""
        if self.identity is None:
            return False
        try:
            info = os.fstat(self.number)
        except OSError:
            return False
        return bool((info.st_dev, info.st_ino) == self.identity)

    def write(self, event: str, values: "dict[str, Any]", reserved: int = RESERVED) -> bool:
        """Append a line, unless only `reserved` bytes are left then. Returns whether it was written."""
        line = json_text(dict({"event": event}, **values)).encode("ascii") + b"\n"
        if len(line) > self.left - reserved:
            return False
        self.left -= len(line)
        self.append(line)
        return True

    def write_of_hook(self, values: "dict[str, Any]") -> bool:
        """Append a line of a suite's hook, which takes nothing from the room of the others."""
        line = json_text(dict({"event": "hook"}, **values)).encode("ascii") + b"\n"
        if len(line) > self.left_for_hooks:
            return False
        self.left_for_hooks -= len(line)
        self.append(line)
        return True

    def append(self, line: bytes) -> None:
        if self.is_open():
            os.write(self.number, line)
        else:
            file = os.open(self.path, _APPEND)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    def register_signal(self) -> None:
        """Let the signal write the stacks, unless the program has a handler."""
        try:
            import faulthandler

            signal = __import__("_signal")  # the module `signal` brings others along
            number = int(signal.SIGRTMIN) + _SIGNAL
            if self.signal or signal.getsignal(number) == signal.SIG_DFL:
                faulthandler.register(number, file=self.number, all_threads=True, chain=False)
                self.signal = number
        except Exception:
            pass

    def stop(self) -> None:
        """Write no more: after a fork the file is the parent's."""
        self.left = self.left_for_hooks = 0
        if self.is_open():
            nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nothing, self.number, False)
            os.close(nothing)
