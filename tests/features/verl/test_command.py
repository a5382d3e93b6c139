"""The command line that a level's summary names, which starts the same plan again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ci_tasks.cli.options import build
from ci_tasks.cli.parser import parse
from ci_tasks.features.verl import run_levels
from ci_tasks.features.verl.command import VerlOptions, command_line, verl
from ci_tasks.features.verl.levels.levels import LevelRequest

TREES = "--bridge '/my trees/bridge' --verl /verl --host box"


@pytest.mark.parametrize(
    "line",
    [
        f"verl --level 0 {TREES}",
        f"verl --level 2 {TREES} --gpus 4 --no-reward-model --variant dense,expert",
        f"verl --level 4 {TREES} --script a.sh --proof 'x y' --proof z --env A=1 --override k=v --test t.py",
        f"verl --level 5 {TREES} --steps 40 --baseline good.log",
        f"verl --level 5 {TREES} --nodes 2 --timeout 7.5 --steps 40",
    ],
)
def test_the_command_of_a_plan_is_read_as_the_same_options(line: str) -> None:
    first = options_of(shlex.split(line))
    assert command_line(first) == f"ci-tasks {line}"
    no_plan = shlex.split(f"{line} --json --markdown --keep --detach")
    assert command_line(options_of(no_plan)) == f"ci-tasks {line}", "what does not change the plan is left out"


def test_each_option_reaches_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[run_levels.VerlRequest] = []

    def run(request: run_levels.VerlRequest, config: object, **_: object) -> tuple[int, None]:
        asked.append(request)
        return 0, None

    monkeypatch.setattr(run_levels, "run", run)
    given = {
        "model_id": "org/m", "model_path": "/m", "train_files": "/t", "val_files": "/v", "reward_model": "/r",
        "dummy_config": "/c.json", "script": "a.sh",
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    several = "--variant 'dense, expert' --proof x --proof y --env A=1 --override k=v --test t.py --steps 40 --gpus 4"
    others = "--no-reward-model --enforce-eager --keep --baseline ~/good.log --image i --nodes 2 --timeout 9 --detach"
    verl(options_of([*shlex.split(f"verl --level 4 {TREES} {several} {others}"), *words]))
    verl(options_of(shlex.split(f"verl --level 0 {TREES}")))
    full, plain = asked
    assert full.request == LevelRequest(
        4, variants=("dense", "expert"), no_reward_model=True, enforce_eager=True, steps=40, proofs=("x", "y"),
        bridge_tests=("t.py",), env={"A": "1"}, overrides=("k=v",), gpus=4, nodes=2, **given,
    )  # fmt: skip
    assert (full.bridge, full.verl, full.host, full.image) == (Path("/my trees/bridge"), Path("/verl"), "box", "i")
    assert (full.baseline, full.keep, full.detach) == (Path.home() / "good.log", True, True)
    assert (full.minutes, plain.minutes, plain.detach) == (9.0, None, False)
    assert plain.request == LevelRequest(0, model_id="Qwen/Qwen2.5-0.5B")
    assert (plain.baseline, plain.image, plain.data, plain.keep) == (None, None, None, False)


def options_of(argv: list[str]) -> VerlOptions:
    return build(VerlOptions, parse(argv).current.values, "verl")
