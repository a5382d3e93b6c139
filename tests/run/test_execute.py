"""The rows of a command over several hosts: where each goes, what becomes of it when it or its host goes wrong, and
what ^C leaves. The execution is the real one; the hosts are played. What is
remembered of the runs is `ci_tasks.results.index`'s."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.planning.placement import HostFacts, HostLoad
from ci_tasks.records import Attempt, RunRecord
from ci_tasks.run import execute
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.execute import LabelExecution, StartedAttempt
from ci_tasks.run.prepare import HostSession
from ci_tasks.workflow.model import Row
from tests.parts.json_files import read_json
from tests.run import simulated
from tests.run.simulated import BROKEN, ENDLESS, SET_UP, Act, World

Make = Callable[..., World]


def by_row(done: Any) -> dict[str, RunRecord]:
    return {record.row: record for record in done.runs}


def statuses(done: Any) -> dict[str, str]:
    return {record.row: record.status for record in done.runs}


def press() -> None:
    signal.raise_signal(signal.SIGINT)


# -- a host that fails rows before their tests -----------------------------------------------------------------------


@pytest.mark.parametrize("how", [SET_UP, "blocked"])
def test_every_row_ends_on_the_only_host_however_many_ended_before_their_tests(played: Make, how: str) -> None:
    world = played({"a": 0}, {f"r{n}": 0 for n in range(5)})
    world.acts.update({(row, "a"): Act(how) for row in world.rows})
    done = world.execute_label(jobs=1)
    assert set(statuses(done).values()) == {"blocked" if how == "blocked" else "failed"}
    assert len(world.hosts["a"].began) == len(world.rows)


@pytest.mark.parametrize("how", [SET_UP, BROKEN, "blocked"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_a_host_whose_first_rows_end_before_their_tests_is_dropped_and_they_run_once_more(
    played: Make, how: str, gpus: int
) -> None:
    world = played({"broken": 8, "good": 8}, {f"r{n}": gpus for n in range(8)})
    world.acts.update({(row, "broken"): Act(how) for row in world.rows})
    world.acts.update({(row, "good"): Act(seconds=0.1) for row in world.rows})
    done = world.execute_label(jobs=2)
    assert set(statuses(done).values()) == {"passed"}
    tried = [record.attempts[0] for record in done.runs if len(record.attempts) > 1]
    assert len(tried) == len(world.hosts["broken"].began)
    assert len(tried) in (2, 3), "another one may have begun between the ends of the two"
    assert {attempt.host for attempt in tried} == {"broken"}
    (message,) = (line for line in world.view.messages if "dropping host" in line)
    assert message.startswith("dropping host broken: no test of its first two rows ran (")


def test_rows_that_end_before_their_tests_on_every_host_keep_their_status_and_last_host_takes_all(played: Make) -> None:
    world = played({"a": 8, "b": 8}, {f"r{n}": 2 for n in range(8)})
    world.acts.update({(row, "*"): Act(SET_UP) for row in world.rows})
    done = world.execute_label(jobs=1)
    assert set(statuses(done).values()) == {"failed"}
    assert sum("dropping host" in line for line in world.view.messages) == 1
    assert sorted(len(host.began) for host in world.hosts.values()) == [2, 8]


def test_a_dropped_host_still_takes_the_rows_that_no_other_can(played: Make) -> None:
    world = played({"wide": 8, "small": 1}, {"x": 8, "y": 8, "z": 8})
    world.acts.update({(row, "wide"): Act(SET_UP) for row in world.rows})
    assert statuses(world.execute_label()) == {"x": "failed", "y": "failed", "z": "failed"}


def test_rows_of_a_dropped_host_keep_their_status_if_the_other_host_never_answers(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"x": 4, "y": 4, "z": 4})
    world.acts.update({(row, "a"): Act(SET_UP) for row in world.rows})
    b = world.hosts["b"]
    b.busy, b.reachable = True, False
    world.when((lambda: any("dropping host a" in line for line in world.view.messages), lambda: setattr(b, "busy", 0)))
    done = world.execute_label()
    assert set(statuses(done).values()) == {"failed"}
    assert {len(record.attempts) for record in done.runs} == {1}
    assert len(world.hosts["a"].began) == 3


# -- where rows go ---------------------------------------------------------------------------------------------------


def test_rows_go_to_whichever_host_fits_and_no_host_is_given_more_than_it_has(played: Make) -> None:
    world = played({"a": 8, "b": 4}, {f"r{n}": gpus for n, gpus in enumerate((8, 4, 4, 2, 2, 1, 1, 1, 1))})
    world.acts.update({(row, host): Act(seconds=0.1) for row in world.rows for host in world.hosts})
    done = world.execute_label()
    assert set(statuses(done).values()) == {"passed"}
    assert by_row(done)["r0"].host == "a"
    assert {record.host for record in done.runs} == {"a", "b"}
    assert (world.hosts["a"].most, world.hosts["b"].most) == (8, 4)
    assert done.exit_code == 0


def test_rows_of_several_hosts_cannot_be_left_to_themselves(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4})
    with pytest.raises(UsageError, match="--detach"):
        world.execute_label(detach=True)
    assert [host.began for host in world.hosts.values()] == [[], []]


# -- another attempt -------------------------------------------------------------------------------------------------

# how the row ends on a and on b → its status, the hosts that had it, the attempts before, the exit code
ATTEMPTS: dict[str, tuple[str, str, bool, str, list[str], int]] = {
    "lost, then failed": ("lost", "failed", False, "failed", ["lost"], 1),
    "blocked everywhere": ("blocked", "blocked", False, "blocked", ["blocked"], 125),
    "failed, to be tried again": ("failed", "passed", True, "passed", ["failed"], 0),
}


@pytest.mark.parametrize(("first", "second", "again", "status", "earlier", "code"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_a_row_that_the_environment_ended_is_tried_once_on_each_other_host(
    played: Make, first: str, second: str, again: bool, status: str, earlier: list[str], code: int
) -> None:
    world = played({"a": 8, "b": 8}, {"one": 4})
    world.hosts["b"].busy = True
    world.when((world.runs("one", on="a"), lambda: setattr(world.hosts["b"], "busy", False)))
    world.acts.update({("one", "a"): Act(first, 0.2), ("one", "b"): Act(second)})
    world.when((lambda: world.view.hosts["b"].gpus, lambda: None))
    done = world.execute_label(retry_failed=again)
    (record,) = done.runs
    assert (record.status, done.exit_code) == (status, code)
    assert [entry.status for entry in record.earlier] == earlier
    assert (len(world.hosts["a"].began), len(world.hosts["b"].began)) == (1, len(earlier))


def test_a_row_whose_job_takes_its_directory_away_is_lost_once(played: Make) -> None:
    """On this machine that is the client's own, with the plan which says where the row ran."""
    world = played({"a": 8}, {"one": 4, "two": 4})
    world.acts.update({(row, "a"): Act(seconds=0.5) for row in world.rows})

    def take_away() -> None:
        (job,) = (job for job in world.hosts["a"].jobs.values() if job.row == "one")
        job.never = ("lost", "there is no such run")
        shutil.rmtree(job.run.path)

    world.when((world.runs("one"), take_away))
    done = world.execute_label()
    assert statuses(done) == {"one": "lost", "two": "passed"}
    assert by_row(done)["one"].host == "a"
    assert sorted(world.hosts["a"].began) == ["one", "two"]


