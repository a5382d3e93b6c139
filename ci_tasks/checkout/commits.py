"""The commits between two revisions, for a search among them. Only looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import CheckoutGit, find_repository, open_repository, resolve_rev
from ci_tasks.errors import CheckoutError, UsageError

_FORMAT = "%H%x1f%P%x1f%an <%ae>%x1f%aI%x1f%s"  # fields cannot be divided by what -z divides commits with


@dataclass(frozen=True)
class Commit:
    """A commit. `date` is the author's, ISO 8601; `parents` are full names, in git's order."""

    sha: str
    parents: tuple[str, ...]
    author: str
    date: str
    subject: str


@dataclass(frozen=True)
class CommitHistory:
    """`commits` are those that `bad` contains and `good` does not, each after its parents; the last one is `bad`."""

    good: Commit
    commits: tuple[Commit, ...]

    @property
    def bad(self) -> Commit:
        return self.commits[-1]

    def positions(self) -> list[list[int]]:
        """The parents of each of `commits` by position: 1 is the first of them, 0 is `good` and all that is older."""
        place = {commit.sha: number for number, commit in enumerate(self.commits, 1)}
        return [[place.get(parent, 0) for parent in commit.parents] or [0] for commit in self.commits]


def commits_between(source: Path, good: str, bad: str, *, first_parent: bool = False) -> CommitHistory:
    """The history of `source` after `good` up to `bad`. `first_parent` follows merges along their first parent only.

    Raises CheckoutError for a revision that is not there, UsageError where `good` is not an ancestor of `bad`.
    """
    git = open_repository(source).git
    first, last = _resolve(git, good), _resolve(git, bad)
    if first == last:
        raise UsageError(f"--good {good} and --bad {bad} are the same commit, {first:.12}", hint="name an older --good")
    _is_ancestor(git, (good, first), (bad, last))
    mainline = ["--first-parent"] if first_parent else []
    commits = _log(git, "--topo-order", "--reverse", *mainline, f"{first}..{last}")
    if first_parent and (not commits[0].parents or commits[0].parents[0] != first):
        hint = "leave --first-parent away, or name a commit of the main line"
        raise UsageError(f"--good {good} is not on the line of first parents of --bad {bad}", hint=hint)
    if first_parent:
        commits = [replace(commit, parents=commit.parents[:1]) for commit in commits]
    return CommitHistory(_log(git, "--max-count=1", first)[0], tuple(commits))


def commit_at(source: Path, rev: str) -> Commit:
    """The commit that `rev` names. Raises CheckoutError."""
    git = open_repository(source).git
    return _log(git, "--max-count=1", _resolve(git, rev))[0]


def pinned_commit(source: Path, rev: str, path: str) -> str:
    """The commit at which `rev` has the submodule `path`. Raises CheckoutError for a revision that is not there,
    UsageError where it has no such submodule, or where that is not checked out."""
    git = open_repository(source).git
    entries = git.null_separated("ls-tree", "-r", "-z", "--full-tree", _resolve(git, rev))
    found = (entry.partition("\t") for entry in entries if entry.startswith("160000 "))
    links = {name: info.split()[2] for info, _, name in found}
    if path not in links:
        raise UsageError(f"{rev} has no submodule {path!r}", hint=f"it has {', '.join(links) or 'none'}")
    if not (source / path / ".git").exists():
        raise UsageError(f"the submodule {path} is not checked out", hint=f"git submodule update --init {path}")
    return links[path]


def commits_up_to(source: Path, commit: str, limit: int) -> frozenset[str]:
    """`commit` and what it contains, the newest `limit` of them, as far as `source` has them."""
    repository = find_repository(source)
    listed = repository and repository.git.text_or_none("rev-list", f"--max-count={limit}", commit, "--")
    return frozenset((listed or "").split())


def _resolve(git: CheckoutGit, rev: str) -> str:
    try:
        return resolve_rev(Path(git.directory), rev)
    except CheckoutError as error:
        raise CheckoutError(error.message, hint=_deepen(git) or error.hint) from None


def _is_ancestor(git: CheckoutGit, good: tuple[str, str], bad: tuple[str, str]) -> None:
    """Raises UsageError if it is not."""
    if git.text_or_none("merge-base", "--is-ancestor", good[1], bad[1]) is not None:
        return
    if git.text_or_none("merge-base", "--is-ancestor", bad[1], good[1]) is not None:
        raise UsageError(f"--good {good[0]} is newer than --bad {bad[0]}", hint="are they swapped?")
    base = git.text_or_none("merge-base", good[1], bad[1])
    parts = f"they diverge at {base[:12]}" if base else "they have no commit in common"
    hint = f"if the row passes there, --good {base[:12]} finds the commit" if base else ""
    raise UsageError(f"--good {good[0]} is not an ancestor of --bad {bad[0]}: {parts}", hint=_deepen(git) or hint)


def _deepen(git: CheckoutGit) -> str:
    """What brings the rest of the history of a shallow clone."""
    shallow = git.text_or_none("rev-parse", "--is-shallow-repository") == "true"
    return f"it is a shallow clone: `git -C {git.directory} fetch --unshallow` brings the rest" if shallow else ""


def _log(git: CheckoutGit, *args: str) -> list[Commit]:
    output = git.run("log", "-z", "--encoding=UTF-8", f"--format={_FORMAT}", *args, "--").decode("utf-8", "replace")
    entries = (entry.split("\x1f", 4) for entry in output.split("\0") if entry)
    return [Commit(sha, tuple(parents.split()), *rest) for sha, parents, *rest in entries]
