"""Makes a directory exactly a tree, proves it, and gives the job its repositories.

A workspace has an index of its own outside of it. Whatever was done to a file since that index was written has changed
the file's ctime, which no process can set: such a file is removed before git looks, and so is what is not of the tree,
each `.git` included. git writes what is missing. The proof believes none of this: every file that is there is hashed
into a fresh index, and its tree has to be the one that was asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from typing import Callable, Dict, Iterable, List, Sequence, Set, Tuple

from ..directories import mounted_below, remove_own
from ..files import replace_file
from ..records import CheckoutPart
from .git import Damaged, DiskFull, HostGit, StoreError
from .repositories import ID, form_of, make_repository, quoted

_LATER_NS = 2 * 10**9  # git reads files again that are not older than their index, in whole seconds
_SELINUX = "security.selinux"  # containers give files another label
_MAX_SHOWN = 5

Lend = Callable[[CheckoutPart, str], None]  # gives the job's git directory of a part the objects


def check_parts(parts: Iterable[CheckoutPart]) -> List[CheckoutPart]:
    """The parts, the checkout itself first. Raises StoreError for what names no tree."""
    outer_first = sorted(parts, key=lambda part: part.path.count("/") if part.path else -1)
    for part in outer_first:
        if not all(ID.fullmatch(name) for name in (part.commit, part.tree, part.flat or part.tree)):
            raise StoreError("not the names of a commit and a tree: %r, %r" % (part.commit, part.tree))
    if not outer_first or outer_first[0].path:
        raise StoreError("the checkout itself is not among its parts")
    return outer_first


def flat_tree(parts: Sequence[CheckoutPart]) -> str:
    """The tree that has the files of all parts."""
    return parts[0].flat or parts[0].tree


def write_workspace(store: str, parts: Sequence[CheckoutPart], workspace: str, index: str, lend: Lend) -> None:
    """Make the directory `workspace` the parts, whose objects the git directory `store` has. `index` is of what is
    there already, or a name for one. Raises StoreError, OSError: then the workspace is of no use."""
    tree, form = flat_tree(parts), form_of(parts[0].tree)
    git = HostGit(store, workspace, GIT_INDEX_FILE=index)
    remove(index + ".lock")
    trees = git.run("rev-parse", *("%s^{tree}" % part.commit for part in parts)).decode("ascii").split()
    for part, found in zip(parts, trees):  # noqa: B905 # Python 3.8
        if found != part.tree:
            raise StoreError(
                "the commit %s has the tree %s, which is not the tree %s" % (part.commit, found, part.tree)
            )
    listed = git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
    make_plain(workspace, set(listed.split(b"\0")) - {b""}, written_ns(index))
    git.run("read-tree", "--reset", "-u", tree)
    now = os.lstat(index).st_mtime_ns
    os.utime(index, ns=(now, now + _LATER_NS))
    # The proof is of files: the job's own git gets the objects, also of files that were there already.
    every = {tree, *(part.tree for part in parts)}
    with git.started(("rev-list", "--objects", "--quiet", *every), stdin=subprocess.DEVNULL) as process:
        try:
            prove(workspace, tree, os.path.join(store, "objects"))
        finally:
            process.communicate()
    links: Dict[str, str] = {}
    for part in parts:
        if part.path and links.get(part.path) != part.commit:
            raise StoreError("%r is not a submodule at %s of what was sent" % (part.path, part.commit))
        _make_repository(workspace, index, part, form, links, lend)


def written_ns(index: str) -> int:
    """When the index of a workspace was written, in ns; 0 without one."""
    return os.lstat(index).st_mtime_ns - _LATER_NS if os.path.exists(index) else 0


def prove(workspace: str, tree: str, objects: str) -> None:
    """Raises Damaged unless the directory has the files of `tree`, and nothing more."""
    files, directories = _listing(os.fsencode(workspace))
    empty = directories - parents_of(files)
    if empty:
        raise Damaged("%s is not the tree %s: %r is empty" % (workspace, tree, os.fsdecode(min(empty))))
    with FreshIndex(workspace, form_of(tree), objects) as index:
        if index.add(files) != tree:
            raise Damaged("%s is not the tree %s%s" % (workspace, tree, shown(index.differences(tree))))


class FreshIndex:
    """An index of a directory that believes nothing but the bytes of its files. `objects` are those of trees that it is
    compared with."""

    def __init__(self, workspace: str, form: str, *objects: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="ci-tasks-")
        make_repository(self._scratch.name, form, bare=False)
        # Borrowing nothing: git renews the times of objects that it finds while it writes.
        self._git = HostGit(self._scratch.name, workspace)
        borrowed = ":".join(quoted(path) for path in objects)
        self._reader = HostGit(self._scratch.name, workspace, GIT_ALTERNATE_OBJECT_DIRECTORIES=borrowed)

    def __enter__(self) -> "FreshIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def add(self, files: Iterable[bytes]) -> str:
        """The tree of the files."""
        names = b"".join(name + b"\0" for name in sorted(files))
        # git would compress large files, which it only has to hash.
        hashing = "-c", "core.bigFileThreshold=1024g"
        self._git.run(*hashing, "update-index", "--add", "--remove", "--info-only", "-z", "--stdin", input=names)
        return self._git.run("write-tree", "--missing-ok").decode("ascii").strip()

    def differences(self, tree: str) -> List[bytes]:
        """The files that `tree` has otherwise."""
        listed = self._reader.run("diff-index", "--cached", "--name-only", "--no-renames", "-z", tree)
        return listed.split(b"\0")[:-1]


def shown(names: Sequence[bytes]) -> str:
    """The first of the names."""
    more = " and %d more" % (len(names) - _MAX_SHOWN) if len(names) > _MAX_SHOWN else ""
    return ": " + ", ".join(repr(os.fsdecode(name)) for name in names[:_MAX_SHOWN]) + more


def parents_of(files: Iterable[bytes]) -> Set[bytes]:
    """The directories that the files are in."""
    parents: Set[bytes] = set()
    for path in files:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents


def _listing(top: bytes) -> Tuple[List[bytes], Set[bytes]]:
    """The files, links and what else is no directory; and the directories."""
    files, directories, unread = [], set(), [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(top, above)) as found:
            for item in found:
                path = above + item.name
                if item.is_dir(follow_symlinks=False):
                    directories.add(path)
                    unread.append(path + b"/")
                else:
                    files.append(path)
    return files, directories


def make_plain(workspace: str, files: Set[bytes], written: int) -> None:
    """Leave only files and links of these names that did not change since `written`, in ns, in directories that are as
    new ones. Raises StoreError where that is not possible, and OSError."""
    top, directories = os.fsencode(workspace), parents_of(files)
    new = os.path.join(os.path.dirname(top), b"new-" + os.urandom(8).hex().encode("ascii"))
    os.mkdir(new)
    like = _nature(new)
    os.rmdir(new)
    if _nature(top) != like or mounted_below(os.path.realpath(workspace)):
        raise StoreError("%s is not as a new directory" % workspace)
    unread = [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(top, above)) as listing:
            found = list(listing)
        for item in found:
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
    try:
        more = [name for name in os.listxattr(directory, follow_symlinks=False) if name != _SELINUX]
    except (OSError, AttributeError):  # another system than Linux
        more = []
    return info.st_mode, info.st_uid, info.st_gid, info.st_dev, more


def remove(path: str) -> None:
    """Raises StoreError where something is left."""
    problem = remove_own(path)
    if problem:
        raise StoreError(problem)


def _make_repository(
    workspace: str, index: str, part: CheckoutPart, form: str, links: Dict[str, str], lend: Lend
) -> None:
    """The job's own, at the part's path. `links` gets the submodules of it."""
    directory = os.path.join(workspace, part.path) if part.path else workspace
    os.makedirs(directory, exist_ok=True)
    git_dir = os.path.join(directory, ".git")
    make_repository(git_dir, form, bare=False)
    replace_file(os.path.join(git_dir, "HEAD"), part.commit.encode("ascii") + b"\n")
    lend(part, git_dir)
    git = HostGit(git_dir, directory)
    if not part.path:
        shutil.copyfile(index, os.path.join(git_dir, "index"))
    if part.path or part.tree != (part.flat or part.tree):
        git.run("read-tree", "-m", part.tree)
        listed = git.run("ls-files", "--stage", "-z").split(b"\0")
        entries = (line.split(b"\t", 1) for line in listed if line.startswith(b"160000 "))
        for meta, name in entries:
            path = os.fsdecode(name)
            os.makedirs(os.path.join(directory, path), exist_ok=True)  # as git leaves one that was not fetched
            links[os.path.join(part.path, path)] = meta.split(b" ")[1].decode("ascii")
        git.run("update-index", "-q", "--refresh") if part.path else None


def check_out(store: str, parts: Sequence[CheckoutPart], workspace: str, lend: Lend, index: str = "") -> None:
    """Replace `workspace` by a new checkout, whose index is a name for one, or does not stay. Leaves nothing where it
    raises: Damaged for whatever git calls it, since everything may have to be sent; DiskFull, OSError."""
    remove(workspace)
    os.makedirs(workspace)
    own = "" if index else "%s.index-%s" % (workspace, os.urandom(8).hex())
    try:
        write_workspace(store, parts, workspace, index or own, lend)
    except BaseException as error:
        remove(workspace)
        if isinstance(error, StoreError) and not isinstance(error, DiskFull):
            raise Damaged(str(error)) from None
        raise
    finally:
        if own:
            remove_own(own)