def test_every_attempt_keeps_its_own_record_and_the_table_s_log_is_the_last_one_s(played: Make) -> None:
    world = played({"a": 8, "b": 8}, {"one": 4, "two": 4})
    world.acts.update({("one", host): Act("blocked", refused=f"{host} has no disk") for host in world.hosts})
    done = world.execute_label()
    record = by_row(done)["one"]
    (before,) = record.earlier
    runs = Path(next(iter(done.directories.values()))).parent
    assert record.id.endswith(".03"), "attempts are numbered after the rows"
    assert before.reason == f"{before.host} has no disk"
    assert read_json(str(runs / "01/record.json"))["reason"] == before.reason
    assert read_json(str(runs / "03/record.json"))["attempts"][0]["reason"] == before.reason


def test_row_that_cannot_be_planned_for_host_is_tried_on_another(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = played({"a": 8, "b": 8}, {"one": 4, "two": 4})
    asked = threading.Event()  # b is ready once a was asked
    facts, write_plan = simulated.Played.facts, simulated.Played.write_plan

    def write_on_b(site: Any, run: Any, plan: Any) -> None:
        if site.spec.name == "a":
            asked.set()
            raise Blocked("a does not answer")
        write_plan(site, run, plan)

    def facts_in_turn(site: Any, **needs: Any) -> Any:
        assert site.spec.name == "a" or asked.wait(60)
        return facts(site, **needs)

    monkeypatch.setattr(simulated.Played, "write_plan", write_on_b)
    monkeypatch.setattr(simulated.Played, "facts", facts_in_turn)
    done = world.execute_label()
    assert statuses(done) == {"one": "passed", "two": "passed"}
    assert {record.host for record in done.runs} == {"b"}
    for record in done.runs:
        assert [entry.reason for entry in record.earlier] in ([], ["a does not answer"])
    assert any(record.earlier for record in done.runs)


# -- the first failure -----------------------------------------------------------------------------------------------


def test_the_first_failure_ends_the_others_and_speaks_for_all(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"bad": 4, "long": 4, "waiting": 4})
    world.acts.update({("bad", "*"): Act("failed", 0.3), ("long", "*"): Act(seconds=ENDLESS)})
    world.acts["waiting", "*"] = Act(seconds=ENDLESS)
    done = world.execute_label(fail_fast=True)
    records = by_row(done)
    assert statuses(done) == {"bad": "failed", "long": "cancelled", "waiting": "cancelled"}
    assert {name for name, record in records.items() if record.stopped} == {"long", "waiting"}
    assert [entry for entry in world.hosts.values() if "waiting" in entry.began] == [], "it was never begun"
    why = "since bad ended as failed (--fail-fast)"
    assert (records["waiting"].reason, done.exit_code) == (f"not started, {why}", 1)
    assert f"cancelling the other rows, {why}" in world.view.messages


