"""A commit that the checkout does not have, such as a pull request's merge: fetched beside it, since no command writes
into the checkout."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.repository import find_repository
from ci_tasks.errors import CheckoutError


def has_commit(source: Path, commit: str) -> bool:
    """Whether the checkout has the commit itself, and no fetch is needed."""
    return Git(source).text_or_none("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is not None


def fetch_commit(source: Path, commit: str, store: Path, *, url: str, ref: str = "") -> Path:
    """A repository in the directory `store` that has `commit` and shares the objects of `source`.

    `ref` is where the server may still have it, where it does not give out bare commits. Raises CheckoutError.
    """
    repository = find_repository(source)
    if repository is None:
        raise CheckoutError(f"{source} is no git repository, so commit {commit[:12]} cannot be had")
    if not (store / ".git").exists():
        store.mkdir(parents=True, exist_ok=True)
        Git(store).run("init", "--quiet", f"--object-format={repository.form}")
        (store / ".git/objects/info/alternates").write_text(f"{repository.common.resolve() / 'objects'}\n")
    git = Git(store)
    if has_commit(store, commit):
        return store
    problem = ""
    for refspec in (commit, ref):
        if not refspec:
            continue
        try:
            git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", url, refspec)
        except GitError as error:
            problem = problem or str(error).splitlines()[0]
        if has_commit(store, commit):
            return store
    raise CheckoutError(
        f"commit {commit[:12]}, which CI ran, is neither in {source} nor to be had from {url}",
        hint=f"{problem}\n" * bool(problem) + "--rev REV names another commit, --on-my-tree runs your working tree",
    )
