"""A box over SSH as a site: the tree goes as a pack, runs are mirrored, install steps are a run of their own there.

This module is loaded before all else of a command, so that the connection is made while the rest is loaded: what is not
needed for that is imported where it serves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.errors import Blocked
from ci_tasks.flows.boxes import SentCode, look, open_box, recorded
from ci_tasks.flows.site import Code, Look, Prepared, Say, secrets_of
from ci_tasks.hosts import box, memory
from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.box import Errand, Pack
from ci_tasks.hosts.errand import CANCEL, KILL
from ci_tasks.hosts.mirror import hold
from ci_tasks.model import BLOCKED, CANCELLED, HostSpec, Plan
from ci_tasks.plan.capacity import HostFacts
from ci_tasks.runner.layout import RunDir, write_json
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch

if TYPE_CHECKING:
    from ci_tasks.plan.planner import Setup
    from ci_tasks.sync.snapshot import Snapshot

OLD_DAYS = 14.0  # after which objects that nobody sent again, and somebody else's runs, are of no use
_DAY = 24 * 3600.0
_GLANCE = 0.05
_REMINDER = 20.0
_PATIENCE = 20.0  # seconds that a program of the host gets to answer


class There:
    """See ci_tasks.flows.site.Site."""

    _batch: Batch

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self._box = open_box(spec)
        self._line = self._box.line
        self._errands: dict[str, Errand] = {}
        self._setups: list[Errand] = []
        self._snapshot: Snapshot | None = None
        self._early: Future[Snapshot] | None = None

    @property
    def lock_dir(self) -> str:
        return f"{self._home()}/pretend-gpus"

    @property
    def is_up(self) -> bool:
        return self._line.is_up

    @property
    def queues(self) -> bool:
        return False

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """From memory where that is enough for the rows; what became wrong meanwhile, the runner notices in time."""
        known, spec = self._line.memory, self.spec
        container = container and spec.runtime != "none"
        enough = spec.gpus is not None or not gpus or (known.gpus or 0) >= gpus
        if not (enough and (not container or known.containers == spec.runtime)):
            from ci_tasks.hosts import probe

            asked = probe.questions(spec, gpus=gpus > 0, container=container)
            found = probe.parse(spec, self._line.ask(asked, _PATIENCE), simulates=simulates)
            if gpus and spec.gpus is None:
                known.gpus = found.gpus
            known.containers = spec.runtime if container and not found.container_problem else ""
            return found
        found_gpus = spec.gpus if spec.gpus is not None else known.gpus
        return HostFacts(gpus=found_gpus or 0, simulates=simulates)

    def ask(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, Answer]:
        return self._line.ask(questions, timeout)

    def python(self, wanted: str) -> tuple[str, str]:
        known = self._line.memory.pythons
        if wanted not in known:
            from ci_tasks.hosts import python

            answers = self._line.ask({"python": python.question(wanted)}, _PATIENCE)
            path, version = self._line.hello()["python"]
            known[wanted] = python.choose(wanted, answers["python"].out, (path, version))
        return known[wanted]

    def expect(self, source: Path, *, rev: str | None, base: str | None) -> None:
        if not store.home().is_relative_to(source):  # else `prepare` complains, and nothing may be written there
            self._early = ThreadPoolExecutor(1).submit(recorded, source, rev, base)

    def share(self, code: Code) -> None:
        if isinstance(code, SentCode):
            self._early = Future()
            self._early.set_result(code.snapshot)

    def take(self, batch: Batch, source: Path, *, rev: str | None, base: str | None) -> SentCode:
        from ci_tasks.sync import pack as packs

        self._batch = batch
        known, self._early = self._early, None
        snapshot = self._snapshot = known.result() if known else recorded(source, rev, base)
        key = memory.key(self.spec)
        self._box.load(
            [
                Pack(
                    tree=part.tree,
                    make=partial(packs.thin_pack, part),
                    have=tuple(packs.remembered(part.store, key)),
                    sent=partial(packs.remember, part.store, key, [part.tree]),
                )
                for part in snapshot.parts
            ]
        )
        return SentCode(snapshot.checkout, snapshot)

    def path(self, run: RunDir) -> str:
        below = os.path.relpath(run.path, self._batch.path)
        return f"{self._home()}/runs/{self._batch.id}-{store.client_id()}/{below}"

    def environments(self, *, shared: bool) -> str:
        return f"{self._home()}/runs/{self._batch.id}-{store.client_id()}/environments"

    def write(self, run: RunDir, plan: Plan) -> None:
        os.makedirs(run.path, exist_ok=True)
        write_json(run.plan, plan.public())
        Path(run.script).write_text(plan.script, encoding="utf-8", errors="surrogateescape", newline="\n")

    def hand_over(self, rows: Sequence[Prepared]) -> None:
        """The checkouts would be on the host; run.sh says how to name one of one's own."""
        self.close()

    @contextmanager
    def ready(
        self, setups: Sequence[Setup], reuse: bool, say: Say, wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[str | None]:
        if setups and reuse:
            say(f"install steps: run anew, since {self.spec.name} keeps no venvs between runs")
        for setup in setups:
            problem = self._make_ready(setup, say, wanted)
            if problem:
                break
        else:
            problem = None
        yield problem

    def begin(self, row: Prepared) -> None:
        errand = Errand(
            run=row.run,
            directory=self.path(row.run),
            plan=row.plan.public(),
            script=row.plan.script,
            parts=self._parts() if row.setup is None else (),
            secrets=secrets_of(row.plan.secrets, os.environ),
            shares=bool(self._setups),
        )
        self._errands[row.run.path] = errand
        self._begin(errand)

    def _begin(self, errand: Errand) -> None:
        """From here on others may find it, and only we may bring it home."""
        try:
            errand.held = hold(errand.run)
            box.remember(errand.run, self.spec, errand.directory)
        except OSError as error:
            errand.never = (BLOCKED, f"cannot write {errand.run.path}: {error.strerror}")
        else:
            self._box.begin(errand)

    def rejoin(self, row: Prepared) -> None:
        held = hold(row.run)
        if held is None:
            raise Blocked(f"{row.run.path} is being brought home by another command", hint="wait for it, or end it")
        errand = Errand(run=row.run, directory=self.path(row.run), held=held, shares=bool(self._setups))
        self._errands[row.run.path] = errand
        self._box.attach(errand)

    def look(self, row: Prepared) -> Look:
        errand = self._errands.get(row.run.path)
        return look(errand) if errand is not None else Look(never=(CANCELLED, "cancelled before it began"))

    def wait(self, seconds: float) -> None:
        self._box.wait(seconds)

    def end(self, rows: Iterable[Prepared], *, kill: bool) -> None:
        for row in rows:
            if row.run.path in self._errands:
                self._box.end(self._errands[row.run.path], KILL if kill else CANCEL)

    def settled(self, row: Prepared) -> None:
        pass

    def leave(self) -> None:
        self._box.leave()
        self._setups = []

    def told(self) -> list[str]:
        lines = []
        while not self._line.said.empty():
            lines.append(self._line.said.get())
        return lines

    def close(self) -> None:
        # In a thread: a link that is silent, or full of code on its way, keeps nobody who wants to leave.
        last_words = threading.Thread(target=self._last_words, daemon=True, name="ci-tasks last words")
        last_words.start()
        until = time.monotonic() + _PATIENCE
        while last_words.is_alive() and self._line.is_up and time.monotonic() < until:
            last_words.join(_GLANCE)
        self._box.close()

    def _last_words(self) -> None:
        with suppress(Exception):  # what is not cleared now, `clean` finds
            for errand in self._setups:
                self._line.request("clear", dir=errand.directory)
            if all(errand.is_home for errand in self._errands.values()):
                self._prune()

    def _prune(self) -> None:
        """Once a day the host forgets objects that nobody has sent again."""
        known = self._line.memory
        if time.time() > known.pruned_at + _DAY and self._line.request("prune", days=OLD_DAYS):
            known.pruned_at = time.time()

    def _home(self) -> str:
        return self._line.memory.home or str(self._line.hello()["home"])

    def _parts(self) -> list[dict[str, str]]:
        assert self._snapshot is not None
        return [{"path": part.path, "commit": part.commit, "tree": part.tree} for part in self._snapshot.parts]

    def _make_ready(self, setup: Setup, say: Say, wanted: Callable[[], bool]) -> str | None:
        from ci_tasks.flows.environment import failed_steps, setup_plan
        from ci_tasks.flows.view import last_line

        run = RunDir(str(self._batch.path / "environments" / os.path.basename(setup.directory)))
        os.makedirs(run.path, exist_ok=True)
        plan = {**setup_plan(setup, self.spec), "workspace": setup.workspace}
        write_json(run.plan, plan)
        errand = Errand(
            run=run,
            directory=setup.directory,
            plan=plan,
            script=setup.script,
            parts=self._parts(),
            secrets=secrets_of(setup.secrets, os.environ),
            stays=True,
        )
        say(f"install steps: running on {self.spec.name}, log {run.log}")
        self._setups.append(errand)
        self._begin(errand)
        begun = spoken = time.monotonic()
        try:
            while not (look(errand).over or errand.never):
                time.sleep(_GLANCE)
                if not wanted():
                    raise KeyboardInterrupt
                for line in self.told():
                    say(line)
                if time.monotonic() - spoken > _REMINDER:
                    spoken = time.monotonic()
                    say(f"install steps: {last_line(run)}")
        except KeyboardInterrupt:
            self._end_setup(errand)
            raise
        if errand.never:
            return errand.never[1]
        assert errand.mirror is not None
        code = errand.mirror.status.get("exit_code")
        if code == 0:
            say(f"install steps: done in {time.monotonic() - begun:.0f} s")
            return None
        return failed_steps(run, code)

    def _end_setup(self, errand: Errand) -> None:
        """After a ^C with patience, after the next without, and then without its end."""
        for how in (CANCEL, KILL, KILL):
            self._box.end(errand, how)
            try:
                while not (look(errand).over or errand.never):
                    time.sleep(_GLANCE)
                return
            except KeyboardInterrupt:
                continue
