"""A client's home among things that are none of a host's business, and what became of it all after one lie.

    with HostileWorld(directory) as world:
        outcome = world.perform("files", seed)     # .verdict is refused, harmless, or wrong: then .problems says why

A lie is refused where the client says so in an error of its own, naming the host. It is harmless where the client takes
it for what it is: text to show, a log, a status. It is wrong where anything outside the run's own directory has
changed, memory has grown, another error came out, a process was signalled, or nothing came to an end.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ci_tasks.agent import archive, processes, protocol
from ci_tasks.agent.records import CheckoutPart, Plan
from ci_tasks.agent.run_directory import SMALL_FILES, RunDir
from ci_tasks.cli import list_runs
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import CiTasksError, InternalError
from ci_tasks.hosts import connection, queries, runs
from ci_tasks.hosts.runs import RemoteRun, write_location
from ci_tasks.results.load import load_record
from ci_tasks.run import attach, clean, report_runs
from tests.parts.hostile_cases import CLEAN, FACTS, KINDS, START, Case, Surroundings
from tests.parts.hostile_server import HostileServer, HostileTransport

REFUSED, HARMLESS, WRONG = "refused", "harmless", "WRONG"
LONGEST_S = 60.0  # of one case, on a machine that is busy
MOST_MEMORY = 200 << 20  # bytes that one case may add
HOST = "box"
_CODE: Any = SimpleNamespace(flat="2" * 40, checkout_parts=[CheckoutPart("", "1" * 40, "2" * 40)])
# Lower limits of the same code, so that many cases fit in a minute.
_SMALL_LOG, _SMALL_FILES, _SMALL_BYTES = 1 << 22, 100, 1 << 24
# What a command keeps beside runs: caches and the index of all runs.
_OWN = ("history.db", "history.db-wal", "history.db-shm", "history.db-journal", "hosts", "logs", "client-id", "sync")
_OF_A_RUN = {
    *SMALL_FILES,
    *("claims.json", "remote.json", "mirror.lock", "log", "status.json", "record.json", "artifacts", "plan.json"),
    *("reading.json", "run.sh"),
}


@dataclass
class Outcome:
    kind: str
    seed: int
    verdict: str
    message: str = ""  # of what was refused
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory: int = 0


class HostileWorld:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.home = self.directory / "home"
        self.guard = self.directory / "guard"
        self.host = HostSpec(
            name=HOST, kind="ssh", address=HOST, runtime="docker", workspace="~/.ci-tasks", give_up_minutes=0
        )
        hosts = {HOST: self.host, "local": HostSpec("local")}
        self.config = Config(hosts, {}, ())
        self._stack = ExitStack()

    def __enter__(self) -> HostileWorld:
        for path in (self.guard / "01" / "workspace", self.home / "runs" / "kept-batch" / "01"):
            path.mkdir(parents=True)
            (path / "precious").write_text("years of work")
        (self.guard / "link").symlink_to("01")
        (self.directory / "runs").mkdir()
        self._process = subprocess.Popen(["sleep", "86400"], start_new_session=True)
        self._stack.callback(self.kill_process)
        pid = self._process.pid
        start, boot = processes.start_time(pid), processes.boot_id()
        self._claims = {"pid": pid, "group": pid, "pid_start": start, "boot_id": boot}
        patch = mock.patch.object
        for each in (
            mock.patch.dict(os.environ, {"CI_TASKS_HOME": str(self.home)}),
            patch(archive, "build", lambda _sources=None, built=archive.build(): built),
            patch(connection, "SILENCE_TIMEOUT_S", 1.0),
            patch(connection, "_RETRY_DELAYS_S", (0.001,)),
            # There is no second connection to wait for.
            patch(attach, "HostSpec", functools.partial(HostSpec, give_up_minutes=0)),
            patch(attach, "_POLL_SECONDS", 0.001),
            patch(runs, "_POLL_INTERVAL_S", 0.001),
            patch(runs, "MAX_LOG_BYTES", _SMALL_LOG),
            patch(runs, "thin_pack", lambda code, known: [b"PACK" * 100] * 20),
            patch(protocol, "MAX_FILES", _SMALL_FILES),
            patch(protocol, "MAX_TOTAL", _SMALL_BYTES),
            patch(connection, "BEAT", 3600.0),
        ):
            self._stack.enter_context(each)
        self._bugs = BufferingHandler(1 << 20)
        self._bugs.setLevel(logging.ERROR)
        logger = logging.getLogger("ci_tasks")
        logger.addHandler(self._bugs)
        self._stack.callback(logger.removeHandler, self._bugs)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def perform(self, kind: str, seed: int) -> Outcome:
        rng = Random(f"{kind} {seed}")
        near = Surroundings(f"20260101-000000-ckpt-{seed:06x}"[:40], str(self.guard), self._claims)
        case = KINDS[kind](rng, near)
        before, memory = self._snapshot(), _reset_peak()
        self._bugs.buffer.clear()
        begun = time.monotonic()
        outcome = Outcome(kind, seed, HARMLESS)
        done = self._in_thread(lambda: self._run(case, near, rng, outcome))
        outcome.seconds = time.monotonic() - begun
        outcome.memory = _memory("VmHWM") - memory
        if not done:
            outcome.problems.append(f"not at an end after {LONGEST_S:g} s")
        if outcome.memory > MOST_MEMORY:
            outcome.problems.append(f"{outcome.memory >> 20} MiB of memory")
        if processes.start_time(self._process.pid) != self._claims["pid_start"]:
            outcome.problems.append("a process of this machine was killed")
        outcome.problems += [f"a bug is logged: {self._bugs.format(bug)}"[:3000] for bug in self._bugs.buffer]
        outcome.problems += _differences(before, self._snapshot())
        if outcome.problems:
            outcome.verdict = WRONG
        return outcome

    def kill_process(self) -> None:
        """What a host might want."""
        self._process.kill()
        self._process.wait()

    def _in_thread(self, work: Callable[[], None]) -> bool:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(LONGEST_S)
        return not thread.is_alive()

    def _run(self, case: Case, near: Surroundings, rng: Random, outcome: Outcome) -> None:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")  # as commands have it
        flow = {START: self._start, CLEAN: self._clean, FACTS: self._facts}.get(case.flow, self._attach)
        times = 1 if case.flow in (START, CLEAN) else 2

        def transport(spec: HostSpec) -> HostileTransport:  # this machine is asked too, and is honest
            return HostileTransport(case.server if spec.name == HOST else HostileServer(near.batch), times, spec.name)

        shown = contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)
        with mock.patch.object(runs, "_transport", transport), shown[0], shown[1]:
            for step in (lambda: flow(case, near, rng), lambda: self._look(rng), lambda: self._away(near)):
                self._guarded(step, outcome)

    def _guarded(self, step: Callable[[], str], outcome: Outcome) -> None:
        try:
            refused = step()
        except InternalError as error:
            outcome.problems.append(f"a bug: {error}")
        except CiTasksError as error:
            refused = str(error)
            if HOST not in refused:
                outcome.problems.append(f"the host is not named: {refused}"[:300])
        except BaseException as error:
            import traceback

            text = "".join(traceback.format_exception(error))
            outcome.problems.append(f"{type(error).__name__} came out: {text[-1500:]}")
            return
        if refused and outcome.verdict == HARMLESS:
            outcome.verdict, outcome.message = REFUSED, refused[:300]

    # -- what a person does ------------------------------------------------------------------------------------------

    def _attach(self, case: Case, near: Surroundings, rng: Random) -> str:
        attach.attach(case.name or near.batch, self.config, HOST)
        return self._reasons()

    def _start(self, case: Case, near: Surroundings, rng: Random) -> str:
        """As a row is run there; what is here before and after is the plan."""
        run = RunDir(str(self.home / "runs" / near.batch / "01"))
        os.makedirs(run.path)
        write_location(run, self.host, case.server.directory)
        remote_run = RemoteRun(
            run=run,
            directory=case.server.directory,
            plan=Plan(id=f"{near.batch}.01", row="row", host=HOST, script="true\n"),
            code=_CODE,
        )
        manager = runs.RemoteRunManager(runs.open_connection(self.host))
        try:
            manager.send(remote_run)
            while not (remote_run.is_fetched or remote_run.aborted):
                manager.wait(0.01)
        finally:
            manager.close()
        if remote_run.aborted:
            return remote_run.aborted[1]
        load_record(run)
        return remote_run.warning

    def _clean(self, case: Case, near: Surroundings, rng: Random) -> str:
        clean.clean(self.config, HOST, days=1.0, everything=rng.random() < 0.5)
        return ""

    def _facts(self, case: Case, near: Surroundings, rng: Random) -> str:
        """What a plan asks a host for."""
        asked = {
            **queries.fact_queries(self.host, gpus=True, container=True),
            "python": ["python3", "--version"],
            queries.LOCKS_QUERY_NAME: queries.LOCKS_QUERY,
        }
        with closing(runs.open_connection(self.host)) as runner:
            answers = runner.run_queries(asked, 1.0)
            queries.locked_gpus(runner, self.host)
            queries.find_python("3.10", runner, ("/usr/bin/python3", "3.11"))
        queries.parse_facts(self.host, answers, simulates=False)
        return ""

    def _reasons(self) -> str:
        """Why what was adopted is no run that has ended here."""
        runs = (RunDir(str(path.parent)) for path in self.home.glob("runs/*/*/remote.json"))
        records = [load_record(run) for run in runs]
        return "; ".join(record.reason for record in records if record.status in ("blocked", "lost"))

    def _look(self, rng: Random) -> str:
        """Every view of what is here now."""
        if rng.random() < 0.3:
            list_runs.show_runs({}, json=rng.random() < 0.5)
        batches = [path.parent.parent.name for path in self.home.glob("runs/*/*/remote.json")]
        if batches and rng.random() < 0.1:
            with tempfile.TemporaryDirectory() as pages:
                html, junit = Path(pages, "page.html"), Path(pages, "page.xml")
                report_runs.report(batches, html=html, junit=junit, markdown=True)
        return ""

    def _away(self, near: Surroundings) -> str:
        """What came of the host goes, and takes nothing with it."""
        problems = []
        for path in (self.home / "runs").rglob("*"):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                problems.append(f"no plain file: {path}")
        for run in self.home.glob("runs/*/*"):
            odd = {path.name for path in run.iterdir()} - _OF_A_RUN if run.parent.name != "kept-batch" else set()
            # A reader that was just told to stop may be writing a file that replaces another.
            problems += [f"no file of a run: {run / name}" for name in odd if not name.endswith(".tmp")]
        clean.clean(self.config, "local", days=1e-9, everything=False)
        for path in (self.home / "runs").iterdir():  # what has not ended stays
            if path.name != "kept-batch":
                shutil.rmtree(path)
        assert not problems, problems
        return ""

    # -- what must stay as it is -------------------------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Any]:
        return {
            str(path): _state(path)
            for path in sorted(self.directory.rglob("*"))
            if path.parent != self.home / "runs" and not _is_own(path.relative_to(self.directory))
        }


def _is_own(path: Path) -> bool:
    return path.parts[0] == "home" and (len(path.parts) == 1 or path.parts[1] in _OWN or path.parts == ("home", "runs"))


def _state(path: Path) -> tuple[Any, ...]:
    info = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
    return info.st_mode, info.st_ino, content, 0 if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return [f"changed: {path}" for path in paths[:5]]


def _reset_peak() -> int:
    """The memory of this process now, from which its peak is counted on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))
