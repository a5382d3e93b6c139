"""What the last line of a log says of a job that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results.progress import last_line, line_summary, metrics_summary


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"step 12: {'train/grad_norm': 1.5, 'train/loss': 0.412345}", "step 12, loss 0.4123"),
        (b"(Manager pid=12, ip=10.0.0.1) x - rollout 3: {'rollout/raw_reward': 0.25}", "rollout 3, raw_reward 0.25"),
        (b"\x1b[36m(Actor pid=1)\x1b[0m step 1: {'train/loss': nan}", "step 1, loss nan"),
        (b"step 4: {'a/b': 1, 'c/d': 2}", "step 4, 2 metrics"),
        # No line of metrics.
        (b"", ""),
        (b"step:3 - a/loss:0.1", ""),
        (b"footstep 3: {'a': 1}", ""),
        (b"Training Progress: 10%|#   | 3/30 [00:10<01:30]", ""),
    ],
)
def test_a_line_of_metrics_in_short(line: bytes, expected: str) -> None:
    assert metrics_summary(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"step 1: {'train/loss': 2}", "step 1, loss 2"),
        (b"(MegatronTrainRayActor pid=512) loading shard 3/8", "loading shard 3/8"),
        (b"(MegatronTrainRayActor pid=512) ", "(MegatronTrainRayActor pid=512)"),
        (b"\x1b[31mred\x1b[0m \x07bell", "red \ufffdbell"),
        (b"(a remark) stays", "(a remark) stays"),
    ],
)
def test_another_line_stays_without_the_actor_in_front(line: bytes, expected: str) -> None:
    assert line_summary(line) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("first\nlast\n\n", "last"),
        ("##[group]Run tests\npytest -q\n##[endgroup]\n", "pytest -q"),
        ("::endgroup::\n", ""),
        ("loading\n====================\n--------\n...\n", "loading"),
        ("======= 3 passed in 0.52s =======\n", "======= 3 passed in 0.52s ======="),
        ("", ""),
    ],
)
def test_it_is_the_last_one_that_says_something(log: str, expected: str, tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.log).write_text(log)
    assert last_line(run) == expected
