"""The command line of `verl`: what each option asks for, and the command that starts the same plan again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ci_tasks.cli.options import build
from ci_tasks.cli.program import parse
from ci_tasks.errors import UsageError
from ci_tasks.features.verl.command import level_request, verl
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.features.verl.options import VerlOptions

TREES = "--bridge '/my trees/bridge' --verl /verl --host box"


def options_of(line: str) -> VerlOptions:
    command = parse(shlex.split(line)).current
    return build(VerlOptions, command.values, "verl")


COMMAND_LINES = [
    f"verl --level 0 {TREES}",
    f"verl --level 2 {TREES} --gpus 4 --no-reward-model --variant dense,expert",
    f"verl --level 4 {TREES} --script a.sh --proof 'x y' --proof z --env A=1 --override k=v --test t.py",
    f"verl --level 5 {TREES} --timeout 7.5 --steps 40 --baseline good.log",
    f"verl --level 1 {TREES} --exact --wrapper new.sh --checks-from '3 passed'",
]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_the_command_of_a_plan_is_read_as_the_same_options(line: str) -> None:
    words = options_of(line).command_line
    assert options_of(words.removeprefix("ci-tasks ")) == options_of(line)
    assert {*shlex.split(words)} == {"ci-tasks", *shlex.split(line)}
    no_plan = options_of(f"{line} --json --keep --detach")
    assert no_plan.command_line == words, "what does not change the plan is left out"


def test_each_option_reaches_the_request() -> None:
    same = {
        "model_id": "org/m", "model_path": "/m", "train_files": "/t", "val_files": "/v", "reward_model": "/r",
        "dummy_config": "/c.json", "script": "a.sh", "wrapper": "w.sh",
    }  # fmt: skip
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in same.items())
    several = "--variant 'dense, expert' --proof x --proof y --env A=1 --override k=v --test t.py --steps 40 --gpus 4"
    full = level_request(options_of(f"verl --level 4 {TREES} {words} {several} --no-reward-model --exact"))
    assert full == LevelRequest(
        4, variants=("dense", "expert"), no_reward_model=True, steps=40, proofs=("x", "y"),
        bridge_tests=("t.py",), env={"A": "1"}, overrides=("k=v",), gpus=4, exact=True, **same,
    )  # fmt: skip
    assert level_request(options_of(f"verl --level 0 {TREES}")) == LevelRequest(0, model_id="Qwen/Qwen2.5-0.5B")


def test_focused_checks_that_ran_elsewhere_are_cited_by_their_last_line(tmp_path: Path) -> None:
    log = tmp_path / "pytest.log"
    log.write_text("x.py .....\n===== 5 passed in 1s =====\n\n")
    cited = [
        level_request(options_of(f"verl {TREES} --checks-from {shlex.quote(str(text))}")).checks
        for text in (log, "7 passed")
    ]
    assert cited == [f"===== 5 passed in 1s ===== ({log})", "7 passed"]
    for text in ("all well", "3 failed", "1 failed, 3 passed", "3 passed, 1 error in 1s"):
        with pytest.raises(UsageError, match="cites no passed checks"):
            level_request(options_of(f"verl {TREES} --checks-from {shlex.quote(str(text))}"))


REFUSED = [
    ("--env HF_TOKEN=x", "--env HF_TOKEN would put a secret into the log"),
    ("--env A", "--env takes NAME=VALUE, not 'A'"),
    ("--dummy-config /c.json", "--dummy-config needs --model-path DIR"),
    ("--test a.py --checks-from '3 passed'", "--checks-from and --test cannot be combined"),
    ("--repeat 3", "--repeat needs --base"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_a_wish_that_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        level_request(options_of(f"verl {TREES} {words}"))
    assert refused.value.message.startswith(message)


def test_the_trees_are_needed() -> None:
    with pytest.raises(UsageError, match="verl needs --bridge DIR and --verl DIR"):
        verl(options_of("verl --level 0 --bridge x"))
