"""git on a host, without anybody's settings, and what its error messages mean.

git 2.17 and later. The repository is always named, never searched for: then its owner does not matter, and a repository
around ours is not taken for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, Dict, Iterable, Iterator, Optional, Sequence, cast

_FLAGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=false",
    "core.commitGraph=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.protectNTFS=false",  # `git~1` is a name like any other here
    "core.protectHFS=false",
    "checkout.workers=0",  # as many as there are cores; an old git does not know it
    "core.bigFileThreshold=64m",  # larger files never lie in memory as a whole
    "advice.detachedHead=false",
    "status.renames=false",
    "diff.renames=false",
)
_FULL = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded")
# git gives no reason here, which has always been a full disk. By now what was written is removed again.
_UNWRITTEN = re.compile(r"unable to write (?:file|new index)[^:]*$", re.MULTILINE)
# git's messages about a store that lost something: to a kill, a full disk, or somebody who tidied it by hand.
_DAMAGED = re.compile(
    r"unable to read|not read|missing|corrupt|inflate|bad object|bad tree|not a tree|invalid object|not a valid object|"
    r"unable to parse|could not parse|does not match|cannot be accessed|SHA1 COLLISION|not a git repository|too small|"
    r"cannot open existing pack|bad pack|packfile|index file",
    re.IGNORECASE,
)
_BASE = re.compile(r"unresolved delta")
_MIN_FREE_BYTES = 1 << 20  # bytes; where less is left, the disk is full, whatever git says


class StoreError(Exception):
    """The host cannot store or check out a tree; the message says why."""


class DiskFull(StoreError):
    """There is no room at `where` on the host."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "the host's disk is full: %s; free some space there: `ci-tasks clean` removes old runs" % where
        )


class MissingBase(StoreError):
    """The host lacks objects that the client thought it had: everything has to be sent."""


class Damaged(MissingBase):
    """What the host has is not complete, or not what it was: it has to go before everything is sent."""


class HostGit:
    """git on the repository `git_dir`, whose files are in `work_tree`."""

    def __init__(self, git_dir: str, work_tree: Optional[str] = None, **environ: str) -> None:
        self.directory = work_tree or git_dir
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k == "GIT_EXEC_PATH"}
        self.env: Dict[str, str] = dict(
            inherited,
            LC_ALL="C",
            HOME=git_dir,
            XDG_CONFIG_HOME=git_dir,
            GIT_CONFIG_GLOBAL="/dev/null",
            GIT_CONFIG_NOSYSTEM="1",
            GIT_ATTR_NOSYSTEM="1",
            GIT_TERMINAL_PROMPT="0",
            GIT_LITERAL_PATHSPECS="1",
            GIT_NO_REPLACE_OBJECTS="1",
            GIT_DIR=git_dir,
            **environ,
        )
        if work_tree:
            self.env["GIT_WORK_TREE"] = work_tree

    def run(self, *args: str, input: bytes = b"") -> bytes:
        """The output of git. Raises MissingBase where objects are missing, and StoreError."""
        with self.started(args, stdin=subprocess.PIPE if input else subprocess.DEVNULL) as process:
            output, _ = process.communicate(input or None)
        return output

    def feed(self, chunks: Iterable[bytes], *args: str) -> None:
        """Write the chunks to git's stdin. Raises as `run` does; git is killed where `chunks` raises."""
        with self.started(args, stdin=subprocess.PIPE) as process:
            stdin = cast(IO[bytes], process.stdin)
            try:
                with suppress(BrokenPipeError):  # git has printed why
                    for chunk in chunks:
                        stdin.write(chunk)
            except BaseException:
                process.kill()
                raise
            finally:
                with suppress(BrokenPipeError):
                    process.communicate()

    @contextmanager
    def started(self, args: Sequence[str], stdin: int) -> Iterator[subprocess.Popen[bytes]]:
        """A git that runs in the block. Raises at its end as `run` does."""
        command = ["git"] + [word for flag in _FLAGS for word in ("-c", flag)] + list(args)
        with tempfile.TemporaryFile() as stderr:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.directory,
                    env=self.env,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    bufsize=0,
                )
            except FileNotFoundError:
                if not os.path.isdir(self.directory):
                    raise _removed(self.directory) from None
                raise StoreError("git is not installed on the host") from None
            yield process
            if process.returncode:
                stderr.seek(0)
                message = stderr.read().decode("utf-8", "replace").strip()
                raise error_of(args[0], message, process.returncode, self.directory)


def error_of(command: str, message: str, code: int, directory: str) -> StoreError:
    lines = [line for line in message.splitlines() if line] or ["exit code %d" % code]
    if _FULL.search(message) or _UNWRITTEN.search(message) or free_bytes(directory) < _MIN_FREE_BYTES:
        return DiskFull("%s: git %s: %s" % (directory, command, lines[-1]))
    if not os.path.isdir(directory):
        return _removed(directory)
    kind = MissingBase if _BASE.search(message) else Damaged if _DAMAGED.search(message) else StoreError
    shown = lines[-1] if issubclass(kind, MissingBase) else "\n".join(lines[:5])
    return kind("git %s in %s: %s" % (command, directory, shown))


def _removed(directory: str) -> Damaged:
    return Damaged("%s was removed" % directory)


def free_bytes(directory: str) -> int:
    """Free bytes for us on the file system of `directory`."""
    try:
        info = os.statvfs(directory)
    except OSError:
        return 1 << 62
    return info.f_bavail * info.f_frsize
