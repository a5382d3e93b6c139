"""A working tree, or a revision of it, as git objects: trees with exactly the bytes on disk.

Uncommitted and untracked files are in it, ignored ones are not (force-added ones are). The user's index only tells
which paths are tracked: an index of ours remembers which bytes are on disk. Each repository in the tree (submodules,
nested ones) is a commit of its own for the job's git, and one directory of the one tree that travels, the flat tree.
A submodule that was never fetched stays as the commit has it, an empty directory in a workspace.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.files import LockTimeout, content_of, file_lock, replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Checkout, CheckoutPart, Overlay
from ci_tasks.agent.trees.git import SHA1, Git, make_repository, quoted
from ci_tasks.checkout.overlays import check_distinct, describe_overlay, find_conversions, in_directory
from ci_tasks.checkout.repository import (
    CheckoutGit,
    GitError,
    MissingObjects,
    Repository,
    find_repository,
    resolve_base,
    resolve_rev,
    user_excludes,
)
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.given_values import OverlaySource

LARGE_BYTES = 100 << 20  # GitHub refuses files from this size on, so they are in no commit
_LOCK_TIMEOUT_S = 60.0
_LINK = 0o160000
_CLOCK_NS = 20 * 10**6  # a file's time is that of the last tick of the kernel's clock
_OTHERS = "ls-files", "--others", "--exclude-standard", "-z"
# Commits are deterministic: one tree on one parent is one commit, however often it is recorded.
_BY = "author ci-tasks <ci-tasks@localhost> 0 +0000\ncommitter ci-tasks <ci-tasks@localhost> 0 +0000\n\n"
_reading = threading.Lock()

Entry = tuple[int, str]  # mode and object of a file or submodule
Entries = Mapping[bytes, Entry | None]  # by name; None removes it


@dataclass(frozen=True)
class SnapshotPart:
    """A repository of a snapshot: the checkout (path ""), or a submodule by its path from the checkout's root. `flat`
    is its tree with the files of its submodules in their places."""

    path: str
    checkout: Checkout
    flat: str
    repository: Repository | None

    @property
    def commit(self) -> str:
        return self.checkout.commit

    @property
    def tree(self) -> str:
        return self.checkout.tree


@dataclass(frozen=True)
class Snapshot:
    """A checkout as it was, the checkout itself before its submodules."""

    checkout: Checkout
    parts: tuple[SnapshotPart, ...]
    store: Path

    @property
    def flat(self) -> str:
        return self.parts[0].flat

    @property
    def checkout_parts(self) -> list[CheckoutPart]:
        """As a host is asked for them."""
        top, *inside = (CheckoutPart(part.path, part.commit, part.tree) for part in self.parts)
        return [replace(top, flat=self.flat), *inside]

    @cached_property
    def reader(self) -> subprocess.Popen[bytes]:
        """One process for all files, which ends with the snapshot."""
        # Not a CheckoutGit: ^C does not reach this one.
        running = Git(self.store).started("cat-file", "--batch", "--follow-symlinks")
        weakref.finalize(self, running.__exit__, None, None, None)
        return running.__enter__()

    def read_file(self, path: str) -> str | None:
        """A file's text; links inside the checkout are followed. None if there is no such file. Raises GitError."""
        if ".." in path.split("/") or "\n" in path:
            return None
        questions, answers = self.reader.stdin, self.reader.stdout
        assert questions and answers
        with _reading:
            with suppress(BrokenPipeError):  # then it gives no answer either
                questions.write(os.fsencode(f"{self.flat}:{path}\n"))
                questions.flush()
            if not (head := answers.readline()):
                raise GitError("git cat-file has ended")
            # What is no file has content, too: a directory's entries, or the target of a link that leads elsewhere.
            content = b"" if head.endswith(b" missing\n") else answers.read(int(head.split(b" ")[-1]) + 1)[:-1]
        return content.decode(errors="replace") if head.split(b" ")[1:2] == [b"blob"] else None

    def read_files(self, directory: str, suffix: str) -> Iterator[str]:
        """The texts of the files in `directory` whose names end so."""
        for name in self.names(directory, suffix):
            yield self.read_file(name) or ""

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Paths of files and links that begin and end so, submodules included."""
        listed = CheckoutGit(self.store).null_separated("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.flat)
        return sorted(name for name in listed if name.startswith(prefix) and name.endswith(suffix))

    def select(self, pathspecs: Sequence[str]) -> list[str]:
        """Paths that git's pathspecs select in the checkout itself, as `git diff -- PATHSPEC` would if all were new."""
        git = CheckoutGit(self.store)
        empty = git.text("hash-object", "-t", "tree", os.devnull)
        return git.null_separated("diff-tree", "-r", "-z", "--name-only", empty, self.parts[0].tree, "--", *pathspecs)


