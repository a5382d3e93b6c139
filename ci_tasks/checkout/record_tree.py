"""A working tree, or a revision of it, as objects: a commit whose tree is exactly what is there.

Uncommitted and untracked files are in it, ignored ones are not (force-added ones are). The user's index, refs, stash
and files stay untouched: the index is copied, and new objects go to a place of ours.

A submodule that is there is recorded too, by the same means: the commit names the very recording of it. One that was
never fetched stays as the commit has it, an empty directory in a clone.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Overlay
from ci_tasks.background import Background
from ci_tasks.checkout import partial_clone
from ci_tasks.checkout.disk_differences import DiskComparison, disk_differences, in_directory, plan_comparison
from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.object_store import ObjectTarget, write_commit
from ci_tasks.checkout.overlay_packages import check_distinct, describe_overlay
from ci_tasks.checkout.repository import Repository, find_repository
from ci_tasks.checkout.revision import BASE, resolve_base, resolve_rev
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout, DiskDifference

_MESSAGE = "The working tree, as ci-tasks found it"
_WITH_OVERLAYS = "The same with its overlays"
# Of `ls-files -v -z`, `ls-files --stage -z` and `ls-tree -r -z`. In a large tree a pattern is quicker than a loop, and
# to look first whether there is anything to be found is quicker than a pattern.
_ASSUMED_UNCHANGED = re.compile(rb"(?:\A|(?<=\0))[a-z] ([^\0]*)")
_SKIPPED = re.compile(rb"(?:\A|(?<=\0))[Ss] ([^\0]*)")
_LINK = re.compile(rb"(?:\A|(?<=\0))160000 (?:commit )?([0-9a-f]+)(?: \d)?\t([^\0]*)")


# Settings with which git would miss an edit.
_CHECK_ALL_FILES = ("core.trustctime=true", "core.checkStat=default", "core.ignoreStat=false")


@dataclass(frozen=True)
class RecordedTree:
    """What is in `place` now: the checkout, or its submodule `path`. `base` is its origin/main, where that matters."""

    path: str
    target: ObjectTarget
    checkout: Checkout
    base: str | None


def record_tree(
    source: Path,
    place: ObjectTarget,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
) -> list[RecordedTree]:
    """Record `source`, the submodules that are there and the overlays, as submodules of a directory of ours, or in the
    place of the submodule that they are; itself comes last. Raises CheckoutError."""
    recorded = _record(source, place, "", rev, base)
    return _with_overlays(recorded, place, source, overlays) if overlays else recorded


def _with_overlays(
    recorded: list[RecordedTree], place: ObjectTarget, source: Path, overlays: Sequence[OverlaySource]
) -> list[RecordedTree]:
    *inside, top = recorded
    made: list[Overlay] = []
    with place.index() as index:
        git = _own_git(source, place, index)
        git.env["GIT_DIR"] = str(place.git_dir.absolute())
        git.run("read-tree", top.checkout.tree)
        for overlay in overlays:
            path = overlay.submodule or f"{OVERLAYS}/{overlay.name}"
            inside = [tree for tree in inside if not f"{tree.path}/".startswith(f"{path}/")]
            trees = _record(Path(overlay.path), place.submodule(path), path, overlay.rev, None)
            inside += trees
            if not overlay.submodule:
                made.append(describe_overlay(overlay, path, trees[-1].checkout, trees[-1].target.git_dir))
            git.run("update-index", "--add", "--cacheinfo", f"160000,{trees[-1].checkout.commit},{path}")
        check_distinct(made)
        if builds := "".join(f"{overlay.name}={overlay.build}\n" for overlay in made if overlay.build):
            # Runs of one tree count as runs of one state, and what was built is another one.
            blob = git.run("hash-object", "-w", "--stdin", input=os.fsencode(builds)).decode().strip()
            git.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{OVERLAYS}/.builds")
        tree = git.text("write-tree")
        commit = git.text("commit-tree", "-p", top.checkout.commit, "-m", _WITH_OVERLAYS, tree)
    checkout = replace(top.checkout, commit=commit, tree=tree, overlays=tuple(made), own_tree=top.checkout.tree)
    return [*inside, replace(top, checkout=checkout)]


def _record(source: Path, place: ObjectTarget, path: str, rev: str | None, base: str | None) -> list[RecordedTree]:
    source_repository = find_repository(source)
    if source_repository is None and (rev or base):
        raise CheckoutError(f"{source} is not a git repository, so it has no revision {rev or base!r}")
    place.prepare(source_repository)
    with place.index() as index, closing(_Recorder(source, place, path, index)) as recorder:
        if source_repository is None:
            made = recorder.directory()
        else:
            recorder.copy_index(source_repository.index)
            made = (
                recorder.part(source_repository, rev, base)
                if source_repository.prefix
                else recorder.whole(source_repository, rev, base)
            )
            if source_repository.partial:
                partial_clone.fetch_missing_objects(recorder.git, made.tree)
        if not rev:
            made = replace(made, unlike_disk=recorder.differences())
    return [*recorder.inside, RecordedTree(path, place, made, recorder.base)]


def whole_checkout(recorded: list[RecordedTree]) -> Checkout:
    """The checkout itself, with what is to be said of its submodules."""
    differences = (in_directory(tree.path, tree.checkout.unlike_disk) for tree in recorded[:-1])
    made = recorded[-1].checkout
    return replace(made, unlike_disk=(*made.unlike_disk, *itertools.chain.from_iterable(differences)))


def _own_git(source: Path, place: ObjectTarget, index: Path) -> Git:
    """git on the files of `source` with an index of its own, and new objects in `place`."""
    environment = {
        "GIT_INDEX_FILE": str(index),
        "GIT_OBJECT_DIRECTORY": str(place.git_dir.absolute() / "objects"),
        # A commit's tree is what the commit says, not what a replacement would have it say here.
        "GIT_NO_REPLACE_OBJECTS": "1",
    }
    # git-lfs would keep the content of every changed file in the user's .git.
    lfs = f"lfs.storage={place.git_dir.absolute() / 'lfs'}"
    return Git(source, environment, settings=(lfs, *_CHECK_ALL_FILES))


class _Recorder:
    """Records `source`. What git processes need not wait for each other for, they do side by side."""

    def __init__(self, source: Path, place: ObjectTarget, path: str, index: Path) -> None:
        self.source, self.place, self.path, self.index = source, place, path, index
        self._listing: Background[bytes] | None = None
        self._comparison: Background[DiskComparison] | None = None
        self.inside: list[RecordedTree] = []
        self.base: str | None = None
        self.git = _own_git(source, place, index)

    def close(self) -> None:
        """Wait for what still reads the index."""
        for task in (self._listing, self._comparison):
            if task is not None:
                task.join()

    def copy_index(self, real: Path) -> None:
        if real.exists():
            # With its time: git compares a file's time with the index's to know which files it has to read again, and
            # a younger index would hide an edit made in the very second in which the user's index was written.
            shutil.copy2(real, self.index)

    def whole(self, repository: Repository, rev: str | None, base: str | None) -> Checkout:
        if base:
            self.base = resolve_base(self.source, base)
        elif self.place.has_base:
            self.base = self.git.text_or_none("rev-parse", "--verify", "--quiet", BASE)
        if rev:
            return self._at(resolve_rev(self.source, rev))
        tree = self._add_all("")
        return replace(self._commit(tree, repository.head, repository.head_tree), head=repository.head)

    def part(self, repository: Repository, rev: str | None, base: str | None) -> Checkout:
        """A directory of a repository, as the embedded sample is, becomes a repository of its own: what `base` has of
        it, what HEAD or `rev` has of it, and the working tree, each on top of the other."""
        git, prefix = self.git, repository.prefix
        before = resolve_rev(self.source, rev) if rev else repository.head
        committed = self._part(before, prefix)
        origin = self._part(resolve_base(self.source, base), prefix) if base else committed
        if rev and committed is None:
            raise CheckoutError(f"there is no {prefix} at {rev!r} in {git.toplevel()}")
        if origin is None and base:
            origin = git.text("mktree")  # prints the empty tree
        parent = None
        if origin:
            parent = self.base = git.text("commit-tree", "-m", f"{prefix} at {base or BASE}", origin)
        if committed and committed != origin:
            parent = git.text("commit-tree", "-p", str(parent), "-m", f"{prefix} as committed", committed)
        if rev:
            assert committed is not None and parent is not None
            return Checkout(path="", head=before, commit=parent, tree=committed)
        return replace(self._commit(self._add_all(prefix), parent, committed or origin), head=before)

    def directory(self) -> Checkout:
        """A directory without git: a tarball, or the sample of an installed package."""
        self.git.env.update(GIT_DIR=str(self.place.git_dir.absolute()), GIT_WORK_TREE=str(self.source.absolute()))
        tree = self._add_all("")
        self.base = self.git.text("commit-tree", "-m", "The directory, as ci-tasks found it", tree)
        return Checkout(path="", commit=self.base, tree=tree)

    def _at(self, commit: str) -> Checkout:
        tree = self.git.text("rev-parse", f"{commit}^{{tree}}")
        for name, link in _links(self.git.run("ls-tree", "-r", "-z", "--full-tree", tree)):
            self._submodule(name, link)
        return Checkout(path="", head=commit, commit=commit, tree=tree)

    def _part(self, commit: str, prefix: str) -> str | None:
        return self.git.text_or_none("rev-parse", "--verify", "--quiet", f"{commit}:{prefix}") if commit else None

    def _add_all(self, prefix: str) -> str:
        """Everything but ignored files into the index; the tree of it below `prefix`."""
        git = self.git
        self._listing = Background(git.run, "ls-files", "-v", "-z", "--", ".")
        self._add()
        hidden, is_sparse = self._hidden_files(self._listing.result())
        if any(hidden.values()):
            for flag, names in hidden.items():
                if names:
                    git.run("update-index", flag, "-z", "--stdin", input=b"\0".join(names))
            self._add()
        listed = git.run("ls-files", "--stage", "-z", "--", ".")
        self._comparison = Background(plan_comparison, git, listed, is_sparse)
        for name, _ in _links(listed):
            commit = self._submodule(name, None)
            if commit:
                link = f"160000,{commit},{prefix}/{name}" if prefix else f"160000,{commit},{name}"
                git.run("update-index", "--cacheinfo", link)
        if not prefix:
            return git.text("write-tree")
        return git.text("write-tree", f"--prefix={prefix}/") if listed else git.text("mktree")

    def _submodule(self, name: str, rev: str | None) -> str | None:
        """The commit that the submodule was recorded as, or None where it is not there."""
        if not (self.source / name / ".git").exists():
            return None
        path = f"{self.path}/{name}" if self.path else name
        self.inside += _record(self.source / name, self.place.submodule(name), path, rev, None)
        return self.inside[-1].checkout.commit

    def _add(self) -> None:
        # A sparse checkout's git would refuse new files outside of what is checked out, and a directory that has none.
        add, paths = ("-c", "core.sparseCheckout=false", "add", "--all"), ("--", ".", *self._not_ourselves())
        try:
            self.git.run(*add, *paths)
        except GitError as error:
            if "outside of your sparse-checkout" not in error.message:
                raise
            self.git.run(*add, "--sparse", *paths)

    def _hidden_files(self, listed: bytes) -> tuple[dict[str, list[bytes]], bool]:
        """What became of files which the user told git not to look at (`--assume-unchanged`, `--skip-worktree`) counts
        as well; files that a sparse checkout left out stay as committed. Returns the files with the flag that has git
        look at them, and whether any is skipped."""
        if listed.count(b"\0H ") + listed.startswith(b"H ") == listed.count(b"\0"):
            return {}, False
        top, skipped = os.fsencode(self.source), _SKIPPED.findall(listed)
        there = [name for name in skipped if os.path.lexists(os.path.join(top, name))]
        flags = {"--no-assume-unchanged": _ASSUMED_UNCHANGED.findall(listed), "--no-skip-worktree": there}
        return flags, bool(skipped)

    def differences(self) -> tuple[DiskDifference, ...]:
        """What was added with another content than it has on disk."""
        assert self._comparison
        return disk_differences(self.git, self._comparison.result(), self.place.git_dir)

    def _not_ourselves(self) -> list[str]:
        """A place inside the checkout (`plan --out DIR`) is no part of it. To exclude what it ignores, git calls an
        error."""
        try:
            inside = self.place.root.resolve().relative_to(self.source.resolve())
        except ValueError:
            return []
        if self.git.text_or_none("check-ignore", "--quiet", str(inside)) is not None:
            return []
        return [f":(exclude,literal){inside}"]

    def _commit(self, tree: str, head: str | None, head_tree: str | None) -> Checkout:
        """`tree` as a commit on top of `head`, or `head` itself where nothing differs."""
        git = self.git
        if head and head_tree == tree:
            return Checkout(path="", commit=head, tree=tree)
        commit = write_commit(self.place.git_dir, tree, head or None, _MESSAGE)
        if head:
            changed = git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", head, tree)
        else:
            changed = git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
        # For people and for JSON, which has no words for bytes that are no text.
        dirty = tuple(name.decode("utf-8", "backslashreplace") for name in changed.split(b"\0") if name)
        return Checkout(path="", commit=commit, tree=tree, dirty=dirty)


def _links(listed: bytes) -> Iterator[tuple[str, str]]:
    """The submodules in a listing, each with its commit there."""
    found = _LINK.findall(listed) if b"160000 " in listed else ()
    return ((os.fsdecode(name), commit.decode()) for commit, name in found)
