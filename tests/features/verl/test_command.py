"""The command line that a level's summary names, which starts the same plan again."""

from __future__ import annotations

import shlex

import pytest

from ci_tasks.cli.options import build
from ci_tasks.cli.program import CommandLine
from ci_tasks.features.verl.command import VerlOptions, command_line

TREES = "--bridge '/my trees/bridge' --verl /verl --host box"


@pytest.mark.parametrize(
    "line",
    [
        f"verl --level 0 {TREES}",
        f"verl --level 2 {TREES} --gpus 4 --no-reward-model --variant dense,expert",
        f"verl --level 4 {TREES} --script a.sh --proof 'x y' --proof z --env A=1 --override k=v --test t.py",
        f"verl --level 5 {TREES} --steps 40 --baseline good.log",
    ],
)
def test_the_command_of_a_plan_is_read_as_the_same_options(line: str) -> None:
    first = options_of(shlex.split(line))
    assert command_line(first) == f"ci-tasks {line}"


def test_what_does_not_change_the_plan_is_left_out() -> None:
    line = f"verl --level 0 {TREES}"
    assert command_line(options_of(shlex.split(f"{line} --plan --json --markdown --keep"))) == f"ci-tasks {line}"


def options_of(argv: list[str]) -> VerlOptions:
    program = CommandLine()
    program.normalize_argv(["ci-tasks", *argv])
    program.parse_core_args()
    return build(VerlOptions, program.tasks[0].as_kwargs, "verl")
