"""Programs that hang, each in its own way, all at once: `ci_tasks.agent.hang` sees them, and the right frame and rank
are named, and none wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ci_tasks.features.hang.analysis import CONTRADICTED, SHOWN, analyse_hang
from ci_tasks.records import Hang
from tests.features.hang.planted_runs import look, planted


class Case(NamedTuple):
    """`named` are the culprits, each "function" or "rank N function"; "sleep" is a program that has no frame."""

    ranks: int
    kind: str
    named: set[str]
    outcome: str = SHOWN


CASES = {
    "lock_order": Case(0, "lock", {"lock_order"}),
    "d_state": Case(0, "uninterruptible", {"planted.py"}),
    "d_thread": Case(0, "uninterruptible", {"d_thread"}),
    "ray_tree": Case(0, "rank waits elsewhere", {"rank 1 actor_loop"}),
    "missing_collective": Case(4, "rank waits elsewhere", {"rank 3 load"}),
    "loader_worker": Case(2, "rank waits elsewhere", {"rank 1 read_samples", "read_sample"}),
    # Nothing is named where it is not seen, or where nothing hangs.
    "goes_on": Case(0, "goes on", set(), CONTRADICTED),
}


def named(hang: Hang) -> set[str]:
    ranks = {f"rank {culprit.rank} {culprit.function}" for culprit in hang.culprits if culprit.rank is not None}
    others = [culprit for culprit in hang.culprits if culprit.rank is None]
    return ranks | {culprit.function or culprit.who.partition(" ")[0] for culprit in others}


def test_each_culprit_is_named_and_none_wrongly(tmp_path: Path) -> None:
    with planted({name: case.ranks for name, case in CASES.items()}, tmp_path) as runs:
        hangs = {name: analyse_hang(facts) for name, facts in look(runs, tmp_path).items()}
    seen = {name: Case(CASES[name].ranks, hang.kind, named(hang), hang.outcome) for name, hang in hangs.items()}
    assert seen == CASES, {name: hang.reason for name, hang in hangs.items() if seen[name] != CASES[name]}
    groups = {group.who: group.where for group in hangs["missing_collective"].groups}
    assert list(groups) == ["ranks 0-2", "rank 3"], "ranks that wait are grouped with their collective"
    assert groups["ranks 0-2"].startswith("all_reduce at planted.py:")
    assert groups["rank 3"].startswith("queue.get at planted.py:")
