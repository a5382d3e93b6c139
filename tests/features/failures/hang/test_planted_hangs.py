"""Programs that hang, each in its own way, all at once: the right frame and rank are named, and none wrongly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ci_tasks.features.failures.hang.analysis import CONTRADICTED, NOT_DETERMINED, analyse_hang
from ci_tasks.features.failures.hang.finding import SHOWN
from ci_tasks.records import Hang
from tests.features.failures.hang.planted_runs import look, planted

PY_SPY = Path(sys.executable).parent / "py-spy"


class Case(NamedTuple):
    """`named` are the culprits, each "function" or "rank N function"; "sleep" is a program that has no frame."""

    ranks: int
    kind: str
    named: set[str]
    outcome: str = SHOWN


CASES = {
    "lock_order": Case(0, "lock cycle", {"lock_order", "other"}),
    "lock_twice": Case(0, "lock cycle", {"lock_twice"}),
    "queue_never_filled": Case(0, "queue", {"queue_never_filled"}),
    "condition_never_notified": Case(0, "condition", {"condition_never_notified"}),
    "event_never_set": Case(0, "condition", {"event_never_set"}),
    "semaphore_zero": Case(0, "condition", {"semaphore_zero"}),
    "join_of_stuck_thread": Case(0, "queue", {"stuck"}),
    "exit_waits_for_thread": Case(0, "condition", {"stuck_at_exit"}),
    "import_deadlock": Case(0, "import deadlock", {"begin", "load"}),
    "endless_loop": Case(0, "computes", {"endless_loop"}),
    "asyncio_future": Case(0, "poll", {"asyncio_future"}),
    "long_sleep": Case(0, "sleep", {"long_sleep"}),
    "c_code": Case(0, "C code", {"c_code"}),
    "gil_held": Case(0, "read", {"gil_held"}),
    "c_program": Case(0, "child", {"sleep"}),
    "d_state": Case(0, "uninterruptible", {"d_state"}),
    "fifo_without_writer": Case(0, "C code", {"fifo_without_writer"}),
    "pipe_full": Case(0, "pipe full", {"pipe_full", "writes_too_much"}),
    "child_reads_pipe": Case(0, "wait cycle", {"child_reads_pipe", "reads_from_parent"}),
    "socket_peer_silent": Case(0, "waits for a process", {"silent_peer"}),
    "flock_held": Case(0, "file lock", {"holds_the_lock"}),
    "flock_cycle": Case(0, "lock cycle", {"flock_cycle"}),
    "fork_held_lock": Case(0, "fork with a held lock", {"forked_child"}),
    "join_of_stuck_process": Case(0, "child", {"stuck_process"}),
    "ray_tree": Case(0, "rank waits elsewhere", {"rank 1 actor_loop"}),
    "rank_late": Case(4, "straggler", {"rank 2 slow_rank"}),
    "rank_dead": Case(4, "dead rank", {"rank 2 "}),
    "other_collective": Case(4, "collectives differ", {"rank 1 other_collective"}),
    "missing_collective": Case(4, "rank waits elsewhere", {"rank 3 load"}),
    "two_ranks": Case(2, "rank waits elsewhere", {"rank 1 load"}),
    "rank_in_c_code": Case(3, "rank waits elsewhere", {"rank 0 c_code"}),
    "rank_waits_for_child": Case(3, "rank waits elsewhere", {"rank 0 rank_waits_for_child", "sleep"}),
    "stopped_rank": Case(2, "stopped", {"rank 1 stopped_rank"}),
    # Nothing is named where it is not seen, or where nothing hangs.
    "pool_worker_died": Case(0, "", set(), NOT_DETERMINED),
    "goes_on": Case(0, "goes on", set(), CONTRADICTED),
}


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Hang]]:
    ranks = {name: case.ranks for name, case in CASES.items()}
    with planted(ranks, tmp_path_factory.mktemp("planted")) as runs:
        seen = look(runs, str(PY_SPY))
        yield {name: analyse_hang(facts) for name, facts in seen.items()}


def named(hang: Hang) -> set[str]:
    return {
        f"rank {culprit.rank} {culprit.function}"
        if culprit.rank is not None
        else culprit.function or culprit.who.partition(" ")[0]
        for culprit in hang.culprits
    }


@pytest.mark.parametrize("name", CASES)
def test_the_culprit_is_named(hangs: dict[str, Hang], name: str) -> None:
    case, hang = CASES[name], hangs[name]
    assert (hang.outcome, hang.kind, named(hang)) == (case.outcome, case.kind, case.named), hang.reason


def test_ranks_that_wait_are_grouped_with_their_collective(hangs: dict[str, Hang]) -> None:
    groups = {group.who: group.where for group in hangs["missing_collective"].groups}
    assert list(groups) == ["ranks 0-2", "rank 3"]
    assert groups["ranks 0-2"].startswith("all_reduce at planted.py:")
    assert groups["rank 3"].startswith("queue.get at planted.py:")
