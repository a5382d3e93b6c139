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
