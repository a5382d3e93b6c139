"""Where a recording puts its objects: the .git of a clone, or a store that stays. Both read the user's own objects
where those are."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ci_tasks.agent.file_lock import LockTimeout, file_lock
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.trees.objects import object_id
from ci_tasks.agent.trees.repositories import form_of, make_repository
from ci_tasks.checkout.git import IDENTITY, quoted
from ci_tasks.checkout.repository import Repository
from ci_tasks.errors import Blocked

_LOCK_TIMEOUT_S = 60.0


class ObjectTarget(ABC):
    """`root` is the whole of it, submodules included: what is not part of the checkout, if it lies inside."""

    has_base = False  # whether something will look for origin/main there
    remembers = False  # whether its `index` tells which bytes were on disk the last time

    def __init__(self, root: Path, git_dir: Path) -> None:
        self.root = root
        self.git_dir = git_dir

    @abstractmethod
    def prepare(self, repository: Repository | None) -> None:
        """Make it ready for objects of `repository`."""

    @abstractmethod
    def submodule(self, name: str) -> ObjectTarget:
        """The place of the submodule `name`."""

    @contextmanager
    def index(self) -> Iterator[Path]:
        """A name for an index that nobody else uses; git puts its lock beside it."""
        with tempfile.TemporaryDirectory(prefix="index-", dir=self.git_dir, ignore_cleanup_errors=True) as own:
            yield Path(own) / "index"

    def recall(self, index: Path) -> bool:
        """Make `index` the remembered one, with its time: git compares a file's time with it to know which files it has
        to read again."""
        if self.remembers:
            with suppress(FileNotFoundError):
                shutil.copy2(self.git_dir / "index", index)
                return True
        return False

    def remember(self, index: Path) -> None:
        """Keep `index` for the next time."""
        if self.remembers and index.exists():
            beside = index.with_name("kept")
            shutil.copy2(index, beside)
            os.replace(beside, self.git_dir / "index")

    def _borrow(self, repository: Repository) -> None:
        """Adds to what is there, since linked worktrees and several checkouts may share a store."""
        file = self.git_dir / "objects/info/alternates"
        lines = file.read_bytes().splitlines() if file.exists() else []
        new_line = os.fsencode(quoted(str(repository.objects.absolute())))
        if new_line not in lines:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(file), b"\n".join([new_line, *lines]) + b"\n")


class CloneTarget(ObjectTarget):
    """A fresh repository with a work tree: what was there is gone."""

    has_base = True

    def __init__(self, workspace: Path, root: Path | None = None) -> None:
        super().__init__(root or workspace, workspace / ".git")
        self.workspace = workspace

    def prepare(self, repository: Repository | None) -> None:
        if self.workspace.exists():
            shutil.rmtree(self.workspace)
        self.workspace.mkdir(parents=True)
        make_repository(str(self.git_dir), repository.form if repository else "sha1", bare=False)
        if repository:
            self._borrow(repository)
            shallow = repository.common / "shallow"
            if shallow.exists():
                shutil.copyfile(shallow, self.git_dir / "shallow")

    def submodule(self, name: str) -> CloneTarget:
        return CloneTarget(self.workspace / name, self.root)


class ObjectStore(ObjectTarget):
    """A bare repository that stays, for objects that hosts are sent. Two commands may use it at once."""

    remembers = True

    def __init__(self, path: Path, root: Path | None = None) -> None:
        super().__init__(root or path, path)

    def prepare(self, repository: Repository | None) -> None:
        form = repository.form if repository else "sha1"
        self.git_dir.mkdir(parents=True, exist_ok=True)
        with store_locked(self.git_dir):
            if not make_repository(str(self.git_dir), form):
                # Another repository has come into the checkout's place.
                for name in ("objects", "refs", "config", "index"):
                    _remove(self.git_dir / name)
                make_repository(str(self.git_dir), form)
            if repository:
                self._borrow(repository)

    def submodule(self, name: str) -> ObjectStore:
        # Not by its name: there may be a submodule `a` today and another `a/objects` tomorrow.
        return ObjectStore(self.git_dir / "modules" / hashlib.sha256(os.fsencode(name)).hexdigest()[:16], self.root)


def commit_content(tree: str, parent: str | None, message: str) -> tuple[str, bytes]:
    """The name and the content of a commit of ours. Always the same, so that one tree on one parent is one commit,
    however often it is recorded."""
    parents = f"parent {parent}\n" if parent else ""
    content = f"tree {tree}\n{parents}author {IDENTITY}\ncommitter {IDENTITY}\n\n{message}\n".encode()
    return object_id("commit", content, form_of(tree)), content


def write_commit(git_dir: Path, tree: str, parent: str | None, message: str) -> str:
    """As `git commit-tree` does, in a tenth of the time. Returns its name."""
    name, content = commit_content(tree, parent, message)
    file = git_dir / "objects" / name[:2] / name[2:]
    try:
        os.utime(file)  # it is used now: see prune_store
    except FileNotFoundError:
        file.parent.mkdir(exist_ok=True)
        replace_file(str(file), zlib.compress(b"commit %d\0%s" % (len(content), content)))
        file.chmod(0o444)
    return name


@contextmanager
def store_locked(store: Path, timeout: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
    """Nobody else makes the store, or tidies it. Raises Blocked."""
    try:
        with file_lock(str(store / "lock"), exclusive=True, timeout=timeout):
            yield
    except LockTimeout:
        raise Blocked(
            f"another command has held {store} for more than {timeout:.0f} s", hint="is one of them hanging?"
        ) from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
