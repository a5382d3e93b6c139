"""A working tree, or a revision of it, as objects: a commit whose tree is exactly what is there, byte for byte.

Uncommitted and untracked files are in it, ignored ones are not (force-added ones are). The user's index only tells
which paths are tracked: an index of ours remembers which bytes are on disk. New objects go to a place of ours.

A submodule that is there is recorded too, by the same means: the commit names the very recording of it. One that was
never fetched stays as the commit has it, an empty directory in a clone.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Overlay
from ci_tasks.background import Background
from ci_tasks.checkout.conversions import find_conversions, in_directory
from ci_tasks.checkout.git import Git, GitError, MissingObjects
from ci_tasks.checkout.object_store import ObjectTarget, write_commit
from ci_tasks.checkout.overlay_packages import check_distinct, describe_overlay
from ci_tasks.checkout.repository import Repository, find_repository, no_repository, user_excludes
from ci_tasks.checkout.revision import BASE, commit_of, resolve_base, resolve_rev
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout, Conversion

_MESSAGE = "The working tree, as ci-tasks found it"
_WITH_OVERLAYS = "The same with its overlays"
# Of `ls-files --stage -t -z` and `ls-tree -r -z`. In a large tree a pattern is quicker than a loop, and to look first
# whether there is anything to be found is quicker than a pattern.
_ENTRY = re.compile(rb"(?:(.) )?(\d{6}) (?:commit )?([0-9a-f]+)(?: \d)?\t([^\0]*)\0")
_LINK = 0o160000
# What `add` says of repositories inside, and of attributes that it does not apply. All else, such as a file that it
# cannot look at, would be a tree without that file.
_HARMLESS = (b"warning: adding embedded git repository", b".gitattributes", b".gitignore")


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
        git = Git(place.git_dir, source, {"GIT_INDEX_FILE": str(index)})
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
    repository = find_repository(source)
    if repository is None and (rev or base):
        raise no_repository(source)
    place.prepare(repository)
    with place.index() as index:
        recorder = _Recorder(source, repository, place, path, index)
        if repository is None:
            made = recorder.directory()
        elif repository.prefix:
            made = recorder.part(repository, rev, base)
        else:
            made = recorder.whole(repository, rev, base)
        if repository and repository.partial:
            listed = recorder.git.text("rev-list", "--objects", "--missing=print", "--quiet", made.tree)
            if missing := sum(line.startswith("?") for line in listed.splitlines()):
                raise MissingObjects(source, f"{missing} of {f'revision {rev}' if rev else 'the working tree'}")
    return [*recorder.inside, RecordedTree(path, place, made, recorder.base)]


def whole_checkout(recorded: list[RecordedTree]) -> Checkout:
    """The checkout itself, with what is to be said of its submodules."""
    conversions = (in_directory(tree.path, tree.checkout.conversions) for tree in recorded[:-1])
    made = recorded[-1].checkout
    return replace(made, conversions=(*made.conversions, *itertools.chain.from_iterable(conversions)))


class _Recorder:
    """Records `source`."""

    def __init__(
        self, source: Path, repository: Repository | None, place: ObjectTarget, path: str, index: Path
    ) -> None:
        self.source, self.repository, self.place, self.path, self.index = source, repository, place, path, index
        self.inside: list[RecordedTree] = []
        self.base: str | None = None
        if repository:
            self.git = repository.with_index(index, place.git_dir / "objects", repository.excludes)
        else:
            files = {"GIT_WORK_TREE": str(source.absolute()), "GIT_INDEX_FILE": str(index)}
            self.git = Git(place.git_dir, source, files, settings=[f"core.excludesFile={user_excludes()}"])

    def whole(self, repository: Repository, rev: str | None, base: str | None) -> Checkout:
        if base:
            self.base = resolve_base(self.source, base)
        elif self.place.has_base:
            self.base = commit_of(self.git, BASE)
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
            raise CheckoutError(f"there is no {prefix} at {rev!r} in {repository.top}")
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
        tree = self._add_all("")
        self.base = self.git.text("commit-tree", "-m", "The directory, as ci-tasks found it", tree)
        return Checkout(path="", commit=self.base, tree=tree, conversions=self._conversions(tree))

    def _at(self, commit: str) -> Checkout:
        tree = self.git.text("rev-parse", f"{commit}^{{tree}}")
        for name, (_, mode, link) in _entries(self.git.run("ls-tree", "-r", "-z", "--full-tree", tree)).items():
            if mode == _LINK:
                self._submodule(os.fsdecode(name), link)
        return Checkout(path="", head=commit, commit=commit, tree=tree, conversions=self._conversions(tree))

    def _part(self, commit: str, prefix: str) -> str | None:
        return self.git.text_or_none("rev-parse", "--verify", "--quiet", f"{commit}:{prefix}") if commit else None

    def _add_all(self, prefix: str) -> str:
        """Everything but ignored files into the index; the tree of it below `prefix`."""
        if self.place.recall(self.index):
            try:
                return self._tree(prefix)
            except (GitError, MissingObjects):  # what it knew may be gone, as after a `git gc` of the user's
                self.index.unlink(missing_ok=True)
                self.inside.clear()
        return self._tree(prefix)

    def _tree(self, prefix: str) -> str:
        git, tracked = self.git, self._tracked()
        self._add(tracked)
        listed = _entries(git.run("ls-files", "--stage", "--full-name", "-z", "--", "."))
        top = os.fsencode(git.env["GIT_WORK_TREE"]) + b"/"
        links = {name for name, (_, mode, _) in listed.items() if mode == _LINK}
        links |= {
            name for name, (_, mode, _) in tracked.items() if mode == _LINK and os.path.lexists(top + name + b"/.git")
        }
        # git runs `git status` in repositories that its index has, and with it their filters.
        self._edit(dict.fromkeys(links))
        self.place.remember(self.index)
        as_committed = {name: entry[1:] for name, entry in tracked.items() if _is_left_out(top + name, *entry[:2])}
        self._edit(as_committed)
        for name in sorted(links):
            below = os.fsdecode(name)[len(prefix) + bool(prefix) :]
            if commit := self._submodule(below, None):
                self._edit({name: (_LINK, commit)})
        if not prefix:
            return git.text("write-tree")
        return git.text("write-tree", f"--prefix={prefix}/") if listed or as_committed else git.text("mktree")

    def _tracked(self) -> Mapping[bytes, tuple[bytes, int, str]]:
        """What the user's index has."""
        if self.repository is None or not self.repository.index.exists():
            return {}
        return _entries(self._theirs().run("ls-files", "--stage", "-t", "--full-name", "-z", "--", "."))

    def _theirs(self) -> Git:
        assert self.repository
        return self.repository.with_index(self.repository.index, excludes=self.repository.excludes)

    def _add(self, tracked: Mapping[bytes, tuple[bytes, int, str]]) -> None:
        """Every file that is tracked, or not ignored."""
        listing = "ls-files", "-i", "-c", "--exclude-standard", "--full-name", "-z", "--", "."
        theirs = Background(self._theirs().run, *listing) if tracked else None
        remembered = set(self.git.run(*listing).split(b"\0")) - {b""} if self.index.exists() else set()
        named = theirs.result().split(b"\0") if theirs else []
        ignored = {name for name in named if name and tracked[name][1] != _LINK}
        self._edit(dict.fromkeys(remembered - ignored))
        if new := ignored - remembered:
            # An entry has git look at the file. It has to have the object, since it sees no change in an empty file.
            empty = self.git.run("hash-object", "-w", "--stdin").decode().strip()
            self._edit(dict.fromkeys(new, (0o100644, empty)))
        excludes = self.repository.excludes if self.repository else user_excludes()
        harmless = *_HARMLESS, os.fsencode(excludes)
        self.git.run("add", "--all", "--", ".", *self._not_ourselves(), harmless=harmless)

    def _edit(self, entries: Mapping[bytes, tuple[int, str] | None]) -> None:
        """Set entries of the index, or remove them."""
        removed = (0, "0" * (64 if self.repository and self.repository.form == "sha256" else 40))
        given = ((name, *(entry or removed)) for name, entry in entries.items())
        if lines := b"".join(b"%o %s\t%s\0" % (mode, commit.encode(), name) for name, mode, commit in given):
            self.git.run("update-index", "-z", "--index-info", input=lines)

    def _submodule(self, name: str, rev: str | None) -> str | None:
        """The commit that the submodule was recorded as, or None where it is not there."""
        if not (self.source / name / ".git").exists():
            return None
        path = f"{self.path}/{name}" if self.path else name
        self.inside += _record(self.source / name, self.place.submodule(name), path, rev, None)
        return self.inside[-1].checkout.commit

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
        commit, changes = head, dict[bytes, bytes]()
        if not (head and head_tree == tree):
            commit = write_commit(self.place.git_dir, tree, head or None, _MESSAGE)
            store = Git(self.place.git_dir)  # in the work tree, git would read .gitmodules, and may refuse it
            before = head or store.text("mktree")
            fields = store.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", before, tree).split(b"\0")
            changes = dict(zip(fields[1::2], fields[::2], strict=False))
        # For people and for JSON, which has no words for bytes that are no text.
        dirty = tuple(name.decode("utf-8", "backslashreplace") for name in changes)
        written = {name for name, status in changes.items() if status != b"D"} if head else set[bytes]()
        found = self._conversions(tree, head or "", written)
        return Checkout(path="", commit=commit or "", tree=tree, dirty=dirty, conversions=found)

    def _conversions(self, tree: str, head: str = "", written: Collection[bytes] = ()) -> tuple[Conversion, ...]:
        return find_conversions(self.place.git_dir, tree, head, written)


def _entries(listed: bytes) -> dict[bytes, tuple[bytes, int, str]]:
    """Name → tag of `ls-files -t`, mode, object."""
    return {name: (tag, int(mode, 8), entry.decode()) for tag, mode, entry, name in _ENTRY.findall(listed)}


def _is_left_out(path: bytes, tag: bytes, mode: int) -> bool:
    """Whether a sparse checkout left the file out, or the submodule was never fetched: it stays as committed."""
    if mode == _LINK and os.path.isdir(path) and not os.path.islink(path):
        return not os.listdir(path)
    if tag != b"S":
        return False
    while not os.path.lexists(path):
        path = path.rpartition(b"/")[0]
        if os.path.lexists(path):  # nothing else is in the place of a directory above
            return os.path.isdir(path) and not os.path.islink(path)
    return False
