"""Hosts that are only played, under the real execution of rows: what a runner would write there is written, and nothing
runs.

    world = World(tmp_path, {"a": 8, "b": 4}, {"one": 4, "two": 8})    # hosts and rows, with their GPUs
    world.acts["one", "a"] = Act("blocked")                            # else a row passes as soon as it is looked at
    done = world.perform()                                             # the real story of a label, from its beginning
    done.runs, world.view.messages, world.hosts["a"].began

`world.when(condition, action, ...)` makes something happen in the middle: each action comes, in order, at the first
picture of the rows at which its condition holds. A host outlives the command that speaks to it, so a second `perform`
with `resume=True` finds what runs there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci_tasks.agent.records import Checkout, Plan, QueryAnswer, RemoteLocation, Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.config import Config, HostSpec, Override
from ci_tasks.errors import Blocked
from ci_tasks.given_values import NOTHING_GIVEN
from ci_tasks.hosts.executor import HostPaths, PreparedRow, Say
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.placement import HostFacts
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, PASSED, BatchResult
from ci_tasks.report.live import HostProgress, RowProgress
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.events import Event, Message, ProgressView
from ci_tasks.run.label import execute_label
from ci_tasks.workflow.reader import read as read_workflow

LABEL = "played"
ENDLESS = float("inf")
BROKEN = "broken"  # the same, and its log blames the environment
SET_UP = "set-up"  # it fails before its test begins
NEVER_REACHED = "cannot be reached"
_TIMEOUT = 20.0  # seconds that a test's command may take
# status → what the job writes, and its exit code
_ENDS = {
    PASSED: ("[gpu_lock_exec] Acquired GPUs: 0\nstep 0: {'loss': 1.0}\n", 0),
    FAILED: ("[gpu_lock_exec] Acquired GPUs: 0\nAssertionError: the loss is 2.0\n", 1),
    BROKEN: ("ImportError: /opt/lib.so: undefined symbol: _PyLong_AsInt\n", 1),
    SET_UP: ("ERROR: Package 'tiny' requires a different Python: 3.9.2 not in '>=3.10'\n", 1),
    BLOCKED: ("OSError: [Errno 28] No space left on device\n", 1),
}


class Killed(BaseException):
    """The command's process ends here; none of its code hears of it."""


@dataclass(frozen=True)
class Act:
    """What becomes of a row on a host: it ends so after so many seconds there. `refused`: the host does not even begin
    it, for this reason. `arrives`: a row that was begun reaches the host. `answers`: the host says that it has."""

    status: str = PASSED
    seconds: float = 0.0
    refused: str = ""
    arrives: bool = True
    answers: bool = True


@dataclass
class Job:
    """A run on a host."""

    run: RunDir
    act: Act
    since: float
    started: float
    row: str = ""
    gpus: int = 0
    begun: bool = False
    over: bool = False
    cancelled: bool = False
    killed: bool = False
    never: tuple[str, str] | None = None

    def start(self) -> None:
        self.begun, self.since, self.started = True, time.monotonic(), time.time()
        write_record(self.run.status, Status("running", phase="running", started_at=self.started, pid=0))

    def end(self) -> None:
        """What a runner writes last; one that is lost writes nothing."""
        self.over = True
        text, code = _ENDS.get(self.act.status, ("", 0))
        Path(self.run.log).write_text(text)
        if self.act.status == LOST and not self.cancelled:
            return
        ended = Status("ended", exit_code=code, log_bytes=len(text), started_at=self.started, ended_at=time.time())
        write_record(self.run.status, replace(ended, end="cancelled" if self.cancelled else "exit"))


