"""How long the log of a row may be silent: what it was where it passed decides when its processes are looked at."""

from __future__ import annotations

from ci_tasks.results.history import silences
from tests.results.history.conftest import Make


def test_the_longest_silence_of_runs_that_passed_counts(make: Make) -> None:
    for day, status, silence in ((1, "passed", 40.0), (2, "passed", 700.5), (3, "failed", 9000.0), (4, "passed", None)):
        make(f"2026010{day}-120000-ckpt", 1, status=status, silence=silence)
    make("20260105-120000-ckpt", 2)
    assert silences("ckpt") == {"row-1": 700.5}
    assert silences("ppo") == {}
