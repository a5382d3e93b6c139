"""A host that takes part in a command, and the plan of a row for it with its run directory: made when the row is given
to the host, not before."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Plan, ProbeHook, ProbeRules
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import HostSpec
from ci_tasks.hosts.executor import Executor, PreparedRow, Say
from ci_tasks.hosts.queries import QUERY_TIMEOUT_S
from ci_tasks.planning import containers
from ci_tasks.planning.placement import HostFacts, missing_resources, other_hosts, python_problem, requires_python
from ci_tasks.planning.planner import RowPlan, RunLocation, make_plan, wanted_python
from ci_tasks.planning.tested_files import defines_tests, starts_ray
from ci_tasks.report.live import HostProgress
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, RunRequest
from ci_tasks.run.find_rows import JobRows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.suite import Suite

if TYPE_CHECKING:
    from ci_tasks.config import Config, Override


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
    _with_ray: dict[str, bool] = field(default_factory=dict)  # by test: its modes are rows of their own

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
        """Plan `row` for the host and write its run directory. Raises Blocked where the host cannot say enough."""
        run, executor = self.batch.run_dir(number), session.executor
        drafted = self._make_plan(row, session, number)
        test = self.code.read_file(row.test) if row.test else None
        exclusive = drafted.plan.exclusive
        if self.request.slots and not row.needed_gpus and not executor.has_scheduler:
            exclusive = (*exclusive, f"cpu-{number % self.request.slots}")  # so that detached rows swamp no host
        plan = replace(
            drafted.plan,
            deviations=(*drafted.plan.deviations, *self.job_rows.deviations),
            exclusive=exclusive,
            defines_tests=defines_tests(test or ""),
        )
        os.makedirs(run.path, exist_ok=True)
        executor.write_plan(run, plan)
        for name, text in self.request.files.items():
            Path(run.path, name).write_text(text, encoding="utf-8")
        others = other_hosts(row, self.config.hosts, session.name, self.simulates)
        return PreparedRow(row, plan, run, drafted.setup, session.missing_for(row), tuple(others))

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

    def setups(self, session: HostSession) -> list[Plan]:
        """The install steps that rows share on the host."""
        rows = self.rows
        if not rows or self._make_plan(rows[0], session, 1).setup is None:  # rows of one label have one job's steps
            return []
        return sorted_setups(self._make_plan(row, session, 1).setup for row in rows if not session.missing_for(row))

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
        """Why install steps failed, with the override that would fix it, where one is known."""
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
            id=self.batch.run_id(number),
            run_dir=paths.run,
            workspace=event.workspace,
            checkout=self.checkout,
            python=executor.find_python(self._python_version(row)),
            environments=paths.setups,
            store=paths.environments,
            fresh=request.fresh_env,
            lock_dir=paths.locks,
            starts_ray=self._starts_ray(row),
            keep=request.keep,
            image=request.image,
            probe=self._probe if request.probe else None,
        )
        return make_plan(self.source.workflow, self.job_rows.job, row, session.spec, event, self.overrides, place)

    def _starts_ray(self, row: Row) -> bool:
        if self.request.by_runner or not row.test or not row.needed_gpus:
            return self.request.by_runner
        if row.test not in self._with_ray:
            self._with_ray[row.test] = starts_ray(row.test, self.code.read_file)
        return self._with_ray[row.test]


def sorted_setups(setups: Iterable[Plan | None]) -> list[Plan]:
    """Each of them once, so that two runs cannot wait for each other."""
    by_id = {setup.id: setup for setup in setups if setup}
    return [setup for _, setup in sorted(by_id.items())]


# -- what the probe watches --------------------------------------------------------------------------------------------

_PROJECT = re.compile(r"""^name *= *["']([\w.-]+)["']""", re.MULTILINE)
_ROOTS = ("", "src/", "python/")  # of a checkout, where projects have their packages


def probe_rules(suite: Suite, own: tuple[str, ...] = ()) -> ProbeRules:
    """A suite's hook uses the standard library of Python 3.8 only, so it can be imported here for its `MODULES`."""
    packages = tuple(dict.fromkeys([*suite.packages, *own]))
    if not suite.probe_hook:
        return ProbeRules(packages, own=own)
    import inspect  # the suites of most labels have no hook

    module = importlib.import_module(suite.probe_hook)
    hook = ProbeHook(suite.name, tuple(module.MODULES), inspect.getsource(module))
    return ProbeRules(packages, (hook,), own=own)


def own_packages(suite: Suite, repository: str, read_file: Callable[[str], str | None]) -> Iterator[str]:
    """The packages that the checkout has: the suite's, and one with the name of the project or the repository."""
    projects = [*_PROJECT.findall(read_file("pyproject.toml") or "")[:1], repository.rpartition("/")[2]]
    for name in dict.fromkeys([*suite.packages, *(re.sub("[-.]+", "_", project.lower()) for project in projects)]):
        path = name.replace(".", "/")
        if any(read_file(f"{root}{path}/__init__.py") is not None for root in _ROOTS):
            yield name
