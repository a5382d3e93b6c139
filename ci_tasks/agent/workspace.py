"""A host's object store and the workspaces that are made of it: a directory becomes exactly a tree, is proven to be it,
gets the job's repositories, and is kept for later runs.

The store is a repository of packs, without references. Nothing in it is precious: one that is damaged or old is
emptied, and the client sends everything again.

A workspace has an index outside of it. Whatever was done to a file since that index was written has changed the file's
ctime, which no process can set: such a file is removed before git looks, and so is what is not of the tree, each `.git`
included. git writes what is missing. The proof believes none of this: every file is hashed into new indexes, which must
not differ from the tree that was asked for. Of a workspace that is kept for a retry, only the tree's own files are.

The workspace HOME/runs/…/workspace of a run has a slot in HOME/workspaces, which no job is given: there is the index of
what was checked out. After the run, the workspace itself is there too, under the name of its checkout: only files that
differ are written for the next run, which takes it by one rename, so no two have the same one. Whatever a job, or
another process of the account, makes of it decides only how much is written: what cannot be made the tree is replaced.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import BinaryIO, Callable, Iterator, List, Sequence, Set, Tuple

from . import processes
from .containers import mounted_below, remove_own
from .files import LockTimeout, content_of, file_lock, replace_file
from .git import FULL_ERRORS, DiskFull, Git, MissingBase, StoreError, make_repository, quoted
from .records import CheckoutPart, Retry
from .run_directory import RunDir, read_status_if_readable

_MAX_FILES = 80  # of packs, two of each; each of them is copied into every workspace, and searched for every object
_LATER_NS = 2 * 10**9  # git reads files again that are not older than their index, in whole seconds
_MAX_IDLE = 2  # of a checkout
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_IN_USE_S = 86400.0  # seconds that a run's slot is kept longer than a slot without a run

Lend = Callable[[CheckoutPart, str], None]  # gives the job's git directory of a part the objects


class NotKept(Exception):
    """The workspace cannot be continued; the message says why."""


class TreeStore:
    """The store in the directory `path`. Several processes may use it at once. None waits for another for more than
    `lock_timeout` seconds."""

    def __init__(self, path: str, lock_timeout: float = 120.0) -> None:
        self.path, self.lock_timeout = os.path.abspath(path), lock_timeout
        self._packs = os.path.join(self.path, "objects", "pack")
        self._lock_file = os.path.join(self.path, "lock")
        self._verified = os.path.join(self.path, "verified")

    def receive(self, pack: BinaryIO) -> None:
        """Store a pack. Raises MissingBase if it builds on objects that are not here, and StoreError; nothing of it
        stays then."""
        try:
            with self._locked():
                self._verify()
                Git(self.path).run("index-pack", "--stdin", "--fix-thin", input=pack)
                self._note_verified()  # this one, too
        except BaseException:
            with suppress(LockTimeout), file_lock(self._lock_file, exclusive=True, timeout=0):
                self._remove_partial_packs()
            raise

    def check_out(self, parts: Sequence[CheckoutPart], workspace: str, checkout: str = "") -> None:
        """Replace `workspace` by a checkout of its parts, and prove that it is exactly their tree. It may be made of an
        idle one of `checkout`, the path where they come from.

        Raises MissingBase if objects are not here, and StoreError; there is no workspace then.
        """
        with self._locked():
            self._verify()
            check_out(self.path, parts, os.path.abspath(workspace), self._lend, checkout)

    def update(self, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str) -> None:
        """Bring the `workspace` of an ended run to the parts for the retry in `run_dir`; what the job made there stays,
        but for its `.git`. Raises as `check_out` does, and NotKept."""
        workspace = os.path.abspath(workspace)
        with self._locked():
            self._verify()
            # Beside the workspace: the retry that has, or had, it last, and the tree that it made, "" if it broke off.
            note, own = os.path.join(os.path.dirname(workspace), "retries"), retry.directories[-1]
            last, _, before = (os.fsdecode(content_of(note)) or "%s\n%s" % (own, retry.tree)).partition("\n")
            for run in (own, last):
                if processes.is_alive(RunDir(run), read_status_if_readable(RunDir(run))):
                    raise NotKept("the run has not ended" if run == own else "another retry runs in its workspace")
            if os.path.islink(workspace) or not os.path.isdir(os.path.join(workspace, ".git")):
                raise NotKept("its workspace %s is gone" % workspace)
            if not before:
                raise NotKept("an earlier retry was interrupted while it changed the workspace")
            tree = parts[0].flat or parts[0].tree
            with tempfile.TemporaryDirectory(prefix="ci-tasks-") as scratch:
                index, theirs = os.path.join(scratch, "index"), quoted(os.path.join(workspace, ".git/objects"))
                git = Git(self.path, workspace, GIT_INDEX_FILE=index, GIT_ALTERNATE_OBJECT_DIRECTORIES=theirs)
                git.run("read-tree", before)
                git.run("update-index", "-q", "--refresh")
                changed = set(git.split("diff-files", "--name-only", "-z"))
                changed -= set(git.split("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, tree))
                if changed:
                    names = ", ".join(repr(os.fsdecode(name)) for name in sorted(changed)[:5])
                    raise NotKept("files of the checkout have changed since: " + names)
                replace_file(note, os.fsencode(run_dir + "\n"))
                write_workspace(self.path, parts, workspace, index, self._lend, keep_files=True)
            replace_file(note, os.fsencode(run_dir + "\n" + tree))

    def prune(self, days: float) -> bool:
        """Remove what killed processes left, empty a store that is older than `days` days, and make one pack of many.
        Returns False, having done nothing, while other processes use the store."""
        os.makedirs(self.path, exist_ok=True)
        try:
            with file_lock(self._lock_file, exclusive=True, timeout=0):
                make_repository(self.path)
                self._remove_partial_packs()
                if os.stat(os.path.join(self.path, "config")).st_mtime < time.time() - days * 86400:
                    self._empty()
                elif len(os.listdir(self._packs)) > _MAX_FILES:
                    Git(self.path).run("repack", "-a", "-d", "-k", "-q")
        except LockTimeout:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store is there, and is not pruned meanwhile. One that is not complete is emptied: then a pack that has
        everything is sure to do. Workspaces have copies of their own."""
        born, head = 0, os.path.join(self.path, "HEAD")
        try:
            os.makedirs(self.path, exist_ok=True)
            with file_lock(self._lock_file, exclusive=False, timeout=self.lock_timeout):
                make_repository(self.path)
                born = os.stat(head).st_mtime_ns
                yield
        except LockTimeout:
            raise StoreError("%s was locked by another process for %.0f s" % (self.path, self.lock_timeout)) from None
        except (OSError, MissingBase) as error:
            if isinstance(error, OSError):
                if error.errno in FULL_ERRORS:
                    raise DiskFull("%s: %s" % (error.filename or self.path, error.strerror)) from None
                is_elsewhere = error.filename and not os.fsdecode(error.filename).startswith(self.path)
                if is_elsewhere or error.errno in _OF_PROCESS:
                    raise  # it says nothing of the store
            with file_lock(self._lock_file, exclusive=True, timeout=self.lock_timeout):
                # Another process that met the same fault may have emptied it, and everything may be here by now.
                if born == 0 or not os.path.exists(head) or os.stat(head).st_mtime_ns == born:
                    self._empty()
            raise MissingBase(str(error)) from None

    def _verify(self) -> None:
        """Let git read the packs that changed since it read all of them."""
        since = os.lstat(self._verified).st_mtime_ns if os.path.exists(self._verified) else 0
        changed = {
            index
            for pack, index in self._complete_packs()
            for file in (pack, index)
            if os.lstat(file).st_ctime_ns > since
        }
        if changed:
            Git(self.path).run("verify-pack", *sorted(changed))
            self._note_verified()

    def _complete_packs(self) -> List[Tuple[str, str]]:
        """Packs and their indexes. git gives a pack its index last: others are on their way, and are renamed."""
        indexes = [os.path.join(self._packs, name) for name in os.listdir(self._packs) if name.endswith(".idx")]
        return [(index[:-4] + ".pack", index) for index in indexes]

    def _note_verified(self) -> None:
        open(self._verified, "w").close()

    def _lend(self, part: CheckoutPart, git_dir: str) -> None:
        """Copies, not links: what a job writes to its own repository would be what the next one is checked out of."""
        replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
        for file in () if part.path else chain.from_iterable(self._complete_packs()):
            copy = shutil.copyfile(file, os.path.join(git_dir, "objects/pack", os.path.basename(file)))
            os.chmod(copy, 0o444)

    def _remove_partial_packs(self) -> None:
        for name in os.listdir(self._packs):
            if name.startswith("tmp_"):
                os.unlink(os.path.join(self._packs, name))

    def _empty(self) -> None:
        for name in set(os.listdir(self.path)) - {"lock"}:
            remove(os.path.join(self.path, name))
        make_repository(self.path)


