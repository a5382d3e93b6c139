"""Brings the workspace that a failed run has kept to another tree, in place: what the job made there stays.

Only files that differ between the trees are written. Afterwards every file of the new tree is hashed, as in a fresh
checkout. git runs in a directory of its own, since the job may have changed the settings in the workspace's `.git`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Callable, Dict, Sequence, Set, Tuple

from .. import liveness
from ..files import open_file, replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart, Retry
from ..run_directory import RunDir, read_record, read_status_if_readable, write_record
from .git import DiskFull, HostGit, MissingBase, StoreError
from .repositories import form_of, make_repository, quoted
from .workspace import FreshIndex, check_parts, flat_tree, shown

_NOTE = "retries.json"  # beside the workspace

ObjectDirectories = Callable[[CheckoutPart], Sequence[str]]  # where a part's objects are


class NotKept(Exception):
    """The workspace cannot be continued; the message says why."""


@dataclass(frozen=True)
class WorkspaceTrees:
    """`commits`, each with its tree, are those of which the workspace may have files; `run` is the retry that has, or
    had, it last."""

    run: str = ""
    commits: Tuple[Tuple[str, str], ...] = ()


def update_workspace(
    workspace: str, retry: Retry, parts: Sequence[CheckoutPart], run_dir: str, objects: ObjectDirectories
) -> None:
    """Bring `workspace` to the tree of `parts` for the retry in `run_dir`. Raises NotKept, StoreError, OSError."""
    parts = check_parts(parts)
    note = os.path.join(os.path.dirname(workspace), _NOTE)
    commits = _check(workspace, retry, note) or ((retry.commit, retry.tree),)
    new = (parts[0].commit, parts[0].tree)
    # An update that breaks off leaves files of both.
    write_record(note, WorkspaceTrees(run_dir, (*commits, new)))
    form, directories = form_of(parts[0].tree), sorted({path for part in parts for path in objects(part)})
    with tempfile.TemporaryDirectory(prefix="ci-tasks-") as own:
        make_repository(own, form)
        flats = os.path.join(own, "flats")  # borrows nothing: see FreshIndex
        os.mkdir(flats)
        alternates = "".join(quoted(path) + "\n" for path in (flats, *directories))
        replace_file(os.path.join(own, "objects", "info", "alternates"), os.fsencode(alternates))
        index_file = os.path.join(own, "index")
        git = HostGit(own, workspace, GIT_INDEX_FILE=index_file)
        writer = HostGit(own, workspace, GIT_INDEX_FILE=index_file, GIT_OBJECT_DIRECTORY=flats)
        before = [_flat(git, writer, commit) for commit, _ in commits]
        _write(git, before, flat_tree(parts))
        with FreshIndex(workspace, form, os.path.join(own, "objects")) as index:
            _prove(git, index, flat_tree(parts))
        if commits != (new,):
            for part in parts:
                _move_head(git, part, [commit for commit, _ in commits])
    write_record(note, WorkspaceTrees(run_dir, (new,)))


def _flat(git: HostGit, writer: HostGit, commit: str) -> str:
    """The tree that has the files of a commit and of its submodules, as far as their commits are here."""
    try:
        git.run("read-tree", commit)
        links = _links(git)
        while links:
            removed = b"".join(b"0 %s\t%s\0" % (b"0" * len(commit), name) for name in links)
            git.run("update-index", "-z", "--index-info", input=removed)
            for name, link in links.items():
                with suppress(StoreError):  # it was not fetched
                    git.run("read-tree", "--prefix=%s/" % os.fsdecode(name), link)
            links = _links(git)
        return writer.run("write-tree", "--missing-ok").decode("ascii").strip()
    except MissingBase as error:  # to send the new tree again would not help
        raise NotKept("its tree is not known any more: %s" % error) from None


def _links(git: HostGit) -> Dict[bytes, str]:
    lines = [line for line in git.run("ls-files", "--stage", "-z").split(b"\0") if line.startswith(b"160000 ")]
    return {name: meta.split(b" ")[1].decode("ascii") for meta, name in (line.split(b"\t", 1) for line in lines)}


def _write(git: HostGit, before: Sequence[str], tree: str) -> None:
    """The files that the trees before do not have as `tree` has them."""
    top = os.fsencode(git.directory)
    changed: Set[bytes] = set()
    removed: Set[bytes] = set()
    for old in before:
        fields = git.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", old, tree).split(b"\0")
        for status, name in zip(fields[::2], fields[1::2]):  # noqa: B905 # Python 3.8
            (removed if status == b"D" else changed).add(name)
    for path in removed - changed:
        _remove(top, path)
    git.run("read-tree", tree)
    if changed:
        names = b"".join(name + b"\0" for name in sorted(changed))
        git.run("checkout-index", "--force", "--stdin", "-z", input=names)


def _prove(git: HostGit, index: FreshIndex, tree: str) -> None:
    """Every file of the tree is there; what else the job has made may stay."""
    try:
        if index.add(git.run("ls-files", "-z").split(b"\0")[:-1]) == tree:
            return
        names = index.differences(tree)
    except DiskFull:
        raise
    except StoreError as error:
        raise NotKept("the job itself has changed files of the checkout: %s" % error) from None
    raise NotKept("the job itself has changed files of the checkout%s" % shown(names))


def _check(workspace: str, retry: Retry, note: str) -> Tuple[Tuple[str, str], ...]:
    """The commits of which there may be files, as far as an earlier retry has noted them. Raises NotKept."""
    if _is_alive(retry.directories[-1]):
        raise NotKept("the run has not ended")
    if not os.path.isdir(os.path.join(workspace, ".git")):
        raise NotKept("its workspace %s is gone" % workspace)
    if os.path.realpath(workspace) != os.path.join(os.path.realpath(os.path.dirname(workspace)), "workspace"):
        raise NotKept("its workspace %s is a symbolic link" % workspace)
    before = read_record(WorkspaceTrees, note) or WorkspaceTrees()
    if before.run and _is_alive(before.run):
        raise NotKept("another retry runs in its workspace")
    return before.commits


def _is_alive(run_dir: str) -> bool:
    run = RunDir(run_dir)
    return liveness.is_alive(run, read_status_if_readable(run))


def _remove(top: bytes, path: bytes) -> None:
    """A file that is not in the new tree, and the directories that are empty then. No link is followed."""
    above = path.rpartition(b"/")[0]
    if os.path.realpath(os.path.join(top, above)) != os.path.join(os.path.realpath(top), above).rstrip(b"/"):
        return
    with suppress(OSError):
        os.unlink(os.path.join(top, path))
    with suppress(OSError):  # it is not empty
        while above:
            os.rmdir(os.path.join(top, above))
            above = above.rpartition(b"/")[0]


def _move_head(git: HostGit, part: CheckoutPart, before: Sequence[str]) -> None:
    """The job's own repository gets the new commit: its objects, its index, and HEAD."""
    git_dir = os.path.join(git.directory, part.path, ".git") if part.path else os.path.join(git.directory, ".git")
    packs = os.path.join(git_dir, "objects", "pack")
    expected = os.path.join(os.path.realpath(git.directory), os.path.relpath(packs, git.directory))
    if not os.path.isdir(packs) or os.path.realpath(packs) != expected:
        raise NotKept("%s is gone, or leads elsewhere" % packs)
    old = [] if part.path else [commit for commit in before if commit != part.commit]
    names = ["--shallow %s" % name for name in (part.commit, *old)] + [part.commit, *("^" + name for name in old)]
    revisions = "".join(name + "\n" for name in names).encode("ascii")
    git.run("pack-objects", "--revs", "--shallow", "-q", os.path.join(packs, "pack"), input=revisions)
    shallow = os.path.join(git_dir, "shallow")
    commits = b""
    if not os.path.islink(shallow):  # the job may have put anything there
        with suppress(OSError), open_file(shallow) as source:
            commits = source.read()
    replace_file(shallow, commits + part.commit.encode("ascii") + b"\n")  # its parents were not sent
    git.run("read-tree", part.tree)
    with open(git.env["GIT_INDEX_FILE"], "rb") as index:
        replace_file(os.path.join(git_dir, "index"), index.read())
    replace_file(os.path.join(git_dir, "HEAD"), part.commit.encode("ascii") + b"\n")
