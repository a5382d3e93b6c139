"""Coming back to a command whose client was killed: what ended keeps its record, what runs is brought home, the rest is
started; and what cannot be resumed is refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.run_directory import read_description
from ci_tasks.config import Override
from ci_tasks.errors import UsageError
from ci_tasks.given_values import GivenValues
from ci_tasks.results.store import Batch, rows_of
from ci_tasks.run.events import JOURNAL, RowChanged, open_journal
from tests.run.simulated import ENDLESS, LABEL, Act, Killed, World

Make = Callable[..., World]


def die() -> None:
    raise Killed


@pytest.fixture
def left(played: Make) -> World:
    """`long` runs on b, `quick` was refused there and has ended on a, where `next` runs now, and `late` waits for GPUs:
    there the client is killed. What runs ends unseen."""
    world = played({"a": 4, "b": 4}, {"quick": 4, "long": 4, "next": 4, "late": 4})
    world.hosts["a"].busy = True
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in ("long", "next", "late")})
    world.acts.update({(row, "b"): Act(refused="not here") for row in ("quick", "next", "late")})
    world.when(
        (world.runs("long", on="b"), lambda: setattr(world.hosts["a"], "busy", False)),
        (lambda: world.view.rows["quick"].state == "passed" and world.runs("next")(), die),
    )
    with pytest.raises(Killed):
        world.execute_label()
    world.end_all()
    world.acts["late", "*"] = Act()
    return world


def kill_when(world: World, condition: Callable[[], bool], **how: Any) -> None:
    """The command's process ends at the first picture of the rows at which the condition holds."""
    world.when((condition, die))
    with pytest.raises(Killed):
        world.execute_label(**how)


def batches(world: World) -> list[Path]:
    return sorted((world.checkout.parent / "home/runs").iterdir())


def test_every_row_ends_once(left: World) -> None:
    begun = [name for host in left.hosts.values() for name in host.began]
    done = left.execute_label(resume=True)
    assert [(record.row, record.status) for record in done.runs] == [(row, "passed") for row in left.rows]
    assert done.exit_code == 0
    assert len(batches(left)) == 1
    assert [name for host in left.hosts.values() for name in host.began if name != "late"] == [
        name for name in begun if name != "late"
    ], "what ran was found, and not begun again"
    assert left.view.messages[0] == f"resuming {done.id}: 1 ended, 2 running, 1 waiting"


def test_the_second_command_tells_what_the_first_had_tried(left: World) -> None:
    events = [json.loads(line) for line in (batches(left)[0] / JOURNAL).read_text().splitlines()]
    tried = [event["row"] for event in events if event["event"] == "row_placed"]
    done = left.execute_label(resume=True)
    for record in done.runs:
        assert record.attempts[-1].id == record.id
    refused = {record.row: [attempt.reason for attempt in record.earlier] for record in done.runs}
    assert all(reasons in ([], ["not here"]) for reasons in refused.values())
    assert refused["quick"] == ["not here"] * (tried.count("quick") - 1)


OTHERS = {"tree": "u" * 40, "given": GivenValues(tests=("t.py",)), "overrides": (Override(LABEL, "x", skip=True),)}


@pytest.mark.parametrize(("what", "other"), OTHERS.items())
def test_another_tree_or_value_is_refused_and_nothing_is_lost(left: World, what: str, other: Any) -> None:
    before = getattr(left, what)
    setattr(left, what, other)
    with pytest.raises(UsageError, match="checkout is not what" if what == "tree" else "started with another"):
        left.execute_label(resume=True)
    setattr(left, what, before)
    left.overrides = (Override("job-of-another-workflow", "x", skip=True),)  # which changes nothing
    assert left.execute_label(resume=True).exit_code == 0


def test_a_row_that_no_host_was_given_is_not_forgotten(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4, "three": 4})
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in world.rows})
    kill_when(world, lambda: world.runs("one")() and world.runs("two")())
    (batch,) = batches(world)
    assert {read_description(run).row for _, run in rows_of(batch.name)} == set(world.rows)


