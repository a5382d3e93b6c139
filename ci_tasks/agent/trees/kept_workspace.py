"""Brings the workspace that a failed run has kept to another tree, in place: what the job made there stays.

Only files that differ between the trees are written. Afterwards every file of the new tree is hashed, as in a fresh
checkout. git runs in a directory of its own, since the job may have changed the settings in the workspace's `.git`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from typing import Callable, Dict, Iterator, List, Sequence, Set, Tuple

from .. import liveness
from ..files import open_file, replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart, Retry
from ..run_directory import RunDir, read_record, read_status_if_readable, write_record
from .git import HostGit, MissingBase
from .objects import SUBMODULE, ObjectReader, TreeEntries, object_reader, read_tree
from .repositories import form_of, make_repository
from .verify import different_files
from .workspace import check_submodule, inside_of

_NOTE = "retries.json"  # beside the workspace
_MAX_SHOWN = 3

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
    note = os.path.join(os.path.dirname(workspace), _NOTE)
    commits = _check(workspace, retry, note) or ((retry.commit, retry.tree),)
    new = next(part for part in parts if not part.path)
    # An update that breaks off leaves files of both.
    write_record(note, WorkspaceTrees(run_dir, (*commits, (new.commit, new.tree))))
    old = {"": [CheckoutPart("", *commit) for commit in commits]}
    before: Dict[str, List[TreeEntries]] = {}
    after: Dict[str, TreeEntries] = {}
    for part in sorted(parts, key=lambda part: part.path.count("/") if part.path else -1):
        with _reader(workspace, part, objects(part)) as (git, reader):
            if part.path:
                above = check_submodule(part, after)
                inside = inside_of(part, above)
                old[part.path] = [_submodule(reader, part.path, entries, inside) for entries in before[above]]
            before[part.path] = [_old_entries(reader, commit) for commit in old[part.path]]
            after[part.path] = read_tree(reader, part.commit, part.tree)
            _update_part(git, reader, part, before[part.path], after[part.path])
    write_record(note, WorkspaceTrees(run_dir, ((new.commit, new.tree),)))


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


@contextmanager
def _reader(
    workspace: str, part: CheckoutPart, object_directories: Sequence[str]
) -> Iterator[Tuple[HostGit, ObjectReader]]:
    """git on the part's files with an index and settings of ours."""
    form = form_of(part.tree)
    with tempfile.TemporaryDirectory(prefix="ci-tasks-") as own:
        make_repository(own, form)
        alternates = "".join(path + "\n" for path in object_directories)
        replace_file(os.path.join(own, "objects", "info", "alternates"), os.fsencode(alternates))
        directory = os.path.join(workspace, part.path) if part.path else workspace
        if os.path.realpath(directory) != os.path.normpath(os.path.join(os.path.realpath(workspace), part.path)):
            raise NotKept("its submodule %s leads elsewhere" % part.path)
        git = HostGit(own, directory, GIT_INDEX_FILE=os.path.join(own, "index"))
        with object_reader(git, form) as reader:
            yield git, reader


def _old_entries(reader: ObjectReader, part: CheckoutPart) -> TreeEntries:
    try:
        return read_tree(reader, part.commit, part.tree)
    except MissingBase as error:  # to send the new tree again would not help
        raise NotKept("its tree is not known any more: %s" % error) from None


def _submodule(reader: ObjectReader, path: str, entries: TreeEntries, inside: str) -> CheckoutPart:
    entry = entries.get(os.fsencode(inside))
    if entry is None or entry.mode != SUBMODULE:
        raise NotKept("its workspace has no submodule %s" % path)
    try:
        tree = reader.read("commit", entry.id).split(b"\n", 1)[0][len(b"tree ") :].decode("ascii", "replace")
    except MissingBase:
        raise NotKept("its workspace does not have the submodule %s" % path) from None
    return CheckoutPart(path, entry.id, tree)


def _update_part(
    git: HostGit, reader: ObjectReader, part: CheckoutPart, before: Sequence[TreeEntries], after: TreeEntries
) -> None:
    changed = [path for path, entry in after.items() if any(old.get(path) != entry for old in before)]
    git.run("read-tree", part.tree)
    for path in {path for old in before for path in old if path not in after}:
        _remove(os.fsencode(git.directory), path)
    if changed:
        files = [path for path in changed if after[path].mode != SUBMODULE]
        git.run("checkout-index", "--force", "--stdin", "-z", input=b"\0".join(files) + b"\0")
    differing = [
        path
        for path in different_files(os.fsencode(git.directory), after, reader.form)
        if path in after and after[path].mode != SUBMODULE
    ]
    if differing:
        more = " and %d more" % (len(differing) - _MAX_SHOWN) if len(differing) > _MAX_SHOWN else ""
        names = ", ".join(os.fsdecode(path) for path in differing[:_MAX_SHOWN])
        raise NotKept("the job itself has changed files of the checkout: %s%s" % (names, more))
    if before != [after]:
        _move_head(git, part, {entry.id for path, entry in after.items() if path in set(changed)})


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


def _move_head(git: HostGit, part: CheckoutPart, blobs: Set[str]) -> None:
    """The workspace's own repository has the new commit: its objects, its index, and HEAD. Files are written only."""
    git_dir = os.path.join(git.directory, ".git")
    packs = os.path.join(git_dir, "objects", "pack")
    if os.path.realpath(packs) != os.path.join(os.path.realpath(git.directory), ".git", "objects", "pack"):
        raise NotKept("%s leads elsewhere" % packs)
    listed = git.run("ls-tree", "-r", "-t", "-d", "-z", part.tree).split(b"\0")
    trees = {entry.split(b"\t", 1)[0].split(b" ")[2].decode() for entry in listed if b" tree " in entry[:12]}
    objects = "".join(name + "\n" for name in sorted({part.commit, part.tree, *trees, *blobs}))
    git.run("pack-objects", "-q", os.path.join(packs, "pack"), input=objects.encode("ascii"))
    shallow = os.path.join(git_dir, "shallow")
    commits = b""
    if not os.path.islink(shallow):  # the job may have put anything there
        with suppress(OSError), open_file(shallow) as source:
            commits = source.read()
    replace_file(shallow, commits + part.commit.encode("ascii") + b"\n")  # its parents were not sent
    with open(git.env["GIT_INDEX_FILE"], "rb") as index:
        replace_file(os.path.join(git_dir, "index"), index.read())
    replace_file(os.path.join(git_dir, "HEAD"), part.commit.encode("ascii") + b"\n")