def test_a_failure_that_is_to_be_tried_again_does_not_end_the_others_yet(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"flaky": 4, "other": 4})
    world.acts.update({("flaky", "a"): Act("failed"), ("flaky", "b"): Act("passed"), ("other", "*"): Act(seconds=0.3)})
    world.hosts["b"].busy = True
    world.when((lambda: "flaky" in world.hosts["a"].began, lambda: setattr(world.hosts["b"], "busy", False)))
    done = world.execute_label(fail_fast=True, retry_failed=True)
    assert statuses(done) == {"flaky": "passed", "other": "passed"}
    assert [line for line in world.view.messages if line.startswith("failed    flaky on a: ")]


# -- ^C --------------------------------------------------------------------------------------------------------------


def test_ctrl_c_cancels_what_runs_and_what_never_began_has_a_record_too(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4, "three": 4})
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in world.rows})
    world.when((lambda: world.runs("one")() and world.runs("two")(), press))
    done = world.execute_label()
    assert set(statuses(done).values()) == {"cancelled"}
    assert by_row(done)["three"].reason == "cancelled before it started"
    assert done.exit_code == 130
    assert any(line.startswith("cancelling the running rows (2)") for line in world.view.messages)
    assert not any(job.killed for host in world.hosts.values() for job in host.jobs.values()), "they may clean up"


