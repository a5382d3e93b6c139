"""Words of the command line, right and wrong, and the overview of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks import __version__
from ci_tasks.cli import program
from ci_tasks.cli.commands import HEADINGS
from tests.parts.commands import COMMANDS
from tests.parts.documents import ROOT

# what was typed → the message, the next step
WRONG = {
    "frob": ("unknown command 'frob'\n", "`ci-tasks --list`"),
    "rnu ckpt": ("unknown command 'rnu'; did you mean 'run'?", "`ci-tasks --list`"),
    "--lits": ("unknown option --lits; did you mean '--list'?", "`ci-tasks --list`"),
    "plan": ("plan needs LABEL\n", "`ci-tasks jobs` lists the labels"),
    "logs --follow": ("logs needs RUN\n", "`ci-tasks runs`"),
    "remote --hots sim ckpt": ("remote: unknown option --hots; did you mean '--host'?", "`ci-tasks remote --help`"),
    "remote ckpt -x": ("remote: unknown option -x\n", "`ci-tasks remote --help`"),
    "jobs ckpt agents": ("jobs: unexpected argument 'agents'\n", "`ci-tasks jobs --help`"),
    "run ckpt async": ("run: unexpected argument 'async'\n", "`--only TEXT` selects rows by a part of their names"),
    "run ckpt megatron": ("run: unexpected argument 'megatron'\n", "one label at a time"),
    "doctor local": ("doctor: unexpected argument 'local'\n", "`ci-tasks doctor --help`"),
    "helf run": ("unknown command 'helf'", "`ci-tasks --list`"),
    "remote --host a --host b ckpt": ("remote: --host is given twice\n", "with commas: --host A,B"),
    "run ckpt --repo a --repo b": ("run: --repo is given twice\n", "`ci-tasks run --help`"),
    "remote ckpt --host": ("--host needs HOST", "`--host=HOST`"),
    "remote ckpt --host --only x": ("--host needs HOST", "`--host=HOST`"),
    "run ckpt --json --events -": ("--json and --events - cannot be combined: both would be on standard output\n", ""),
    "remote ckpt --host sim --jobs 0": ("--jobs takes a whole number of rows, not '0'", "for example --jobs 4"),
    "--print-completion-script bsh": ("invalid value 'bsh' for --print-completion-script", "valid: bash, zsh"),
    "mcp --allow-run=": ("mcp: --allow-run takes no value, not ''\n", "`ci-tasks mcp --help`"),
    "run ckpt --only=": ("run: --only is empty\n", "only rows whose names contain this text"),
    "jobs --rev=": ("jobs: --rev is empty\n", "read the checkout at this revision"),
    "jobs --label ckpt": ("jobs: unknown option --label\n", "`ci-tasks jobs --help`"),
    "run ckpt \x1b[2J": ("unexpected argument '\\x1b[2J'", "selects rows"),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of somebody who has the sample."""
    for name, value in {"HOME": tmp_path, "REPO": ROOT / "examples/tiny-slime", "HOSTS": ROOT / "hosts.yaml"}.items():
        monkeypatch.setenv(f"CI_TASKS_{name}", str(value))
    return tmp_path


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program, in this process."""
    code = program.run(["ci-tasks", *argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_word_exits_with_2_suggests_what_is_right_and_leaves_nothing(
    line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message, hint = WRONG[line]
    code, _, err = run(line.split(" "), capsys)
    _, said, rest = err.rpartition("ci-tasks: ")
    assert (code, said) == (2, "ci-tasks: ")
    assert message in rest and hint in rest.partition("\n")[2]
    assert not (home / "runs").exists()


def test_a_word_behind_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["triage", "--", "-x.log"], capsys)
    assert (code, "'-x.log' cannot be read: No such file" in err) == (2, True)


@pytest.mark.parametrize("argv", [["--version"], ["-V"]])
def test_the_version_is_printed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv, capsys) == (0, f"ci-tasks {__version__}\n", "")


def groups(text: str) -> Iterator[tuple[str, list[str]]]:
    for heading, body in re.findall(r"^(\S.*):\n\n((?:  .*\n)+)", text, re.MULTILINE):
        yield heading, re.findall(r"^  (\S+)", body, re.MULTILINE)


@pytest.mark.parametrize("argv", [[], ["--list"], ["-l"], ["--help"], ["-h"]])
def test_commands_are_listed_in_groups(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(argv, capsys)
    shown = dict(groups(out))
    shown.pop("Options", None)
    assert code == 0
    assert list(shown)[: len(HEADINGS)] == list(HEADINGS)
    assert shown["Run a CI label"] == ["jobs", "plan", "run", "remote", "setup"]
    assert sorted(name for names in shown.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "argv",
    [["--help", "remote"], ["remote", "--help"], ["remote", "ckpt", "--help"], ["-h", "remote"], ["remote", "-h"]],
)
def test_the_help_of_a_command_lists_its_options(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(argv, capsys)
    assert code == 0
    assert out.startswith("Usage: ci-tasks remote LABEL [OPTIONS]\n\n  Run a CI label on hosts")
    shown = dict(groups(out))
    assert shown["Arguments"][0] == "LABEL"
    assert {"--host", "--only", "--base"} <= set(shown["Options"])
