"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs; and the
hosts of one command.

One host is asked and made ready before the rows start: what is wrong there ends the command. Of several hosts, each is
asked, made ready and looked at again in a thread of its own, and the ready ones begin, whatever the others do.
"""

from __future__ import annotations

import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import debug_log, registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Plan, ProbeRules
from ci_tasks.checkout.repository import find_repository, resolve_rev
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError, UnknownName, UsageError, printable, some
from ci_tasks.hosts.executor import Executor, OpenExecutor, PreparedRow, Say, TakeSnapshot, take_host_snapshot
from ci_tasks.hosts.queries import QUERY_TIMEOUT_S
from ci_tasks.planning import containers
from ci_tasks.planning.checkout_files import defines_tests, own_packages, probe_rules, starts_ray
from ci_tasks.planning.placement import HostFacts, missing_resources, python_problem, requires_python
from ci_tasks.planning.planner import RowPlan, RunLocation, check_row, make_plan, wanted_python
from ci_tasks.planning.steps import override_warnings
from ci_tasks.report.live import HostProgress
from ci_tasks.results import store
from ci_tasks.results.store import Batch, write_phase
from ci_tasks.run.checkout_source import CheckoutSource, RunRequest, event_context
from ci_tasks.run.events import BatchJournal
from ci_tasks.run.find_rows import JobRows, find_rows
from ci_tasks.run.interrupts import Interrupts
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.config import Config, Override

_MOST_SHOWN = 5  # tests or files that are named
_REFRESH_SECONDS = 20.0  # seconds between two looks at what others hold on a host
_SHUTDOWN_SECONDS = 30.0  # seconds that the hosts' threads may take to let go of what they hold
_PREFETCHING, _INSTALLING = "prefetching", "install steps"


@dataclass(frozen=True)
class PreparedBatch:
    """All rows of one command, and the hosts that take part. With one host it is clear where each row runs:
    `planned_rows` are the plans, by the row's position; `planner` makes the missing ones. `threads` make several hosts
    ready. `journal` belongs to the earlier command that this one resumes."""

    batch: Batch
    rows: tuple[Row, ...]
    sessions: tuple[HostSession, ...]
    planner: RowPlanner | None
    checkout: Checkout
    threads: HostThreads | None = None
    planned_rows: dict[int, PreparedRow] = field(default_factory=dict)
    journal: BatchJournal | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    def close(self) -> None:
        with ExitStack() as steps:  # ^C ends one step, not those after it
            steps.callback(write_phase, self.batch.path, "ended")
            for session in self.sessions:
                steps.callback(session.executor.close)
            self.interrupts.restore()


def prepare(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    open_executor: OpenExecutor,
    take_snapshot: TakeSnapshot = take_host_snapshot,
    journal: BatchJournal | None = None,
    *,
    only_plans: bool = False,
) -> PreparedBatch:
    """Find the rows that were asked for, or an earlier command's, and their hosts. If it raises, it leaves only what an
    earlier command left. When it returns, ^C is deferred until the batch is closed. With `only_plans` the rows will not
    run."""
    specs = config.select_hosts(request.host)
    _check_home_outside_checkout(source)
    if request.base:
        resolve_rev(source.path, request.base)  # of a label that needs none, too: it is a word of the user's
    with ExitStack() as undo:
        executors = []
        for spec in specs:  # connections are being made while the rows are found
            executors.append(open_executor(spec))
            undo.callback(executors[-1].close)
        found = find_rows(source, request.label, event_context(source), request.base, run_needs=request.run_needs)
        rows = _selected(found.rows, request, source)
        for row in rows:
            check_row(source.workflow, found.job, row)
        batch = journal.batch if journal else store.new_batch(request.label, request.out)
        if journal is None:
            undo.callback(shutil.rmtree, batch.path, ignore_errors=True)
        else:
            undo.callback(write_phase, batch.path, "ended")
        if not only_plans:
            write_phase(batch.path, "preparing")
        code = take_snapshot(source.path, source.rev, source.given.overlays, announce_large_files)
        for executor in executors:
            executor.use(batch, code)
        found = replace(found, context=replace(found.context, sha=code.checkout.commit))
        # Whether the checkout's lock script keeps simulated GPUs' locks away from the real ones.
        scripts = code.names(source.suite.lock_scripts, ".py")
        simulates = any(containers.LOCK_DIR_ENV in (code.read_file(name) or "") for name in scripts)
        planner = RowPlanner(source, config, request, found, batch, rows, code, request.by_runner or simulates)
        sessions = tuple(map(HostSession, executors))
        planned = dict[int, PreparedRow]()
        if len(sessions) == 1 and rows:  # what it lacks is known before the first row starts
            (session,) = sessions
            session.facts = planner.gather_facts(session)
            session.row_problems = planner.before_rows(session, partial(print, flush=True), lambda: True)
            session.is_ready, session.activity = True, ""
            if journal is None:
                planned = {at: planner.plan_row(row, session, at + 1) for at, row in enumerate(rows)}
        threads = HostThreads(sessions, planner) if len(sessions) > 1 else None
        ready = PreparedBatch(batch, tuple(rows), sessions, planner, planner.checkout, threads, planned, journal)
        ready.interrupts.defer()
        undo.pop_all()
    return ready


def print_override_warnings(config: Config, source: CheckoutSource) -> None:
    for warning in override_warnings(config.overrides, source.workflow.jobs):
        print(f"ci-tasks: warning: {printable(warning)}", file=sys.stderr, flush=True)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _selected(rows: list[Row], request: RunRequest, source: CheckoutSource) -> list[Row]:
    """The rows by name, or by a part of it, and of these the ones that run a file of the given tests, or may do so.
    Raises UnknownName, UsageError."""
    gpus, counts = source.given.gpus, {row.gpus for row in rows if row.gpus is not None}
    if gpus is not None and counts and gpus not in counts:  # it is for what the workflow does not say
        says = ", ".join(map(str, sorted(counts)))
        raise UsageError(f"--gpus {gpus}: the workflow says {says}", hint="run it without --gpus")
    if unknown := set(request.rows) - {row.row for row in rows}:
        raise UnknownName("row", min(unknown), [row.row for row in rows], where=f"label {request.label}")
    if request.image and not any(row.image for row in rows):
        raise UsageError(f"--image {request.image}: no row of {request.label} has a container", hint="leave it out")
    named = [row for row in rows if row.row in request.rows]
    rows, tests = named or select(rows, request.only, request.label), source.given.tests
    files = [test.partition("::")[0] for test in tests]
    chosen = [row for row in rows if row.test is None or any(f"/{row.test}".endswith(f"/{file}") for file in files)]
    if tests and not chosen:
        run = ", ".join(sorted({row.test for row in rows if row.test})[:_MOST_SHOWN])
        raise UsageError(f"--test {tests[0]}: no row of {request.label} runs {files[0]}", hint=f"they run {run}, …")
    return chosen if tests else rows


def _check_home_outside_checkout(source: CheckoutSource) -> None:
    """Runs kept in the checkout would be part of the next run's working tree, unless git ignores them."""
    home = store.home()
    if not home.is_relative_to(source.path):
        return
    repository = find_repository(source.path)
    if repository is None or not repository.ignores(home / "runs"):
        message = f"{store.HOME_ENV} is {home}, inside the checkout, where no command may write"
        raise UsageError(message, hint="choose a directory outside, or add this one to .gitignore")


