"""What a partial clone left with its remote: a tree that is to travel needs all of its files."""

from __future__ import annotations

from ci_tasks.checkout.git import Git, GitError
from ci_tasks.errors import CheckoutError


def fetch_missing_objects(git: Git, tree: str) -> None:
    """Fetch those objects of `tree` that are missing into git's object directory. Raises CheckoutError."""
    listed = git.text("rev-list", "--objects", "--missing=print", "--quiet", tree)
    missing = [line[1:] for line in listed.splitlines() if line.startswith("?")]
    if not missing:
        return
    remote = _remote(git)
    try:
        _fetch(git, remote, "".join(f"{name}\n" for name in missing).encode())
    except GitError as error:
        raise CheckoutError(
            f"{git.directory} is a partial clone that lacks {len(missing)} files of the tree, and {remote} does not "
            f"give them: {error.message}",
            hint="run `git checkout` there once while its remote can be reached",
        ) from None


# As git itself fetches what is promised; the user's FETCH_HEAD stays as it is, and no upkeep begins.
_FETCH = ("-c", "fetch.negotiationAlgorithm=noop", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "fetch")
_QUIETLY = ("--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none")


def _fetch(git: Git, remote: str, missing: bytes) -> None:
    try:
        git.run(*_FETCH, remote, "--no-tags", *_QUIETLY, "--stdin", input=missing)
    except GitError as error:
        if "usage: git fetch" not in error.message:
            raise
        git.run("cat-file", "--batch-check", input=missing)  # before git 2.29: one after the other, but it does


def _remote(git: Git) -> str:
    """The remote that has promised them."""
    named = git.text_or_none("config", "--get", "extensions.partialClone")
    if named:
        return named
    promisors = git.text_or_none("config", "--get-regexp", r"^remote\..*\.promisor$") or ""
    return promisors.partition(".promisor")[0].removeprefix("remote.") or "origin"