def test_ctrl_c_gives_up_at_once_on_hosts_whose_link_is_down(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in world.rows})

    def vanish() -> None:
        for host in world.hosts.values():
            host.up = False
        press()

    world.when((lambda: world.runs("one")() and world.runs("two")(), vanish))
    done = world.execute_label()
    assert (set(statuses(done).values()), done.exit_code) == ({"lost"}, 125)
    assert "left while" in done.runs[0].reason


def test_ctrl_c_while_one_host_installs_ends_the_rows_of_the_other(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.hosts["a"].installs = True
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in world.rows})
    world.when((lambda: world.hosts["b"].began, press))
    done = world.execute_label()
    assert statuses(done) == {"one": "cancelled", "two": "cancelled"}


def test_what_goes_wrong_in_the_view_ends_what_runs(played: Make) -> None:
    world = played({"a": 4, "b": 4}, {"one": 4, "two": 4})
    world.acts.update({(row, "*"): Act(seconds=ENDLESS) for row in world.rows})

    def break_off() -> None:
        raise BrokenPipeError

    world.when((lambda: world.runs("one")() and world.runs("two")(), break_off))
    with pytest.raises(BrokenPipeError):
        world.execute_label()
    assert all(job.cancelled for host in world.hosts.values() for job in host.jobs.values())


def test_detached_rows_are_left_with_their_directories_whether_they_run_or_wait(played: Make) -> None:
    world = played({"a": 2}, {"none": 0, "one": 2, "two": 2})
    world.acts.update({(row, "a"): Act(seconds=ENDLESS) for row in world.rows})

    def wait() -> None:
        (job,) = (job for job in world.hosts["a"].jobs.values() if job.row == "two")
        write_record(job.run.status, Status("running", phase="waiting", waiting=("GPU 0",)))

    world.when((world.runs("two"), wait))
    done = world.execute_label(detach=True)
    assert (done.status, done.runs, len(done.directories)) == ("running", (), 3)


def test_of_detached_rows_none_is_left_if_one_cannot_begin(played: Make) -> None:
    world = played({"a": 2}, {"one": 2, "wide": 8, "two": 2})
    world.acts.update({(row, "a"): Act(seconds=ENDLESS) for row in world.rows})
    done = world.execute_label(detach=True)
    assert statuses(done) == {"one": "cancelled", "wide": "blocked", "two": "cancelled"}
    assert done.exit_code == 125
    assert all(job.cancelled for job in world.hosts["a"].jobs.values())


def test_of_detached_rows_that_no_host_can_run_each_ends_once(played: Make) -> None:
    """The first ends the others, which are not ended again for their own reason."""
    world = played({"a": 2}, {"wide": 8, "wider": 16, "one": 2})
    done = world.execute_label(detach=True)
    assert statuses(done) == {"wide": "blocked", "wider": "cancelled", "one": "cancelled"}
    assert [record.id[-2:] for record in done.runs] == ["01", "02", "03"]


def row(gpus: int = 4) -> Row:
    return Row("l", "j", None, f"of {gpus}", "tests/t.py", "", gpus, None, {}, "self-hosted", None)


def executing(rows: list[Row], hosts: list[HostSession], **options: Any) -> LabelExecution:
    """Of which nothing has started yet."""
    planner = SimpleNamespace(exclusive=lambda *_: ())
    ready: Any = SimpleNamespace(rows=rows, sessions=hosts, planner=planner)
    view: Any = SimpleNamespace(print_message=lambda _: None)
    return LabelExecution(ready, ExecutionOptions(**options), view, {})


def session(name: str, gpus: int = 8, problem: str = "", *, up: bool = True) -> HostSession:
    host = simulated.Host(name, gpus, {}, up=up)
    site: Any = simulated.Played(HostSpec(name, runtime="none", gpus=gpus), host)
    return HostSession(site, HostFacts(gpus=gpus), problem, is_ready=True)


def ended(host: str, status: str) -> RunRecord:
    return RunRecord("b.01", "l", "r", host, status, "why", attempts=(Attempt("b.01", host, status, "why"),))


