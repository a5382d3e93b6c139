"""A checkout's working tree → a fresh clone of exactly it, the local form of `actions/checkout`.

Uncommitted and untracked files travel, ignored ones do not (force-added ones do). The user's index, refs, stash and
files stay untouched: the index is copied, new objects go into the clone, and the clone reads the old ones where they
are. The clone is checked out as CI would, whatever the user's own git configuration says of line ends and filters.

A submodule that is there travels too, by the same means: the clone's commit names the very snapshot of it. One that was
never fetched is an empty directory, as in CI.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from ci_tasks.errors import CheckoutError, nearest
from ci_tasks.model import Checkout
from ci_tasks.sync.git import Git, GitError

BASE = "origin/main"
_MESSAGE = "The working tree, as ci-tasks found it"
_BRANCHES_SHOWN = 12


def materialize(source: Path, workspace: Path, *, rev: str | None = None, base: str | None = None) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree hash proven equal. Raises CheckoutError.
    """
    git = Git(source)
    prefix = _prefix(git)
    if prefix is None and (rev or base):
        raise CheckoutError(f"{source} is not a git repository, so it has no revision {rev or base!r}")
    _fresh(workspace, git if prefix is not None else None)
    if prefix is None:
        made = _import_directory(source, workspace)
    elif prefix == "":
        made = _commit_at(git, workspace, rev) if rev else _commit_tree(git, workspace)
        _set_base(git, workspace, base)
    else:
        made = _commit_part(git, workspace, prefix, rev, base)
    _check_out(workspace, made)
    return replace(made, path=str(source))


def resolve_base(source: Path, base: str) -> str:
    """The commit that `base` names in `source`. Raises CheckoutError that lists branches which could be meant."""
    return _resolve(Git(source), base, f"{source} has no revision {base!r} to compare with", "pass --base REV; ")


def _resolve(git: Git, rev: str, message: str, advice: str) -> str:
    commit = None if rev.startswith("-") else git.maybe("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")
    if commit is None:
        git.bytes("rev-parse", "--git-dir")  # where git refuses to read the repository, its own words are the message
        shown = "%(if)%(symref)%(then)%(else)%(refname:short)%(end)"  # origin/HEAD is only another name
        branches = (git.maybe("for-each-ref", f"--format={shown}", "refs/remotes", "refs/heads") or "").split()
        near = nearest(rev, branches)
        first = [*([near] if near else []), *(name for name in branches if name != near)]
        more = f" and {len(first) - _BRANCHES_SHOWN} more" if len(first) > _BRANCHES_SHOWN else ""
        raise CheckoutError(
            message, hint=f"{advice}branches here: {', '.join(first[:_BRANCHES_SHOWN]) or 'none'}{more}"
        )
    return commit


def resolve_rev(source: Path, rev: str) -> str:
    """The commit that `rev` names in `source`. Raises CheckoutError."""
    return _revision(Git(source), rev)


def _revision(git: Git, rev: str) -> str:
    return _resolve(git, rev, f"{git.directory} has no revision {rev!r}", "")


def _prefix(git: Git) -> str | None:
    """Where the directory is in its repository: "" at its root. None without one, or where that one ignores it (the
    sample inside an installed package is in somebody's ignored .venv)."""
    top = git.top()
    if top is None:
        return None
    if top.resolve() == git.directory.resolve():
        return ""
    prefix = git.text("rev-parse", "--show-prefix").removesuffix("/")
    ignored = git.maybe("check-ignore", "--quiet", "--no-index", str(git.directory.resolve())) is not None
    return None if ignored and git.maybe("rev-parse", "--verify", "--quiet", f"HEAD:{prefix}") is None else prefix


def _fresh(workspace: Path, git: Git | None) -> None:
    if workspace.exists():
        shutil.rmtree(workspace)
    workspace.mkdir(parents=True)
    form = git.text("rev-parse", "--show-object-format") if git else "sha1"
    init = ("init", "--quiet", "--template=", "--initial-branch=ci-tasks", f"--object-format={form}")
    Git(workspace, neutral=True).bytes(*init)
    if git:
        _borrow_objects(git, workspace)


