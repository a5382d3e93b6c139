"""A person who sends trees, a host's store, and the directories of runs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.workspace import TreeStore, release

CHECKOUT = "/home/me/slime"


def git(directory: Path, *argv: str, input: str | None = None) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *argv]
    done = subprocess.run(command, cwd=directory, env=env, input=input, text=True, capture_output=True, check=True)
    return done.stdout


def receive(store: TreeStore, pack: Iterable[bytes]) -> None:
    with tempfile.TemporaryFile() as file:
        file.writelines(pack)
        file.seek(0)
        store.receive(file)


class Host:
    """Packs are uncompressed by default, so that a test can write other content into them."""

    compression = 0

    def __init__(self, path: Path) -> None:
        self.path, self.source, self.runs = path, path / "source", 0
        self.store = TreeStore(str(path / "store.git"), lock_timeout=10)
        self.source.mkdir(parents=True)
        git(self.source, "init", "-q")

    def commit(self, **files: str) -> CheckoutPart:
        for name, text in files.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_text(text)
        git(self.source, "add", "--all")
        git(self.source, "commit", "-q", "--allow-empty", "-m", "commit")
        return self.part("HEAD")

    def part(self, commit: str, path: str = "") -> CheckoutPart:
        return CheckoutPart(path, *git(self.source, "rev-parse", commit, f"{commit}^{{tree}}").split())

    def pack(self, part: CheckoutPart, *have: CheckoutPart) -> bytes:
        shallow = [f"--shallow {tree.commit}" for tree in (part, *have)]
        revisions = "\n".join([*shallow, part.commit, *(f"^{tree.commit}" for tree in have), ""])
        words = "pack-objects", "--stdout", "--revs", "--thin", "--shallow", "-q"
        argv = ["git", "-c", f"pack.compression={self.compression}", *words]
        return subprocess.run(argv, cwd=self.source, input=revisions.encode(), capture_output=True, check=True).stdout

    def send(self, **files: str) -> CheckoutPart:
        part = self.commit(**files)
        self.receive(self.pack(part))
        return part

    def receive(self, pack: bytes) -> None:
        receive(self.store, [pack])

    def check_out(self, part: CheckoutPart) -> Path:
        """A fresh workspace."""
        self.store.check_out([part], str(self.path / "w"))
        return self.path / "w"

    def start(self, *parts: CheckoutPart) -> Path:
        """The workspace of a new run."""
        self.runs += 1
        workspace = self.path / f"runs/{self.runs}/workspace"
        self.store.check_out(parts, str(workspace), CHECKOUT)
        return workspace

    def end(self, workspace: Path) -> None:
        release(str(workspace), CHECKOUT)

    @property
    def pool(self) -> Path:
        return self.path / "workspaces"

    @property
    def idle(self) -> list[Path]:
        return [path.parent for path in self.pool.glob("*/workspace")]