class ObjectStore:
    """Where recordings put their objects: the git directory `path`, which borrows those of the repositories that it
    has read.

    New objects go into `recorded`, which borrows nothing, since git renews the times of objects that it finds while it
    writes. Two commands may use it, and take turns to record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.recorded, self._alternates = self.path / "recorded", self.path / "objects/info/alternates"
        self.reader = CheckoutGit(self.path)
        self.writer = CheckoutGit(self.path, GIT_OBJECT_DIRECTORY=str(self.recorded))

    @contextmanager
    def locked(self, timeout: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """No other command records, or prunes. Raises Blocked."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with file_lock(str(self.path / "lock"), exclusive=True, timeout=timeout):
                yield
        except LockTimeout:
            message = f"another command has held {self.path} for more than {timeout:.0f} s"
            raise Blocked(message, hint="is one of them hanging?") from None

    def prepare(self, form: str) -> None:
        """Make it ready for objects with ids of this format."""
        make_repository(str(self.path), form)
        (self.recorded / "pack").mkdir(parents=True, exist_ok=True)
        self.borrow(self.recorded)

    @property
    def lenders(self) -> list[str]:
        """Directories of objects, as git wants them in a list: `recorded`, and those that are borrowed."""
        return os.fsdecode(content_of(str(self._alternates))).splitlines()

    def borrow(self, objects: Path) -> None:
        """Also those that are borrowed already: linked worktrees and several checkouts may share a store."""
        lines = dict.fromkeys([*self.lenders, quoted(objects.absolute())])
        replace_file(str(self._alternates), os.fsencode("".join(f"{line}\n" for line in lines)))

    def commit(self, tree: str, parent: str, message: str) -> str:
        """Always the same for the same tree and parent, which is "" for none."""
        text = f"tree {tree}\n{f'parent {parent}' if parent else ''}\n".replace("\n\n", "\n") + _BY + message + "\n"
        return self.writer.text("hash-object", "-t", "commit", "-w", "--stdin", input=text.encode())

    def compose(self, base: str | Path, entries: Entries, flats: Mapping[bytes, str | None]) -> str:
        """The tree of `base`, a tree or an index, with other entries; and in the place of each of `flats` that tree, or
        nothing."""
        with tempfile.TemporaryDirectory(prefix="ci-tasks-") as scratch:
            git = CheckoutGit(self.path, self.path, GIT_INDEX_FILE=f"{scratch}/index")
            if isinstance(base, str):
                git.run("read-tree", base)
            elif base.exists():
                shutil.copy2(base, f"{scratch}/index")
            replaced = [f":(top,literal){os.fsdecode(name)}" for name in flats]
            inside = git.split("ls-files", "-z", "--", *replaced) if replaced else []
            edit_index(git, {**entries, **dict.fromkeys([*flats, *inside])})
            for name, flat in flats.items():
                if flat:
                    git.run("read-tree", f"--prefix={os.fsdecode(name)}/", flat)
            git.env["GIT_OBJECT_DIRECTORY"] = str(self.recorded)
            return git.text("write-tree", "--missing-ok")


def edit_index(git: CheckoutGit, entries: Entries) -> None:
    """Set entries, or remove those that are None."""
    removed = b"".join(name + b"\0" for name, entry in entries.items() if entry is None)
    given = b"".join(b"%o %s\t%s\0" % (at[0], at[1].encode(), name) for name, at in entries.items() if at)
    if removed:
        git.run("update-index", "--force-remove", "-z", "--stdin", input=removed)
    if given:
        git.run("update-index", "-z", "--index-info", input=given)