def _borrow_objects(git: Git, workspace: Path) -> None:
    objects = git.text("rev-parse", "--path-format=absolute", "--git-path", "objects")
    info = workspace / ".git/objects/info"
    info.mkdir(parents=True, exist_ok=True)
    info.joinpath("alternates").write_bytes(os.fsencode(_quoted(objects)) + b"\n")
    shallow = Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "shallow"))
    if shallow.exists():
        shutil.copyfile(shallow, workspace / ".git/shallow")


def _commit_at(git: Git, workspace: Path, rev: str) -> Checkout:
    commit = _revision(git, rev)
    tree = git.text("rev-parse", f"{commit}^{{tree}}")
    for name, wanted in _links(git, tree):
        if (git.directory / name / ".git").exists():
            materialize(git.directory / name, workspace / name, rev=wanted)
    return Checkout(path="", commit=commit, tree=tree)


def _commit_tree(git: Git, workspace: Path) -> Checkout:
    aside = _aside(git, workspace)
    tree = _add_all(aside, workspace, "")
    head = git.maybe("rev-parse", "--verify", "--quiet", "HEAD")
    return _commit(aside, tree, head)


def _commit_part(git: Git, workspace: Path, prefix: str, rev: str | None, base: str | None) -> Checkout:
    """A directory of a repository, as the embedded sample is, becomes a repository of its own: what `base` has of it,
    what HEAD or `rev` has of it, and the working tree, each on top of the other."""
    aside = _aside(git, workspace)
    before = _revision(git, rev) if rev else git.maybe("rev-parse", "--verify", "--quiet", "HEAD")
    committed = _part(git, before, prefix)
    origin = _part(git, resolve_base(git.directory, base), prefix) if base else committed
    if rev and committed is None:
        raise CheckoutError(f"there is no {prefix} at {rev!r} in {git.top()}")
    if origin is None and base:
        origin = aside.text("mktree")  # prints the empty tree
    parent = None
    if origin:
        parent = aside.text("commit-tree", "-m", f"{prefix} at {base or BASE}", origin)
        Git(workspace, neutral=True).bytes("update-ref", f"refs/remotes/{BASE}", parent)
    if committed and committed != origin:
        parent = aside.text("commit-tree", "-p", str(parent), "-m", f"{prefix} as committed", committed)
    if rev:
        assert committed is not None and parent is not None
        return Checkout(path="", commit=parent, tree=committed)
    return _commit(aside, _add_all(aside, workspace, prefix), parent)


def _part(git: Git, commit: str | None, prefix: str) -> str | None:
    return git.maybe("rev-parse", "--verify", "--quiet", f"{commit}:{prefix}") if commit else None


def _import_directory(source: Path, workspace: Path) -> Checkout:
    """A directory without git: a tarball, or the sample of an installed package."""
    aside = Git(
        source,
        {
            "GIT_DIR": str(workspace / ".git"),
            "GIT_WORK_TREE": str(source),
            "GIT_INDEX_FILE": str(workspace / ".git/ci-tasks-index"),
        },
    )
    tree = _add_all(aside, workspace, "")
    commit = aside.text("commit-tree", "-m", "The directory, as ci-tasks found it", tree)
    aside.bytes("update-ref", f"refs/remotes/{BASE}", commit)
    return Checkout(path="", commit=commit, tree=tree)


def _aside(git: Git, workspace: Path) -> Git:
    """git on the same files with an index of its own, and new objects in the workspace."""
    index = workspace / ".git/ci-tasks-index"
    real = Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "index"))
    if real.exists():
        # With its time: git compares a file's time with the index's to know which files it has to read again, and a
        # younger index would hide an edit made in the very second in which the user's index was written.
        shutil.copy2(real, index)
    return Git(git.directory, {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(workspace / ".git/objects")})


def _add_all(aside: Git, workspace: Path, prefix: str) -> str:
    """Everything but ignored files into the index; the tree of it below `prefix`."""
    _see_hidden(aside)
    aside.bytes("add", "--all", "--", ".", *_not_ourselves(aside, workspace))
    for name, _ in _indexed_links(aside):
        if (aside.directory / name / ".git").exists():
            made = materialize(aside.directory / name, workspace / name)
            link = f"160000,{made.commit},{prefix}/{name}" if prefix else f"160000,{made.commit},{name}"
            aside.bytes("update-index", "--cacheinfo", link)
    if not prefix:
        return aside.text("write-tree")
    empty = not aside.bytes("ls-files", "-z", "--", ".")
    return aside.text("mktree") if empty else aside.text("write-tree", f"--prefix={prefix}/")


