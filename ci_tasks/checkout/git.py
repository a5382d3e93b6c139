"""git, the program: the one place that starts it and knows its odd flags."""

from __future__ import annotations

import builtins
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci_tasks import debug_log
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.resources import HOME_ENV

# What git sets for a hook or an alias, and what changes the meaning of a command's words: with these, every command
# here would be about the caller's repository (`git rev-parse --local-env-vars` lists them). The caller's own
# configuration stays, be it in files or in GIT_CONFIG_COUNT: that is where `safe.directory` may be.
_FOREIGN = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DEFAULT_HASH",
    "GIT_DIR",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
}
# Deterministic, so that one tree on one parent is one commit, however often it is snapshotted.
IDENTITY = "ci-tasks <ci-tasks@localhost> 0 +0000"
_IDENTITY = {
    "GIT_AUTHOR_NAME": "ci-tasks",
    "GIT_AUTHOR_EMAIL": "ci-tasks@localhost",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "ci-tasks",
    "GIT_COMMITTER_EMAIL": "ci-tasks@localhost",
    "GIT_COMMITTER_DATE": "@0 +0000",
}
_FLAGS = (
    # No daemon, no hook: what they overlook would be tested otherwise than it is on disk, and with ten thousand files
    # they save `add` 7 ms of 25.
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.splitIndex=false",  # a split index would put its shared half into the user's .git
    "core.safecrlf=false",  # `true` makes `add` refuse files whose line ends a commit would change
    "core.quotePath=false",
    "advice.addEmbeddedRepo=false",
    "init.defaultBranch=ci-tasks",  # or else git explains at length how to choose one
)
# A clone of ours is checked out as CI would: no line ends, filters or ignored files by the user's own configuration.
# Whoever owns the directory above, we made it.
_NEUTRAL = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    # Where a git before 2.32 looks for what GIT_CONFIG_GLOBAL names.
    "HOME": "/dev/null",
    "XDG_CONFIG_HOME": "/dev/null",
    "GIT_CONFIG_PARAMETERS": "",
}


_CHUNK = 1 << 18
# What git says where there is no room: that is about the machine, not about the checkout.
_FULL = ("No space left on device", "Out of diskspace", "Disk quota exceeded")


def _subcommand(args: Sequence[str]) -> str:
    """`update-index` of `-c core.x=y update-index …`."""
    rest = list(args)
    while rest[0] == "-c" and len(rest) > 2:
        del rest[:2]
    return rest[0]


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class Git:
    """git run in `directory`, with `env` and `settings` on top of the caller's. `neutral`: without the user's own."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str] | None = None,
        *,
        neutral: bool = False,
        settings: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        flags = (*_FLAGS, *(["safe.directory=*"] if neutral else []), *settings)
        self._flags = [word for flag in flags for word in ("-c", flag)]
        inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.env = {
            **inherited,
            **_IDENTITY,
            "LC_ALL": "C",
            "GIT_OPTIONAL_LOCKS": "0",  # `status` would otherwise refresh the user's index
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",  # as actions/checkout does without `lfs: true`
            **(_NEUTRAL if neutral else {}),
            **(env or {}),
        }

    def run(self, *args: str, input: builtins.bytes = b"") -> builtins.bytes:
        """What git prints. Raises GitError with what it complained of, CheckoutError where there is no git."""
        try:
            done = subprocess.run(
                self._command(args), cwd=self.directory, env=self.env, input=input, capture_output=True
            )
        except OSError as error:
            raise self._unstarted(error) from None
        debug_log.LOGGER.debug("git %s: %d", " ".join(args), done.returncode)
        if done.returncode:
            raise self._refused(_subcommand(args), done.stderr, done.returncode)
        return done.stdout

    def stream(self, *args: str, input: builtins.bytes = b"") -> Iterator[builtins.bytes]:
        """What git prints, as it comes. Raises as `bytes` does, also after some of it; git ends with the iteration."""
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
                assert process.stdout is not None
                while chunk := process.stdout.read(_CHUNK):
                    yield chunk
                code = process.wait()
            finally:
                process.kill()
                process.communicate()
            if code:
                stderr.seek(0)
                raise self._refused(_subcommand(args), stderr.read(), code)

    def start(self, *args: str) -> subprocess.Popen[builtins.bytes]:
        """A git that answers what is written to it. Raises CheckoutError where there is no git."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        command = self._command(args)
        try:
            return subprocess.Popen(command, cwd=self.directory, env=self.env, stdin=pipe, stdout=pipe, stderr=null)
        except OSError as error:
            raise self._unstarted(error) from None

    def _command(self, args: tuple[str, ...]) -> list[str]:
        return ["git", *self._flags, *args]

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

    def _refused(self, command: str, complaints: builtins.bytes, code: int) -> Exception:
        message = complaints.decode(errors="replace").strip() or f"exit code {code}"
        if any(text in message for text in _FULL):
            reason = f"git {command} in {self.directory}: {message.splitlines()[-1]}"
            return Blocked(reason, hint=f"the disk is full: make room, or {HOME_ENV} names another directory for runs")
        return GitError(f"git {command} in {self.directory}: {message}")

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

    def toplevel(self) -> Path | None:
        """The root of the work tree around the directory, or None where no repository is. Raises GitError for a
        repository that git refuses to read, such as another user's: that is not the same as none."""
        try:
            return Path(self.text("rev-parse", "--show-toplevel"))
        except GitError as error:
            if no_repository(error):
                return None
            raise


def no_repository(error: Exception) -> bool:
    """Whether that is what git complained of."""
    message = error.message if isinstance(error, GitError) else ""
    return "not a git repository" in message or "must be run in a work tree" in message
