"""What a person's words for a revision name in a repository, and what could have been meant."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.checkout.git import Git
from ci_tasks.checkout.repository import find_repository, open_repository
from ci_tasks.errors import CheckoutError, nearest, some

BASE = "origin/main"


def resolve_base(source: Path, base: str) -> str:
    """The commit that `base` names in `source`. Raises CheckoutError that lists branches which could be meant."""
    return _resolve(source, base, f"{source} has no revision {base!r} to compare with", "pass --base REV; ")


def default_base(source: Path) -> tuple[str, str]:
    """The commit where the checked out one and origin/main, or main, part, and the branch. Raises CheckoutError."""
    git = open_repository(source).git
    for branch in (BASE, "main", "origin/master", "master"):
        if commit := git.text_or_none("merge-base", "HEAD", branch):
            return commit, branch
    raise CheckoutError(f"{source} has neither {BASE} nor main to compare with", hint="--base REV names the base")


def resolve_rev(source: Path, rev: str) -> str:
    """The commit that `rev` names in `source`. Raises CheckoutError."""
    return _resolve(source, rev, f"{source} has no revision {rev!r}", "")


def find_commit(source: Path, rev: str) -> str | None:
    """The commit that `rev` names in `source`, if that has it, or is a repository at all."""
    repository = find_repository(source)
    return commit_of(repository.git, rev) if repository else None


def commit_of(git: Git, rev: str) -> str | None:
    """The commit that `rev` names."""
    return None if rev.startswith("-") else git.text_or_none("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")


def _resolve(source: Path, rev: str, message: str, advice: str) -> str:
    git = open_repository(source).git
    commit = commit_of(git, rev)
    if commit is None:
        shown = "%(if)%(symref)%(then)%(else)%(refname:short)%(end)"  # origin/HEAD is only another name
        branches = (git.text_or_none("for-each-ref", f"--format={shown}", "refs/remotes", "refs/heads") or "").split()
        near = nearest(rev, branches)
        first = [*([near] if near else []), *(name for name in branches if name != near)]
        raise CheckoutError(message, hint=f"{advice}branches here: {some(first, 12) or 'none'}")
    return commit