def _see_hidden(aside: Git) -> None:
    """Edits of files which the user told git not to look at (`--assume-unchanged`, `--skip-worktree`) count as well;
    files that a sparse checkout left out stay as committed."""
    listed = (line.split(" ", 1) for line in aside.names("ls-files", "-v", "-z", "--", "."))
    hidden = [name for tag, name in listed if tag == "S" or tag.islower()]
    there = "\0".join(name for name in hidden if os.path.lexists(aside.directory / name))
    if there:
        for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
            aside.bytes("update-index", flag, "-z", "--stdin", input=os.fsencode(there))


def _not_ourselves(aside: Git, workspace: Path) -> list[str]:
    """A workspace inside the checkout (`plan --out DIR`) is no part of it. To exclude what it ignores, git calls an
    error."""
    try:
        inside = workspace.resolve().relative_to(aside.directory.resolve())
    except ValueError:
        return []
    if aside.maybe("check-ignore", "--quiet", str(inside)) is not None:
        return []
    return [f":(exclude,literal){inside}"]


def _indexed_links(git: Git) -> list[tuple[str, str]]:
    """The submodules below the directory, each with the commit that the index has of it."""
    entries = (line.split("\t", 1) for line in git.names("ls-files", "--stage", "-z", "--", "."))
    return [(name, meta.split(" ")[1]) for meta, name in entries if meta.startswith("160000 ")]


def _links(git: Git, tree: str) -> list[tuple[str, str]]:
    entries = (line.split("\t", 1) for line in git.names("ls-tree", "-r", "-z", "--full-tree", tree))
    return [(name, meta.split(" ")[2]) for meta, name in entries if meta.startswith("160000 ")]


def _commit(aside: Git, tree: str, head: str | None) -> Checkout:
    """`tree` as a commit on top of `head`, or `head` itself where nothing differs."""
    if head and aside.text("rev-parse", f"{head}^{{tree}}") == tree:
        return Checkout(path="", commit=head, tree=tree)
    commit = aside.text("commit-tree", *(["-p", head] if head else []), "-m", _MESSAGE, tree)
    if head:
        changed = aside.bytes("diff-tree", "-r", "-z", "--name-only", "--no-renames", head, tree)
    else:
        changed = aside.bytes("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
    # For people and for JSON, which has no words for bytes that are no text.
    dirty = tuple(name.decode("utf-8", "backslashreplace") for name in changed.split(b"\0") if name)
    return Checkout(path="", commit=commit, tree=tree, dirty=dirty)


def _set_base(git: Git, workspace: Path, base: str | None) -> None:
    found = resolve_base(git.directory, base) if base else git.maybe("rev-parse", "--verify", "--quiet", BASE)
    if found:
        Git(workspace, neutral=True).bytes("update-ref", f"refs/remotes/{BASE}", found)


def _check_out(workspace: Path, made: Checkout) -> None:
    git = Git(workspace, neutral=True)
    git.bytes("checkout", "--quiet", "--force", "--detach", made.commit)
    git.directory.joinpath(".git/ci-tasks-index").unlink(missing_ok=True)
    here = git.text("rev-parse", "HEAD^{tree}")
    differing = git.bytes("status", "--porcelain=v1", "-z", "--ignore-submodules=all", "--no-renames")
    if here != made.tree or (differing and not _only_line_ends(git, differing)):
        names = differing.replace(b"\0", b" ").decode(errors="replace")[:300]
        raise CheckoutError(f"the copy in {workspace} is not the tree {made.tree}: {names or here}")


def _only_line_ends(git: Git, differing: bytes) -> bool:
    """Files committed with other line ends than their .gitattributes ask for look modified in any clone, CI's too."""
    if not all(entry.startswith(b" M ") for entry in differing.split(b"\0") if entry):
        return False
    try:
        git.bytes("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-cr-at-eol", "--ignore-submodules=all")
    except GitError:
        return False
    return True


def _quoted(path: str) -> str:
    """A path as git's alternates file wants it: C-quoted where it has characters of meaning there."""
    if path.startswith(('"', "#")) or "\n" in path or "\\" in path:
        return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return path