def take_snapshot(
    source: Path,
    store: Path,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
    not_ours: Path | None = None,
) -> Snapshot:
    """`source`'s working tree, or its revision `rev`, and the submodules that are there, as objects in the directory
    `store`, which may be there already and be in use. The overlays are submodules of a directory of ours, or in the
    place of the submodule that they are. What is in `not_ours` is no part of it. Raises CheckoutError, Blocked."""
    repository = find_repository(source)
    if repository and repository.prefix and (rev or base):
        hint = f"its root is {repository.top}; without --rev and --base, its files are tested"
        raise CheckoutError(f"{source} is not the root of a git repository", hint=hint)
    form = repository.form if repository else SHA1
    objects = ObjectStore(store if form == SHA1 else store.with_name(f"{store.name}-{form}"))
    with objects.locked():
        objects.prepare(form)
        if base:
            resolve_base(source, base)
        recorder = _Recorder(objects, form, not_ours or objects.path)
        parts = recorder.with_overlays(recorder.record(source, "", rev), overlays)
    top = parts[0].checkout
    below = [found for part in parts[1:] for found in in_directory(part.path, part.checkout.conversions)]
    checkout = replace(top, path=str(source), flat=parts[0].flat, conversions=(*top.conversions, *below))
    return Snapshot(checkout, tuple(parts), objects.path)


