"""How long the rows of a label are expected to take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.run import label as module
from ci_tasks.run.label import _expected_times

ALL = {"ppo": 100.0, "ckpt": 200.0}
HISTORY = {(): ALL, ("a",): {"ppo": 50.0, "ckpt": 100.0}, ("b",): {"ppo": 400.0, "ckpt": 800.0}}


def expected(names: str, history: Any, simulates: bool = False) -> float:
    """The seconds of the row `ppo` on these hosts, and how fast each of them is."""
    sessions = [SimpleNamespace(name=name, spec=SimpleNamespace(simulate=simulates)) for name in names]
    row = SimpleNamespace(label="l", row="ppo", needed_gpus=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "durations", lambda label, hosts: history.get(tuple(hosts), {}))
        ready: Any = SimpleNamespace(rows=[row], sessions=sessions)
        asked: Any = row
        return _expected_times(ready)(asked).seconds


def test_on_one_host_its_own_history_counts() -> None:
    assert expected("a", HISTORY) == 50.0
    assert expected("b", HISTORY) == 400.0


def test_of_several_hosts_all_history_counts() -> None:
    assert expected("ab", HISTORY) == 100.0


def test_what_nobody_has_seen_yet_takes_seconds_on_simulated_gpus() -> None:
    assert expected("a", {}, simulates=True) == module._SIMULATED_SECONDS
    assert expected("a", {}) > 60
