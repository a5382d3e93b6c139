"""A checkout's working tree → a fresh clone of exactly it, the local form of `actions/checkout`.

Uncommitted and untracked files travel, ignored ones do not (force-added ones do). The user's index, refs, stash and files
stay untouched: the index is copied, new objects go into the clone, and the clone reads the old ones where they are.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ci_tasks.errors import CheckoutError
from ci_tasks.model import Checkout
from ci_tasks.sync.git import Git

BASE = "origin/main"


def materialize(source: Path, workspace: Path, *, rev: str | None = None, base: str | None = None) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree hash proven equal. Raises CheckoutError.
    """
    git = Git(source)
    top = git.maybe("rev-parse", "--show-toplevel")
    if top is None and rev:
        raise CheckoutError(f"{source} is not a git repository, so it has no revision {rev!r}")
    own = top is not None and Path(top).resolve() == source.resolve()
    _fresh(workspace)
    if own:
        _borrow_objects(git, workspace)
        made = _commit_at(git, rev) if rev else _commit_tree(git, workspace)
        _set_base(git, workspace, base)
    else:
        made = _import_directory(git if top else None, source, workspace, base)
    _check_out(workspace, made)
    return replace(made, path=str(source))


def resolve_base(source: Path, base: str) -> str:
    """The commit that `base` names in `source`. Raises CheckoutError that lists branches which could be meant."""
    git = Git(source)
    commit = git.maybe("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if commit is None:
        branches = git.maybe("for-each-ref", "--format=%(refname:short)", "refs/remotes", "refs/heads") or ""
        raise CheckoutError(
            f"{source} has no revision {base!r} to compare with",
            hint=f"pass --base REV; branches here: {', '.join(branches.split()) or 'none'}",
        )
    return commit


def _fresh(workspace: Path) -> None:
    if workspace.exists():
        shutil.rmtree(workspace)
    workspace.mkdir(parents=True)
    Git(workspace).bytes("init", "--quiet", "--template=", "--initial-branch=ci-tasks")


def _borrow_objects(git: Git, workspace: Path) -> None:
    objects = Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "objects"))
    info = workspace / ".git/objects/info"
    info.mkdir(parents=True, exist_ok=True)
    info.joinpath("alternates").write_text(_quoted(str(objects)) + "\n", encoding="utf-8", errors="surrogateescape")
    shallow = Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "shallow"))
    if shallow.exists():
        shutil.copyfile(shallow, workspace / ".git/shallow")


def _commit_at(git: Git, rev: str) -> Checkout:
    commit = resolve_base(git.directory, rev)
    tree = git.text("rev-parse", f"{commit}^{{tree}}")
    return Checkout(path="", commit=commit, tree=tree)


def _commit_tree(git: Git, workspace: Path) -> Checkout:
    index = workspace / ".git/ci-tasks-index"
    real = Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "index"))
    if real.exists():
        shutil.copyfile(real, index)
    aside = Git(
        git.directory,
        {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(workspace / ".git/objects")},
    )
    aside.bytes("add", "--all", "--", ".")
    tree = aside.text("write-tree")
    head = git.maybe("rev-parse", "--verify", "--quiet", "HEAD")
    if head and git.text("rev-parse", "HEAD^{tree}") == tree:
        return Checkout(path="", commit=head, tree=tree)
    parents = ["-p", head] if head else []
    commit = aside.text("commit-tree", *parents, "-m", "The working tree, as ci-tasks found it", tree)
    changed = aside.text("diff-tree", "-r", "-z", "--name-only", head, tree).split("\0") if head else []
    return Checkout(path="", commit=commit, tree=tree, dirty=tuple(name for name in changed if name))


def _set_base(git: Git, workspace: Path, base: str | None) -> None:
    found = resolve_base(git.directory, base) if base else git.maybe("rev-parse", "--verify", "--quiet", BASE)
    if found:
        Git(workspace).bytes("update-ref", "refs/remotes/origin/main", found)


def _import_directory(around: Git | None, source: Path, workspace: Path, base: str | None) -> Checkout:
    """A directory that is no repository of its own: the embedded sample, or a tarball. The commit before the working
    tree is what the repository around it has committed there, if there is one."""
    before = _committed_around(around, workspace, base) if around else None
    git = Git(
        source,
        {
            "GIT_DIR": str(workspace / ".git"),
            "GIT_WORK_TREE": str(source),
            "GIT_INDEX_FILE": str(workspace / ".git/ci-tasks-index"),
        },
    )
    git.bytes("add", "--all", "--", ".")
    tree = git.text("write-tree")
    if before is None:
        before = git.text("commit-tree", "-m", "The directory, as ci-tasks found it", tree)
    git.bytes("update-ref", "refs/remotes/origin/main", before)
    if git.text("rev-parse", f"{before}^{{tree}}") == tree:
        return Checkout(path="", commit=before, tree=tree)
    commit = git.text("commit-tree", "-p", before, "-m", "The working tree, as ci-tasks found it", tree)
    changed = git.text("diff-tree", "-r", "-z", "--name-only", before, tree).split("\0")
    return Checkout(path="", commit=commit, tree=tree, dirty=tuple(name for name in changed if name))


def _committed_around(around: Git, workspace: Path, base: str | None) -> str | None:
    prefix = around.text("rev-parse", "--show-prefix").rstrip("/")
    commit = resolve_base(around.directory, base) if base else "HEAD"
    tree = around.maybe("rev-parse", "--verify", "--quiet", f"{commit}:{prefix}")
    if tree is None:
        return None
    _borrow_objects(around, workspace)
    return Git(workspace).text("commit-tree", "-m", f"{prefix} as committed", tree)


def _check_out(workspace: Path, made: Checkout) -> None:
    git = Git(workspace)
    git.bytes("checkout", "--quiet", "--force", "--detach", made.commit)
    git.directory.joinpath(".git/ci-tasks-index").unlink(missing_ok=True)
    here = git.text("rev-parse", "HEAD^{tree}")
    differing = git.bytes("status", "--porcelain=v1", "-z", "--ignore-submodules=all")
    if here != made.tree or differing:
        names = differing.replace(b"\0", b" ").decode(errors="replace")[:300]
        raise CheckoutError(f"the copy in {workspace} is not the tree {made.tree}: {names or here}")


def _quoted(path: str) -> str:
    """A path as git's alternates file wants it: C-quoted where it has characters of meaning there."""
    if path.startswith('"') or "\n" in path or "\\" in path or path.startswith("#"):
        return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return path