class _Recorder:
    def __init__(self, store: ObjectStore, form: str, not_ours: Path) -> None:
        self.store, self.form = store, form
        self.not_ours = tuple(os.fsencode(os.path.realpath(path)) + b"/" for path in (store.path, not_ours))

    def record(self, source: Path, path: str, rev: str | None) -> list[SnapshotPart]:
        """What is in `source`, which is at `path` of the checkout, and the repositories in it."""
        repository = find_repository(source)
        if repository and repository.form != self.form:
            raise CheckoutError(f"{source} has {repository.form} objects, and the repository around it {self.form}")
        if repository:
            self.store.borrow(repository.objects)
        at_root = repository if repository and not repository.prefix else None
        head = commit = resolve_rev(source, rev) if rev else ""
        changes = dict[bytes, bytes]()
        if rev:
            tree, flat, inside = self._at(source, path, commit)
        else:
            tree, flat, inside = self._files(source, path, repository)
            head, before = at_root.head if at_root else ("", "")
            if not head or before != tree:
                commit = self.store.commit(tree, head, "The working tree, as ci-tasks found it")
                before = before or self.store.writer.text("mktree")
                compared = "diff-tree", "-r", "-z", "--name-status", "--no-renames", before, tree
                fields = self.store.reader.split(*compared) if at_root else []
                changes = dict(zip(fields[1::2], fields[::2], strict=True))
        if repository and repository.git.partial:
            listed = self.store.reader.text("rev-list", "--objects", "--missing=print", "--quiet", tree)
            if missing := sum(line.startswith("?") for line in listed.splitlines()):
                raise MissingObjects(source, f"{missing} of {f'revision {rev}' if rev else 'the working tree'}")
        written = {name for name, status in changes.items() if status != b"D"} if head else set[bytes]()
        conversions = find_conversions(self.store.path, tree, head, written)
        # For people and for JSON, which has no words for bytes that are no text.
        dirty = tuple(name.decode("utf-8", "backslashreplace") for name in changes)
        made = Checkout("", commit or head, tree, dirty, head, conversions=conversions)
        return [SnapshotPart(path, made, flat, at_root), *inside]

    def with_overlays(self, parts: list[SnapshotPart], overlays: Sequence[OverlaySource]) -> list[SnapshotPart]:
        if not overlays:
            return parts
        (top, *inside), made, store = parts, list[Overlay](), self.store
        flats, links = dict[bytes, str | None](), dict[bytes, Entry | None]()
        for overlay in overlays:
            path = overlay.submodule or f"{OVERLAYS}/{overlay.name}"
            found = self.record(Path(overlay.path), path, overlay.rev)
            inside = [part for part in inside if not f"{part.path}/".startswith(f"{path}/")] + found
            if not overlay.submodule:
                made.append(describe_overlay(overlay, path, found[0].checkout, store.path))
            flats[os.fsencode(path)] = found[0].flat
            links[os.fsencode(path)] = (_LINK, found[0].commit)
        check_distinct(made)
        tree = store.compose(top.tree, links, {})
        commit = store.commit(tree, top.commit, "The same with its overlays")
        checkout = replace(top.checkout, commit=commit, tree=tree, overlays=tuple(made), own_tree=top.tree)
        return [replace(top, checkout=checkout, flat=store.compose(top.flat, {}, flats)), *inside]

    def _at(self, source: Path, path: str, commit: str) -> tuple[str, str, list[SnapshotPart]]:
        """The tree of a commit, its flat tree, and the repositories in it."""
        tree = self.store.reader.text("rev-parse", f"{commit}^{{tree}}")
        entries = self.store.reader.split("ls-tree", "-r", "-z", "--full-tree", tree)
        pairs = (line.split(b"\t", 1) for line in entries if line.startswith(b"160000 "))
        modules = {name: info.split()[2].decode() for info, name in pairs}
        flats, _, inside = self._inside(source, path, modules)
        return tree, self.store.compose(tree, {}, flats) if flats else tree, inside

    def _inside(
        self, source: Path, path: str, modules: Mapping[bytes, str | None]
    ) -> tuple[dict[bytes, str | None], dict[bytes, Entry | None], list[SnapshotPart]]:
        """Of repositories in `source`, at revisions or as they are: flat trees, None for one that is not there, links
        and parts."""
        flats, links, inside = dict[bytes, str | None](), dict[bytes, Entry | None](), list[SnapshotPart]()
        for name, rev in sorted(modules.items()):
            below, flats[name] = os.fsdecode(name), None
            if (source / below / ".git").exists():
                made = self.record(source / below, f"{path}/{below}".lstrip("/"), rev)
                flats[name], links[name] = made[0].flat, (_LINK, made[0].commit)
                inside += made
        return flats, links, inside

    def _files(self, source: Path, path: str, repository: Repository | None) -> tuple[str, str, list[SnapshotPart]]:
        """The tree of everything but ignored files, its flat tree, and the repositories in it."""
        started, store = time.time_ns() - _CLOCK_NS, self.store
        files, modules, absent = self._listed(source, repository)
        index = store.path / f"index-{hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]}"
        self._remember(source, index, files, started)
        flats, links, inside = self._inside(source, path, dict.fromkeys(modules))
        absent_links = {name: None for name, (mode, _) in absent.items() if mode == _LINK}
        stay = {name: entry for name, entry in absent.items() if name not in absent_links}
        tree = store.compose(index, {**absent, **links}, {})
        all_flats = {**absent_links, **flats}
        return tree, store.compose(index, stay, all_flats) if all_flats else tree, inside

    def _listed(
        self, source: Path, repository: Repository | None
    ) -> tuple[dict[bytes, int], set[bytes], dict[bytes, Entry]]:
        """By names from `source`: the files and links that are there, each with its ctime in ns; the repositories; and
        what stays as committed: what a sparse checkout left out, and submodules that were never fetched."""
        top, none = os.fsencode(os.path.realpath(source)) + b"/", str(self.store.path / "none")
        prefix = repository.prefix if repository else ""
        below, cut = f":(literal){prefix}" if prefix else ".", len(os.fsencode(prefix)) + bool(prefix)
        tracked = list[bytes]()
        if repository:
            git = repository.git_in(repository.top)
            tracked = git.split("ls-files", "-z", "-t", "--stage", "--", below)
        else:
            git = CheckoutGit(self.store.path, source, f"core.excludesFile={user_excludes()}", GIT_INDEX_FILE=none)
        others = {name[cut:] for name in git.split(*_OTHERS, "--", below)}
        modules, absent = {name[:-1] for name in others if name.endswith(b"/")}, dict[bytes, Entry]()
        names = {name for name in others if not name.endswith(b"/")}
        for line in tracked:
            info, full = line.split(b"\t", 1)
            (tag, mode, oid, _), name = info.split(), full[cut:]
            is_link = mode == b"160000"
            if is_link and os.path.lexists(top + name + b"/.git"):
                modules.add(name)
            elif _is_left_out(top + name, tag, is_link):
                absent[name] = (int(mode, 8), oid.decode())
            elif is_link and os.path.isdir(top + name):  # not a repository any more
                git.env["GIT_INDEX_FILE"] = none
                names |= {each[cut:] for each in git.split(*_OTHERS, "--", f":(literal){os.fsdecode(full)}")}
            else:
                names.add(name)
        names = {name for name in names if not (top + name).startswith(self.not_ours)}
        modules = {name for name in modules if not (top + name + b"/").startswith(self.not_ours)}
        return _present(top, names), modules, absent

    def _remember(self, source: Path, index: Path, files: Mapping[bytes, int], started: int) -> None:
        """Bring our index to the files. git compares their times in whole seconds: those whose ctime, which no process
        can set, is not older than the index are read again."""
        env = {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(self.store.recorded)}
        git = CheckoutGit(self.store.path, source, **env)
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)  # of a killed command: we have the store's lock
        written = index.stat().st_mtime_ns if index.exists() else 0
        known = git.split("ls-files", "-z") if written else []
        edit_index(git, dict.fromkeys(name for name in known if files.get(name, written) >= written))
        add = "update-index", "--add", "--remove"
        # git would compress large files, which it only has to hash.
        hashing = CheckoutGit(self.store.path, source, "core.bigFileThreshold=1024g", GIT_INDEX_FILE=str(index))
        hashing.run(*add, "--info-only", "-z", "--stdin", input=b"".join(name + b"\0" for name in sorted(files)))
        entries = [line.split(b"\t", 1) for line in git.split("ls-files", "--stage", "-z")]
        wanted = b"".join(info.split()[1] + b"\n" for info, _ in entries)
        answers = self.store.reader.run("cat-file", "--batch-check", "--buffer", input=wanted).splitlines()
        missing = [entry[1] for entry, answer in zip(entries, answers, strict=True) if answer.endswith(b" missing")]
        edit_index(git, dict.fromkeys(missing))
        if missing:
            git.run(*add, "-z", "--stdin", input=b"".join(name + b"\0" for name in missing))
        if index.exists():
            os.utime(index, ns=(started, started))


