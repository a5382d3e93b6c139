"""git, the program: the one place that starts it and knows its odd flags."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ci_tasks.errors import CheckoutError

# A caller inside a git hook has these set, and they would point every command at the caller's repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES")
# Deterministic, so that one tree on one parent is one commit, however often it is snapshotted.
_IDENTITY = {
    "GIT_AUTHOR_NAME": "ci-tasks",
    "GIT_AUTHOR_EMAIL": "ci-tasks@localhost",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "ci-tasks",
    "GIT_COMMITTER_EMAIL": "ci-tasks@localhost",
    "GIT_COMMITTER_DATE": "@0 +0000",
}


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class Git:
    """git run in `directory`, with `env` on top of the caller's environment."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.env = {
            **inherited,
            **_IDENTITY,
            "LC_ALL": "C",
            "GIT_OPTIONAL_LOCKS": "0",  # `status` would otherwise refresh the user's index
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",  # as actions/checkout does without `lfs: true`
            **(env or {}),
        }

    def bytes(self, *args: str, input: bytes = b"") -> bytes:
        """What git prints. Raises GitError with what it complained of, CheckoutError where there is no git."""
        command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *args]
        try:
            done = subprocess.run(command, cwd=self.directory, env=self.env, input=input, capture_output=True)
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise CheckoutError(f"there is no directory {self.directory}") from None
            raise CheckoutError(
                "git is not installed, and a run needs it to take exactly your working tree",
                hint="install it (Debian: apt-get install git)",
            ) from None
        except NotADirectoryError:
            raise CheckoutError(f"{self.directory} is not a directory") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise GitError(f"git {args[0]} in {self.directory}: {said}")
        return done.stdout

    def text(self, *args: str) -> str:
        """What git prints, without its last newline."""
        return os.fsdecode(self.bytes(*args)).removesuffix("\n")

    def maybe(self, *args: str) -> str | None:
        """What git prints, or None where it fails: for questions whose answer may be no."""
        try:
            return self.text(*args)
        except GitError:
            return None
