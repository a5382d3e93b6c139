"""What `bench/fleet.py` measures: played hosts under a real command, a terminal, and what the command costs."""

from __future__ import annotations

import importlib.util
import os
import pty
import random
import resource
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINES, COLUMNS = 50, 160
GPUS, WIDTH = 8, 2  # of a host, and of a row
_WHILE = 100  # looks at the rows


def _simulated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulated", ROOT / "tests/run/simulated.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["simulated"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulated = _simulated()

from ci_tasks.run import execute  # noqa: E402


class Terminal:
    """Standard output is a terminal, and what is drawn there is thrown away by a process of its own."""

    def __init__(self, plain: bool) -> None:
        self._name = "dumb" if plain else "xterm-256color"

    def __enter__(self) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (LINES, COLUMNS))
        self._reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(ours)
        self._before, sys.stdout = sys.stdout, open(theirs, "w", buffering=1)
        os.environ.update({"TERM": self._name, "COLUMNS": str(COLUMNS), "LINES": str(LINES)})

    def __exit__(self, *error: object) -> None:
        sys.stdout.close()
        sys.stdout = self._before
        self._reader.wait()


class Clock:
    """When the execution went around, by the clock and in CPU, and how many rows ran then."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.running: list[int] = []

    def watch(self, steady: int, end: Callable[[], None]) -> None:
        """`end` comes when so many rows have run for a while, unless that is 0."""
        start = execute.LabelExecution.start_what_fits

        def timed(run: Any) -> None:
            self.wall.append(time.perf_counter())
            self.cpu.append(time.process_time())
            self.running.append(len(run._running()))
            if steady and self.running[-_WHILE:] == [steady] * _WHILE:
                end()
            start(run)

        execute.LabelExecution.start_what_fits = timed  # type: ignore[method-assign]

    def longest(self, times: list[float]) -> float:
        return round(max((later - sooner for sooner, later in pairwise(times)), default=0.0), 3)

    def steady(self, running: int) -> float:
        """CPU, in percent of one core, from when so many rows run until the first of them ends."""
        at = [index for index, count in enumerate(self.running) if count == running]
        return round(100 * (self.cpu[at[-1]] - self.cpu[at[0]]) / (self.wall[at[-1]] - self.wall[at[0]]), 1)


class Fleet:
    """So many rows on so many hosts; 0 rows: as many as run at once, all for one time."""

    def __init__(self, rows: int, hosts: int, seconds: float, plain: bool) -> None:
        self.rows, self.count, self._plain = rows or hosts * (GPUS // WIDTH), hosts, plain
        self._seconds, self._steady = seconds if rows else simulated.ENDLESS, 0 if rows else self.rows

    def __enter__(self) -> Fleet:
        self._directory = tempfile.TemporaryDirectory(prefix="ci-tasks-fleet-")
        directory = Path(self._directory.name)
        os.environ["CI_TASKS_HOME"] = str(directory / "home")
        warm = simulated.World(directory, {"a": 8, "b": 8}, {"one": 1})
        self._perform(warm)  # everything is loaded
        draw = random.Random(1)
        hosts = {f"host{number:02d}": GPUS for number in range(self.count)}
        self.world = simulated.World(directory, hosts, {f"row{number:04d}": WIDTH for number in range(self.rows)})
        for row in self.world.rows:
            self.world.acts[row, "*"] = simulated.Act(seconds=self._seconds * draw.uniform(0.5, 1.5))
        self.clock = Clock()
        self.clock.watch(self._steady, self.world.end_all)
        return self

    def __exit__(self, *error: object) -> None:
        self._directory.cleanup()

    def perform(self) -> None:
        rss, cpu, wall = _peak_kb(), time.process_time(), time.perf_counter()
        done = self._perform(self.world)
        self.cpu, self.wall, self.rss = time.process_time() - cpu, time.perf_counter() - wall, _peak_kb() - rss
        self.before_rows = self.clock.cpu[0] - cpu
        statuses = {record["status"] for record in done.records}
        assert statuses == {"passed"} and len(done.records) == self.rows, statuses

    def figures(self) -> dict[str, Any]:
        return {
            "figure": "fleet",
            "rows": self.rows,
            "hosts": self.count,
            "wall_s": round(self.wall, 1),
            "cpu_ms_per_row": round(1000 * self.cpu / self.rows, 2),
            "of_it_before_the_first": round(1000 * self.before_rows / self.rows, 2),
            "rss_kb_per_row": round(self.rss / self.rows, 1),
            "ticks": len(self.clock.cpu),
            "longest_tick_cpu": self.clock.longest(self.clock.cpu),
            "longest_tick_wall": self.clock.longest(self.clock.wall),
        }

    def steady(self) -> dict[str, Any]:
        percent = self.clock.steady(self.rows)
        return {"figure": "steady", "running": self.rows, "hosts": self.count, "percent_of_a_core": percent}

    def _perform(self, world: Any) -> Any:
        with Terminal(self._plain):
            return world.perform(watched=False)


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
