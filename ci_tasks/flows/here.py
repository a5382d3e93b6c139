"""This machine as a site: runs lie where they are looked at, and the runner is started beside them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci_tasks.errors import CiTasksError
from ci_tasks.flows import environment
from ci_tasks.flows.environment import check_out
from ci_tasks.flows.site import Code, Look, Prepared, Say
from ci_tasks.hosts import local, probe, python
from ci_tasks.hosts.ask import Answer, LocalAsker
from ci_tasks.model import BLOCKED, CANCELLED, Checkout, HostSpec, Plan
from ci_tasks.plan.capacity import HostFacts
from ci_tasks.plan.planner import Setup
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch
from ci_tasks.sync.snapshot import materialize


@dataclass(frozen=True)
class ClonedCode:
    """The batch's clone of the working tree."""

    checkout: Checkout
    directory: Path

    def read(self, path: str) -> str | None:
        file = self.directory / path
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None

    def texts(self, directory: str, suffix: str) -> Iterator[str]:
        for file in sorted((self.directory / directory).glob(f"*{suffix}")):
            if file.is_file():
                yield file.read_text(encoding="utf-8", errors="replace")


class Here:
    """See ci_tasks.flows.site.Site."""

    _batch: Batch
    is_up, queues = True, False

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.lock_dir = str(store.lock_dir() / spec.name)
        self._shared: ClonedCode | None = None
        self._never: dict[str, tuple[str, str]] = {}

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        return probe.facts(self.spec, gpus=gpus > 0, container=container, simulates=simulates)

    def ask(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, Answer]:
        return LocalAsker().ask(questions, timeout)

    def python(self, wanted: str) -> tuple[str, str]:
        return python.find(wanted)

    def expect(self, source: Path, *, rev: str | None, base: str | None) -> None:
        pass

    def share(self, code: Code) -> None:
        self._shared = code if isinstance(code, ClonedCode) else None

    def take(self, batch: Batch, source: Path, *, rev: str | None, base: str | None) -> ClonedCode:
        self._batch = batch
        if self._shared is not None and self._shared.directory == batch.source:
            return self._shared
        return ClonedCode(materialize(source, self._batch.source, rev=rev, base=base), self._batch.source)

    def path(self, run: RunDir) -> str:
        return run.path

    def environments(self, *, shared: bool) -> str:
        return str((store.environments() if shared else self._batch.environments) / self.spec.name)

    def write(self, run: RunDir, plan: Plan) -> None:
        local.write_run_dir(run, plan)

    def hand_over(self, rows: Sequence[Prepared]) -> None:
        for row in rows:
            if row.setup is None:
                check_out(row.plan.workspace, self._batch)
            elif not os.path.exists(row.setup.workspace):
                environment.write(row.setup, self.spec)
                check_out(row.setup.workspace, self._batch)

    @contextmanager
    def ready(
        self, setups: Sequence[Setup], reuse: bool, say: Say, wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[str | None]:
        with ExitStack() as stack:
            for setup in setups:
                stack.enter_context(environment.held(setup, say, wanted))
                problem = environment.make_ready(setup, self._batch, self.spec, reuse, say, wanted)
                if problem:
                    break
            else:
                problem = None
            yield problem

    def begin(self, row: Prepared) -> None:
        try:
            if row.setup is None:
                check_out(row.plan.workspace, self._batch)
            local.start(row.run)
        except KeyboardInterrupt:
            if not local.status(row.run):
                self._never[row.run.path] = (CANCELLED, "cancelled before it began")
            raise
        except (CiTasksError, OSError) as problem:  # the tree is proven: what fails now is the machine
            self._never[row.run.path] = (BLOCKED, str(problem))

    def rejoin(self, row: Prepared) -> None:
        pass

    def look(self, row: Prepared) -> Look:
        if row.run.path in self._never:
            return Look(never=self._never[row.run.path])
        if not local.ended(row.run):
            return Look()
        local.clear(row.run)
        return Look(over=True)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self, rows: Iterable[Prepared], *, kill: bool) -> None:
        for row in rows:
            if kill:
                local.kill(row.run)
            else:
                local.request_cancel(row.run)

    def settled(self, row: Prepared) -> None:
        if row.plan.setup is None and not local.status(row.run).get("kept"):
            shutil.rmtree(row.plan.workspace, ignore_errors=True)

    def leave(self) -> None:
        pass

    def told(self) -> list[str]:
        return []

    def close(self) -> None:
        if hasattr(self, "_batch"):
            shutil.rmtree(self._batch.source, ignore_errors=True)
