"""An SSH host as an executor: the tree goes as a pack, runs are mirrored, install steps are a run of their own there.

This module is loaded before all else of a command, so that the connection is made while the rest is loaded: what is not
needed for that is imported where it serves.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import debug_log
from ci_tasks.agent.records import CheckoutPart, QueryAnswer
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.agent.serving.messages import Clear, Prune
from ci_tasks.background import Background
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.hosts import host_cache
from ci_tasks.hosts.executor import CodeSnapshot, PreparedRow, RunState, Say, secrets_of
from ci_tasks.hosts.host_snapshot import RemoteSnapshot, take_host_snapshot
from ci_tasks.hosts.remote_host import open_remote_host, run_state
from ci_tasks.hosts.remote_run import CANCEL, KILL, CodePack, RemoteRun, lock_mirror, write_remote_location
from ci_tasks.planning.capacity import HostFacts
from ci_tasks.records import BLOCKED, CANCELLED, Plan
from ci_tasks.results import store
from ci_tasks.results.store import Batch

if TYPE_CHECKING:
    from ci_tasks.checkout.snapshot import Snapshot
    from ci_tasks.given_values import OverlaySource
    from ci_tasks.hosts.shared_venvs import EnvironmentCopies
    from ci_tasks.planning.planner import SharedSetup

OLD_DAYS = 14.0  # after which objects that nobody sent again, and somebody else's runs, are of no use
_DAY = 24 * 3600.0
_POLL_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 20.0
_QUERY_TIMEOUT_S = 20.0  # seconds that a program of the host gets to answer


class SSHExecutor:
    """See ci_tasks.hosts.executor.Executor."""

    _batch: Batch

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self._manager = open_remote_host(spec)
        self._connection = self._manager.connection
        self._remote_runs: dict[str, RemoteRun] = {}
        self._setups: list[RemoteRun] = []
        self._copies: EnvironmentCopies | None = None
        self._keeps_setups = False  # a row that was kept goes on with them
        self._code: RemoteSnapshot | None = None
        self._snapshot: Background[Snapshot] | Snapshot | None = None  # for the next call of `snapshot`

    @property
    def lock_dir(self) -> str:
        return f"{self._home()}/simulated-gpus"

    @property
    def is_up(self) -> bool:
        return self._connection.is_up

    @property
    def has_scheduler(self) -> bool:
        return False

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """From memory where that is enough for the rows; what became wrong meanwhile, the agent notices in time."""
        cache, spec = self._connection.cache, self.spec
        container = container and spec.runtime != "none"
        enough = spec.gpus is not None or not gpus or (cache.gpus or 0) >= gpus
        if not (enough and (not container or cache.working_runtime == spec.runtime)):
            from ci_tasks.hosts import requirements

            queries = requirements.programs(spec, gpus=gpus > 0, container=container)
            facts = requirements.parse_facts(
                spec, self._connection.run_queries(queries, _QUERY_TIMEOUT_S), simulates=simulates
            )
            if gpus and spec.gpus is None:
                cache.gpus = facts.gpus
            cache.working_runtime = spec.runtime if container and not facts.container_problem else ""
            return facts
        found_gpus = spec.gpus if spec.gpus is not None else cache.gpus
        return HostFacts(gpus=found_gpus or 0, simulates=simulates)

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return self._connection.run_queries(queries, timeout)

    def find_python(self, version_spec: str) -> tuple[str, str]:
        pythons = self._connection.cache.pythons
        if version_spec not in pythons:
            from ci_tasks.hosts import python

            answers = self._connection.run_queries(
                {"python": python.find_python_command(version_spec)}, _QUERY_TIMEOUT_S
            )
            path, version = self._connection.hello().python
            pythons[version_spec] = python.choose_python(version_spec, answers["python"].out, (path, version))
        return pythons[version_spec]

    def use_snapshot(self, snapshot: Background[Snapshot]) -> None:
        self._snapshot = snapshot

    def reuse_snapshot(self, code: CodeSnapshot) -> None:
        if isinstance(code, RemoteSnapshot):
            self._snapshot = code.snapshot

    def snapshot(
        self,
        batch: Batch,
        source: Path,
        *,
        rev: str | None,
        base: str | None,
        overlays: Sequence[OverlaySource] = (),
    ) -> RemoteSnapshot:
        from ci_tasks.checkout import pack as packs

        self._batch = batch
        taken, self._snapshot = self._snapshot, None
        snapshot = taken.result() if isinstance(taken, Background) else taken
        snapshot = snapshot or take_host_snapshot(source, rev, base, overlays)
        key = host_cache.key(self.spec)
        pack = CodePack(
            tree=snapshot.flat,
            build=partial(packs.thin_pack, snapshot),
            known_trees=tuple(packs.sent_trees(snapshot.store, key)),
            mark_sent=partial(packs.record_sent_trees, snapshot.store, key, [snapshot.flat]),
        )
        self._manager.set_code_packs([pack])
        self._code = RemoteSnapshot(snapshot.checkout, snapshot)
        return self._code

    def snapshot_for_retry(self, batch: Batch, source: Path) -> RemoteSnapshot:
        return self.snapshot(batch, source, rev=None, base=None)

    def run_directory(self, run: RunDir) -> str:
        below = os.path.relpath(run.path, self._batch.path)
        return f"{self._home()}/runs/{self._batch.id}-{store.client_id()}/{below}"

    def environments_directory(self) -> str:
        return f"{self._home()}/runs/{self._batch.id}-{store.client_id()}/environments"

    @property
    def environment_store(self) -> str:
        return f"{self._home()}/environments"

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        os.makedirs(run.path, exist_ok=True)
        write_record(run.plan, plan)
        Path(run.script).write_text(plan.script, encoding="utf-8", errors="surrogateescape", newline="\n")

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        """The checkouts would be on the host; run.sh says how to name one of one's own."""
        self.close()

    def keep_environments(self) -> None:
        from ci_tasks.agent.serving.messages import CopySetup
        from ci_tasks.hosts.channel import RequestRefused
        from ci_tasks.hosts.shared_venvs import EnvironmentCopies

        self._copies = EnvironmentCopies(
            lambda directory: self._connection.request(CopySetup(directory)),
            lambda directory: self._connection.request(CopySetup(directory, restore=True)),
            (RequestRefused,),
        )

    @contextmanager
    def prepare_environments(
        self, setups: Sequence[SharedSetup], say: Say, should_continue: Callable[[], bool] = lambda: True
    ) -> Iterator[str | None]:
        if not setups:
            yield None
            return
        from ci_tasks.hosts.shared_venvs import prepare

        def install(setup: SharedSetup) -> str | None:
            return self._install(setup, say, should_continue)

        yield prepare(setups, self._copies, install, say)

    def _install(self, setup: SharedSetup, say: Say, should_continue: Callable[[], bool]) -> str | None:
        for remote_run in [each for each in self._setups if each.directory == setup.directory]:
            self._setups.remove(remote_run)  # of the repetition before
            self._connection.request(Clear(remote_run.directory))
            shutil.rmtree(remote_run.run.path, ignore_errors=True)
        return self._run_setup(setup, say, should_continue)

    def start(self, row: PreparedRow) -> None:
        remote_run = RemoteRun(
            run=row.run,
            directory=self.run_directory(row.run),
            plan=row.plan,
            script=row.plan.script,
            parts=self._parts() if row.has_own_checkout or row.plan.retry else (),
            secrets={**secrets_of(row.plan.secrets, os.environ), **row.secrets},
            keep_shared_files=bool(self._setups),
        )
        self._remote_runs[row.run.path] = remote_run
        self._begin(remote_run)

    def _begin(self, remote_run: RemoteRun) -> None:
        """From here on others may find it, and only we may bring it home."""
        try:
            remote_run.lock = lock_mirror(remote_run.run)
            write_remote_location(remote_run.run, self.spec, remote_run.directory)
        except OSError as error:
            remote_run.aborted = (BLOCKED, f"cannot write {remote_run.run.path}: {error.strerror}")
        else:
            self._manager.start(remote_run)

    def reattach(self, row: PreparedRow) -> None:
        held = lock_mirror(row.run)
        if held is None:
            raise Blocked(f"{row.run.path} is being brought home by another command", hint="wait for it, or end it")
        remote_run = RemoteRun(
            run=row.run,
            directory=self.run_directory(row.run),
            lock=held,
            keep_shared_files=bool(self._setups),
            secrets=secrets_of(row.plan.secrets, os.environ),
        )
        self._remote_runs[row.run.path] = remote_run
        self._manager.attach(remote_run)

    def poll(self, row: PreparedRow) -> RunState:
        remote_run = self._remote_runs.get(row.run.path)
        return (
            run_state(remote_run)
            if remote_run is not None
            else RunState(aborted=(CANCELLED, "cancelled before it began"))
        )

    def wait(self, seconds: float) -> None:
        self._manager.wait(seconds)

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        for row in rows:
            if row.run.path in self._remote_runs:
                self._manager.cancel(self._remote_runs[row.run.path], KILL if kill else CANCEL)

    def release(self, row: PreparedRow) -> None:
        remote_run = self._remote_runs.get(row.run.path)
        if remote_run is not None and remote_run.mirror is not None and remote_run.mirror.status.kept:
            self._keeps_setups = True

    def release_retried(self, row: PreparedRow) -> list[str]:
        assert row.plan.retry is not None
        answers = [self._connection.request(Clear(path)) for path in reversed(row.plan.retry.directories)]
        return [line for answer in answers for line in answer.left]

    def detach(self) -> None:
        self._manager.detach()
        self._setups = []

    def drain_messages(self) -> list[str]:
        return self._connection.drain_messages()

    def close(self) -> None:
        # In a thread: a link that is silent, or full of code on its way, keeps nobody who wants to leave.
        final_requests = threading.Thread(target=self._final_requests, daemon=True, name="ci-tasks close")
        final_requests.start()
        until = time.monotonic() + _QUERY_TIMEOUT_S
        while final_requests.is_alive() and self._connection.is_up and time.monotonic() < until:
            final_requests.join(_POLL_INTERVAL_S)
        self._manager.close()

    def _final_requests(self) -> None:
        with debug_log.ignored("last requests to the host"):  # what is not cleared now, `clean` finds
            for remote_run in () if self._keeps_setups else self._setups:
                self._connection.request(Clear(remote_run.directory))
            if all(remote_run.is_fetched for remote_run in self._remote_runs.values()):
                self._prune()

    def _prune(self) -> None:
        """Once a day the host forgets objects that nobody has sent again."""
        cache = self._connection.cache
        if time.time() > cache.pruned_at + _DAY and self._connection.request(Prune(OLD_DAYS)).done:
            cache.pruned_at = time.time()

    def _home(self) -> str:
        return self._connection.cache.home or self._connection.hello().home

    def _parts(self) -> list[CheckoutPart]:
        assert self._code is not None
        return self._code.checkout_parts()

    def _run_setup(self, setup: SharedSetup, say: Say, should_continue: Callable[[], bool]) -> str | None:
        from ci_tasks.hosts.last_line import last_line
        from ci_tasks.hosts.shared_venvs import failure_message, say_result, setup_plan

        run = RunDir(str(self._batch.path / "environments" / os.path.basename(setup.directory)))
        os.makedirs(run.path, exist_ok=True)
        plan = replace(setup_plan(setup, self.spec), workspace=setup.workspace)
        write_record(run.plan, plan)
        remote_run = RemoteRun(
            run=run,
            directory=setup.directory,
            plan=plan,
            script=setup.script,
            parts=self._parts(),
            secrets=secrets_of(setup.secrets, os.environ),
            keep_remote=True,
        )
        say(f"install steps: running on {self.spec.name}, log {run.log}")
        self._setups.append(remote_run)
        self._begin(remote_run)
        begun = spoken = time.monotonic()
        try:
            while not (run_state(remote_run).is_complete or remote_run.aborted):
                time.sleep(_POLL_INTERVAL_S)
                if not should_continue():
                    raise KeyboardInterrupt
                for line in self.drain_messages():
                    say(line)
                if time.monotonic() - spoken > _PROGRESS_INTERVAL_S:
                    spoken = time.monotonic()
                    say(f"install steps: {last_line(run)}")
        except KeyboardInterrupt:
            self._cancel_setup(remote_run)
            raise
        if remote_run.aborted:
            return remote_run.aborted[1]
        assert remote_run.mirror is not None
        code = remote_run.mirror.status.exit_code
        if code == 0:
            say_result(run, time.monotonic() - begun, say)
            return None
        return failure_message(run, code)

    def _cancel_setup(self, remote_run: RemoteRun) -> None:
        """After a ^C with patience, after the next without, and then without its end."""
        for how in (CANCEL, KILL, KILL):
            self._manager.cancel(remote_run, how)
            try:
                while not (run_state(remote_run).is_complete or remote_run.aborted):
                    time.sleep(_POLL_INTERVAL_S)
                return
            except KeyboardInterrupt:
                continue
