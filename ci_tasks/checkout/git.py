"""git, the program: the one place that starts it. It never reads the configuration of a checkout.

Every call names a git directory of ours: the `.git` of a clone that we made, a store, or one that a `Repository` makes
to read a checkout's objects and references. So git runs no filter, hook, monitor, pager, ssh command or credential
helper that a checkout names, and it fetches nothing by itself. Attributes convert nothing, since `info/attributes` of
our directories outranks every other: a blob is the bytes on disk.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from ci_tasks import debug_log
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.resources import HOME_ENV

TIMEOUT_S = 600.0  # without an answer
# Deterministic, so that one tree on one parent is one commit, however often it is recorded.
_IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "ci-tasks"), ("EMAIL", "ci-tasks@localhost"), ("DATE", "@0 +0000"))
}
_FLAGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.splitIndex=false",
    "core.quotePath=false",
    "advice.addEmbeddedRepo=false",
    "safe.bareRepository=explicit",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.protectNTFS=false",  # `git~1` is a name like any other here
    "core.protectHFS=false",
    "core.looseCompression=1",
    "core.bigFileThreshold=64m",  # larger files are streamed, not read into memory
    "gc.auto=0",
    "maintenance.auto=false",
)
_NEUTRAL = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    # Where a git before 2.32 looks for what GIT_CONFIG_GLOBAL names.
    "HOME": "/dev/null",
    "XDG_CONFIG_HOME": "/dev/null",
}
# The user's own settings, which a fetch needs. All other variables of git's point at the repository of a hook or alias.
_OF_USER = re.compile(r"GIT_(CONFIG_.+|SSH.*|SSL_.+|HTTP_.+|ASKPASS|PROXY_.+|ALLOW_PROTOCOL)")

_CHUNK = 1 << 18
# What git says where there is no room: that is about the machine, not about the checkout.
_FULL = ("No space left on device", "Out of diskspace", "Disk quota exceeded")
_MISSING = re.compile(
    r"unable to read [0-9a-f]{40}|cannot read|bad object|bad file|missing (blob|tree|commit)|invalid object"
)


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class MissingObjects(CheckoutError):
    """A partial clone lacks objects. Nothing is fetched unasked."""

    def __init__(self, directory: Path, what: str) -> None:
        super().__init__(
            f"{directory} is a partial clone that lacks files which are needed: {what}",
            hint=f"`git -C {shlex.quote(str(directory))} fetch --refetch --no-filter` brings them (git 2.36 and later)",
        )


class Git:
    """git on the git directory `git_dir`, one of ours, run in `directory` (default: `git_dir`) with `env` and
    `settings`.

    `user_settings`: with the user's own configuration, for what needs the network. `partial`: objects may be missing.
    `owner` is what has to stay as long as this is used.
    """

    def __init__(
        self,
        git_dir: Path,
        directory: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        settings: Sequence[str] = (),
        user_settings: bool = False,
        partial: bool = False,
        owner: object = None,
    ) -> None:
        self.directory = directory or git_dir
        self._partial, self._owner = partial, owner
        self._flags = [word for flag in (*_FLAGS, *settings) for word in ("-c", flag)]
        kept = (name for name in os.environ if (user_settings and _OF_USER.fullmatch(name)) or name == "GIT_EXEC_PATH")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **{name: os.environ[name] for name in kept},
            **_IDENTITY,
            "LC_ALL": "C",
            "GIT_DIR": str(git_dir.absolute()),
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",  # a commit's tree is what the commit says
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            **({} if user_settings else _NEUTRAL),
            **(env or {}),
        }

    def run(self, *args: str, input: builtins.bytes = b"") -> builtins.bytes:
        """What git prints. Raises GitError with what it complained of; CheckoutError without git, or without an answer
        in time."""
        try:
            done = subprocess.run(
                self._command(args),
                cwd=self.directory,
                env=self.env,
                input=input,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise self._timed_out(args) from None
        except OSError as error:
            raise self._unstarted(error) from None
        debug_log.LOGGER.debug("git %s: %d", " ".join(args), done.returncode)
        if done.returncode:
            raise self._refused(args, done.stderr, done.returncode)
        return done.stdout

    def stream(self, *args: str, input: builtins.bytes = b"") -> Iterator[builtins.bytes]:
        """What git prints, as it comes. Raises as `run` does, also after some of it; git ends with the iteration."""
        import tempfile  # with all kinds of archives; most calls need none

        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
            stdin.write(input)
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    self._command(args),
                    cwd=self.directory,
                    env=self.env,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    bufsize=0,
                )
            except OSError as error:
                raise self._unstarted(error) from None
            try:
                while chunk := self.read_answer(process, args[0]).read(_CHUNK):
                    yield chunk
                code = process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.communicate()
            if code:
                stderr.seek(0)
                raise self._refused(args, stderr.read(), code)

    def start(self, *args: str) -> subprocess.Popen[builtins.bytes]:
        """A git that answers what is written to it. Raises CheckoutError where there is no git."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        command = self._command(args)
        try:
            return subprocess.Popen(command, cwd=self.directory, env=self.env, stdin=pipe, stdout=pipe, stderr=null)
        except OSError as error:
            raise self._unstarted(error) from None

    def read_answer(self, process: subprocess.Popen[builtins.bytes], command: str) -> IO[builtins.bytes]:
        """The output of `process`, as soon as there is any. Raises CheckoutError if none comes in time."""
        output = cast("IO[bytes]", process.stdout)
        if not select.select([output], [], [], TIMEOUT_S)[0]:
            process.kill()
            raise self._timed_out((command,))
        return output

    def _command(self, args: tuple[str, ...]) -> list[str]:
        return ["git", *self._flags, *args]

    def _timed_out(self, args: Sequence[str]) -> CheckoutError:
        return CheckoutError(
            f"git {args[0]} in {self.directory} did not answer within {TIMEOUT_S / 60:g} minutes",
            hint="does the disk answer, or the network that it is on? `git status` there should end in seconds",
        )

    def _unstarted(self, error: OSError) -> Exception:
        if isinstance(error, NotADirectoryError):
            return CheckoutError(f"{self.directory} is not a directory")
        if not isinstance(error, FileNotFoundError):
            return error
        if not self.directory.is_dir():
            return CheckoutError(f"there is no directory {self.directory}")
        return CheckoutError(
            "git is not installed, and a run needs it to take exactly your working tree",
            hint="install it (Debian: apt-get install git)",
        )

    def _refused(self, args: Sequence[str], complaints: builtins.bytes, code: int) -> Exception:
        message = complaints.decode(errors="replace").strip() or f"exit code {code}"
        where = f"git {args[0]} in {self.directory}"
        if code == -signal.SIGXFSZ:
            return OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.directory))
        if any(text in message for text in _FULL):
            reason = f"{where}: {message.splitlines()[-1]}"
            return Blocked(reason, hint=f"the disk is full: make room, or {HOME_ENV} names another directory for runs")
        if self._partial and _MISSING.search(message):
            return MissingObjects(self.directory, message.splitlines()[-1])
        return GitError(f"{where}: {message}")

    def text(self, *args: str, input: builtins.bytes = b"") -> str:
        """What git prints, without its last newline."""
        return os.fsdecode(self.run(*args, input=input)).removesuffix("\n")

    def null_separated(self, *args: str) -> list[str]:
        """What git prints with `-z`, as a list."""
        return [os.fsdecode(name) for name in self.run(*args).split(b"\0") if name]

    def text_or_none(self, *args: str) -> str | None:
        """What git prints, or None where it fails: for questions whose answer may be no."""
        try:
            return self.text(*args)
        except GitError:
            return None


def user_setting(*question: str) -> str:
    """The answer of `git config` by the user's own configuration, that of no repository; "" without one."""
    return Git(Path(os.devnull), Path("/"), user_settings=True).text_or_none("config", *question) or ""
