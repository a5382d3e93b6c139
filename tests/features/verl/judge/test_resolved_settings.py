"""verl's settings as its log shows them."""

from __future__ import annotations

import pprint
from typing import Any

import pytest

from ci_tasks.features.verl.judge.resolved_settings import MISSING, PrintedSettings, equals_requested

EQUAL: list[tuple[str, Any]] = [
    ("False", False), ("false", False), ("null", None), ("2", 2), ("2", 2.0), ("1e-6", 1e-06), ("-1", -1),
    ("vllm", "vllm"), ("'error'", "error"), ("False", "False"),
]  # fmt: skip
# A setting that became a number is not what was asked.
OTHER: list[tuple[str, Any]] = [("False", True), ("False", 0), ("1", None), ("vllm", "sglang"), ("disabled", MISSING)]


def test_a_setting_is_compared_with_the_requested_text() -> None:
    assert [pair for pair in EQUAL + OTHER if equals_requested(*pair)] == EQUAL


def test_settings_are_read_although_other_processes_write_between_their_lines() -> None:
    config = {
        "actor_rollout_ref": {"model": {"path": "/m{odel}", "text": "it's [a] " * 30}},
        "trainer": {"limit": 1e999},
    }
    block = PrintedSettings("TaskRunner pid=1")
    for line in pprint.pformat(config).splitlines():
        assert block.feed("TaskRunner pid=1", line)
        assert not block.feed("WorkerDict pid=2", " 'trainer': {'limit': 3}}")
        assert not block.open or not block.feed("TaskRunner pid=1", "a line of its own that is no part")
    assert not block.open
    assert block.value() == config


@pytest.mark.parametrize(
    "noise",
    [
        ["/v/x.py:3: UserWarning: x", '  "use_fast" is deprecated, see {'],
        ["INFO 11-23 02:00:00 [config.py:1] {'a': [1"],
        ["Traceback (most recent call last):", '  File "/a.py", line 3, in f', "    x = {1", "ValueError: x"],
    ],
    ids=["warning with a quote", "logger", "traceback"],
)
def test_what_the_same_process_writes_between_the_lines_is_left_out(noise: list[str]) -> None:
    config = {"actor_rollout_ref": {"actor": {f"name_{number}": "x" * 30 for number in range(9)}, "n": [1, -1]}}
    lines = pprint.pformat(config).splitlines()
    for at in range(1, len(lines)):
        block = PrintedSettings("")
        for line in [*lines[:at], *noise, *lines[at:]]:
            block.feed("", line)
        assert block.value() == config