def _present(top: bytes, names: Collection[bytes]) -> dict[bytes, int]:
    """The ctime of each of the files and links that are there, below directories and not below links, in ns."""
    plain = {b"": True}

    def is_plain(directory: bytes) -> bool:
        if directory not in plain:
            plain[directory] = is_plain(directory.rpartition(b"/")[0]) and not os.path.islink(top + directory)
        return plain[directory]

    found = {}
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):
            info = os.lstat(top + name)
            if (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)) and is_plain(name.rpartition(b"/")[0]):
                found[name] = info.st_ctime_ns
    return found


def _is_left_out(path: bytes, tag: bytes, is_link: bool) -> bool:
    """Whether a sparse checkout left the file out, or the submodule was never fetched: it stays as committed."""
    if is_link and os.path.isdir(path) and not os.path.islink(path):
        return not os.listdir(path)
    if tag != b"S" or os.path.lexists(path):
        return False
    while not os.path.lexists(path):
        path = path.rpartition(b"/")[0]
    return os.path.isdir(path) and not os.path.islink(path)  # nothing else is in the place of a directory above


def large_untracked_files(directory: Path) -> list[tuple[str, int]]:
    """Untracked files below `directory` that git does not ignore and that look like data, with their sizes in bytes,
    the largest first. Raises GitError."""
    repository, sizes = find_repository(directory), dict[str, int]()
    if repository:
        for name in repository.git.null_separated(*_OTHERS):
            with suppress(OSError):  # it has gone meanwhile
                sizes[name] = os.lstat(directory / name).st_size
    return sorted(((name, size) for name, size in sizes.items() if size >= LARGE_BYTES), key=lambda file: -file[1])