def test_a_host_with_a_row_that_runs_has_to_be_named(left: World) -> None:
    with pytest.raises(UsageError, match="long runs on b, which --host does not name") as refused:
        left.execute_label(on="a", resume=True)
    assert refused.value.hint == "add b to --host"
    assert left.execute_label(resume=True).exit_code == 0


def test_rows_that_were_cancelled_run_again_and_a_command_that_ended_is_not_resumed(played: Make) -> None:
    world = played({"a": 4}, {"one": 4, "two": 4})
    world.acts["one", "*"] = Act(seconds=ENDLESS)
    world.when((world.runs("one"), lambda: signal.raise_signal(signal.SIGINT)))
    assert [record.status for record in world.execute_label().runs] == ["cancelled"] * 2
    world.acts["one", "*"] = Act()
    assert [record.status for record in world.execute_label(resume=True).runs] == ["passed"] * 2
    with pytest.raises(UsageError, match="is unfinished"):
        world.execute_label(resume=True)


@pytest.mark.parametrize("hosts", [{"a": 4}, {"a": 4, "b": 4}])
def test_a_row_that_was_on_its_way_when_the_client_died_is_begun_anew(played: Make, hosts: Any) -> None:
    world = played(hosts, {"one": 4})
    world.acts["one", "*"] = Act(arrives=False)
    kill_when(world, lambda: any(host.began for host in world.hosts.values()))
    for host in world.hosts.values():
        host.jobs.clear()  # none of it has come there
    world.acts["one", "*"] = Act()
    (record,) = world.execute_label(resume=True).runs
    assert record.status == "passed"
    assert not record.earlier
    assert record.id.endswith(".02"), "nothing of the first is in its way"


def test_with_one_host_the_rows_that_had_not_started_keep_their_numbers(played: Make) -> None:
    """All plans are written before the first row starts; none of them may stay as a run that was lost."""
    world = played({"a": 4}, {"one": 4, "two": 4, "three": 4})
    world.acts["one", "*"] = Act(seconds=ENDLESS)
    kill_when(world, world.runs("one"))
    world.end_all()
    done = world.execute_label(resume=True)
    assert [record.id.rpartition(".")[2] for record in done.runs] == ["01", "02", "03"]
    assert [record.status for record in done.runs] == ["passed"] * 3
    assert sorted(path.name for path in batches(world)[0].iterdir() if path.is_dir()) == ["01", "02", "03"]
    assert '"event": "run_ended"' in (batches(world)[0] / JOURNAL).read_text().splitlines()[-1]


def test_a_number_that_the_journal_has_for_another_row_is_not_used(played: Make) -> None:
    """Of `one`, which was killed on its way to its second host, nothing is left but two lines of the journal."""
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    for host in world.hosts.values():
        host.busy = True
    kill_when(world, lambda: True)
    (batch,) = batches(world)
    with closing(open_journal(Batch(batch.name, batch))) as journal:
        for name, number in (("a", "01"), ("b", "03")):
            journal.write(RowChanged("now", "row_placed", "one", name, 1, directory=str(batch / number)))
    for host in world.hosts.values():
        host.busy = False
    world.acts["two", "*"] = Act(refused="not here")
    one, two = world.execute_label(resume=True).runs
    assert (one.status, two.status, len(two.attempts)) == ("passed", "blocked", 2)
    assert two.id.endswith(".04")


def test_with_one_host_whose_install_steps_fail_what_ran_is_brought_home_and_the_rest_is_blocked(played: Make) -> None:
    world = played({"a": 8}, {"long": 8, "late": 8})
    world.acts["long", "a"] = Act(seconds=ENDLESS)
    kill_when(world, world.runs("long"))
    world.end_all()
    world.hosts["a"].problem = "pip ended with 1"
    done = world.execute_label(resume=True)
    assert [record.status for record in done.runs] == ["passed", "blocked"]
    assert done.exit_code == 125


def test_a_client_may_die_twice(left: World) -> None:
    left.acts["late", "*"] = Act(seconds=ENDLESS)
    kill_when(left, left.runs("late", on="a"), resume=True)
    left.end_all()
    done = left.execute_label(resume=True)
    assert [record.status for record in done.runs] == ["passed"] * 4
    assert len(batches(left)) == 1
