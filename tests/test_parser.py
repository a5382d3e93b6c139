"""What is said to a word that the command line does not understand, and the overview of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from invoke.program import Program

from ci_tasks.cli import GROUPS, namespace

# what was typed → what is said
WRONG = {
    "frob": "there is no command 'frob'\n",
    "rnu ckpt": "there is no command 'rnu'; did you mean run?",
    "--help rnu": "there is no command 'rnu'; did you mean run?",
    "--lits": "there is no flag --lits; did you mean --list?",
    "plan": "plan needs a label: `plan LABEL`",
    "logs --follow": "logs needs a run: `logs RUN`",
    "remote --hots sim ckpt": "remote has no flag --hots; did you mean --host?",
    "remote ckpt --hots sim": "remote has no flag --hots; did you mean --host?",
    "remote ckpt -x": "remote has no flag -x\n",
    "jobs ckpt agents": "jobs: 'agents' is one word too many\n",
    "run ckpt async": "run: 'async' is one word too many; `--only async` picks rows by a part of their names",
    "remote --host a --host b ckpt": "remote was given --host twice; several go with commas: --host A,B",
    "remote --host=a ckpt --host=b": "remote was given --host twice; several go with commas: --host A,B",
    "run ckpt --repo a --repo b": "run was given --repo twice\n",
    "remote ckpt --host": "--host needs a value",
    "remote ckpt --host --only x": "--host needs a value",
    "run ckpt \x1b[2J": "'\\x1b[2J' is one word too many",
}


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program, in this process."""
    with pytest.raises(SystemExit) as left:
        Program(name="ci-tasks", binary="ci-tasks", namespace=namespace).run(["ci-tasks", *words])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.mark.parametrize("line", WRONG)
def test_a_word_that_has_no_meaning_is_exit_code_2_with_the_nearest_one(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(line.split(" "), capsys)
    assert (code, err[:10]) == (2, "ci-tasks: ")
    assert WRONG[line] in err
    assert err.endswith("`invoke --list` names the commands, `invoke --help COMMAND` the flags of one\n")


def test_a_flag_that_may_be_repeated_and_a_switch_given_twice_are_no_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, _, err = said(
        ["verl", "--env", "A=1", "--env", "B=2", "--keep", "--keep", "--bridge", "/", "--level", "x"], capsys
    )
    assert "verl needs --verl DIR" in err


def groups(text: str) -> Iterator[tuple[str, list[str]]]:
    for heading, body in re.findall(r"^(\S.*):\n\n((?:  .*\n)+)", text, re.MULTILINE):
        yield heading, re.findall(r"^  (\S+)", body, re.MULTILINE)


@pytest.mark.parametrize("words", [[], ["--list"], ["--help"]])
def test_the_commands_are_shown_in_groups(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(words, capsys)
    shown = dict(groups(out))
    shown.pop("Options", None)
    assert code == 0
    assert shown == {heading: [task.name for task in tasks] for heading, tasks in GROUPS.items()}
    assert sorted(name for names in shown.values() for name in names) == sorted(namespace.task_names)


@pytest.mark.parametrize("words", [["--help", "remote"], ["remote", "--help"], ["remote", "ckpt", "--help"]])
def test_the_help_of_a_command_says_what_it_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(words, capsys)
    assert code == 0
    assert out.startswith("Usage: ci-tasks remote LABEL [FLAGS]\n\n  Run a CI label on hosts")
    assert "\nOptions:\n\n  --base" in out