# --retry-failed, how the attempts on a, b, … ended, whether there is another attempt after the last of them
CASES = {
    "blocked on one host, another is there": (False, ["blocked"], True),
    "failed": (False, ["failed"], False),
    "vacuous": (False, ["vacuous"], False),
    "cancelled": (False, ["cancelled"], False),
    "passed": (False, ["passed"], False),
    "failed twice": (True, ["failed", "failed"], False),
    "blocked, then failed": (False, ["blocked", "failed"], False),
    "blocked, then failed where it may be tried again": (True, ["blocked", "failed"], True),
}


@pytest.mark.parametrize(("retry_failed", "attempts", "again"), CASES.values(), ids=CASES)
def test_a_row_is_tried_again_only_for_environments_sake(retry_failed: bool, attempts: list[str], again: bool) -> None:
    hosts = [session("a"), session("b")]
    run = executing([row()], hosts, retry_failed=retry_failed)
    for host, status in zip(hosts, attempts, strict=False):
        tried = run._try_again(run.executions[0], ended(host.name, status), RunDir("/r"))
    assert tried is again
    assert [attempt.status for attempt in run.executions[0].earlier] == (attempts if again else attempts[:-1])


SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)


@pytest.mark.parametrize(
    ("gpus", "problem", "hosts", "reason"),
    [
        (2, "install steps failed", {}, "a lacks 4 GPUs (found 2); no other host of hosts.yaml could run it"),
        (2, "", {"sim": SIM}, "a lacks 4 GPUs (found 2); could run on: sim (8 simulated GPUs)"),
        (8, "install steps failed", {}, "install steps failed"),
        (8, "", {}, "an earlier attempt ended there"),
    ],
)
def test_a_row_that_no_host_runs_says_what_the_only_host_lacks(
    gpus: int, problem: str, hosts: dict[str, HostSpec], reason: str
) -> None:
    run: Any = executing([row(4)], [session("a", gpus, problem)])
    run.ready.planner = SimpleNamespace(config=SimpleNamespace(hosts=hosts))
    run.ready.checkout = SimpleNamespace(sample=gpus == 2)
    reasons = list[str]()
    run._finish_unstarted = lambda execution, status, why: reasons.append(why)
    run._end_without_host(run.executions[0])
    assert reasons == [reason]


@pytest.mark.parametrize("other", [session("b", gpus=2), session("b", problem="cannot be reached")])
def test_a_host_that_cannot_run_the_row_is_no_second_chance(other: HostSession) -> None:
    run = executing([row()], [session("a"), other])
    assert not run._try_again(run.executions[0], ended("a", "blocked"), RunDir("/r"))


def test_a_failed_row_runs_again_on_another_host_and_else_where_it_failed() -> None:
    hosts = [session("a"), session("b")]
    run = executing([row()], hosts, retry_failed=True)
    (execution,) = run.executions
    assert run._try_again(execution, ended("a", "failed"), RunDir("/r"))
    assert execution.hosts_of(hosts) == hosts[1:]
    hosts[1].unusable_reason = "away"
    assert execution.hosts_of(hosts) == hosts[:1]


def test_gpus_that_others_hold_are_those_that_our_rows_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HostLoad] = []

    def place(_: object, loads: list[HostLoad]) -> tuple[dict[int, str], dict[int, str]]:
        asked[:] = loads
        return {}, {}

    monkeypatch.setattr(execute, "place", place)
    hosts = [session("a"), session("b", up=False)]
    hosts[0].locked_gpus = frozenset(range(6))
    run = executing([row(4), row(2)], hosts, jobs=3)
    run.executions[0].attempt = StartedAttempt(None, hosts[0], 0.0)  # type: ignore[arg-type]
    run.place_and_start_rows()
    assert [(host.held, host.up, host.slots) for host in asked] == [(2, True, 3), (0, False, 3)]
    assert [[row.name for row in host.rows] for host in asked] == [["of 4"], []]
    assert [hosts[0].progress(ours=4).held, hosts[0].progress(ours=0).held] == [2, 6]