def announce_large_files(files: list[tuple[str, int]]) -> None:
    """Print what large files travel with the working tree though git does not know them, with their sizes in bytes."""
    if files:
        names = some([printable(name) for name, _ in files], _MOST_SHOWN)
        size = sum(size for _, size in files) / 1e6
        print(f"large untracked files travel with the working tree, {size:.0f} MB in all: {names}")
        print("to exclude them, press ^C and add them to .gitignore or .git/info/exclude", flush=True)


# -- what is planned for a host ----------------------------------------------------------------------------------------


@dataclass
class HostSession:
    """A host that takes part. `facts` are None until it has answered; `unusable_reason` says why nothing can run there;
    `activity` what it does before its rows begin; `row_problems` which rows lack a download there, and why.
    `first_rows` says of the first two rows that ended there whether no test was seen. A host that `is_dropped` gets no
    rows while another one can run them. `away_since`: it is being prepared or reconnected."""

    executor: Executor
    facts: HostFacts | None = None
    unusable_reason: str = ""
    activity: str = "connecting"
    is_ready: bool = False
    locked_gpus: frozenset[int] = frozenset()
    row_problems: Mapping[str, str] = field(default_factory=dict)
    first_rows: tuple[bool, ...] = ()
    is_dropped: bool = False
    away_since: float | None = None

    @cached_property
    def name(self) -> str:
        return self.spec.name

    @property
    def spec(self) -> HostSpec:
        return self.executor.spec

    def give_up_if_away(self) -> bool:
        """Whether it has not been ready, or not reachable, for so long that no row waits for it any longer; then it is
        unusable."""
        is_away = not self.unusable_reason and not (self.is_ready and self.executor.is_up)
        self.away_since = (self.away_since or time.monotonic()) if is_away else None
        minutes = self.spec.give_up_minutes
        if self.away_since is None or time.monotonic() - self.away_since <= 60 * minutes:
            return False
        what = "not reachable" if self.is_ready else f"not ready ({self.activity})"
        self.unusable_reason = f"{what} for {minutes:g} min; --give-up MINUTES waits longer"
        return True

    def missing_for(self, row: Row) -> tuple[str, ...]:
        """What keeps `row` from running there, as far as is known."""
        if self.unusable_reason or self.facts is None:
            return (self.unusable_reason,) if self.unusable_reason else ()
        problem = self.row_problems.get(row.row)
        return (*missing_resources(row, self.spec, self.facts), *([problem] if problem else []))

    def progress(self, ours: int) -> HostProgress:
        """How it stands, for a person; `ours` are the GPUs that our rows have there."""
        is_away = bool(self.unusable_reason) or (self.is_ready and not self.executor.is_up)
        gpus = None if self.facts is None or self.executor.has_scheduler else self.facts.gpus
        note = self.unusable_reason or self.activity or ("the link is down" if is_away else "")
        return HostProgress(self.name, gpus, max(0, len(self.locked_gpus) - ours), not is_away, note)


