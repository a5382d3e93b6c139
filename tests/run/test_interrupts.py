"""^C at any line between the plans of a command and its running rows; every push tries others. Nothing may be lost, and
nothing may stay."""

from __future__ import annotations

import inspect
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ci_tasks
from ci_tasks.agent import processes
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.hosts.executor import LocalExecutor, PreparedRow
from ci_tasks.hosts.runs import RemoteRunManager, RunState
from ci_tasks.results.load import load_record
from ci_tasks.results.store import Batch
from ci_tasks.run import execute
from ci_tasks.run.interrupts import Interrupts, noticed, termination_interrupts
from tests.parts.nightly import drawn
from tests.run import simulated
from tests.run.simulated import ENDLESS, Act, Played, World

Make = Callable[..., World]
Line = tuple[str, int]
_OURS = str(Path(ci_tasks.__file__).parent)
_WITHOUT_EFFECT = ("progress.py",)
_FOLDERS = tuple(f"{_OURS}/{folder}/" for folder in ("run", "hosts"))


@contextmanager
def traced(at_line: Callable[[Line], None]) -> Iterator[None]:
    """Calls `at_line` before each line of `run` and `hosts` in this thread."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_FOLDERS):
            return None
        if event == "line":
            at_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Start:
    """A command whose rows never end by themselves, up to the moment when both run. Lines count once the first plan
    is written."""

    def __init__(
        self, played: Make, home: Path, hosts: str, *, rows: Sequence[str] = ("one", "two"), detach: bool = False
    ) -> None:
        self.world = played({"a": 4, "b": 4}, dict.fromkeys(rows, 2))
        self.world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in self.world.rows})
        self.home, self.hosts, self.detach = home, hosts, detach
        self.is_planned = self.is_over = False

    def counts(self) -> bool:
        self.is_planned = self.is_planned or any(self.home.glob("runs/*/*/plan.json"))
        return self.is_planned and not self.is_over

    def both_run(self) -> bool:
        return all(self.world.runs(row)() for row in self.world.rows)

    def lines(self) -> list[Line]:
        """In the order in which they are executed first."""
        lines: dict[Line, None] = {}

        def end() -> None:
            self.is_over = True
            self.world.end_all()

        shutil.rmtree(self.home / "runs", ignore_errors=True)
        self.world.when((self.both_run, end))
        with traced(lambda line: lines.setdefault(line) if self.counts() else None):
            self.world.execute_label(on=self.hosts, detach=self.detach)
        return list(lines)

    def interrupt(self, at: Line) -> bool:
        """Press ^C at a line; or when both rows run, where that line is executed only once, as those of an import are.
        Returns whether the command was interrupted before there was anything to record."""

        def press() -> None:
            sys.settrace(None)
            if not self.is_over:
                self.is_over = True
                signal.raise_signal(signal.SIGINT)

        self.world.when((self.both_run, press))
        with traced(lambda line: press() if line == at and self.counts() else None):
            try:
                self.world.execute_label(on=self.hosts, detach=self.detach)
            except KeyboardInterrupt:
                return True
        return False

    def statuses(self) -> list[str]:
        return [load_record(RunDir(str(run))).status for run in self.home.glob("runs/*/[0-9][0-9]")]

    def running(self) -> list[str]:
        jobs = [job for host in self.world.hosts.values() for job in host.jobs.values()]
        return [job.row for job in jobs if job.begun and not job.over]


def _told_apart(lines: list[Line]) -> list[Line]:
    """Of what only computes or shows, the first line of each stretch stands for the others."""
    kept = []
    for line, before in zip(lines, [("", 0), *lines], strict=False):
        if Path(line[0]).name not in _WITHOUT_EFFECT or not (before[0] == line[0] and line[1] - before[1] in (1, 2)):
            kept.append(line)
    return kept


def test_ctrl_c_at_any_line_of_a_start_ends_every_row_as_cancelled(
    played: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either every row has the record of a cancelled one, or nothing had begun and nothing is left."""
    monkeypatch.setattr(execute, "_POLL_SECONDS", 0.001)
    home, seen, wrong = tmp_path / "home", set[Line](), {}
    for hosts in ("a", "a,b"):
        lines = _told_apart(Start(played, home, hosts).lines())
        assert len(lines) > 50
        for line in drawn([line for line in lines if line not in seen], 60):
            shutil.rmtree(home / "runs")
            start = Start(played, home, hosts)
            expected: list[str] = [] if start.interrupt(line) else ["cancelled"] * 2
            if (start.statuses(), start.running()) != (expected, []):
                wrong[hosts, line] = start.statuses(), start.running()
        seen.update(lines)
    assert not wrong


