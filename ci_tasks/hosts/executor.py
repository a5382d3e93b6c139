"""A host that runs the rows of one command. Callers do not know which kind it is: local, SSH and Slurm differ in the
methods that their classes replace.

The tree goes as a pack, runs are mirrored, install steps are a run of their own. The connection is made while the rows
are found.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent import archive
from ci_tasks.agent.__main__ import create
from ci_tasks.agent.containers import remove_tree
from ci_tasks.agent.files import open_file
from ci_tasks.agent.protocol import Request
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir, given_secrets, read_status, read_status_if_readable, write_record
from ci_tasks.agent.slurm import SCRIPT, end_and_clean, remove_run
from ci_tasks.checkout.snapshot import OnLarge, Snapshot, clone, prune_store, take_snapshot
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts import queries, runs
from ci_tasks.hosts.runs import CANCEL, KILL, RemoteRun, RemoteRunManager, RunState, open_connection
from ci_tasks.planning.placement import HostFacts, batch_script, on_slurm, within_limit
from ci_tasks.records import BLOCKED, CANCELLED
from ci_tasks.resources import make_home
from ci_tasks.results import store
from ci_tasks.results.runs import last_line, read_run_log
from ci_tasks.results.store import Batch
from ci_tasks.workflow.model import Row

Say = Callable[[str], None]


@dataclass(frozen=True)
class PreparedRow:
    """A row ready to start: its plan, run directory and shared setup. `secrets` are values that are not in our
    environment."""

    row: Row
    plan: Plan
    run: RunDir
    setup: Plan | None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_own_checkout(self) -> bool:
        """Whether it gets one when it begins: without a setup that has one, and unless it needs none."""
        return self.setup is None and bool(self.plan.workspace)


def _store_of(source: Path) -> Path:
    """Where the objects of a checkout stay from one command to the next."""
    return make_home() / "sync" / hashlib.sha256(os.fsencode(source)).hexdigest()[:16]


@contextmanager
def temporary_checkout() -> Iterator[Path]:
    """A directory for the checkout of one command, whose objects end with it."""
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        place = Path(scratch, "source")
        try:
            yield place
        finally:
            shutil.rmtree(_store_of(place), ignore_errors=True)


def take_host_snapshot(
    source: Path, rev: str | None, overlays: Sequence[OverlaySource] = (), large: OnLarge = None
) -> Snapshot:
    """The working tree of `source`, or its revision, with the overlays, as objects that can be sent."""
    return take_snapshot(source, _store_of(source), rev=rev, overlays=overlays, large=large)


TakeSnapshot = Callable[[Path, "str | None", "Sequence[OverlaySource]", OnLarge], Snapshot]
OLD_DAYS = 14.0  # after which objects that no command sent again, and runs of other clients, are of no use
_POLL_INTERVAL_S = 0.05
_QUERY_TIMEOUT_S = 20.0  # that a program of the host gets to answer
SETUP_PARTS = ("venv", "workspace", "tmp")  # what rows use of the directory of install steps; log and plan stay
_OURS = b"ci-tasks: "  # what our own program prints among the steps' output
_LONGEST_LINE = 300
_BLOCKED = 125  # the exit code of what run.sh itself gives up
_REMINDER_S = 20.0  # after which they say how far they are


@dataclass(frozen=True)
class HostPaths:
    """Directories on the host: of a run, of the venvs that the rows of its batch share, of the environments that all
    runs share, and of the locks of simulated GPUs."""

    run: str
    setups: str
    environments: str
    locks: str


class Executor(RemoteRunManager):
    """Methods raise Blocked for what the host cannot do."""

    _batch: Batch
    _code: Snapshot
    has_scheduler = False  # which decides when a submitted row starts

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(open_connection(spec))
        self.spec = spec
        self._rows: dict[str, RemoteRun] = {}  # by run directory
        self._setups: dict[str, RemoteRun] = {}  # install steps
        self._keeps_setups = False  # rows go on with them

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to the host."""
        return self.connection.is_up

    # -- what the host offers ------------------------------------------------------------------------------------------

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """What the host offers; `gpus` is the highest number that a row needs. From memory if that is enough for the
        rows; what became wrong meanwhile, the agent notices in time."""
        cache, spec = self.connection.cache, self.spec
        container = container and spec.runtime != "none"
        enough = spec.gpus is not None or not gpus or (cache.gpus or 0) >= gpus
        if enough and (not container or cache.working_runtime == spec.runtime):
            return HostFacts(gpus=spec.gpus if spec.gpus is not None else cache.gpus or 0, simulates=simulates)
        asked = queries.fact_queries(spec, gpus=gpus > 0, container=container)
        facts = queries.parse_facts(spec, self.run_queries(asked, queries.QUERY_TIMEOUT_S), simulates=simulates)
        if gpus and spec.gpus is None:
            cache.gpus = facts.gpus
        cache.working_runtime = spec.runtime if container and not facts.container_problem else ""
        return facts

    def run_queries(self, asked: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """Run commands on the host at the same time; their outputs by name. `timeout` is in seconds."""
        return self.connection.run_queries(asked, timeout)

    def find_python(self, version_spec: str) -> tuple[str, str]:
        """(path, version) of the host's interpreter for a version of setup-python."""
        pythons = self.connection.cache.pythons
        if version_spec not in pythons:
            own = queries.OWN if self.spec.kind == "local" else self.connection.hello().python
            pythons[version_spec] = queries.find_python(version_spec, self, own)
        return pythons[version_spec]

    # -- the tree and the plans ----------------------------------------------------------------------------------------

    def use(self, batch: Batch, snapshot: Snapshot) -> None:
        """Let the rows of `batch` run with this code. Called before any run."""
        self._batch, self._code = batch, snapshot

    def paths(self, run: RunDir) -> HostPaths:
        home = self.connection.cache.home or self.connection.hello().home
        batch = f"{home}/runs/{self._batch.id}-{store.client_id()}"
        below = os.path.relpath(run.path, self._batch.path)
        return HostPaths(f"{batch}/{below}", f"{batch}/environments", f"{home}/environments", f"{home}/simulated-gpus")

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        """Put the plan into the run directory."""
        os.makedirs(run.path, exist_ok=True)
        write_record(run.plan, plan)
        Path(run.script).write_text(plan.script, encoding="utf-8", errors="surrogateescape", newline="\n")

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        """Make the run directories, with checkouts for them and for their install steps, so that a person can run
        `run.sh`. A host that cannot be used now is no reason to show no plan."""
        pairs = {row.plan.setup: row.setup for row in rows if row.plan.setup and row.setup}
        setups = [self._remote_run(RunDir(path), setup, path) for path, setup in pairs.items()]
        own = [self._row_run(row) for row in rows if row.has_own_checkout]
        for remote_run in (*setups, *own):
            remote_run.code = self._code
        try:
            self.create([*setups, *own, *(self._row_run(row) for row in rows if not row.has_own_checkout)])
            for row in rows:
                script = shlex.quote(f"{self.paths(row.run).run}/run.sh")
                print(f"{row.row.row}, by hand on {self.spec.name}: bash {script}", file=sys.stderr)
        except CiTasksError as problem:
            print(f"no script to run by hand on {self.spec.name}: {problem.message}", file=sys.stderr)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run_install_steps(
        self, setups: Sequence[Plan], say: Say, should_continue: Callable[[], bool] = lambda: True
    ) -> str | None:
        """Run the install steps that rows share, which stay until the executor is closed. Returns why they failed.

        Raises KeyboardInterrupt when `should_continue` returns False: a thread gets no ^C."""
        return next(filter(None, (self._install(setup, say, should_continue) for setup in setups)), None)

    def _install(self, setup: Plan, say: Say, should_continue: Callable[[], bool]) -> str | None:
        run = RunDir(str(self._batch.path / "environments" / setup.id))
        remote_run = self._remote_run(run, setup, os.path.dirname(setup.workspace))
        remote_run.keep_remote = True
        self._setups[run.path] = remote_run
        self._send(remote_run, has_checkout=True)
        log = InstallLog(run, say)
        try:
            while not remote_run.state.is_over:
                time.sleep(_POLL_INTERVAL_S)
                if not should_continue():
                    raise KeyboardInterrupt
                for line in self.drain_messages():
                    say(line)
                log.poll()
        except KeyboardInterrupt:
            self._end_install_steps(remote_run)
            raise
        if remote_run.aborted:
            return remote_run.aborted[1]
        assert remote_run.mirror is not None
        return log.finish(remote_run.mirror.status.exit_code)

    def _end_install_steps(self, remote_run: RemoteRun) -> None:
        """Wait for their end. A second ^C kills them."""
        for how in (CANCEL, KILL):
            with suppress(KeyboardInterrupt):
                self.end(remote_run, how)
                self.finish(lambda each: each is remote_run)
            if remote_run.is_told:
                return

    def start(self, row: PreparedRow) -> None:
        remote_run = self._row_run(row)
        remote_run.secrets = {**remote_run.secrets, **row.secrets}
        self._rows[row.run.path] = remote_run
        self._send(remote_run, has_checkout=row.has_own_checkout or row.plan.retry is not None)

    def _row_run(self, row: PreparedRow) -> RemoteRun:
        return self._remote_run(row.run, row.plan, self.paths(row.run).run)

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        return RemoteRun(
            run=run,
            directory=directory,
            plan=plan,
            secrets={name: os.environ[name] for name in given_secrets(plan)},
            keep_shared_files=bool(self._setups),
        )

    def _send(self, remote_run: RemoteRun, *, has_checkout: bool) -> None:
        try:
            self._prepare(remote_run, has_checkout)
        except OSError as error:
            where = error.filename or remote_run.run.path
            remote_run.aborted = (BLOCKED, f"cannot write {where}: {error.strerror}")
        except CiTasksError as problem:  # the tree is proven: what fails now is the machine
            remote_run.aborted = (BLOCKED, problem.message)
        else:
            self.send(remote_run)

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        """From here on other commands may find the run, and only this one may fetch it."""
        if has_checkout:
            remote_run.code = self._code
        if not os.path.exists(remote_run.run.plan):
            self.write_plan(remote_run.run, remote_run.plan)
        if not remote_run.is_here:
            remote_run.lock = runs.lock_mirror(remote_run.run)
            runs.write_location(remote_run.run, self.spec, remote_run.directory)

    def reattach(self, row: PreparedRow) -> None:
        """Watch a row that an earlier command started."""
        remote_run = self._row_run(row)
        remote_run.lock = runs.lock_mirror(row.run)
        if remote_run.lock is None:
            raise Blocked(f"{row.run.path} is being fetched by another command", hint="wait for it, or end it")
        self._rows[row.run.path] = remote_run
        self.attach(remote_run)

    def poll(self, row: PreparedRow) -> RunState:
        if row.run.path not in self._rows:
            return RunState(aborted=(CANCELLED, "cancelled before it started"))
        return self._rows[row.run.path].state

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        """Cancel rows; `kill` sends SIGKILL at once."""
        for row in rows:
            if row.run.path in self._rows:
                self.end(self._rows[row.run.path], KILL if kill else CANCEL)

    def release(self, row: PreparedRow) -> None:
        """Remove what the row no longer needs: its record is written."""
        remote_run = self._rows.get(row.run.path)
        if remote_run is not None and remote_run.mirror is not None and remote_run.mirror.status.kept:
            self._keeps_setups = True

    def release_retried(self, row: PreparedRow) -> list[str]:
        """Remove what the runs kept that a retry went on from. Returns a line for each thing that is left."""
        assert row.plan.retry is not None
        request, directories = self.connection.request, reversed(row.plan.retry.directories)
        answers = [request(Request("clear", directory)) for directory in directories]
        return [line for answer in answers for line in answer.left]

    def detach(self) -> None:
        """Stop watching; the runs go on."""
        super().detach()
        self._keeps_setups = True

    def drain_messages(self) -> list[str]:
        """Messages for the user since the last call, such as a lost connection."""
        return self.connection.drain_messages()

    def close(self) -> None:
        # In a thread: a link that is silent, or full of code on its way, keeps no user who wants to leave.
        final_requests = threading.Thread(target=self._final_requests, daemon=True, name="ci-tasks close")
        final_requests.start()
        until = time.monotonic() + _QUERY_TIMEOUT_S
        while final_requests.is_alive() and self.is_up and time.monotonic() < until:
            final_requests.join(_POLL_INTERVAL_S)
        super().close()

    def _final_requests(self) -> None:
        connection = self.connection
        with suppress(Exception):  # what is not cleared now, `clean` finds
            for remote_run in () if self._keeps_setups else self._setups.values():
                connection.request(Request("clear", remote_run.directory))
            is_due = time.time() > connection.cache.pruned_at + 24 * 3600.0
            if is_due and all(remote_run.is_fetched for remote_run in self._rows.values()):
                connection.request(Request("prune", days=OLD_DAYS))
                connection.cache.pruned_at = time.time()
                for recorded in (store.home() / "sync").glob("*/recorded"):
                    prune_store(recorded.parent)


class LocalExecutor(Executor):
    """This machine: runs are in their final place, so nothing is sent, fetched or cleared."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self.connection.cache.clear_facts()  # what is here may change from command to command

    def paths(self, run: RunDir) -> HostPaths:
        locks = store.lock_dir() / self.spec.name
        return HostPaths(run.path, str(self._batch.environments), str(store.environments()), str(locks))

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        for row in rows:
            self._make(row.run, row.plan, row.has_own_checkout)
            if row.setup and row.plan.setup and not os.path.exists(row.setup.workspace):
                self._make(RunDir(row.plan.setup), row.setup, True)

    def _make(self, run: RunDir, plan: Plan, has_checkout: bool) -> None:
        create(run, plan, archive.for_this_machine())
        if has_checkout:
            clone(self._code, Path(plan.workspace))

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        remote_run = super()._remote_run(run, plan, directory)
        remote_run.is_here = remote_run.keep_remote = True
        return remote_run

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        run = remote_run.run
        is_done = read_status(run).exit_code == 0 and os.path.exists(f"{run.path}/venv")
        if run.path in self._setups and os.path.lexists(run.status) and not is_done:
            remove_run(run.path)  # install steps of the command that this one resumes
        super()._prepare(remote_run, has_checkout)

    def release(self, row: PreparedRow) -> None:
        super().release(row)
        if not read_status(row.run).kept:
            for path in [row.run.bin] if row.plan.setup else [row.run.bin, row.run.workspace]:
                shutil.rmtree(path, ignore_errors=True)

    def release_retried(self, row: PreparedRow) -> list[str]:
        assert row.plan.retry is not None
        first, *retries = row.plan.retry.directories
        left = [line for path in (*reversed(retries), first) for line in end_and_clean(path)]
        shutil.rmtree(os.path.join(first, "tmp"), ignore_errors=True)
        others = [RunDir(str(path)) for path in Path(first).parent.iterdir() if path.name.isdigit()]
        is_shared = any(read_status_if_readable(run).kept for run in others if run.path != first)
        return left + (remove_setup(row.plan.setup) if row.plan.setup and not is_shared else [])

    def close(self) -> None:
        setups, self._setups = self._setups, {}  # their logs and plans stay
        try:
            super().close()
        finally:
            for path in () if self._keeps_setups else setups:
                remove_setup(path)


class SlurmExecutor(Executor):
    has_scheduler = True
    _time_limit: float | None = None  # minutes

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """`gpus` of the result counts one node: Slurm decides how many nodes have them free."""
        query = {"partitions": queries.PARTITIONS_QUERY}
        answer = self.run_queries(query, queries.QUERY_TIMEOUT_S)["partitions"]
        self._time_limit = queries.parse_time_limit(answer, self.spec.partition)
        facts = super().facts(gpus=gpus, container=container, simulates=simulates)
        if problem := queries.partition_problem(answer, self.spec.partition):
            return replace(facts, scheduler_problem=problem)
        if facts.gpus < gpus and not facts.gpu_problem:
            return replace(facts, gpu_problem="no node has more")
        return facts

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        """The batch script is beside the plan: what is shown is what runs."""
        plan = self._adapted(plan)
        super().write_plan(run, plan)
        text = batch_script(plan, self.spec, self._time_limit)
        Path(run.path, SCRIPT).write_text(text, encoding="utf-8", newline="\n")

    def _adapted(self, plan: Plan) -> Plan:
        return within_limit(on_slurm(plan), self._time_limit, self.spec)

    def _remote_run(self, run: RunDir, plan: Plan, directory: str) -> RemoteRun:
        return super()._remote_run(run, self._adapted(plan), directory)

    def _prepare(self, remote_run: RemoteRun, has_checkout: bool) -> None:
        super()._prepare(remote_run, has_checkout)
        remote_run.sbatch_script = Path(remote_run.run.path, SCRIPT).read_text(encoding="utf-8")

    def poll(self, row: PreparedRow) -> RunState:
        """A row has started as soon as Slurm has it: from then on it goes on without us."""
        state, remote_run = super().poll(row), self._rows.get(row.run.path)
        has = remote_run is not None and remote_run.mirror is not None and remote_run.mirror.status.slurm is not None
        return state if state.is_over or has else replace(state, has_started=False)


# -- install steps that rows share: a run of their own, whose log says how far they are --------------------------------


class InstallLog:
    """The log of install steps as it grows: passes on what our own program says, and says now and then that they go
    on."""

    def __init__(self, run: RunDir, say: Callable[[str], None]) -> None:
        self._run, self._say, self._begun, self._offset = run, say, time.monotonic(), 0
        self._spoken = self._begun
        say(f"install steps: running, log {run.log}")

    def poll(self) -> None:
        with suppress(OSError), open_file(self._run.log) as log:
            log.seek(self._offset)
            for line in log:
                self._offset += len(line) if line.endswith(b"\n") else 0
                if line.startswith(_OURS) and line.endswith(b"\n"):
                    self._say(line[len(_OURS) :][:_LONGEST_LINE].decode("utf-8", "replace").strip())
        if time.monotonic() - self._spoken > _REMINDER_S:
            self._spoken = time.monotonic()
            what = f"install steps: {self._spoken - self._begun:.0f} s"
            self._say(": ".join(filter(None, (what, last_line(self._run)))))

    def finish(self, code: int | None) -> str | None:
        """Why they failed with this exit code."""
        self.poll()
        if code == 0:
            self._say(f"install steps: done in {time.monotonic() - self._begun:.0f} s")
            return None
        from ci_tasks.logs.causes import JobEnd
        from ci_tasks.results.judge_run import log_triage

        log = self._run.log
        if code == _BLOCKED and (blocked := read_run_log(log).facts.blocked):
            return f"{blocked} (log {log})"
        triage = log_triage(self._run, JobEnd("exit", code or 1))
        lines = [triage.text, triage.line, *(each.line for each in triage.candidates)]
        shown = "no exit code" if code is None else code
        return f"the install steps ended with {shown}: {next(filter(None, lines), 'no output')} (log {log})"


def remove_setup(directory: str) -> list[str]:
    """Remove the venv and the checkout of install steps here. Returns a line for each thing that is left."""
    return [line for name in SETUP_PARTS for line in remove_tree(f"{directory}/{name}", None, "none", {})]


OpenExecutor = Callable[[HostSpec], Executor]


def open_executor(spec: HostSpec) -> Executor:
    kinds: dict[str, OpenExecutor] = {"local": LocalExecutor, "slurm": SlurmExecutor}
    return kinds.get(spec.kind, Executor)(spec)