@dataclass(frozen=True)
class RowPlanner:
    """Everything that a command's plans have in common. `simulates`: simulated GPUs' locks stay away from real ones."""

    source: CheckoutSource
    config: Config
    request: RunRequest
    job_rows: JobRows
    batch: Batch
    rows: Sequence[Row]
    code: Snapshot
    simulates: bool

    def gather_facts(self, session: HostSession) -> HostFacts:
        """What a host offers. Raises Blocked for one that cannot be reached, or has not the Python that CI asks for."""
        executor, spec, rows = session.executor, session.spec, self.rows
        gpus, container = max((row.needed_gpus for row in rows), default=0), any(row.image for row in rows)
        facts = executor.facts(gpus=gpus, container=container, simulates=self.simulates)
        wanted = self._python_version(rows[0]) if rows else ""
        _, version = executor.find_python(wanted)
        # Else it is the image's. A login node's Python is not its nodes'.
        if executor.has_scheduler or not (wanted or spec.simulate or spec.runtime == "none"):
            return facts
        requirement = requires_python(self.code.read_file)
        if requirement and not (wanted or spec.simulate):  # its rows' venv is of the first python3 on PATH, not of ours
            command = ["python3", "-I", "-c", "import platform; print(platform.python_version())"]
            answer = executor.run_queries({"python": command}, QUERY_TIMEOUT_S).get("python")
            version = answer.out.strip() if answer is not None and answer.code == 0 else ""
        return replace(facts, python_problem=python_problem(requirement, version))

    def plan_row(self, row: Row, session: HostSession, number: int) -> PreparedRow:
        """Plan `row` for the host and write its run directory. Raises Blocked if the host cannot say enough."""
        run, executor = self.batch.run_dir(number), session.executor
        drafted = self._make_plan(row, session, number)
        test = self.code.read_file(row.test) if row.test else None
        exclusive = drafted.plan.exclusive
        # One slot, so that detached rows swamp no host.
        if (slots := self.request.slots) and not row.needed_gpus and not executor.has_scheduler:
            exclusive = (*exclusive, "|".join(f"cpu-{(number + more) % slots}" for more in range(slots)))
        plan = replace(
            drafted.plan,
            deviations=(*drafted.plan.deviations, *self.job_rows.deviations),
            exclusive=exclusive,
            defines_tests=defines_tests(test or ""),
        )
        executor.write_plan(run, plan)
        for name, text in self.request.files.items():
            Path(run.path, name).write_text(text, encoding="utf-8")
        return PreparedRow(row, plan, run, drafted.setup)

    @cached_property
    def checkout(self) -> Checkout:
        """The tree that runs, as records name it."""
        checkout, source = self.code.checkout, self.source
        conversions = (*source.conversions, *checkout.conversions)
        return replace(checkout, sample=source.sample, rev=source.rev, conversions=conversions)

    @cached_property
    def _probe(self) -> ProbeRules:
        suite, repository = self.source.suite, self.job_rows.context.repository
        return probe_rules(suite, tuple(own_packages(suite, repository, self.code.read_file)))

    def exclusive(self, row: Row, session: HostSession) -> tuple[str, ...]:
        """What the row cannot share with another row on the host, by the text of its job."""
        job = self.job_rows.job
        texts = [step.run or "" for step in job.steps] + [job.container.options if job.container else ""]
        return containers.exclusive(session.spec, texts, starts_ray=self._starts_ray(row))

    def setups(self, session: HostSession, planned: Iterable[PreparedRow] = ()) -> list[Plan]:
        """The install steps that rows share on the host, each once and in one order, so that two runs cannot wait for
        each other. Rows that are `planned` already have theirs."""
        able = [row for row in self.rows if not session.missing_for(row)]
        found = [each.setup for each in planned if each.row in able]
        if not found and able and self._make_plan(able[0], session, 1).setup:  # rows of one label have one job's steps
            found = [self._make_plan(row, session, 1).setup for row in able]
        by_id = {setup.id: setup for setup in found if setup}
        return [setup for _, setup in sorted(by_id.items())]

    def before_rows(self, session: HostSession, say: Say, is_wanted: Callable[[], bool]) -> Mapping[str, str]:
        """What features do on the host before rows start there. Returns, by row, what is missing. Raises Blocked if the
        host cannot be reached, and KeyboardInterrupt as soon as `is_wanted` returns False."""
        problems: dict[str, str] = {}
        for hook in registry.hooks("before_rows") if self.request.prefetch else ():
            problems |= hook(self, self.rows, session, say, is_wanted)
        return problems

    @property
    def overrides(self) -> tuple[Override, ...]:
        return (*self.config.overrides, *self.source.suite_overrides)

    def install_problem(self, problem: str) -> str:
        """Why install steps failed, with the override that would fix it, if one is known."""
        from ci_tasks.planning.pip_commands import entry, suggested_override

        override = suggested_override(problem, self.job_rows.job, self.overrides)
        return f"{problem}; this override in hosts.yaml would fix it: {entry(override)}" if override else problem

    def _python_version(self, row: Row) -> str:
        """The Python that CI sets up for the row."""
        return wanted_python(self.source.workflow, self.job_rows.job, row, self.job_rows.context, self.overrides)

    def _make_plan(self, row: Row, session: HostSession, number: int) -> RowPlan:
        executor, request = session.executor, self.request
        paths = executor.paths(self.batch.run_dir(number))
        event = replace(self.job_rows.context, workspace=f"{paths.run}/workspace")
        place = RunLocation(
            id=self.batch.run_id(number), run_dir=paths.run, checkout=self.checkout,
            python=executor.find_python(self._python_version(row)), environments=paths.setups, store=paths.environments,
            fresh=request.fresh_env, lock_dir=paths.locks, starts_ray=self._starts_ray(row), keep=request.keep,
            image=request.image, probe=self._probe if request.probe else None,
        )  # fmt: skip
        return make_plan(self.source.workflow, self.job_rows.job, row, session.spec, event, self.overrides, place)

    @cached_property
    def _tests_with_ray(self) -> frozenset[str]:
        tests = {row.test for row in self.rows if row.test and row.needed_gpus}
        return frozenset(test for test in tests if starts_ray(test, self.code.read_file))

    def _starts_ray(self, row: Row) -> bool:
        return self.request.by_runner or (row.needed_gpus > 0 and row.test in self._tests_with_ray)


