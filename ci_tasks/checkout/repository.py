"""Where a checkout's repository keeps its things. Only looks."""

from __future__ import annotations

import os
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.git import Git, GitError, no_repository


@dataclass(frozen=True)
class Repository:
    """The repository around `directory`, which is `prefix` in it: "" at its root."""

    directory: Path
    prefix: str
    form: str  # the names of its objects: sha1 or sha256
    index: Path
    common: Path  # what linked worktrees share

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
    git = Git(directory)
    try:
        # The index comes last: paths may have line ends.
        up, form, index = git.text("rev-parse", "--show-cdup", "--show-object-format", "--git-path", "index").split(
            "\n", 2
        )
    except GitError as error:
        if no_repository(error):
            return None
        raise
    prefix = git.text("rev-parse", "--show-prefix").removesuffix("/") if up else ""
    if prefix and _ignored(git, prefix):
        return None
    # An old git knows one form only and gives the question back, and it cannot be asked for absolute paths.
    form, real = form if form == "sha256" else "sha1", (directory / index).absolute()
    return Repository(directory, prefix, form, real, _common(real.parent))


def _common(git_dir: Path) -> Path:
    """Of a linked worktree, the .git that it belongs to."""
    try:
        return git_dir / os.fsdecode((git_dir / "commondir").read_bytes().removesuffix(b"\n"))
    except FileNotFoundError:
        return git_dir


def _ignored(git: Git, prefix: str) -> bool:
    ignored = git.text_or_none("check-ignore", "--quiet", "--no-index", str(git.directory.resolve())) is not None
    return ignored and git.text_or_none("rev-parse", "--verify", "--quiet", f"HEAD:{prefix}") is None
