"""Where recordings put their objects: a git directory of ours that borrows those of the repositories it has read.

New objects go into `recorded`, which borrows nothing, since git renews the times of objects that it finds while it
writes. What reads them reads the repositories' own too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ci_tasks.agent.file_lock import LockTimeout, file_lock
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.trees.repositories import make_repository, quoted
from ci_tasks.checkout.git import Git
from ci_tasks.errors import Blocked

_LOCK_TIMEOUT_S = 60.0


class ObjectStore:
    """The git directory `path`. Two commands may use it, and take turns to record."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.recorded = self.path / "recorded"

    @contextmanager
    def locked(self, timeout: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """No other command records, or prunes. Raises Blocked."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with file_lock(str(self.path / "lock"), exclusive=True, timeout=timeout):
                yield
        except LockTimeout:
            raise Blocked(
                f"another command has held {self.path} for more than {timeout:.0f} s", hint="is one of them hanging?"
            ) from None

    def prepare(self, form: str) -> None:
        """Make it ready for objects with names of this form."""
        if not make_repository(str(self.path), form):  # another repository has come into the checkout's place
            for name in set(os.listdir(self.path)) - {"lock"}:
                path = self.path / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            make_repository(str(self.path), form)
        (self.recorded / "pack").mkdir(parents=True, exist_ok=True)
        self.borrow(self.recorded)

    @property
    def lenders(self) -> list[str]:
        """Directories of objects, as git wants them in a list: `recorded`, and those that are borrowed."""
        file = self.path / "objects/info/alternates"
        return os.fsdecode(file.read_bytes()).splitlines() if file.exists() else []

    def borrow(self, objects: Path) -> None:
        """Also those that are borrowed already: linked worktrees and several checkouts may share a store."""
        line, lines = quoted(str(objects.absolute())), self.lenders
        if line not in lines:
            content = "".join(f"{lender}\n" for lender in (*lines, line))
            replace_file(str(self.path / "objects/info/alternates"), os.fsencode(content))

    def reader(self, index: Path | None = None) -> Git:
        return Git(self.path, env=self._env(index))

    def writer(self, index: Path | None = None) -> Git:
        return Git(self.path, env={**self._env(index), "GIT_OBJECT_DIRECTORY": str(self.recorded)})

    def updater(self) -> Git:
        """git that writes into `recorded`, and reads all."""
        objects = {"GIT_OBJECT_DIRECTORY": str(self.recorded)}
        return Git(self.path, env={**objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(self.lenders)})

    def commit(self, tree: str, parent: str | None, message: str) -> str:
        """Always the same for the same tree and parent, however often they are recorded."""
        return self.updater().text("commit-tree", *(["-p", parent] if parent else []), "-m", message, tree)

    def index(self, source: Path) -> Path:
        """That which remembers the bytes on disk in the directory `source`."""
        return self.path / f"index-{hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]}"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A name for an index that does not stay."""
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=self.path, ignore_cleanup_errors=True) as own:
            yield Path(own) / "index"

    def _env(self, index: Path | None) -> Mapping[str, str]:
        return {"GIT_WORK_TREE": str(self.path), **({"GIT_INDEX_FILE": str(index)} if index else {})}
