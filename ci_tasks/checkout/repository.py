"""Where a checkout's repository keeps its things. Only looks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.git import Git, GitError, no_repository

# The path may have line ends. An old git knows one form of object names only and gives the question back.
_ANSWER = re.compile(
    r"(.*)\n(sha1|sha256|--show-object-format)\n(.*?)(?:\n([0-9a-f]{40,}))?(?:\n([0-9a-f]{40,}))?", re.DOTALL
)


@dataclass(frozen=True)
class Repository:
    """The repository around `directory`, which is `prefix` in it: "" at its root. `head` is the commit that is checked
    out, and `head_tree` its tree: "" where there is none."""

    directory: Path
    prefix: str
    form: str  # the names of its objects: sha1 or sha256
    index: Path
    common: Path  # what linked worktrees share
    head: str
    head_tree: str

    @property
    def git(self) -> Git:
        return Git(self.directory)

    @property
    def partial(self) -> bool:
        """Whether it was cloned with a filter: then objects may be missing that its remote has promised."""
        return any((self.common / "objects/pack").glob("*.promisor"))


def find_repository(directory: Path) -> Repository | None:
    """None without one, or where it ignores the directory (the sample inside an installed package is in somebody's
    ignored .venv). Raises GitError for a repository that git refuses to read: that is not the same as none."""
    git = Git(directory, {"GIT_NO_REPLACE_OBJECTS": "1"})
    try:
        paths = ("--show-cdup", "--show-object-format", "--git-path", "index")
        answer = _ANSWER.fullmatch(git.text("rev-parse", *paths, "--revs-only", "HEAD", "HEAD^{tree}"))
    except GitError as error:
        if no_repository(error):
            return None
        raise
    assert answer
    up, form, index, head, tree = answer.groups(default="")
    prefix = git.text("rev-parse", "--show-prefix").removesuffix("/") if up else ""
    if prefix and _ignored(git, prefix):
        return None
    form, real = form if form == "sha256" else "sha1", (directory / index).absolute()
    return Repository(directory, prefix, form, real, _common(real.parent), head, tree)


def _common(git_dir: Path) -> Path:
    """Of a linked worktree, the .git that it belongs to."""
    try:
        return git_dir / os.fsdecode((git_dir / "commondir").read_bytes().removesuffix(b"\n"))
    except FileNotFoundError:
        return git_dir


def _ignored(git: Git, prefix: str) -> bool:
    ignored = git.text_or_none("check-ignore", "--quiet", "--no-index", str(git.directory.resolve())) is not None
    return ignored and git.text_or_none("rev-parse", "--verify", "--quiet", f"HEAD:{prefix}") is None
