"""A working tree, or a revision of it, as git objects: trees with exactly the bytes on disk.

Uncommitted and untracked files are in it, ignored ones are not (force-added ones are). The user's index only tells
which paths are tracked: an index of ours remembers which bytes are on disk. Each repository in the tree (submodules,
nested ones) is a commit of its own for the job's git, and one directory of the one tree that travels, the flat tree. A
submodule that was never fetched stays as the commit has it, an empty directory in a workspace. A run tests the bytes on
disk, or the commit's. Filters (Git LFS), line ends and encodings are settings of a repository, or attributes; nothing
here applies them.

A host gets the pack that it lacks of a snapshot. A pack has one commit of each repository, its tree, and nothing of its
history: a clone of depth 1, as `actions/checkout` makes. Trees that the host has are left out, and what differs from
them is sent as a difference. A workspace of this machine borrows the objects of the repositories, and has their
history. Both are proven by the tree's hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.files import LockTimeout, content_of, file_lock, replace_file
from ci_tasks.agent.git import DiskFull, Git, StoreError, make_repository, quoted
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Checkout, CheckoutPart, Conversion, Overlay
from ci_tasks.checkout.repository import (
    BASE,
    CheckoutGit,
    GitError,
    Repository,
    commit_of,
    find_repository,
    hint_of_git,
    resolve_rev,
    submodules_of,
    user_excludes,
)
from ci_tasks.errors import Blocked, CheckoutError, counted
from ci_tasks.given_values import OverlaySource

LARGE_BYTES = 100 << 20  # GitHub refuses files from this size on, so they are in no commit
_LOCK_TIMEOUT_S = 60.0
_LINK, _NO_OBJECT = 0o160000, "0" * 40
_CLOCK_NS = 20 * 10**6  # a file's time is the last tick of the kernel's clock
_OTHERS = "ls-files", "--others", "--exclude-standard", "-z"
# Commits are deterministic: one tree on one parent is one commit, however often it is recorded.
_BY = "author ci-tasks <ci-tasks@localhost> 0 +0000\ncommitter ci-tasks <ci-tasks@localhost> 0 +0000\n\n"
_LAYOUTS = ("", "src/", "python/")
# Distributions whose name has no part in common with the name that is imported.
_IMPORTED_AS = {"megatron-core": "megatron.core", "megatron-lm": "megatron.core", "megatron-bridge": "megatron.bridge"}
_MAX_FILES = 10  # shown of each reason
LFS = "Git LFS: CI's checkout has pointers, or the content with `lfs: true`"

_reading = threading.Lock()

Entries = dict[bytes, tuple[int, str] | None]  # mode and object of a file or submodule, by name; None removes it
Flats = dict[bytes, str | None]  # trees of repositories by name; None for one that is not there
OnLarge = Callable[[list[tuple[str, int]]], object] | None


@dataclass(frozen=True)
class SnapshotPart:
    """A repository of a snapshot: the checkout (path ""), or a submodule by its path from the checkout's root. `flat`
    is its tree with the files of its submodules in their places."""

    path: str
    checkout: Checkout
    flat: str
    repository: Repository | None


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
        top, *inside = (CheckoutPart(part.path, part.checkout.commit, part.checkout.tree) for part in self.parts)
        return [replace(top, flat=self.flat), *inside]

    @cached_property
    def reader(self) -> subprocess.Popen[bytes]:
        """One process for all files, which ends with the snapshot: lint reads hundreds."""
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

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Paths of files and links that begin and end so, submodules included."""
        listed = CheckoutGit(self.store).null_separated("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.flat)
        return sorted(name for name in listed if name.startswith(prefix) and name.endswith(suffix))

    def select(self, pathspecs: Sequence[str]) -> list[str]:
        """Paths that git's pathspecs select in the checkout itself, as `git diff -- PATHSPEC` would if all were new."""
        git = CheckoutGit(self.store)
        trees = git.text("hash-object", "-t", "tree", os.devnull), self.parts[0].checkout.tree
        return git.null_separated("diff-tree", "-r", "-z", "--name-only", *trees, "--", *pathspecs)


class ObjectStore:
    """Where recordings put their objects: the git directory `path`, which borrows the objects of the repositories that
    it has read.

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
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(str(self.path / "lock"), exclusive=True, timeout=timeout):
                yield
        except LockTimeout:
            raise Blocked(f"another command has held {self.path} for more than {timeout:.0f} s") from None

    @property
    def lenders(self) -> list[str]:
        """Directories of objects, as git wants them in a list: `recorded`, and the borrowed ones."""
        return os.fsdecode(content_of(str(self._alternates))).splitlines()

    def borrow(self, objects: Path) -> None:
        """Also the ones that are borrowed already: linked worktrees and several checkouts may share a store."""
        lines = dict.fromkeys([*self.lenders, quoted(objects.absolute())])
        replace_file(str(self._alternates), os.fsencode("".join(f"{line}\n" for line in lines)))

    def commit(self, tree: str, parent: str, message: str) -> str:
        """Always the same for the same tree and parent, which is "" for none."""
        text = f"tree {tree}\n" + f"parent {parent}\n" * bool(parent) + f"{_BY}{message}\n"
        return self.writer.text("hash-object", "-t", "commit", "-w", "--stdin", input=text.encode())

    def compose(self, base: str | Path, entries: Entries, flats: Flats) -> str:
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
    """Set entries, or remove an entry whose value is None."""
    given = ((name, *(entry or (0, _NO_OBJECT))) for name, entry in entries.items())
    lines = [b"%o %s\t%s\0" % (mode, oid.encode(), name) for name, mode, oid in given]
    if lines:
        git.run("update-index", "-z", "--index-info", input=b"".join(lines))


def take_snapshot(
    source: Path, store: Path, *, rev: str | None = None, overlays: Sequence[OverlaySource] = (), large: OnLarge = None
) -> Snapshot:
    """`source`'s working tree, or its revision `rev`, and the submodules that are there, as objects in the directory
    `store`, which may be there already and be in use. The overlays are submodules of a directory of ours, or in the
    place of the submodule that they are. Before files are read, `large` gets the untracked ones of the working tree
    that look like data, with their sizes in bytes, the largest first. Raises CheckoutError, Blocked."""
    objects = ObjectStore(store)
    with objects.locked():
        make_repository(str(objects.path))
        (objects.recorded / "pack").mkdir(parents=True, exist_ok=True)
        os.utime(objects.path)  # it is in use
        objects.borrow(objects.recorded)
        parts = _overlaid(objects, _record(objects, source, "", rev, large), overlays)
    conversions = tuple(found for part in parts for found in part.checkout.conversions)
    checkout = replace(parts[0].checkout, path=str(source), flat=parts[0].flat, conversions=conversions)
    return Snapshot(checkout, tuple(parts), objects.path)


def _record(store: ObjectStore, source: Path, path: str, rev: str | None, large: OnLarge = None) -> list[SnapshotPart]:
    """What is in `source`, which is at `path` of the checkout, and the repositories in it."""
    repository, absent = find_repository(source), Entries()
    if repository:
        store.borrow(repository.objects)
    base: str | Path = store.path / f"index-{hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]}"
    if rev:
        base = resolve_rev(source, rev)
        walk = ("rev-list", "--objects", "--no-object-names", "--no-walk", "--missing=print", base)
        if missing := [line for line in store.reader.text(*walk).splitlines() if line.startswith("?")]:
            what = f"{source} has {counted(len(missing), 'missing blob')} in {rev}"
            raise CheckoutError(what, hint=hint_of_git(what))
        modules: Mapping[bytes, str | None] = submodules_of(store.reader, base)
    else:
        started = time.time_ns() - _CLOCK_NS
        files, repositories, absent = _listed(store, source, repository, large)
        _update_index(store, source, Path(base), files, started)
        modules = dict.fromkeys(repositories)
    flats, links, inside = Flats(), Entries(), list[SnapshotPart]()
    for name, module_rev in sorted(modules.items()):
        below, flats[name] = os.fsdecode(name), None
        if (source / below / ".git").exists():
            made = _record(store, source / below, f"{path}/{below}".lstrip("/"), module_rev)
            flats[name], links[name] = made[0].flat, (_LINK, made[0].checkout.commit)
            inside += made
    tree = store.compose(base, {} if rev else {**absent, **links}, {})
    flats |= {name: None for name, entry in absent.items() if entry and entry[0] == _LINK}
    left_out = {name: entry for name, entry in absent.items() if name not in flats}
    flat = store.compose(base, left_out, flats) if flats else tree
    return [SnapshotPart(path, _described(store, path, tree, rev, repository), flat, repository), *inside]


def _described(store: ObjectStore, path: str, tree: str, rev: str | None, repository: Repository | None) -> Checkout:
    """The commit with this tree, and what differs from the one below it."""
    head, before = repository.head if repository else ("", "")
    if rev and repository:
        head, before = resolve_rev(repository.top, rev), tree
    if head and before == tree:
        return Checkout("", head, tree, (), head)
    commit, dirty = store.commit(tree, head, "The working tree, as ci-tasks found it"), list[str]()
    if repository:
        before = before or store.writer.text("mktree")
        names = store.reader.split("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, tree)
        # For people and for JSON, which has no words for bytes that are no text.
        dirty = [name.decode("utf-8", "backslashreplace") for name in names]
    conversions = lfs_files(store.reader, head, path, dirty) if head else ()
    return Checkout("", commit, tree, tuple(dirty), head, conversions=conversions)


def _overlaid(store: ObjectStore, parts: list[SnapshotPart], overlays: Sequence[OverlaySource]) -> list[SnapshotPart]:
    if not overlays:
        return parts
    (top, *inside), made, flats, links = parts, list[Overlay](), Flats(), Entries()
    for overlay in overlays:
        path = overlay.submodule or f"{OVERLAYS}/{overlay.name}"
        found = _record(store, Path(overlay.path), path, overlay.rev)
        inside = [part for part in inside if not f"{part.path}/".startswith(f"{path}/")] + found
        if not overlay.submodule:
            made.append(_described_overlay(overlay, path, found[0].checkout, store.path))
        flats[os.fsencode(path)] = found[0].flat
        links[os.fsencode(path)] = (_LINK, found[0].checkout.commit)
    check_distinct(made)
    own, tree = top.checkout, store.compose(top.checkout.tree, links, {})
    commit = store.commit(tree, own.commit, "The same with its overlays")
    checkout = replace(own, commit=commit, tree=tree, overlays=tuple(made), own_tree=own.tree)
    return [replace(top, checkout=checkout, flat=store.compose(top.flat, {}, flats)), *inside]


def _listed(
    store: ObjectStore, source: Path, repository: Repository | None, large: OnLarge
) -> tuple[dict[bytes, int], set[bytes], Entries]:
    """By names from `source`: the files and links that are there, each with its ctime in ns; the repositories; and
    what stays as committed: what a sparse checkout left out, and submodules that were never fetched."""
    top, none = os.fsencode(os.path.realpath(source)) + b"/", str(store.path / "none")
    if repository:
        git = repository.git
    else:
        git = CheckoutGit(store.path, source, f"core.excludesFile={user_excludes()}", GIT_INDEX_FILE=none)
    modules, names, absent = set[bytes](), set[bytes](), Entries()
    with git.started(*_OTHERS, input=b"") as walking:
        for line in git.split("ls-files", "-z", "-t", "--stage") if repository else ():
            info, name = line.split(b"\t", 1)
            tag, mode, oid, _ = info.split()
            is_link = mode == b"160000"
            if is_link and os.path.lexists(top + name + b"/.git"):
                modules.add(name)
            elif (is_link or tag == b"S") and _is_left_out(top + name, is_link):
                absent[name] = (int(mode, 8), oid.decode())
            elif is_link and os.path.isdir(top + name):  # not a repository any more
                without_index = copy(git)
                without_index.env = {**git.env, "GIT_INDEX_FILE": none}
                names |= set(without_index.split(*_OTHERS, "--", f":(literal){os.fsdecode(name)}"))
            else:
                names.add(name)
        others = walking.communicate()[0].split(b"\0")[:-1]
    if large:
        large(_large(source, others))
    modules |= {name[:-1] for name in others if name.endswith(b"/")}
    names |= {name for name in others if not name.endswith(b"/")}
    return _present(top, names), modules, absent


def _update_index(store: ObjectStore, source: Path, index: Path, files: Mapping[bytes, int], started: int) -> None:
    """Bring our index to the files. git compares their times in whole seconds: those whose ctime, which no process
    can set, is not older than the index are read again."""
    env = {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(store.recorded)}
    git = CheckoutGit(store.path, source, **env)
    index.with_name(f"{index.name}.lock").unlink(missing_ok=True)  # of a killed command: we have the store's lock
    written = index.stat().st_mtime_ns if index.exists() else 0
    known = set(git.split("ls-files", "-z")) if written else set()
    edit_index(git, dict.fromkeys(read := {name for name in known if files.get(name, written) >= written}))
    # Of few, one git looks at all as quickly as another one that lists those that changed.
    read |= {*git.split("diff-files", "--name-only", "-z")} if len(known) > 2000 else known
    read = {*files} - known | {*files} & read
    add = "update-index", "--add", "--remove"
    # git would compress large files, which it only has to hash.
    hashing = CheckoutGit(store.path, source, "core.bigFileThreshold=1024g", GIT_INDEX_FILE=str(index))
    hashing.run(*add, "--info-only", "-z", "--stdin", input=b"".join(name + b"\0" for name in sorted(read)))
    entries = [line.split(b"\t", 1) for line in git.split("ls-files", "--stage", "-z")]
    wanted = b"".join(info.split()[1] + b"\n" for info, _ in entries)
    answers = store.reader.run("cat-file", "--batch-check", "--buffer", input=wanted).splitlines()
    missing = [entry[1] for entry, answer in zip(entries, answers, strict=True) if answer.endswith(b" missing")]
    edit_index(git, dict.fromkeys(missing))
    if missing:
        git.run(*add, "-z", "--stdin", input=b"".join(name + b"\0" for name in missing))
    if index.exists():
        os.utime(index, ns=(started, started))


def _present(top: bytes, names: Collection[bytes]) -> dict[bytes, int]:
    """The ctime of each of the files and links that are there, below directories and not below links, in ns."""
    above = {name: (top + name).rpartition(b"/")[0] for name in names}
    plain, found = {each for each in set(above.values()) if os.path.realpath(each) == each}, dict[bytes, int]()
    for name, directory in above.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            info = os.lstat(top + name)
            if directory in plain and stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFLNK):
                found[name] = info.st_ctime_ns
    return found


def _is_left_out(path: bytes, is_link: bool) -> bool:
    """Whether a sparse checkout did leave the file out, or the submodule was never fetched: it stays as committed."""
    if is_link and os.path.isdir(path) and not os.path.islink(path):
        return not os.listdir(path)
    if os.path.lexists(path):
        return False
    while not os.path.lexists(path):
        path = path.rpartition(b"/")[0]
    return os.path.isdir(path) and not os.path.islink(path)  # nothing else is in the place of a directory above


def _large(directory: Path, names: Sequence[bytes]) -> list[tuple[str, int]]:
    sizes = dict[str, int]()
    for name in map(os.fsdecode, names):
        with suppress(OSError):  # it has gone meanwhile
            sizes[name] = os.lstat(directory / name).st_size
    return sorted(((name, size) for name, size in sizes.items() if size >= LARGE_BYTES), key=lambda file: -file[1])


# -- a snapshot elsewhere: the pack for a host, or a workspace here ----------------------------------------------------

_OLD = 14 * 86400.0  # seconds
_WHY = "What a host has"
# `--shallow`: compare also with commits that are no ancestors, and take the listed ones for parentless.
_PACK = ("pack-objects", "--stdout", "--revs", "--thin", "--shallow", "--delta-base-offset", "-q")


def thin_pack(snapshot: Snapshot, have: Sequence[str]) -> Iterator[bytes]:
    """The pack of `snapshot` for a host that has the trees `have`, the newest first. Trees that are not here any more
    do not matter."""
    store = ObjectStore(snapshot.store)
    # git takes only the trees of commits as bases of differences.
    answers = store.reader.text("cat-file", "--batch-check", input="".join(f"{tree}\n" for tree in have).encode())
    present = [line.split()[0] for line in answers.splitlines() if line.split()[1] == "tree"]
    bases = [store.commit(tree, "", _WHY) for tree in present[:1]]  # a second one takes longer than it saves
    commits = sorted({store.commit(snapshot.flat, "", _WHY), *(part.checkout.commit for part in snapshot.parts)})
    lines = [*(f"--shallow {name}" for name in (*commits, *bases)), *commits, *(f"^{base}" for base in bases)]
    yield from store.reader.stream(*_PACK, input="".join(f"{line}\n" for line in lines).encode())


def prune_store(store: Path) -> None:
    """Remove the store of a checkout that was not used for long; of another one what was recorded long ago: objects
    that are still needed come back."""
    objects, before = ObjectStore(store), time.time() - _OLD
    is_unused = store.stat().st_mtime < before
    with suppress(Blocked), objects.locked(timeout=0):
        if is_unused:
            shutil.rmtree(store, ignore_errors=True)
            return
        for file in store.glob("recorded/pack/*"):
            if file.stat().st_mtime < before:
                file.unlink()
        objects.writer.run("prune", f"--expire={_OLD:.0f}.seconds.ago")


def materialize(
    source: Path, workspace: Path, *, rev: str | None, base: str | None = None, overlays: Sequence[OverlaySource] = ()
) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree proven equal. Raises CheckoutError, Blocked.
    """
    workspace = workspace.absolute()
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recorded-", dir=workspace.parent) as scratch:
        snapshot = take_snapshot(source, Path(scratch, "store"), rev=rev, overlays=overlays)
        clone(snapshot, workspace)
    for part in snapshot.parts:
        top_base = resolve_rev(source, base) if base and not part.path else None
        own_base = commit_of(part.repository.git, BASE) if part.repository else part.checkout.commit
        if origin := top_base or own_base:
            CheckoutGit(workspace / part.path / ".git").run("update-ref", f"refs/remotes/{BASE}", origin)
    return snapshot.checkout


def clone(snapshot: Snapshot, workspace: Path) -> None:
    """Make `workspace` the snapshot, with the history of its repositories. Raises CheckoutError, Blocked."""
    from ci_tasks.agent.workspace import check_out  # commands that only look need none

    store, repositories = ObjectStore(snapshot.store), {part.path: part.repository for part in snapshot.parts}

    def lend(part: CheckoutPart, git_dir: str) -> None:
        """Copies of the objects that we recorded, the others where they are, and where the history ends."""
        if not part.path:
            shutil.copytree(store.recorded, Path(git_dir, "objects"), dirs_exist_ok=True)
            Path(git_dir, "objects/info/alternates").write_bytes(os.fsencode("\n".join([*store.lenders[1:], ""])))
        repository = repositories[part.path]
        if repository and (shallow := repository.common / "shallow").exists():
            shutil.copyfile(shallow, Path(git_dir, "shallow"))

    try:
        check_out(str(snapshot.store), snapshot.checkout_parts, str(workspace), lend)
    except DiskFull as error:
        raise Blocked(str(error)) from None
    except StoreError as error:
        message = f"the copy of {snapshot.checkout.path} is not its tree: {error}"
        raise CheckoutError(message, hint=hint_of_git(str(error))) from None


def copy_side_by_side(trees: Mapping[str, Path], into: Path, revisions: Mapping[str, str]) -> dict[str, Checkout]:
    """Copy each working tree, uncommitted files and submodules included, to `into`/NAME, without its repository; if
    `revisions` has NAME, its tree at that revision instead.

    Returns what each of them is: commit, tree and the files that differ from the commit. Raises CheckoutError.
    """
    checkouts = {}
    for name, source in trees.items():
        checkouts[name] = materialize(source, into / name, rev=revisions.get(name))
        for git in [*(into / name).rglob(".git")]:
            shutil.rmtree(git) if git.is_dir() and not git.is_symlink() else git.unlink()
    return checkouts


def all_conversions(checkouts: Mapping[str, Checkout]) -> tuple[Conversion, ...]:
    """What CI's checkout would convert of each tree, every path below its tree's name."""
    pairs = ((name, found) for name, checkout in checkouts.items() for found in checkout.conversions)
    return tuple(replace(found, files=tuple(f"{name}/{file}" for file in found.files)) for name, found in pairs)


# -- what differs from CI: overlays and files of Git LFS ---------------------------------------------------------------


def _described_overlay(source: OverlaySource, path: str, tree: Checkout, git_dir: Path) -> Overlay:
    """What is laid over; `tree` is in `git_dir`, and at `path` of the workspace. Raises CheckoutError."""
    names = CheckoutGit(git_dir).null_separated("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree.tree)
    layout, modules = find_modules(source, [name for name in names if name.endswith(".py")])
    where = f"{path}/{layout}".rstrip("/")
    named = source.path, tree.commit, tree.tree, tree.dirty, tree.head, source.rev, source.name
    return Overlay(*named, directory=where, modules=modules)


def check_distinct(overlays: Sequence[Overlay]) -> None:
    """Raises CheckoutError for a package that two of them have: only one could be imported."""
    owners: dict[str, Overlay] = {}
    for overlay in overlays:
        for module in overlay.modules:
            if (other := owners.setdefault(module, overlay)) is not overlay:
                message = f"--with {other.name} and --with {overlay.name} both have the package {module}"
                raise CheckoutError(message, hint=f"use only one of: {other.path} or {overlay.path}")


def find_modules(source: OverlaySource, names: list[str]) -> tuple[str, tuple[str, ...]]:
    """The directory with the package, and the package, by the tree's Python files; for a namespace package, the parts
    that are there. Raises CheckoutError."""
    normal = re.sub("[-_.]+", "-", source.name).lower()
    wanted = _IMPORTED_AS.get(normal, source.name if "." in source.name else source.name.replace("-", "_"))
    top, files, found = wanted.partition(".")[0], set(names), set[str]()
    for layout in _LAYOUTS:
        if f"{layout}{wanted}.py" in files or f"{layout}{top}/__init__.py" in files:
            return layout, (top,)
        below = [name[len(layout) :].split("/") for name in files if name.startswith(layout)]
        parts = {path[1].removesuffix(".py" * (len(path) == 2)) for path in below if path[0] == top and path[1:]}
        modules = tuple(sorted(f"{top}.{part}" for part in parts if part.isidentifier()))
        if wanted in (top, *modules) and modules:
            return layout, modules
        found |= {path[0] for path in below if path[1:] and path[0].isidentifier()}
    at_rev, found = f" at {source.rev}" if source.rev else "", found - {"src", "python"}
    hint = f"it has {', '.join(sorted(found)[:12]) or 'no Python package in its root, src or python'}"
    raise CheckoutError(f"--with {source.name}: {source.path}{at_rev} has no Python package {wanted!r}", hint=hint)


def lfs_files(git: CheckoutGit, head: str, path: str, dirty: Sequence[str]) -> tuple[Conversion, ...]:
    """The files of the repository at `path` for which the commit `head` has a pointer of Git LFS, and the tree that
    runs has something else."""
    if "filter=lfs" not in (git.text_or_none("show", f"{head}:.gitattributes") or ""):
        return ()
    listed = git.text_or_none("grep", "-l", "-z", "-e", "^version https://git-lfs.github.com/spec/", head) or ""
    pointers = {name.partition(":")[2] for name in listed.split("\0")}
    files = [f"{path}/{name}".lstrip("/") for name in dirty if name in pointers]
    return (Conversion(LFS, len(files), tuple(files[:_MAX_FILES])),) if files else ()