# -- several hosts -----------------------------------------------------------------------------------------------------


class HostThreads:
    """The threads of several hosts, until the block ends."""

    def __init__(self, sessions: Sequence[HostSession], planner: RowPlanner) -> None:
        self._sessions, self._planner = sessions, planner
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._over, self.abandoned = threading.Event(), threading.Event()  # the second: no row needs install steps now

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._serve, args=(session,), daemon=True, name=f"ci-tasks {session.name}")
            for session in self._sessions
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            self.abandoned.set()
            until = time.monotonic() + _SHUTDOWN_SECONDS
            for thread, session in zip(threads, self._sessions, strict=True):
                holds = session.activity in (_PREFETCHING, _INSTALLING) and session.executor.is_up
                thread.join(max(0.0, until - time.monotonic()) if holds else 0.0)

    def drain_messages(self) -> list[str]:
        """Messages about the hosts since the last call."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def _serve(self, session: HostSession) -> None:
        """A host's whole story beside its rows."""

        def say(text: str) -> None:
            self._messages.put(f"{session.name}: {text}")

        def is_wanted() -> bool:
            return not self.abandoned.is_set()

        try:
            facts = self._planner.gather_facts(session)
            if self._planner.request.prefetch:
                session.activity = _PREFETCHING
                session.row_problems = self._planner.before_rows(session, say, is_wanted)
            session.facts = facts
            self._refresh(session)
            session.activity = _INSTALLING
            setups = self._planner.setups(session)
            if why := session.executor.run_install_steps(setups, say, is_wanted):
                raise CiTasksError(self._planner.install_problem(why))
            session.is_ready, session.activity = True, ""
            while not self._over.wait(_REFRESH_SECONDS):
                self._refresh(session)
        except KeyboardInterrupt:
            session.unusable_reason = "cancelled"
        except (CiTasksError, OSError) as problem:
            session.unusable_reason = problem.message if isinstance(problem, CiTasksError) else str(problem)
        except Exception as bug:  # the others continue
            session.unusable_reason = debug_log.bug(f"host {session.name}", bug)

    def _refresh(self, session: HostSession) -> None:
        """What others hold there is a hint; a host that does not answer is reported elsewhere."""
        from ci_tasks.hosts.queries import locked_gpus

        if session.executor.is_up and not session.executor.has_scheduler:
            with suppress(CiTasksError):
                session.locked_gpus = locked_gpus(session.executor, session.spec)