@dataclass
class Host:
    """A machine, and all that ever began there. `up`: it can be spoken to; `reachable`: it ever could. `began` names
    the rows in the order in which they were begun for it; `jobs` are found by their run directory. While it is
    `busy` it does not get beyond its facts, and while it `installs`, not beyond the install steps. When it is `silent`,
    what it is asked has no answer. `python` is the version of the python3 on its PATH."""

    name: str
    gpus: int
    acts: Mapping[tuple[str, str], Act]
    up: bool = True
    reachable: bool = True
    problem: str = ""
    busy: bool = False
    installs: bool = False
    silent: bool = False
    python: str = "3.11.2"
    messages: list[str] = field(default_factory=list)
    began: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    most: int = 0  # GPUs that its rows had at once

    def begin(self, row: PreparedRow) -> None:
        self.began.append(row.row.row)
        act = self.acts.get((row.row.row, self.name)) or self.acts.get((row.row.row, "*")) or Act()
        job = Job(row.run, act, time.monotonic(), time.time(), row.row.row, row.row.needed_gpus)
        self.jobs[row.run.path] = job
        if act.refused:
            job.never = (BLOCKED, act.refused)
            return
        write_record(row.run.remote, RemoteLocation(self.name))
        self.most = max(self.most, sum(other.gpus for other in self.jobs.values() if not other.over))
        self.poll(job)

    def poll(self, job: Job) -> RunState:
        if job.never:
            return RunState(aborted=job.never)
        if not self.up:
            return RunState(has_started=job.begun and job.act.answers)
        if not job.begun and job.cancelled:
            job.never = (CANCELLED, "cancelled")
            return RunState(aborted=job.never)
        if not job.begun and job.act.arrives:
            job.start()
        if job.begun and not job.over and (job.cancelled or time.monotonic() >= job.since + job.act.seconds):
            job.end()
        return RunState(
            is_complete=job.over, has_started=job.begun and job.act.answers, note="" if job.begun else "sending"
        )

    def end(self, job: Job, kill: bool) -> None:
        job.cancelled, job.killed = True, job.killed or kill
        if not self.up and not job.begun:
            job.never = job.never or (CANCELLED, "cancelled")
        elif kill and not self.up:
            job.never = (LOST, f"left while {self.name} did not answer")


class TreeCode:
    """See ci_tasks.checkout.snapshot.Snapshot."""

    def __init__(self, source: Path, tree: str) -> None:
        self.checkout, self._source = Checkout(str(source), "c" * 40, tree), source

    def read_file(self, path: str) -> str | None:
        file = self._source / path
        return file.read_text() if file.exists() else "print('it runs')\n"

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        return []


class Played:
    """See ci_tasks.hosts.executor.Executor: a command's connection to a Host."""

    has_scheduler = False

    def __init__(self, spec: HostSpec, host: Host) -> None:
        self.spec, self.host = spec, host
        self.closed = threading.Event()
        self.was_queried = self.waits = False

    @property
    def is_up(self) -> bool:
        return self.host.up and not self.closed.is_set()

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        while self.host.busy and not self.closed.wait(0.01):
            pass
        if not self.host.reachable:
            raise Blocked(f"{self.spec.name} {NEVER_REACHED}")
        return HostFacts(gpus=self.host.gpus)

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        self.was_queried = True
        while self.host.silent and not self.closed.wait(0.01):
            self.waits = True
        return {name: QueryAnswer(0, self.host.python) for name in queries if name == "python"}

    def find_python(self, requested: str) -> tuple[str, str]:
        return "/agent/python3", "3.12.4"  # the agent's own

    def use(self, *_: Any) -> None:
        pass

    release = detach = use

    def paths(self, run: RunDir) -> HostPaths:
        return HostPaths(f"/there/{Path(run.path).name}", "/there/environments", "/there/store", "/locks")

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        Path(run.path).mkdir(parents=True, exist_ok=True)
        write_record(run.plan, plan)

    def run_install_steps(
        self, setups: Sequence[Plan], say: Say, wanted: Callable[[], bool] = lambda: True
    ) -> str | None:
        while self.host.installs and wanted():
            time.sleep(0.01)
        if not wanted():
            raise KeyboardInterrupt
        return self.host.problem or None

    def start(self, row: PreparedRow) -> None:
        self.host.begin(row)

    def reattach(self, row: PreparedRow) -> None:
        if row.run.path not in self.host.jobs:
            never = (LOST, f"it never started on {self.host.name}: the command that sent it ended first")
            write_record(row.run.remote, RemoteLocation(self.host.name, complete=True))
            self.host.jobs[row.run.path] = Job(row.run, Act(), 0.0, 0.0, never=never)

    def poll(self, row: PreparedRow) -> RunState:
        return self.host.poll(self.host.jobs[row.run.path])

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        for row in rows:
            self.host.end(self.host.jobs[row.run.path], kill)

    def drain_messages(self) -> list[str]:
        messages, self.host.messages[:] = list(self.host.messages), []
        return messages

    def close(self) -> None:
        self.closed.set()


