"""git, the program: the one place that starts it, on the client and on a host, and the git directories that we make.

Every call names a git directory of ours: a store, or one that borrows the objects of a checkout. No configuration but
ours is read, so git runs no filter, hook, monitor, pager or helper that a checkout or a job names. Attributes convert
nothing, since `info/attributes` of our directories outranks every other file: a blob is the bytes on disk.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from contextlib import contextmanager
from typing import BinaryIO, Dict, Iterator, List, Optional, Union

from . import processes
from .files import content_of, replace_file

FLAGS = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false", "safe.bareRepository=explicit"),
    *("core.trustctime=true", "core.checkStat=default"),  # a changed ctime is a changed file
    *("core.protectNTFS=false", "core.protectHFS=false"),  # `git~1` is a name like any other here
    *("core.bigFileThreshold=64m", "pack.windowMemory=128m"),  # larger files are streamed, not read into memory
    *("core.looseCompression=1", "pack.compression=1"),  # a disk or link is hardly ever slower than more compression
    *("core.splitIndex=false", "checkout.workers=0", "advice.addEmbeddedRepo=false"),
    *("gc.auto=0", "maintenance.auto=false"),
)
_ENVIRONMENT = {
    **dict.fromkeys(("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM", "GIT_NO_LAZY_FETCH", "GIT_NO_REPLACE_OBJECTS"), "1"),
    **dict.fromkeys(("GIT_OPTIONAL_LOCKS", "GIT_TERMINAL_PROMPT"), "0"),
    **dict.fromkeys(("GIT_CONFIG_GLOBAL", "HOME", "XDG_CONFIG_HOME"), os.devnull),
    "LC_ALL": "C",
}
# git gives no reason for the second kind, which has always been a full disk: what was written is removed by then.
_FULL = re.compile(
    r"(?m)No space left on device|Out of diskspace|Disk quota exceeded|File too large"
    r"|unable to write (?:file|new index)[^:]*$"
)
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Outranks every other file with attributes.
_AS_ON_DISK = b"* -text !eol !filter !ident !working-tree-encoding\n"

ID = re.compile(r"[0-9a-f]{40}")
AnyPath = Union[str, "os.PathLike[str]"]


class StoreError(Exception):
    """A tree cannot be stored or checked out; the message says why."""


class DiskFull(StoreError):
    """No space is left on the host; the message is git's."""

    def __str__(self) -> str:
        return "the host's disk is full: %s; free some space there; `ci-tasks clean` removes old runs" % self.args


class MissingBase(StoreError):
    """The store lacks objects, or is damaged: everything has to be sent."""

    code = "missing-base"  # for the client


class Git:
    """git on the git directory `git_dir`, run in `directory` (default: `git_dir`), with further settings and `env`."""

    timeout: Optional[float] = None  # seconds for one answer
    own_session = True  # ^C at a terminal does not reach it

    def __init__(self, git_dir: AnyPath, directory: AnyPath = "", *settings: str, **env: str) -> None:
        self.directory = os.fspath(directory or git_dir)
        self._flags = [word for setting in (*FLAGS, *settings) for word in ("-c", setting)]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k == "GIT_EXEC_PATH"}
        self.env: Dict[str, str] = {**inherited, **_ENVIRONMENT, "GIT_DIR": os.path.abspath(git_dir), **env}

    def run(self, *args: str, input: Union[bytes, BinaryIO] = b"") -> bytes:
        """The output of git. Raises what `refused` and `unusable` return: on a host StoreError."""
        try:
            with self.started(*args, input=input) as process:
                return process.communicate(timeout=self.timeout)[0]
        except subprocess.TimeoutExpired as error:
            raise self.unusable(args[0], error) from None

    def text(self, *args: str, input: bytes = b"") -> str:
        """The output without its last newline."""
        output = os.fsdecode(self.run(*args, input=input))
        return output[:-1] if output.endswith("\n") else output

    def split(self, *args: str, input: bytes = b"") -> List[bytes]:
        """The entries of an output that NULs end."""
        return self.run(*args, input=input).split(b"\0")[:-1]

    @contextmanager
    def started(self, *args: str, input: Union[bytes, BinaryIO, None] = None) -> Iterator[subprocess.Popen[bytes]]:
        """A git that runs in the block, and is killed if that raises. Its stdin is a pipe unless `input` is given, as
        bytes or an open file. Raises at the end of the block as `run` does."""
        command, pipe = ["git", *self._flags, *args], subprocess.PIPE
        with os.fdopen(os.memfd_create("stdin"), "w+b") as given, os.fdopen(os.memfd_create("stderr"), "w+b") as stderr:
            if isinstance(input, bytes):
                given.write(input)
                given.seek(0)
                input = given
            options = {"stdin": pipe if input is None else input, "stdout": pipe, "stderr": stderr}
            options["start_new_session"] = self.own_session and processes.own_session
            try:
                process = processes.start(command, self.env, self.directory, **options)
            except OSError as error:
                raise self.unusable(args[0], error) from None
            with processes.ended(process):
                yield process
                if process.stdout and not process.stdout.closed:
                    process.communicate()
            if process.returncode:
                stderr.seek(0)
                raise self.refused(args[0], stderr.read(), process.returncode)

    def stream(self, *args: str, input: bytes = b"") -> Iterator[bytes]:
        """The output as it comes."""
        with self.started(*args, input=input) as process:
            yield from iter(lambda: process.stdout.read(1 << 18), b"")  # type: ignore[union-attr]

    def refused(self, command: str, complaint: bytes, code: int) -> Exception:
        """The error for a git that failed."""
        lines = complaint.decode("utf-8", "replace").strip().splitlines() or ["exit code %d" % code]
        where = "git %s in %s: " % (command, self.directory)
        if _FULL.search("\n".join(lines)):
            return DiskFull(where + lines[-1])
        return MissingBase(where + "\n".join(lines[:5]))

    def unusable(self, command: str, error: Exception) -> Exception:
        """The error for a git that did not start."""
        if not os.path.isdir(self.directory):
            return MissingBase("%s was removed" % self.directory)
        return StoreError("git is not installed on the host" if isinstance(error, FileNotFoundError) else str(error))


def make_repository(git_dir: str, more_config: str = "") -> None:
    """Create or repair the repository `git_dir`, without a git process."""
    for name in ("objects/pack", "objects/info", "refs/heads", "info"):
        os.makedirs(os.path.join(git_dir, name), exist_ok=True)
    config = "[core]\nrepositoryformatversion = %d\nbare = false\n[gc]\nauto = 0\n" % bool(more_config)
    config += more_config and "[extensions]\n" + more_config
    head = b"ref: refs/heads/ci-tasks\n"
    for name, content in (("config", config.encode("ascii")), ("info/attributes", _AS_ON_DISK), ("HEAD", head)):
        if content_of(os.path.join(git_dir, name)) != content:
            replace_file(os.path.join(git_dir, name), content)


def make_temporary_directory() -> str:
    """A directory for a repository that goes with this process."""
    top = os.environ.get("TMPDIR", "")  # not by `tempfile`: a command that only looks has to start quickly
    top = top if os.path.isdir(top) and os.access(top, os.W_OK) else "/tmp"
    path = os.path.join(top, "ci-tasks-git-" + os.urandom(8).hex())
    os.mkdir(path, 0o700)
    return path


def quoted(path: AnyPath) -> str:
    """A path as git's lists of object directories need it."""
    return '"%s"' % os.fspath(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
