"""git on the client: the agent's, with the client's errors, and the user's own configuration for what needs it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from ci_tasks.agent.trees import git as agent_git
from ci_tasks.agent.trees.git import AnyPath, DiskFull
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.resources import HOME_ENV

# The user's own settings, which a fetch needs. All other variables of git's point at the repository of a hook or alias.
_OF_USER = re.compile(r"GIT_(CONFIG_.+|SSH.*|SSL_.+|HTTP_.+|ASKPASS|PROXY_.+|ALLOW_PROTOCOL)")
_MISSING = re.compile(r"unable to read|cannot read|bad object|bad file|missing (blob|tree|commit)|invalid object")


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class MissingObjects(CheckoutError):
    """A partial clone lacks objects. Nothing is fetched unasked."""

    def __init__(self, directory: AnyPath, what: str) -> None:
        super().__init__(
            f"{directory} is a partial clone that lacks files which are needed: {what}",
            hint=f"`git -C {shlex.quote(str(directory))} fetch --refetch --no-filter` brings them (git 2.36 and later)",
        )


class Git(agent_git.Git):
    """`partial`: objects may be missing. `owner` has to stay as long as this is used."""

    timeout = 600.0
    partial = False
    owner: object = None

    def with_user_settings(self) -> Git:
        """With the user's own configuration, for what needs the network or asks for it."""
        for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "HOME", "XDG_CONFIG_HOME"):
            del self.env[name]
        kept = (name for name in os.environ if not name.startswith("GIT_") or _OF_USER.fullmatch(name))
        self.env.update((name, os.environ[name]) for name in kept)
        return self

    def null_separated(self, *args: str) -> list[str]:
        """What git prints with `-z`, as a list."""
        return [os.fsdecode(name) for name in self.split(*args)]

    def text_or_none(self, *args: str) -> str | None:
        """What git prints, or None if it fails: for questions whose answer may be no."""
        try:
            return self.text(*args)
        except GitError:
            return None

    def refused(self, command: str, complaint: bytes, code: int) -> Exception:
        """Blocked for a full disk: that is about the machine, not about the checkout."""
        error = super().refused(command, complaint, code)
        if isinstance(error, DiskFull):
            reason = f"git {command} in {self.directory}: {complaint.decode(errors='replace').strip()}"
            return Blocked(reason, hint=f"the disk is full: make room, or {HOME_ENV} names another directory for runs")
        if self.partial and _MISSING.search(str(error)):
            return MissingObjects(self.directory, str(error).splitlines()[-1])
        return GitError(str(error))

    def unusable(self, command: str, error: Exception) -> Exception:
        """The error for a git that did not start, or did not answer in time."""
        if isinstance(error, subprocess.TimeoutExpired):
            return CheckoutError(
                f"git {command} in {self.directory} did not answer within {self.timeout / 60:g} minutes",
                hint="does the disk answer, or the network that it is on? `git status` there should end in seconds",
            )
        if not os.path.isdir(self.directory):
            return CheckoutError(f"there is no directory {self.directory}")
        if not isinstance(error, FileNotFoundError):
            return error
        why = "git is not installed, and a run needs it to take exactly your working tree"
        return CheckoutError(why, hint="install it (Debian: apt-get install git)")


def user_setting(*question: str) -> str:
    """The answer of `git config` by the user's own configuration, that of no repository; "" without one."""
    return Git(os.devnull, "/").with_user_settings().text_or_none("config", *question) or ""