Scene = tuple[Callable[[], object], Callable[[], object]]


class Watcher(ProgressView):
    """A view that keeps what it was told and moves the play on."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.rows: dict[str, RowProgress] = {}
        self.hosts: dict[str, HostProgress] = {}
        self.scenes: list[Scene] = []
        self.until = time.monotonic() + _TIMEOUT

    def write(self, event: Event) -> None:
        if isinstance(event, Message):
            self.messages.append(event.text)

    def update(self, rows: Sequence[RowProgress], hosts: Sequence[HostProgress] = ()) -> None:
        self.rows, self.hosts = {row.row: row for row in rows}, {host.name: host for host in hosts}
        if time.monotonic() > self.until:
            raise AssertionError(f"it does not come to its end: {self.rows}")
        if self.scenes and self.scenes[0][0]():
            self.scenes.pop(0)[1]()


class World:
    """Hosts and rows, each with its GPUs, and the command that runs these on those. `tree` is that of the checkout."""

    def __init__(self, directory: Path, hosts: Mapping[str, int], rows: Mapping[str, int]) -> None:
        (directory / "checkout").mkdir(exist_ok=True)
        self.checkout, self.rows, self.tree = directory / "checkout", dict(rows), "t" * 40
        self.given, self.view = NOTHING_GIVEN, Watcher()
        self.overrides: tuple[Override, ...] = ()
        self.acts: dict[tuple[str, str], Act] = {}
        self.hosts = {name: Host(name, gpus, self.acts) for name, gpus in hosts.items()}
        self._scenes: list[Scene] = []
        self.executors: list[Played] = []

    def when(self, *scenes: Scene) -> None:
        self._scenes += scenes

    def runs(self, row: str, on: str = "") -> Callable[[], bool]:
        """Whether the row runs just now."""
        return lambda: any(
            job.begun and not job.over and job.row == row
            for host in self.hosts.values()
            if on in ("", host.name)
            for job in host.jobs.values()
        )

    def end_all(self) -> None:
        """What runs anywhere passes."""
        for host in self.hosts.values():
            for job in host.jobs.values():
                job.act = Act()

    def execute_label(
        self,
        *,
        on: str = "",
        rows: tuple[str, ...] = (),
        resume: bool = False,
        detach: bool = False,
        watched: bool = True,
        jobs: int | None = None,
        give_up: float = 60,
        **policy: Any,
    ) -> BatchResult:
        """Run the label on these hosts, or all of them. Its exceptions are the caller's. Who is not `watched` has the
        view of a person."""
        specs = {
            name: HostSpec(name, runtime="none", gpus=host.gpus, give_up_minutes=give_up)
            for name, host in self.hosts.items()
        }
        self.view = Watcher()
        self.view.scenes, self._scenes = self._scenes, []
        done = execute_label(
            self._source(), Config(specs, {}, self.overrides),
            RunRequest(LABEL, host=on or ",".join(specs), rows=rows),
            ExecutionOptions(jobs=jobs, resume=resume, detach=detach, **policy),
            open_executor=self._open,
            take_snapshot=lambda source, *_: TreeCode(source, self.tree),  # type: ignore[arg-type]
            view=self.view if watched else None,
        )  # fmt: skip
        assert done is not None
        return done

    def _open(self, spec: HostSpec) -> Any:
        self.executors.append(Played(spec, self.hosts[spec.name]))
        return self.executors[-1]

    def _source(self) -> CheckoutSource:
        workflow = read_workflow(_workflow(self.rows), "pr-test.yml")
        return CheckoutSource(self.checkout, "played", workflow, given=self.given)


def _workflow(rows: Mapping[str, int]) -> str:
    info = ", ".join(f"{{test_file: test_{name}.py, num_gpus: {gpus}}}" for name, gpus in rows.items())
    return f"""\
name: PR Test
on: {{pull_request: {{branches: [main]}}}}
jobs:
  {LABEL}:
    runs-on: [self-hosted, cpu]
    strategy: {{matrix: {{info: [{info}]}}}}
    steps:
      - uses: actions/checkout@v4
      - run: >-
          python tests/ci/gpu_lock_exec.py --count ${{{{ matrix.info.num_gpus }}}} --
          python tests/${{{{ matrix.info.test_file }}}}
"""