def test_ctrl_c_at_any_line_of_starting_detached_rows_ends_all_of_them_or_none(played: Make, tmp_path: Path) -> None:
    """Once the last has begun they go on, whatever is pressed."""
    home, outcomes = tmp_path / "home", set()
    lines = Start(played, home, "a", detach=True).lines()
    for line in drawn([line for line in lines if line[0] == execute.__file__], 60):
        shutil.rmtree(home / "runs")
        start = Start(played, home, "a", detach=True)
        assert not start.interrupt(line)
        outcomes.add((*start.statuses(), *sorted(start.running())))
    assert outcomes == {("cancelled", "cancelled"), ("running", "running", "one", "two")}


class RealAgents(Played):
    """A host whose rows are started on this machine, by the real executor."""

    @cached_property
    def local(self) -> LocalExecutor:
        return LocalExecutor(self.spec)

    def use(self, batch: Batch, code: object) -> None:
        self.local._batch = batch

    def start(self, row: PreparedRow) -> None:
        # The row's own script would end at once: there is no checkout.
        self.local.start(replace(row, plan=replace(row.plan, workspace="", script="exec sleep 300", gpu_locks=None)))
        self.host.began.append(row.row.row)

    def poll(self, row: PreparedRow) -> RunState:
        return self.local.poll(row)

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        self.local.cancel(rows, kill=kill)

    def close(self) -> None:
        self.local.close()
        super().close()


@pytest.mark.parametrize(
    ("function", "statement"),
    [
        (LocalExecutor.start, "self._rows[row.run.path] = remote_run"),
        (RemoteRunManager.send, "self._runs.append(remote_run)"),
        (RemoteRunManager.send, "thread.start()"),
    ],
    ids=["before it is asked for", "before it is known", "as the first thread starts"],
)
def test_ctrl_c_while_an_agent_is_started_leaves_no_process(
    played: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, statement: str
) -> None:
    monkeypatch.setattr(simulated, "Played", RealAgents)
    source, first = inspect.getsourcelines(function)
    (line,) = (first + at for at, text in enumerate(source) if text.strip() == statement)
    start = Start(played, tmp_path / "home", "a", rows=("one",))
    assert not start.interrupt((inspect.getfile(function), line))
    assert (start.is_over, start.statuses()) == (True, ["cancelled"])
    (run,) = start.home.glob("runs/*/01")
    assert not processes.has_agent(str(run))
    assert not processes.of_run(str(run), None)


# -- holding ^C back ------------------------------------------------------------------------------------------------


def test_while_it_is_deferred_ctrl_c_is_counted_and_whoever_asks_notices() -> None:
    interrupts = Interrupts()
    with noticed() as pressed:
        interrupts.defer()
        signal.raise_signal(signal.SIGINT)
        assert (interrupts.count, pressed()) == (1, True)
        with pytest.raises(KeyboardInterrupt):
            interrupts.allow()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupts.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_person_who_presses_on_and_on_is_not_held_back() -> None:
    interrupts = Interrupts()
    interrupts.defer()
    try:
        for _ in range(4):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        interrupts.restore()


def test_a_caller_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        interrupts.defer()
        signal.raise_signal(signal.SIGINT)
        interrupts.restore()
        assert (interrupts.count, signal.getsignal(signal.SIGINT)) == (0, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_which_comes_once_counts_again_as_time_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that never concludes keeps no command: the first asks for the end, the second kills, the third leaves."""
    now, interrupts = [100.0], Interrupts()
    monkeypatch.setattr("ci_tasks.run.interrupts.time.monotonic", lambda: now[0])
    with termination_interrupts():
        interrupts.defer()
        try:
            signal.raise_signal(signal.SIGINT)
            now[0] = 500.0
            assert interrupts.count == 1, "a person presses again, or waits"
            signal.raise_signal(signal.SIGTERM)
            for now[0], count in ((500.0, 2), (511.0, 2), (513.0, 3), (525.0, 4), (900.0, 4)):
                assert interrupts.count == count
        finally:
            interrupts.restore()
