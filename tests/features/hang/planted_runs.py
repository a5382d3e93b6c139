"""Starts the programs of data/planted.py, waits until each is in its state, and looks at all of them at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ci_tasks.agent import hang
from ci_tasks.agent.evidence import payload, read_evidence
from ci_tasks.agent.hang import HangFacts
from ci_tasks.agent.processes import children, send
from tests.agent.conftest import wait_until

PLANTED = Path(__file__).parent / "data" / "planted.py"
STAND_IN = PLANTED.with_name("stand_in")  # for torch
_SECONDS = 120.0


@dataclass
class PlantedRun:
    """The processes of one case; `pids` are those that are looked at."""

    roots: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [pid for root in self.roots for pid in (root.pid, *_below(root.pid))]


@contextmanager
def planted(cases: dict[str, int], directory: Path, path: Path = STAND_IN) -> Iterator[dict[str, PlantedRun]]:
    """All cases at once, each with so many ranks; 0 for one process without. `path` is where they find torch."""
    (directory / "ci_tasks_probe.py").write_text(payload())
    runs = {case: PlantedRun() for case in cases}
    try:
        for case, ranks in cases.items():
            for rank in range(ranks or 1):
                runs[case].roots.append(_start(case, directory, path, rank if ranks else None, ranks))
        for run in runs.values():
            # Until each Python of the case is about to hang, or has ended, and sleeps or computes.
            wait_until(partial(_are_in_state, run, directory), _SECONDS)
        yield runs
    finally:
        for run in runs.values():
            for pid in reversed(run.pids):  # children first: one whose parent dies may go on
                send(pid, signal.SIGKILL)
            for root in run.roots:
                root.wait()


def look(runs: dict[str, PlantedRun], directory: Path) -> dict[str, HangFacts]:
    """What the inspector sees of each case: one inspection of all."""
    pids = {case: run.pids for case, run in runs.items()}
    found = hang.look([sys.executable], [pid for own in pids.values() for pid in own])
    seen = list(hang.completed({"": found}, read_evidence(str(directory / "evidence")).processes))
    return {case: replace(found, processes=tuple(one for one in seen if one.pid in pids[case])) for case in runs}


def _start(case: str, directory: Path, path: Path, rank: int | None, ranks: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(path), "PLANTED_PROBE": str(directory / "ci_tasks_probe.py")}
    if rank is not None:
        env.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", TORCH_FR_BUFFER_SIZE="2000")
        env.update(TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{directory}/pipe", TORCH_FR_DUMP_TEMP_FILE=f"{directory}/dump")
    argv, null = [sys.executable, str(PLANTED), case, str(directory)], subprocess.DEVNULL
    with (directory / "stderr").open("ab") as stderr:
        return subprocess.Popen(argv, env=env, stdin=null, stdout=null, stderr=stderr, start_new_session=True)


def _are_in_state(run: PlantedRun, directory: Path) -> bool:
    return bool(run.pids) and all(_is_in_state(pid, directory) for pid in run.pids)


def _is_in_state(pid: int, directory: Path) -> bool:
    command = _read(pid, "cmdline")
    if command.startswith("bash"):  # and so is a child of it that is no Python yet
        return len(children(pid)) == command.count("RANK=")
    if not re.search(r"python[^\0]*\0[^\0]*planted\.py\0", command) or (directory / f"ready-{pid}").exists():
        return True
    state, parent, *_ = [*_read(pid, "stat").rpartition(")")[2].split(), "", "0"]
    is_spawned = "\0d_" in command and (directory / f"ready-{parent}").exists()
    return state in ("Z", "") or is_spawned


def _read(pid: int, name: str) -> str:
    """A file of /proc; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _below(pid: int) -> list[int]:
    return [other for child in children(pid) for other in (child, *_below(child))]
