"""Which `docker run` a script has: as bash would read it, without running anything."""

from __future__ import annotations

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.shell import commands, docker_run, parse_outputs
from tests.parts.cases import cases

CASES = cases("workflow/data/shell.yaml")


@pytest.mark.parametrize(("script", "image"), CASES["the image is that of the first docker run"])
def test_the_image_is_that_of_the_first_docker_run(script: str, image: str | None) -> None:
    run = docker_run(script)
    assert (run.image if run else None) == image


@pytest.mark.parametrize(("script", "image"), CASES["variables of the image are filled in where they are known"])
def test_variables_of_the_image_are_filled_in_where_they_are_known(script: str, image: str) -> None:
    run = docker_run(script, {"IMAGE": "env:1"})
    assert run is not None
    assert run.image == image


def test_the_words_are_those_that_bash_would_pass_on() -> None:
    run = docker_run("docker run -e 'A=b c' --name x\"y z\" img bash -lc '\n  echo \"hi\" # no comment\n'")
    assert run is not None
    assert (run.values("env"), run.last("name")) == (["A=b c"], "xy z")
    assert run.command == ("bash", "-lc", '\n  echo "hi" # no comment\n')


def test_a_script_is_its_simple_commands_inner_ones_first() -> None:
    assert list(commands("a 1 && b \"$(c '2 3')\" | d > e\n# f\ng;")) == [
        ["a", "1"],
        ["c", "2 3"],
        ["b", "$(…)"],
        ["d", ">", "e"],
        ["g"],
    ]


@pytest.mark.parametrize("script", ["$(" * 20_000, "<<A " * 5_000 + "\n" * 5_000, "'" * 9_999, '"$(' * 9_999, "\\" * 9])
def test_hostile_text_is_read_and_comes_to_nothing(script: str) -> None:
    assert docker_run(script) is None


# $GITHUB_OUTPUT, as GitHub reads it


@pytest.mark.parametrize(("text", "outputs"), CASES["outputs are lines and blocks"])
def test_outputs_are_lines_and_blocks(text: str, outputs: dict[str, str]) -> None:
    assert parse_outputs(text) == outputs


BAD_OUTPUTS = [
    ("word\n", "neither `name=value` nor `name<<END`\n    word"),
    ("=1\n", "neither"),
    ("a<<EOF\none\n", "no line 'EOF', which ends a block"),
]


@pytest.mark.parametrize(("text", "message"), BAD_OUTPUTS)
def test_what_makes_github_fail_the_step_is_an_error(text: str, message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        parse_outputs(text)
    assert message in str(caught.value)
