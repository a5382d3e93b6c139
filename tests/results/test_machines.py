"""GPUs and machines are blamed for what their peers do not do, and for nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from ci_tasks.results.machines import MachineRun, Suspect, counted, explain, suspects, tallies

ROW = ("ckpt", "async")


def run(at: int, gpus: Sequence[int] = (0,), failed: bool = False, tree: str = "", host: str = "h") -> MachineRun:
    uuids = {f"{host}-GPU-{gpu}": gpu for gpu in gpus}
    return MachineRun(float(at), ROW, tree or f"t{at}", host, uuids, failed, "580.1")


def by_turns(bad: int, count: int = 80) -> list[MachineRun]:
    """Each run on new code, on one GPU after the other; one of them fails always."""
    return [run(at, (at % 4,), failed=at % 4 == bad) for at in range(count)]


def test_a_gpu_on_which_rows_fail_that_pass_on_others_is_named() -> None:
    (suspect,) = suspects(by_turns(bad=3))
    assert (suspect.name, suspect.p < 1e-6) == ("GPU 3 of h", True)
    assert explain(suspect, ROW, by_turns(bad=3)).startswith(
        "GPU 3 of h failed this row 20 of 20 times, other GPUs there 0 of 60 (by chance: p = "
    )


def test_of_gpus_that_are_always_used_together_none_is_told_apart() -> None:
    runs = [run(at, (0, 1) if at % 2 else (2, 3), failed=at % 2 == 1 and at > 9) for at in range(80)]
    assert [suspect.name for suspect in suspects(runs)] == ["GPUs 0, 1 of h"]


def test_a_machine_on_which_proven_code_fails_is_named() -> None:
    hosts = ("h100a", "h100b")
    runs = [run(at, (at // 2 % 2,), at > 3 and at % 2 == 1, "one", hosts[at % 2]) for at in range(60)]
    assert [suspect.name for suspect in suspects(runs)] == ["h100b"]


BLAMELESS: dict[str, list[MachineRun]] = {
    "nothing failed": [run(at, (at % 4,)) for at in range(80)],
    "everything failed": [run(at, (at % 4,), failed=True) for at in range(80)],
    "every fourth run, on every GPU": [run(at, (at // 4 % 4,), failed=at % 4 == 3) for at in range(80)],
    "few runs": by_turns(bad=3, count=12),
    "broken code, on one GPU until it is mended": [
        *(run(at, (at % 4,)) for at in range(40)),
        *(run(at, (3,), failed=True) for at in range(40, 80)),
    ],
    "a broken change and its base by turns": [
        run(at, (at % 2,), failed=at % 2 == 0, tree=f"t{at % 2}") for at in range(80)
    ],
    "a person's broken code on that person's host": [
        one
        for at in range(0, 160, 3)
        for one in (run(at, (0,), True, host="mine"), *(run(at + more, (0,), host="ours") for more in (1, 2)))
    ],
    "failures that pass elsewhere when they run again": [
        one
        for at in range(0, 120, 3)
        for one in (
            run(at, (0,), host="mine"),
            run(at + 1, (0,), True, f"flaky{at}", "mine"),
            run(at + 2, (0,), False, f"flaky{at}", "ours"),
        )
    ],
    "no GPU": [run(at, (), failed=at % 2 == 1) for at in range(80)],
}


@pytest.mark.parametrize("runs", BLAMELESS.values(), ids=BLAMELESS)
def test_nobody_is_blamed_without_a_reason(runs: list[MachineRun]) -> None:
    assert suspects(runs) == []


def test_what_counts_is_proven_code_and_the_first_run_of_other_code_after_a_pass() -> None:
    runs = [
        run(0, tree="a"),
        run(1, tree="a", failed=True),
        run(2, tree="a", failed=True),
        run(3, tree="b", failed=True),
        run(4, tree="c"),
        run(5, tree="d", failed=True),
        run(6, tree="d"),
        run(7, tree="d"),
    ]
    kept = [(int(one.run.at), one.proven) for one in counted(runs)]
    assert kept == [(0, False), (1, True), (2, True), (5, False), (7, True)]


def test_a_tally_has_what_was_seen_and_the_same_rows_on_peers() -> None:
    host, *_, worst = tallies(by_turns(bad=3))
    assert (host.host, host.gpu, host.runs, host.failed, host.p) == ("h", None, 80, 20, None)
    assert (worst.host, worst.gpu, worst.uuid, worst.runs, worst.failed) == ("h", 3, "h-GPU-3", 20, 20)
    assert (worst.elsewhere, worst.suspect, host.suspect, worst.drivers) == (0.0, True, False, ("580.1",))
    assert worst.p is not None
    assert worst.p < 1e-6
    assert worst.low < 1 == worst.high


def test_the_probability_is_exact() -> None:
    # 4 runs on each of two GPUs, both failures on one: C(4,2) of C(8,2) ways, two GPUs compared.
    runs = [
        *(run(at, (at % 2,), tree="a") for at in range(1)),
        *(run(1 + at, (at % 2,), tree="a", failed=at in (0, 2)) for at in range(8)),
    ]
    gpus = {tally.gpu: tally.p for tally in tallies(runs)}
    assert gpus[0] == pytest.approx(2 * math.comb(4, 2) / math.comb(8, 2))
    assert gpus[1] == 1.0


def test_of_a_row_that_never_failed_there_before_all_rows_are_told() -> None:
    suspect = Suspect("h", {"h-GPU-3": 3}, 1e-5)
    text = explain(suspect, ("ckpt", "another"), by_turns(bad=3, count=8))
    assert text == "GPU 3 of h failed rows 2 of 2 times, other GPUs there 0 of 6 (by chance: p = 1e-05)"
