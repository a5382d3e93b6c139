"""What a person's words for a revision name in a repository, and what could have been meant."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.checkout.git import Git
from ci_tasks.errors import CheckoutError, nearest, some

BASE = "origin/main"


def resolve_base(source: Path, base: str) -> str:
    """The commit that `base` names in `source`. Raises CheckoutError that lists branches which could be meant."""
    return _resolve(Git(source), base, f"{source} has no revision {base!r} to compare with", "pass --base REV; ")


def local_base(source: Path) -> str | None:
    """The commit of origin/main in `source`, if it has one."""
    return Git(source).text_or_none("rev-parse", "--verify", "--quiet", BASE)


def default_base(source: Path) -> tuple[str, str]:
    """The commit where the checked out one and origin/main, or main, part, and the branch. Raises CheckoutError."""
    git = Git(source)
    for branch in (BASE, "main", "origin/master", "master"):
        if commit := git.text_or_none("merge-base", "HEAD", branch):
            return commit, branch
    raise CheckoutError(f"{source} has neither {BASE} nor main to compare with", hint="--base REV names the base")


def resolve_rev(source: Path, rev: str) -> str:
    """The commit that `rev` names in `source`. Raises CheckoutError."""
    return _resolve(Git(source), rev, f"{source} has no revision {rev!r}", "")


def _resolve(git: Git, rev: str, message: str, advice: str) -> str:
    commit = None if rev.startswith("-") else git.text_or_none("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")
    if commit is None:
        git.run("rev-parse", "--git-dir")  # where git refuses to read the repository, its own words are the message
        shown = "%(if)%(symref)%(then)%(else)%(refname:short)%(end)"  # origin/HEAD is only another name
        branches = (git.text_or_none("for-each-ref", f"--format={shown}", "refs/remotes", "refs/heads") or "").split()
        near = nearest(rev, branches)
        first = [*([near] if near else []), *(name for name in branches if name != near)]
        raise CheckoutError(message, hint=f"{advice}branches here: {some(first, 12) or 'none'}")
    return commit