# -- a workspace becomes a tree ----------------------------------------------------------------------------------------


def write_workspace(
    store: str, parts: Sequence[CheckoutPart], workspace: str, index: str, lend: Lend, keep_files: bool = False
) -> None:
    """Make the directory `workspace` the parts, whose objects the git directory `store` has. `index` is of the files in
    it, or a name for one. With `keep_files`, files that belong to no tree stay. Raises StoreError, OSError."""
    tree, git = parts[0].flat or parts[0].tree, Git(store, workspace, GIT_INDEX_FILE=index)
    remove(index + ".lock")
    # The proof is of files: the job's own git gets the objects, also of files that were there before.
    with git.started("rev-list", "--objects", "--quiet", *{tree, *(part.tree for part in parts)}, input=b""):
        names = git.split("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
        if not keep_files:
            make_plain(workspace, set(names), index)
        git.run("read-tree", "--reset", "-u", tree)
        now = os.lstat(index).st_mtime_ns
        os.utime(index, ns=(now, now + _LATER_NS))
        _prove(git, index + ".proof", names, tree, keep_files)
    for part in parts:
        if git.text("rev-parse", part.commit + "^{tree}") != part.tree:
            problem = "the commit %s does not have the tree %s" % (part.commit, part.tree)
            raise StoreError(problem) if keep_files else MissingBase(problem)
        _make_repository(workspace, index, part, lend)
        if part.path:
            above = [each for each in parts if part.path.startswith(os.path.join(each.path, "")) and each is not part]
            around = max(above, key=lambda each: len(each.path))
            name = os.path.relpath(part.path, around.path or ".")
            named = git.text("rev-parse", "%s:%s" % (around.tree, name))
            if named != part.commit:
                words = (around.tree, named, part.path, part.commit)
                raise StoreError("the tree %s names %s for %s, not %s" % words)


def _prove(store: Git, index: str, names: Sequence[bytes], tree: str, keep_files: bool) -> None:
    """Raises StoreError unless the workspace has the files `names` of `tree`, and, without `keep_files`, nothing else.
    Then other objects may help: MissingBase. `index` is the start of names for new ones."""
    files, directories = (names, _parents_of(names)) if keep_files else _list(os.fsencode(store.directory))
    count = 1 + (len(files) > 2000)  # a process hashes on one core; of few files another one takes longer than it saves
    # git would compress large files, which it only has to hash.
    hashing = partial(Git, store.env["GIT_DIR"], store.directory, "core.bigFileThreshold=1024g")
    halves = [(hashing(GIT_INDEX_FILE=index + str(n)), files[n::count]) for n in range(count)]
    differ, add = set(files) ^ set(names), ("update-index", "--add", "--remove", "--info-only", "-z", "--stdin")
    with ExitStack() as running:
        for git, half in halves:
            remove(git.env["GIT_INDEX_FILE"])
            running.enter_context(git.started(*add, input=b"".join(name + b"\0" for name in half)))
    for git, half in halves:
        # Each object of the tree was hashed when it came. `write-tree` would write all of them again, a file each.
        differ |= {*git.split("diff-index", "--cached", "-z", "--name-only", tree)} - ({*files} - {*half})
        remove(git.env["GIT_INDEX_FILE"])
    if differ or directories != _parents_of(names):
        raise (StoreError if keep_files else MissingBase)("%s is not the tree %s" % (store.directory, tree))


def _list(top: bytes) -> Tuple[List[bytes], Set[bytes]]:
    """What is no directory, in git's order, and the directories, by their paths in `top`."""
    files, directories = [], set()
    for above, names, others in os.walk(top):
        below = os.path.join(above, b"")[len(top) + 1 :]
        links = {name for name in names if os.path.islink(os.path.join(above, name))}
        files += [below + name for name in (*others, *links)]
        directories |= {below + name for name in names if name not in links}
    return sorted(files), directories


def _parents_of(files: Sequence[bytes]) -> Set[bytes]:
    """The directories that the files are in."""
    parents: Set[bytes] = set()
    for path in files:
        while (path := os.path.dirname(path)) and path not in parents:
            parents.add(path)
    return parents


def make_plain(workspace: str, files: Set[bytes], index: str) -> None:
    """Leave only files and links of these names that did not change since `index` was written, in directories that are
    as new ones. Raises StoreError if that is not possible, and OSError."""
    written = os.lstat(index).st_mtime_ns - _LATER_NS if os.path.exists(index) else 0
    top, directories = os.fsencode(workspace), _parents_of(list(files))
    new = b"%s-%s" % (top, os.urandom(8).hex().encode("ascii"))
    os.mkdir(new)
    like = _nature(new)
    os.rmdir(new)
    if _nature(top) != like or mounted_below(os.path.realpath(workspace)):
        raise StoreError("%s differs from a new directory" % workspace)
    unread = [b""]
    while unread:
        above = unread.pop()
        for item in [*os.scandir(os.path.join(top, above))]:
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
    # Containers give files another label of SELinux.
    more = [name for name in os.listxattr(directory, follow_symlinks=False) if name != "security.selinux"]
    return info.st_mode, info.st_uid, info.st_gid, info.st_dev, more


def remove(path: str) -> None:
    """Raises StoreError if something is left, or a file system is mounted there."""
    problem = "a file system is mounted in it" if mounted_below(os.path.realpath(path)) else remove_own(path)
    if problem:
        raise StoreError("%s cannot be removed: %s" % (path, problem))


def _make_repository(workspace: str, index: str, part: CheckoutPart, lend: Lend) -> None:
    """The job's own, at the part's path."""
    directory = os.path.join(os.path.realpath(workspace), part.path).rstrip("/")
    if os.path.isabs(part.path) or os.path.realpath(directory) != directory:
        raise StoreError("%s leads elsewhere" % directory)
    os.makedirs(directory, exist_ok=True)
    git_dir = os.path.join(directory, ".git")
    remove(git_dir)
    make_repository(git_dir)
    replace_file(os.path.join(git_dir, "HEAD"), part.commit.encode("ascii") + b"\n")
    if part.path:
        up = "/".join([".."] * (part.path.count("/") + 3))  # from its objects to the checkout
        replace_file(os.path.join(git_dir, "objects/info/alternates"), os.fsencode(up + "/.git/objects\n"))
    else:
        replace_file(os.path.join(git_dir, "index"), content_of(index))
    lend(part, git_dir)
    git = Git(git_dir, directory)
    if part.path or part.flat not in ("", part.tree):
        git.run("read-tree", "-m", part.tree)
        for entry in git.split("ls-files", "--stage", "-z"):
            if entry.startswith(b"160000 "):  # as git leaves one that was not fetched
                os.makedirs(os.path.join(directory, os.fsdecode(entry.split(b"\t", 1)[1])), exist_ok=True)
    if part.path:
        git.run("update-index", "-q", "--refresh")


# -- idle ones ---------------------------------------------------------------------------------------------------------


def check_out(store: str, parts: Sequence[CheckoutPart], workspace: str, lend: Lend, checkout: str = "") -> None:
    """Replace `workspace` by the parts: of an idle one of `checkout`, the path where they come from, or a new one.
    Leaves nothing if it raises: MissingBase if other objects may help, StoreError, OSError."""
    remove(workspace)
    os.makedirs(os.path.dirname(workspace), exist_ok=True)
    slot = slot_of(workspace) if checkout else ""
    own = slot or tempfile.mkdtemp(prefix="ci-tasks-")
    write = partial(write_workspace, store, parts, workspace, os.path.join(own, "index"), lend)
    try:
        if not (slot and _reuse(slot, _key(checkout), workspace, write)):
            os.mkdir(workspace)
            make_repository(own)
            write()
    except BaseException as error:
        remove(workspace)
        remove(own)
        if isinstance(error, DiskFull) and slot and prune(os.path.dirname(slot), time.time()):
            check_out(store, parts, workspace, lend, checkout)
        else:
            raise
    if not slot:
        remove(own)


def slot_of(workspace: str) -> str:
    """The slot of a run's workspace; "" for one that is not below a directory `runs`."""
    path = os.path.join(os.path.realpath(os.path.dirname(workspace)), os.path.basename(workspace))
    home, runs, _ = path.rpartition("/runs/")
    return os.path.join(home, "workspaces", _key(path)) if runs else ""


def _reuse(slot: str, key: str, workspace: str, write: Callable[[], None]) -> bool:
    """Make the newest idle one of the checkout `workspace`, its slot `slot`, and `write` into it."""
    remove(slot)
    for other in reversed(_slots(os.path.dirname(slot), key + "-")):
        with suppress(OSError, StoreError):
            os.rename(other, slot)  # fails if another run has taken it
            os.rename(os.path.join(slot, "workspace"), workspace)
            write()
            return True
        if os.path.lexists(workspace):  # there may be what cannot be removed
            os.rename(workspace, os.path.join(slot, "workspace"))
        _discard(slot)
    return False


def release(workspace: str, checkout: str) -> None:
    """Let another run have the workspace of an ended one, without what its job has made there. Raises StoreError,
    OSError; the workspace is where it was then."""
    slot, key = slot_of(workspace), _key(checkout) + "-"
    make_plain(workspace, set(Git(slot).split("ls-files", "-z")), os.path.join(slot, "index"))
    os.rename(workspace, os.path.join(slot, "workspace"))
    os.rename(slot, os.path.join(os.path.dirname(slot), key + os.path.basename(slot)))
    for old in _slots(os.path.dirname(slot), key)[:-_MAX_IDLE]:
        _discard(old)


def forget(workspace: str) -> None:
    """Remove the slot of a workspace that goes."""
    _discard(slot_of(workspace))


def prune(directory: str, unused_since: float) -> bool:
    """Remove those in HOME/workspaces that were unused since then, of any checkout. Returns whether there were any."""
    since = {True: unused_since, False: unused_since - _IN_USE_S}  # idle or in use
    old = [slot for slot in _slots(directory) if os.lstat(slot).st_mtime < since["-" in os.path.basename(slot)]]
    return sum(map(_discard, old)) > 0


def _discard(slot: str) -> bool:
    """Remove it, or at least give it a name that no run takes. Returns whether it is gone."""
    away = os.path.join(os.path.dirname(slot), "removed-" + os.urandom(8).hex())
    with suppress(OSError, StoreError):
        os.rename(slot, away)
        remove(away)
        return True
    return False


def _key(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _slots(directory: str, start: str = "") -> List[str]:
    """Those whose names start so, the newest last."""
    with suppress(FileNotFoundError):
        entries = sorted(os.scandir(directory), key=lambda entry: entry.stat().st_mtime)
        return [entry.path for entry in entries if entry.name.startswith(start)]
    return []
