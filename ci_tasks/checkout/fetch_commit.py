"""A commit that the checkout does not have, such as a pull request's merge: fetched beside it, since no command writes
into the checkout. The only git that uses the network: by the user's own configuration, not by that of the checkout."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.agent.trees.repositories import make_repository, quoted
from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.repository import open_repository
from ci_tasks.checkout.revision import commit_of
from ci_tasks.errors import CheckoutError


def fetch_commit(source: Path, commit: str, store: Path, *, url: str, ref: str = "") -> Path:
    """A repository in the directory `store` that has `commit` and shares the objects of `source`.

    `ref` is where the server may still have it, where it does not give out bare commits. Raises CheckoutError.
    """
    repository = open_repository(source)
    own = store / ".git"
    make_repository(str(own), repository.form, bare=False)
    (own / "objects/info/alternates").write_text(f"{quoted(str(repository.objects.resolve()))}\n")
    git = Git(own, store, user_settings=True)
    problem = ""
    for refspec in ("", commit, ref):
        try:
            if refspec:
                git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", url, refspec)
        except GitError as error:
            problem = problem or str(error).splitlines()[0]
        if commit_of(git, commit):
            return store
    raise CheckoutError(
        f"commit {commit[:12]}, which CI ran, is neither in {source} nor to be had from {url}",
        hint=f"{problem}\n" * bool(problem) + "--rev REV names another commit, --on-my-tree runs your working tree",
    )
