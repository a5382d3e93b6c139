"""Every command ends and every row has a record, whatever rows, hosts and links do, and in whatever order.

The execution is the real one; hosts and time are simulated. CI_TASKS_TEST_EXAMPLES sets the number of examples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.agent.records import Checkout, Plan
from ci_tasks.agent.run_directory import write_record
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.placement import HostFacts
from ci_tasks.records import BLOCKED, FAILED, LOST, PASSED
from ci_tasks.results.store import Batch
from ci_tasks.run import execute, prepare
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.events import EventView
from ci_tasks.run.execute import RowExecution, run_rows
from ci_tasks.run.prepare import HostSession, PreparedBatch
from ci_tasks.workflow.model import Row
from tests.parts.json_files import read_json
from tests.run import simulated
from tests.run.simulated import Act, Played

EXAMPLES = int(os.environ.get("CI_TASKS_TEST_EXAMPLES", "80"))
LONGEST = 60  # seconds of a row
NEVER = 1e9
SECONDS = st.sampled_from([0, 1, 7, 30, LONGEST])
MOMENT = st.integers(0, 200)

ACT = st.builds(
    Act,
    status=st.sampled_from(
        [PASSED, PASSED, FAILED, BLOCKED, LOST, simulated.SET_UP, simulated.SET_UP, simulated.BROKEN]
    ),
    seconds=SECONDS,
    refused=st.sampled_from(["", "", "", "no space left on device"]),
    answers=st.sampled_from([True, True, True, False]),
)


@dataclass(frozen=True)
class HostStory:
    """A host: when it is ready, or says why it never will be; when its link changes; when others take GPUs."""

    gpus: int
    ready_at: float
    problem_at: float
    link_changes: Sequence[int]
    locks: Sequence[tuple[int, int]]
    has_scheduler: bool


@dataclass(frozen=True)
class Story:
    """A command: the GPUs of its rows, what becomes of each row on each host, and what a person does."""

    hosts: Sequence[HostStory]
    rows: Sequence[int]
    acts: Sequence[Sequence[Any]]
    unplannable: frozenset[tuple[int, int]]
    policy: Mapping[str, Any]
    jobs: int | None
    give_up: float
    interrupts: Sequence[int]
    step: float
    tick: float


@st.composite
def stories(draw: st.DrawFn) -> Story:
    hosts = draw(
        st.lists(
            st.builds(
                HostStory,
                gpus=st.sampled_from([0, 4, 8]),
                ready_at=st.sampled_from([0, 0, 0, 5, 100, NEVER]),
                problem_at=st.sampled_from([NEVER, NEVER, NEVER, 3, 50]),
                link_changes=st.lists(MOMENT, max_size=4).map(sorted),
                locks=st.lists(st.tuples(MOMENT, st.sampled_from([0, 3, 8])), max_size=2),
                has_scheduler=st.sampled_from([False, False, False, True]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    rows = draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 9]), min_size=1, max_size=6))
    return Story(
        hosts=hosts,
        rows=rows,
        acts=[[draw(ACT) for _ in hosts] for _ in rows],
        unplannable=draw(st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=2)),
        policy={"fail_fast": draw(st.booleans()), "retry_failed": draw(st.booleans())},
        jobs=draw(st.sampled_from([None, None, 1, 2])),
        give_up=draw(st.sampled_from([0.1, 1, 2])),
        interrupts=draw(st.one_of(st.just([]), st.just([]), st.lists(MOMENT, max_size=2))),
        step=draw(st.sampled_from([0.5, 2, 5])),
        tick=draw(st.sampled_from([0.0, 0.03])),
    )


@dataclass
class Clock:
    """Stands for the module `time`: it goes on when someone sleeps, and by a tick whenever it is read."""

    world: Any
    step: float
    tick: float
    now: float = 1000.0

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += self.step
        self.world.happen(self.now - 1000.0)


class Site(Played):
    """A host whose connection gives up, as the real one does."""

    def __init__(self, name: str, story: HostStory, world: World) -> None:
        spec = HostSpec(name, runtime="none", gpus=story.gpus, give_up_minutes=world.story.give_up)
        super().__init__(spec, simulated.Host(name, story.gpus, world.acts))
        self.story, self.world, self.has_scheduler, self.away_since = story, world, story.has_scheduler, NEVER

    def poll(self, row: PreparedRow) -> RunState:
        job = self.host.jobs[row.run.path]
        if not (job.over or job.never) and self.world.clock.now - self.away_since > 60 * self.world.story.give_up:
            job.never = (LOST if job.begun else BLOCKED, "no link that lasts")
        state: RunState = super().poll(row)
        return state


class View(simulated.Watcher):
    updates = 0  # since time has passed

    def update(self, rows: Any, hosts: Any = ()) -> None:
        self.updates += 1
        assert self.updates < 200, "the command does not end, and does not wait either"


class Planner:
    """As much of a RowPlanner as running rows needs."""

    config, simulates = Config({}, {}, ()), False

    def __init__(self, batch: Batch, story: Story) -> None:
        self.batch, self.story = batch, story

    def plan_row(self, row: Row, session: HostSession, number: int) -> PreparedRow:
        if (int(row.row[1:]), int(session.name[1:])) in self.story.unplannable:
            raise Blocked(f"{session.name} has no Python for {row.row}")
        run = self.batch.run_dir(number)
        os.makedirs(run.path, exist_ok=True)
        names = (self.batch.run_id(number), row.label, row.job, row.row, session.name)
        plan = Plan(*names, test=row.test, gpus=row.gpus or 0)
        write_record(run.plan, plan)
        return PreparedRow(row, plan, run, None)

    def exclusive(self, row: Row, session: HostSession) -> tuple[str, ...]:
        return ("ray",) if row.gpus == 2 else ()

    def install_problem(self, problem: str) -> str:
        return problem


class World:
    """A story that runs."""

    def __init__(self, story: Story, directory: str) -> None:
        self.story, self.clock, self.view = story, Clock(self, story.step, story.tick), View()
        self.acts = {
            (f"r{row}", f"h{host}"): act for row, acts in enumerate(story.acts) for host, act in enumerate(acts)
        }
        self.sites: list[Any] = [Site(f"h{number}", host, self) for number, host in enumerate(story.hosts)]
        self.sessions = [HostSession(site) for site in self.sites]
        rows = [
            Row("l", "j", None, f"r{number}", f"tests/r{number}.py", "", gpus, None, {}, "self-hosted", None)
            for number, gpus in enumerate(story.rows)
        ]
        batch = Batch("20260101-120000-l", Path(directory))
        planner: Any = Planner(batch, story)
        checkout = Checkout("/checkout", "c" * 40, "t" * 40)
        self.ready = PreparedBatch(batch, tuple(rows), tuple(self.sessions), planner, checkout)
        # Enough for each attempt on each host to last as long as it may, one after the other.
        attempts = len(rows) * (len(self.sites) + 2)
        self.longest = 400 + (attempts + len(self.sites)) * (LONGEST + 60 * story.give_up + 4 * story.step)
        self.happen(0.0)

    def happen(self, now: float) -> None:
        """What others have done by now."""
        assert now < self.longest, "the command does not end"
        self.view.updates = 0
        for site, session in zip(self.sites, self.sessions, strict=True):
            story = site.story
            site.host.up = sum(change <= now for change in story.link_changes) % 2 == 0
            site.away_since = NEVER if site.host.up else min(site.away_since, self.clock.now)
            is_alone = len(self.sites) == 1  # a single host is ready before its rows are placed
            if not is_alone and now >= story.problem_at and not session.unusable_reason:
                session.unusable_reason = "install steps: pip ended with 1"
            if is_alone or now >= story.ready_at:
                session.facts = session.facts or HostFacts(gpus=story.gpus)
                session.is_ready = True
            session.locked_gpus = frozenset(range(([0] + [n for at, n in story.locks if at <= now])[-1]))
        self.ready.interrupts._pressed = sum(moment <= now for moment in self.story.interrupts)

    def run(self) -> list[RowExecution]:
        options = ExecutionOptions(jobs=self.story.jobs, **self.story.policy)
        modules = (execute, prepare, simulated)
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(mock.patch.object(module, "time", self.clock))
            return run_rows(self.ready, options, EventView(self.view), {})


@pytest.fixture(scope="module")
def directory() -> Any:
    path = tempfile.mkdtemp(prefix="ci-tasks-test-rows-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_every_command_ends_and_every_row_has_a_record(directory: str, story: Story) -> None:
    shutil.rmtree(directory)
    os.mkdir(directory)
    world = World(story, directory)
    for execution in world.run():
        check(execution, world)
    drops = sum("no test of its first two rows ran" in line for line in world.view.messages)
    assert drops < len(story.hosts)


def check(execution: RowExecution, world: World) -> None:
    record = execution.record
    assert record is not None and execution.run is not None
    on_disk: Mapping[str, Any] = read_json(execution.run.record)
    assert (on_disk["status"], len(on_disk["attempts"])) == (record.status, len(record.attempts))
    *earlier, _ = record.attempts
    if not world.story.policy["retry_failed"]:
        tried = [attempt.host for attempt in record.attempts if attempt.host]
        assert len(tried) == len(set(tried)), "once on each host"
        assert not any(attempt.gpu_ids for attempt in earlier if attempt.status == FAILED), "its test was seen to fail"
    if len(world.story.hosts) == 1 and not world.story.policy["retry_failed"]:
        assert not earlier
