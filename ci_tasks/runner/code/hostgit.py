"""git on a host, without anybody's settings, and what its complaints mean.

git 2.17 and later. The repository is always named, never looked for: then it does not matter who owns it, and a
repository around ours is not taken for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import IO, Dict, Iterable, List, Optional

_FLAGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=false",
    "core.commitGraph=false",
    "checkout.workers=0",  # as many as there are cores; an old git does not know it
    "core.bigFileThreshold=64m",  # larger files never lie in memory as a whole
    "advice.detachedHead=false",
    "status.renames=false",
    "diff.renames=false",
)
_FULL = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded")
# Without a reason, which has always been the same one. What was written is gone again when one could look.
_UNWRITTEN = re.compile(r"unable to write (?:file|new index)[^:]*$", re.MULTILINE)
# What git says of a store that lost something: to a kill, to a full disk, or to somebody who tidied it by hand.
_DAMAGED = re.compile(
    r"unable to read|not read|missing|corrupt|inflate|bad object|bad tree|not a tree|invalid object|not a valid object|"
    r"unable to parse|could not parse|does not match|cannot be accessed|SHA1 COLLISION|not a git repository|too small",
    re.IGNORECASE,
)
_BASE = re.compile(r"unresolved delta")
_ENOUGH = 1 << 20  # bytes; where less is left, the disk is full, whatever git says


class StoreError(Exception):
    """The host cannot have the tree; the message says why."""


class MissingBase(StoreError):
    """The host lacks what the client thought it had: everything has to be sent."""


class Git:
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
            GIT_DIR=git_dir,
            **environ,
        )
        if work_tree:
            self.env["GIT_WORK_TREE"] = work_tree

    def run(self, *args: str) -> bytes:
        """What git prints. Raises StoreError, or MissingBase where objects are missing."""
        with tempfile.TemporaryFile() as complaints:
            process = self._start(args, subprocess.DEVNULL, subprocess.PIPE, complaints)
            printed, _ = process.communicate()
            self._check(args[0], process.returncode, complaints)
        return printed

    def feed(self, chunks: Iterable[bytes], *args: str) -> None:
        """Have git read the chunks. Raises as `run` does; git is gone where `chunks` raises."""
        with tempfile.TemporaryFile() as complaints:
            process = self._start(args, subprocess.PIPE, subprocess.DEVNULL, complaints)
            assert process.stdin is not None
            try:
                for chunk in chunks:
                    try:
                        process.stdin.write(chunk)
                    except BrokenPipeError:
                        break  # git has said why
            except BaseException:
                process.kill()
                raise
            finally:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    pass
                process.wait()
            self._check(args[0], process.returncode, complaints)

    def _start(self, args: Iterable[str], stdin: int, stdout: int, stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
        command = ["git"] + [word for flag in _FLAGS for word in ("-c", flag)] + list(args)
        try:
            return subprocess.Popen(
                command, cwd=self.directory, env=self.env, stdin=stdin, stdout=stdout, stderr=stderr, bufsize=0
            )
        except FileNotFoundError:
            raise StoreError("git is not installed on the host") from None

    def _check(self, command: str, code: int, complaints: IO[bytes]) -> None:
        if code:
            complaints.seek(0)
            raise error_of(command, complaints.read().decode("utf-8", "replace").strip(), code, self.directory)


def error_of(command: str, said: str, code: int, directory: str) -> StoreError:
    lines = [line for line in said.splitlines() if line] or ["exit code %d" % code]
    if _FULL.search(said) or _UNWRITTEN.search(said) or room(directory) < _ENOUGH:
        return StoreError("the host's disk is full: %s: git %s: %s" % (directory, command, lines[-1]))
    if _BASE.search(said) or _DAMAGED.search(said):
        return MissingBase("git %s in %s: %s" % (command, directory, lines[-1]))
    return StoreError("git %s in %s: %s" % (command, directory, "\n".join(lines[:5])))


def room(directory: str) -> int:
    """Bytes that are left for us where `directory` is."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


def names(listed: bytes) -> List[str]:
    """What git printed with `-z`."""
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]
