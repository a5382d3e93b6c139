"""Makes a directory exactly a tree, proves it, and gives the job its repositories.

A workspace has an index outside of it. Whatever was done to a file since that index was written has changed the file's
ctime, which no process can set: such a file is removed before git looks, and so is what is not of the tree, each `.git`
included. git writes what is missing. The proof believes none of this: every file is hashed into a new index, whose tree
has to be the one that was asked for. Of a workspace that is kept for a retry, only the tree's own files are.
"""

from __future__ import annotations

import os
import tempfile
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from .. import liveness
from ..directories import mounted_below, remove_own
from ..files import replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart, Retry
from ..run_directory import RunDir, read_record, read_status_if_readable, write_record
from .git import ID, Git, StoreError, form_of, make_repository, quoted

_LATER_NS = 2 * 10**9  # git reads files again that are not older than their index, in whole seconds
_SELINUX = "security.selinux"  # containers give files another label
_MAX_SHOWN = 5

Lend = Callable[[CheckoutPart, str], None]  # gives the job's git directory of a part the objects


class NotKept(Exception):
    """The workspace cannot be continued; the message says why."""


def flat_tree(parts: Sequence[CheckoutPart]) -> str:
    """The tree with the files of all parts, the checkout itself first. Raises StoreError for what names no tree."""
    if not parts or parts[0].path:
        raise StoreError("the checkout itself is not the first of its parts")
    for part in parts:
        if not all(ID.fullmatch(name) for name in (part.commit, part.tree, part.flat or part.tree)):
            raise StoreError("not the names of a commit and a tree: %r, %r" % (part.commit, part.tree))
    return parts[0].flat or parts[0].tree


