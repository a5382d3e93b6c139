"""A working tree, or a revision of it, as objects: trees with exactly the bytes on disk.

Uncommitted and untracked files are in it, ignored ones are not (force-added ones are). The user's index only tells
which paths are tracked: an index of ours remembers which bytes are on disk. Each repository in the tree (submodules,
nested ones) is a commit of its own for the job's git, and one directory of the one tree that travels, the flat tree.
A submodule that was never fetched stays as the commit has it, an empty directory in a clone.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Overlay
from ci_tasks.checkout.conversions import find_conversions, in_directory
from ci_tasks.checkout.git import Git, MissingObjects
from ci_tasks.checkout.object_store import ObjectStore
from ci_tasks.checkout.overlay_packages import check_distinct, describe_overlay
from ci_tasks.checkout.repository import Repository, find_repository, no_repository, user_excludes
from ci_tasks.checkout.revision import BASE, commit_of, resolve_base, resolve_rev
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout, Conversion

_MESSAGE = "The working tree, as ci-tasks found it"
_WITH_OVERLAYS = "The same with its overlays"
_LINK = 0o160000
_CLOCK_NS = 20 * 10**6  # a file's time is that of the last tick of the kernel's clock

_AS_SPARSE = (
    *("index.sparse=true", "core.sparseCheckout=true", "core.sparseCheckoutCone=true"),
    "sparse.expectFilesOutsideOfPatterns=true",
)
_SPARSE = b"sdir\0\0\0\0"  # of an index that leaves directories out

Entries = Mapping[bytes, tuple[int, str] | None]  # mode and object by name; None removes the entry


@dataclass(frozen=True)
class RecordedTree:
    """What is in a place now: the checkout, or its submodule `path`. `base` is its origin/main. `flat` is its tree with
    the files of its submodules in their places."""

    path: str
    checkout: Checkout
    flat: str
    base: str | None
    repository: Repository | None


def record_tree(
    source: Path,
    store: ObjectStore,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
    not_ours: Path | None = None,
) -> list[RecordedTree]:
    """Record `source`, the submodules that are there and the overlays, as submodules of a directory of ours, or in the
    place of the submodule that they are; itself comes first. What is in `not_ours` is no part of it. Raises
    CheckoutError."""
    repository = find_repository(source)
    with store.locked():
        store.prepare(repository.form if repository else "sha1")
        recorder = _Recorder(store, repository.form if repository else "sha1", (store.path, not_ours or store.path))
        recorded = recorder.record(source, "", rev, base)
        return recorder.with_overlays(recorded, overlays) if overlays else recorded


def whole_checkout(recorded: Sequence[RecordedTree]) -> Checkout:
    """The checkout itself, with what is to be said of its submodules."""
    top = recorded[0].checkout
    below = [found for tree in recorded[1:] for found in in_directory(tree.path, tree.checkout.conversions)]
    return replace(top, conversions=(*top.conversions, *below))


class _Recorder:
    def __init__(self, store: ObjectStore, form: str, not_ours: Iterable[Path]) -> None:
        self.store, self.form = store, form
        self.not_ours = {os.fsencode(os.path.realpath(path)) for path in not_ours}

    def record(self, source: Path, path: str, rev: str | None, base: str | None = None) -> list[RecordedTree]:
        """What is in `source`, which is at `path` of the checkout, and the repositories in it."""
        repository = find_repository(source)
        if repository is None and (rev or base):
            raise no_repository(source)
        if repository and repository.form != self.form:
            raise CheckoutError(f"{source} has {repository.form} objects, and the repository around it {self.form}")
        if repository:
            self.store.borrow(repository.objects)
        part = _Part(self, source, path, repository)
        made, origin = part.made(rev, base)
        if repository and repository.partial:
            listed = self.store.reader().text("rev-list", "--objects", "--missing=print", "--quiet", made.tree)
            if missing := sum(line.startswith("?") for line in listed.splitlines()):
                raise MissingObjects(source, f"{missing} of {f'revision {rev}' if rev else 'the working tree'}")
        return [RecordedTree(path, made, part.flat, origin, repository), *part.inside]

    def with_overlays(self, recorded: list[RecordedTree], overlays: Sequence[OverlaySource]) -> list[RecordedTree]:
        (top, *inside), made, store = recorded, list[Overlay](), self.store
        flats: dict[bytes, str | None] = {}
        links: dict[bytes, tuple[int, str] | None] = {}
        for overlay in overlays:
            path = overlay.submodule or f"{OVERLAYS}/{overlay.name}"
            trees = self.record(Path(overlay.path), path, overlay.rev)
            inside = [tree for tree in inside if not f"{tree.path}/".startswith(f"{path}/")] + trees
            if not overlay.submodule:
                made.append(describe_overlay(overlay, path, trees[0].checkout, store.path))
            flats[os.fsencode(path)] = trees[0].flat
            links[os.fsencode(path)] = (_LINK, trees[0].checkout.commit)
        check_distinct(made)
        more = dict[bytes, tuple[int, str] | None]()
        if builds := "".join(f"{overlay.name}={overlay.build}\n" for overlay in made if overlay.build):
            # Runs of one tree count as runs of one state, and what was built is another one.
            blob = store.writer().text("hash-object", "-w", "--stdin", input=os.fsencode(builds))
            more = {os.fsencode(f"{OVERLAYS}/.builds"): (0o100644, blob)}
        tree = self.compose(top.checkout.tree, {**links, **more})
        commit = store.commit(tree, top.checkout.commit, _WITH_OVERLAYS)
        checkout = replace(top.checkout, commit=commit, tree=tree, overlays=tuple(made), own_tree=top.checkout.tree)
        return [replace(top, checkout=checkout, flat=self.compose(top.flat, more, flats)), *inside]

    def compose(
        self, base: str | Path, entries: Entries, flats: Mapping[bytes, str | None] | None = None, prefix: str = ""
    ) -> str:
        """The tree of `base`, a tree or an index, with other entries, and in the place of each of `flats` that tree, or
        nothing."""
        with self.store.scratch() as index:
            git, writer = self.store.reader(index), self.store.writer(index)
            if isinstance(base, str):
                git.run("read-tree", base)
            elif base.exists():
                shutil.copy2(base, index)
            self.edit(git, {**entries, **dict.fromkeys(flats or ())})
            for name, flat in (flats or {}).items():
                listed = git.run("ls-files", "-z", "--", f":(top,literal){os.fsdecode(name)}").split(b"\0")[:-1]
                self.edit(git, dict.fromkeys(listed))
                if flat:
                    git.run("read-tree", f"--prefix={os.fsdecode(name)}/", flat)
            return write_tree(writer, prefix)

    def edit(self, git: Git, entries: Entries) -> None:
        """Set entries of the index, or remove them."""
        removed = (0, "0" * (64 if self.form == "sha256" else 40))
        given = ((name, *(entry or removed)) for name, entry in entries.items())
        if lines := b"".join(b"%o %s\t%s\0" % (mode, oid.encode(), name) for name, mode, oid in given):
            git.run("update-index", "-z", "--index-info", input=lines)


def write_tree(writer: Git, prefix: str = "") -> str:
    if not prefix:
        return writer.text("write-tree", "--missing-ok")
    listed = writer.run("ls-files", "-z", "--", f":(top,literal){prefix}/")
    return writer.text("write-tree", "--missing-ok", f"--prefix={prefix}/") if listed else writer.text("mktree")


class _Part:
    """A repository, or a directory of one, or one without."""

    def __init__(self, recorder: _Recorder, source: Path, path: str, repository: Repository | None) -> None:
        self.recorder, self.store = recorder, recorder.store
        self.source, self.path, self.repository = source, path, repository
        self.inside: list[RecordedTree] = []
        self.flat = ""
        self.prefix = repository.prefix if repository else ""
        self.top = repository.top if repository else Path(os.path.realpath(source))

    def made(self, rev: str | None, base: str | None) -> tuple[Checkout, str | None]:
        """What is there, and its origin/main."""
        if self.repository is None:
            tree = self._record_files()
            commit = self.store.commit(tree, None, "The directory, as ci-tasks found it")
            return Checkout(path="", commit=commit, tree=tree, conversions=self._conversions(tree)), commit
        if self.prefix:
            return self._directory(self.repository, rev, base)
        origin = resolve_base(self.source, base) if base else commit_of(self.repository.git, BASE)
        if rev:
            commit = resolve_rev(self.source, rev)
            tree = self._at(f"{commit}^{{tree}}")
            return Checkout("", head=commit, commit=commit, tree=tree, conversions=self._conversions(tree)), origin
        head = self.repository.head
        return replace(self._commit(self._record_files(), head, self.repository.head_tree), head=head), origin

    def _directory(self, repository: Repository, rev: str | None, base: str | None) -> tuple[Checkout, str | None]:
        """A directory of a repository, as the embedded sample is, becomes a repository of its own: what `base` has of
        it, what HEAD or `rev` has of it, and the working tree, each on top of the other."""
        before = resolve_rev(self.source, rev) if rev else repository.head
        committed = self._tree_in(before)
        origin = self._tree_in(resolve_base(self.source, base)) if base else committed
        if rev and committed is None:
            raise CheckoutError(f"there is no {self.prefix} at {rev!r} in {repository.top}")
        if origin is None and base:
            origin = self.store.writer().text("mktree")  # prints the empty tree
        parent = first = self.store.commit(origin, None, f"{self.prefix} at {base or BASE}") if origin else None
        if committed and committed != origin:
            parent = self.store.commit(committed, parent, f"{self.prefix} as committed")
        if rev:
            assert committed is not None and parent is not None
            return Checkout(path="", head=before, commit=parent, tree=self._at(committed)), first
        return replace(self._commit(self._record_files(), parent, committed or origin), head=before), first

    def _tree_in(self, commit: str) -> str | None:
        git = self.store.reader()
        return git.text_or_none("rev-parse", "--verify", "--quiet", f"{commit}:{self.prefix}") if commit else None

    def _at(self, tree: str) -> str:
        git = self.store.reader()
        tree = git.text("rev-parse", tree)
        entries = git.run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")
        links = dict(line[7:].split(b"\t")[::-1] for line in entries if line.startswith(b"160000 "))
        flats = {name: self._submodule(name, meta.split()[1].decode())[1] for name, meta in links.items()}
        self.flat = self.recorder.compose(tree, {}, flats) if flats else tree
        return tree

    def _record_files(self) -> str:
        """Everything but ignored files; its tree."""
        started = time.time_ns() - _CLOCK_NS
        files, links, absent = self._files()
        index = self.store.index(self.source)
        self._remember(index, files, started)
        compose, prefix = self.recorder.compose, self.prefix
        flats: dict[bytes, str | None] = {name: None for name, (mode, _) in absent.items() if mode == _LINK}
        entries: dict[bytes, tuple[int, str] | None] = {**absent}
        for name in sorted(links):
            commit, flats[name] = self._submodule(name, None)
            entries[name] = (_LINK, commit) if commit else None
        if not (entries or flats):
            tree = self.flat = write_tree(self.store.writer(index), prefix)
            return tree
        self.flat = compose(index, {name: entry for name, entry in entries.items() if name not in flats}, flats, prefix)
        return compose(index, entries, prefix=prefix)

    def _git(self, index: Path, *, writes: bool = False) -> Git:
        """git on the files."""
        env = {"GIT_WORK_TREE": str(self.top), "GIT_INDEX_FILE": str(index)}
        if writes:
            env["GIT_OBJECT_DIRECTORY"] = str(self.store.recorded)
        excludes = self.repository.excludes if self.repository else user_excludes()
        git_dir = self.repository.own if self.repository else self.store.path
        settings = [f"core.excludesFile={excludes}", "core.bigFileThreshold=1024g"]
        return Git(git_dir, self.top, env, settings=settings, owner=self.repository)

    def _files(self) -> tuple[dict[bytes, int], set[bytes], dict[bytes, tuple[int, str]]]:
        """The files and links that are there, each with its ctime in ns; the repositories; and what stays as committed:
        mode and object of what a sparse checkout left out, and of submodules that were never fetched."""
        top, below = os.fsencode(self.top) + b"/", [f":(literal){self.prefix}"] if self.prefix else ["."]
        theirs = self.repository.index if self.repository else self.store.path / "none"
        others = "ls-files", "-z", "--others", "--exclude-standard"
        is_sparse = theirs.exists() and _SPARSE in theirs.read_bytes()
        tracked = self._tracked(self._git(theirs), is_sparse, below)
        with self.store.scratch() as full:
            if is_sparse:
                self.recorder.edit(self._git(full), {name: entry for name, _, entry in tracked})
            untracked = self._git(full if is_sparse else theirs).run(*others, "--", *below).split(b"\0")[:-1]
        links, absent = {name[:-1] for name in untracked if name.endswith(b"/")}, {}
        names = {name for name in untracked if not name.endswith(b"/")}
        for name, tag, entry in tracked:
            if entry[0] == _LINK and os.path.lexists(top + name + b"/.git"):
                links.add(name)
            elif _is_left_out(top + name, tag, entry[0]):
                absent[name] = entry
            elif entry[0] == _LINK and os.path.isdir(top + name):  # not a repository any more
                again = self._git(self.store.path / "none").run(*others, "--", f":(literal){os.fsdecode(name)}")
                names |= set(again.split(b"\0")) - {b""}
            else:
                names.add(name)
        for mine in self.recorder.not_ours:
            inside = mine[len(top) :]
            if mine.startswith(top):
                names = {name for name in names if not name.startswith(inside + b"/")}
                links = {name for name in links if not f"{os.fsdecode(name)}/".startswith(os.fsdecode(inside) + "/")}
        return _present(top, names), links, absent

    def _tracked(self, git: Git, is_sparse: bool, below: list[str]) -> list[tuple[bytes, bytes, tuple[int, str]]]:
        """Name, tag, mode and object of what the person's index has. git itself would renew the times of their objects
        where it fills in what a sparse index leaves out."""
        settings = _AS_SPARSE * is_sparse
        sparse = [word for setting in settings for word in ("-c", setting)]
        found, listing = [], ("ls-files", "-z", "-t", "--stage", *["--sparse"] * is_sparse)
        for line in git.run(*sparse, *listing, "--", *below).split(b"\0")[:-1]:
            meta, name = line.split(b"\t", 1)
            tag, mode, oid, _ = meta.split()
            if mode == b"040000":
                inside = git.run("ls-tree", "-r", "-z", "--full-tree", oid.decode()).split(b"\0")[:-1]
                entries = [(info.split(), name + path) for info, path in (entry.split(b"\t", 1) for entry in inside)]
                found += [(path, tag, (int(mode, 8), oid.decode())) for (mode, _, oid), path in entries]
            else:
                found.append((name, tag, (int(mode, 8), oid.decode())))
        return found

    def _remember(self, index: Path, files: Mapping[bytes, int], started: int) -> None:
        """Bring our index to the files. git compares their times in whole seconds: those whose ctime, which no process
        can set, is not older than the index are read again."""
        git, edit = self._git(index, writes=True), self.recorder.edit
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)  # of a killed command: we have the store's lock
        written = index.stat().st_mtime_ns if index.exists() else 0
        known = set(git.run("ls-files", "-z").split(b"\0")) - {b""} if written else set[bytes]()
        edit(git, dict.fromkeys(name for name in known if files.get(name, written) >= written))
        add = "update-index", "--add", "--remove"
        git.run(*add, "--info-only", "-z", "--stdin", input=b"".join(name + b"\0" for name in sorted(files)))
        entries = [line.split(b"\t", 1) for line in git.run("ls-files", "--stage", "-z").split(b"\0")[:-1]]
        wanted = b"".join(meta.split()[1] + b"\n" for meta, _ in entries)
        answers = self.store.reader().run("cat-file", "--batch-check", "--buffer", input=wanted).splitlines()
        missing = [entry[1] for entry, answer in zip(entries, answers, strict=True) if answer.endswith(b" missing")]
        if missing:
            edit(git, dict.fromkeys(missing))
            streamed = "-c", "core.bigFileThreshold=64m"
            git.run(*streamed, *add, "-z", "--stdin", input=b"".join(name + b"\0" for name in missing))
        if index.exists():
            os.utime(index, ns=(started, started))

    def _submodule(self, name: bytes, rev: str | None) -> tuple[str, str | None]:
        """The commit and the flat tree that a repository inside was recorded as; "" and None where it is not there."""
        below = os.fsdecode(name)[len(self.prefix) + bool(self.prefix) :] if rev is None else os.fsdecode(name)
        if not (self.source / below / ".git").exists():
            return "", None
        made = self.recorder.record(self.source / below, f"{self.path}/{below}".lstrip("/"), rev)
        self.inside += made
        return made[0].checkout.commit, made[0].flat

    def _commit(self, tree: str, head: str | None, head_tree: str | None) -> Checkout:
        """`tree` as a commit on top of `head`, or `head` itself where nothing differs."""
        commit, changes = head, dict[bytes, bytes]()
        if not (head and head_tree == tree):
            commit = self.store.commit(tree, head or None, _MESSAGE)
            before = head or self.store.writer().text("mktree")
            compared = "diff-tree", "-r", "-z", "--name-status", "--no-renames", before, tree
            fields = self.store.reader().run(*compared).split(b"\0")
            changes = dict(zip(fields[1::2], fields[::2], strict=False))
        # For people and for JSON, which has no words for bytes that are no text.
        dirty = tuple(name.decode("utf-8", "backslashreplace") for name in changes)
        written = {name for name, status in changes.items() if status != b"D"} if head else set[bytes]()
        found = self._conversions(tree, head or "", written)
        return Checkout(path="", commit=commit or "", tree=tree, dirty=dirty, conversions=found)

    def _conversions(self, tree: str, head: str = "", written: Collection[bytes] = ()) -> tuple[Conversion, ...]:
        return find_conversions(self.store.path, tree, head, written)


def _present(top: bytes, names: Iterable[bytes]) -> dict[bytes, int]:
    """The ctime of each of the files and links that are there, below directories and not below links, in ns."""
    plain = {b"": True}

    def is_plain(directory: bytes) -> bool:
        if directory not in plain:
            plain[directory] = is_plain(directory.rpartition(b"/")[0]) and not os.path.islink(top + directory)
        return plain[directory]

    found = {}
    for name in names:
        try:
            info = os.lstat(top + name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)) and is_plain(name.rpartition(b"/")[0]):
            found[name] = info.st_ctime_ns
    return found


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
