"""Where runs are kept, what they are called, and how a person's short name finds one.

HOME/runs/BATCH/NN/     one row's run directory; its id is BATCH.NN
HOME/runs/BATCH/source  the tree that every row of the batch gets, gone at its end
HOME/environments/      venvs that rows of a job share
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.runner.layout import RunDir

HOME_ENV = "CI_TASKS_HOME"
_ID = re.compile(r"(?P<batch>.+)\.(?P<number>\d+)")


@dataclass(frozen=True)
class Batch:
    """The rows of one command, in `path`."""

    id: str
    path: Path
    environments: Path

    @property
    def source(self) -> Path:
        return self.path / "source"

    def run_dir(self, number: int) -> RunDir:
        return RunDir(str(self.path / f"{number:02d}"))

    def run_id(self, number: int) -> str:
        return f"{self.id}.{number:02d}"


def home() -> Path:
    """The directory of everything we keep: CI_TASKS_HOME, else the user's state directory."""
    named = os.environ.get(HOME_ENV)
    if named:
        return Path(named).expanduser().resolve()
    from platformdirs import user_state_path

    return user_state_path("ci-tasks")


def environments() -> Path:
    return home() / "environments"


def lock_dir() -> Path:
    """The lock files of pretend GPUs: shared by all simulated runs, so that they compete as real ones do."""
    return home() / "pretend-gpus"


def new_batch(label: str, directory: Path | None = None) -> Batch:
    """A fresh directory for the rows of one command; two commands in one second get two."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", label).strip("-.") or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if directory is not None:
        directory = directory.expanduser().resolve()
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty", hint="name a new directory with --out")
        directory.mkdir(parents=True, exist_ok=True)
        return Batch(f"{stamp}-{slug}", directory, directory / "environments")
    for attempt in range(1, 1000):
        id = f"{stamp}-{slug}" + (f"-{attempt}" if attempt > 1 else "")
        path = home() / "runs" / id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return Batch(id, path, environments())
    raise UsageError(f"{home() / 'runs'} has 1,000 runs of this second")


def run_dirs() -> Iterator[tuple[str, RunDir]]:
    """(id, directory) of every run kept here, newest first."""
    runs = home() / "runs"
    batches = sorted(runs.iterdir(), reverse=True) if runs.is_dir() else []
    for batch in batches:
        rows = [row for row in batch.iterdir() if row.name.isdigit()] if batch.is_dir() else []
        for row in sorted(rows, reverse=True):
            yield f"{batch.name}.{row.name}", RunDir(str(row))


def find(name: str) -> list[tuple[str, RunDir]]:
    """The runs that `name` means: an id, a batch, the beginning of either, or `last` for the newest batch.

    Raises UnknownName where there is none.
    """
    known = list(run_dirs())
    if name == "last" and known:
        newest = batch_of(known[0][0])
        return [(id, run) for id, run in reversed(known) if batch_of(id) == newest]
    exact = [(id, run) for id, run in known if id == name or batch_of(id) == name]
    found = exact or [(id, run) for id, run in known if id.startswith(name)]
    if not found:
        raise UnknownName("run", name, [id for id, _ in known[:10]], where=str(home() / "runs"))
    return list(reversed(found))


def batch_of(id: str) -> str:
    matched = _ID.fullmatch(id)
    return matched["batch"] if matched else id