def write_workspace(
    store: str, parts: Sequence[CheckoutPart], workspace: str, index: str, lend: Lend, keep_files: bool = False
) -> None:
    """Make the directory `workspace` the parts, whose objects the git directory `store` has. `index` is of the files in
    it, or a name for one. With `keep_files`, those that are not of a tree stay. Raises StoreError, OSError."""
    tree, git = flat_tree(parts), Git(store, workspace, GIT_INDEX_FILE=index)
    remove(index + ".lock")
    names = git.split("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
    if not keep_files:
        make_plain(workspace, set(names), index)
    git.run("read-tree", "--reset", "-u", tree)
    now = os.lstat(index).st_mtime_ns
    os.utime(index, ns=(now, now + _LATER_NS))
    # The proof is of files: the job's own git gets the objects, also of files that were there before.
    with git.started("rev-list", "--objects", "--quiet", *{tree, *(part.tree for part in parts)}, input=b""):
        _prove(workspace, tree, names if keep_files else None)
    links: Dict[str, str] = {}
    for part in parts:
        if git.text("rev-parse", part.commit + "^{tree}") != part.tree:
            raise StoreError("the commit %s does not have the tree %s" % (part.commit, part.tree))
        if part.path and links.get(part.path) != part.commit:
            raise StoreError("%r is not a submodule at %s of what was sent" % (part.path, part.commit))
        links.update(_make_repository(workspace, index, part, lend))


def _prove(workspace: str, tree: str, files: Optional[Sequence[bytes]]) -> None:
    """Raises StoreError unless the directory has the files of `tree`: these, or (default) nothing else."""
    if files is None:
        files, directories = _list(os.fsencode(workspace))
        if directories != parents_of(files):
            empty = min(directories - parents_of(files))
            raise StoreError("%s is not the tree %s: %r is empty" % (workspace, tree, os.fsdecode(empty)))
    with tempfile.TemporaryDirectory(prefix="ci-tasks-") as scratch:
        make_repository(scratch, form_of(tree))
        # git would compress large files, which it only has to hash.
        git = Git(scratch, workspace, "core.bigFileThreshold=1024g")
        names = b"".join(name + b"\0" for name in sorted(files))
        git.run("update-index", "--add", "--remove", "--info-only", "-z", "--stdin", input=names)
        made = git.text("write-tree", "--missing-ok")
    if made != tree:
        raise StoreError("%s is the tree %s, not %s" % (workspace, made, tree))


def _list(top: bytes) -> Tuple[List[bytes], Set[bytes]]:
    """The files, links and what else is no directory; and the directories."""
    files, directories, unread = [], set(), [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(top, above)) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    directories.add(above + item.name)
                    unread.append(above + item.name + b"/")
                else:
                    files.append(above + item.name)
    return files, directories


def parents_of(files: Sequence[bytes]) -> Set[bytes]:
    """The directories that the files are in."""
    parents: Set[bytes] = set()
    for path in files:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents


def make_plain(workspace: str, files: Set[bytes], index: str) -> None:
    """Leave only files and links of these names that did not change since `index` was written, in directories that are
    as new ones. Raises StoreError if that is not possible, and OSError."""
    written = os.lstat(index).st_mtime_ns - _LATER_NS if os.path.exists(index) else 0
    top, directories = os.fsencode(workspace), parents_of(list(files))
    new = b"%s-%s" % (top, os.urandom(8).hex().encode("ascii"))
    os.mkdir(new)
    like = _nature(new)
    os.rmdir(new)
    if _nature(top) != like or mounted_below(os.path.realpath(workspace)):
        raise StoreError("%s is not as a new directory" % workspace)
    unread = [b""]
    while unread:
        above = unread.pop()
        for item in list(os.scandir(os.path.join(top, above))):
            path = above + item.name
            if item.is_dir(follow_symlinks=False):
                if path in directories and _nature(item.path) == like:
                    unread.append(path + b"/")
                    continue
            elif path in files and item.stat(follow_symlinks=False).st_ctime_ns <= written:
                continue
            remove(os.fsdecode(item.path))


def _nature(directory: bytes) -> Tuple[object, ...]:
    """What a directory is like, but for its times and what is in it. Raises OSError for one that cannot be changed."""
    info = os.lstat(directory)
    if info.st_uid == os.geteuid():
        os.utime(directory, follow_symlinks=False)
    more = [name for name in os.listxattr(directory, follow_symlinks=False) if name != _SELINUX]
    return info.st_mode, info.st_uid, info.st_gid, info.st_dev, more


def remove(path: str) -> None:
    """Raises StoreError if something is left, or a file system is mounted there."""
    problem = "a file system is mounted in it" if mounted_below(os.path.realpath(path)) else remove_own(path)
    if problem:
        raise StoreError("%s cannot be removed: %s" % (path, problem))


def _make_repository(workspace: str, index: str, part: CheckoutPart, lend: Lend) -> Dict[str, str]:
    """The job's own, at the part's path. Returns the submodules of it, and their commits."""
    directory = os.path.normpath(os.path.join(workspace, part.path))
    os.makedirs(directory, exist_ok=True)
    if os.path.realpath(directory) != os.path.join(os.path.realpath(workspace), part.path).rstrip("/"):
        raise StoreError("%s leads elsewhere" % directory)
    git_dir = os.path.join(directory, ".git")
    remove(git_dir)
    make_repository(git_dir, form_of(part.tree))
    replace_file(os.path.join(git_dir, "HEAD"), part.commit.encode("ascii") + b"\n")
    lend(part, git_dir)
    git, links = Git(git_dir, directory), {}
    if not part.path:
        with open(index, "rb") as source:
            replace_file(os.path.join(git_dir, "index"), source.read())
    if part.path or part.flat:
        git.run("read-tree", "-m", part.tree)
        entries = (line.split(b"\t", 1) for line in git.split("ls-files", "--stage", "-z"))
        for meta, name in entries:
            if meta.startswith(b"160000 "):
                path = os.fsdecode(name)
                os.makedirs(os.path.join(directory, path), exist_ok=True)  # as git leaves one that was not fetched
                links[os.path.join(part.path, path)] = meta.split(b" ")[1].decode("ascii")
    git.run("update-index", "-q", "--refresh") if part.path else None
    return links


@dataclass(frozen=True)
class KeptWorkspace:
    """`run` is the retry that has, or had, the workspace last; `tree` is what that made of it, "" if it broke off."""

    run: str = ""
    tree: str = ""


def update_workspace(
    store: str, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str, lend: Lend
) -> None:
    """Bring the workspace of an ended run to the parts for the retry in `run_dir`; what the job made there stays, but
    for its `.git`. Raises NotKept, StoreError, OSError."""
    tree, note = flat_tree(parts), os.path.join(os.path.dirname(workspace), "retries.json")  # beside the workspace
    kept = read_record(KeptWorkspace, note) or KeptWorkspace(tree=retry.tree)
    if _is_alive(retry.directories[-1]):
        raise NotKept("the run has not ended")
    if not os.path.isdir(os.path.join(workspace, ".git")):
        raise NotKept("its workspace %s is gone" % workspace)
    if os.path.islink(workspace):
        raise NotKept("its workspace %s is a symbolic link" % workspace)
    if kept.run and _is_alive(kept.run):
        raise NotKept("another retry runs in its workspace")
    if not kept.tree:
        raise NotKept("an earlier retry broke off while it changed the workspace")
    with tempfile.TemporaryDirectory(prefix="ci-tasks-") as scratch:
        index, theirs = os.path.join(scratch, "index"), quoted(os.path.join(workspace, ".git/objects"))
        git = Git(store, workspace, GIT_INDEX_FILE=index, GIT_ALTERNATE_OBJECT_DIRECTORIES=theirs)
        try:
            git.run("read-tree", kept.tree)
            git.run("update-index", "-q", "--refresh")
            changed = set(git.split("diff-files", "--name-only", "-z"))
            changed -= set(git.split("diff-tree", "-r", "-z", "--name-only", "--no-renames", kept.tree, tree))
        except StoreError as error:  # to send the new tree again would not help
            raise NotKept("its tree is not known any more: %s" % error) from None
        if changed:
            raise NotKept("the job itself has changed files of the checkout%s" % _shown(sorted(changed)))
        write_record(note, KeptWorkspace(run_dir))
        write_workspace(store, parts, workspace, index, lend, keep_files=True)
    write_record(note, KeptWorkspace(run_dir, tree))


def _is_alive(run_dir: str) -> bool:
    run = RunDir(run_dir)
    return liveness.is_alive(run, read_status_if_readable(run))


def _shown(names: Sequence[bytes]) -> str:
    more = " and %d more" % (len(names) - _MAX_SHOWN) if len(names) > _MAX_SHOWN else ""
    return ": " + ", ".join(repr(os.fsdecode(name)) for name in names[:_MAX_SHOWN]) + more
