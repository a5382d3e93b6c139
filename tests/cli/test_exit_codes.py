"""The exit codes: docs/programs.md has them in one table, from the mappings that the code of each command uses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from ci_tasks import errors
from ci_tasks.cli import exit_handler
from ci_tasks.cli.commands import commands
from ci_tasks.registry import Command
from docs.generate import exit_codes

ROOT = Path(__file__).resolve().parents[2]
EVERY_COMMAND = {
    "done": 0,
    "an error on the command line, in hosts.yaml or in the workflow": errors.EXIT_USAGE,
    "a bug of ci-tasks": errors.EXIT_BUG,
    "blocked: the environment cannot do it": errors.EXIT_BLOCKED,
    "interrupted": errors.EXIT_CANCELLED,
    "the pipe of the output was closed": errors.EXIT_CLOSED_PIPE,
}


def table(commands: Iterable[Command]) -> list[str]:
    """A markdown table: the codes of every command, then those of one command or of several alike."""
    names_by_codes: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for command in commands:
        if codes := tuple(exit_codes(command).items()):
            names_by_codes.setdefault(codes, []).append(f"`{command.name}`")
    rows = [(code, meaning, "every command") for meaning, code in EVERY_COMMAND.items()]
    for codes, names in names_by_codes.items():
        rows += [(code, meaning, ", ".join(names)) for meaning, code in codes]
    return [
        "| exit code | meaning | of |",
        "|---|---|---|",
        *(f"| {code} | {what} | {of} |" for code, what, of in rows),
    ]


def test_the_documents_have_the_table_of_the_code() -> None:
    text = "\n".join(table(commands()))
    assert f"\n\n{text}\n\n" in (ROOT / "docs/programs.md").read_text(), f"docs/programs.md lacks:\n{text}"


def test_the_table_has_the_codes_of_every_error() -> None:
    for error in (errors.CheckoutError, errors.ConfigError, errors.WorkflowError, errors.Blocked, errors.InternalError):
        assert issubclass(error, errors.CiTasksError)
        assert error.exit_code in EVERY_COMMAND.values(), error


@pytest.fixture(autouse=True)
def home_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))


def test_a_message_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise errors.Blocked("first " + "x" * 80_000 + " last")

    assert exit_handler.run(flow) == errors.EXIT_BLOCKED
    error = capsys.readouterr().err
    assert len(error) < 4200 and "first" in error and "76,011 characters left out" in error and "last" in error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_a_full_disk_is_blocked(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise OSError(number, os.strerror(number), str(tmp_path / "runs"))  # of CI_TASKS_HOME

    assert exit_handler.run(flow) == errors.EXIT_BLOCKED
    err = capsys.readouterr().err
    assert f"ci-tasks: blocked: {os.strerror(number)}: '{tmp_path}/runs'" in err and "CI_TASKS_HOME" in err


def test_a_word_that_no_file_can_be_called_is_an_error_of_whoever_typed_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_handler.run(lambda: Path("w" * 5000).stat().st_size) == errors.EXIT_USAGE
    err = capsys.readouterr().err
    assert err.startswith("ci-tasks: File name too long: 'www") and len(err) < 200


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "utf-8:strict", "utf-8:surrogateescape"])
def test_output_is_escaped_for_a_terminal_without_utf8(encoding: str) -> None:
    code = r"from ci_tasks.cli import exit_handler as e; e.run(lambda: print('CI \u2192 here, a \udce9 \ud800 b'))"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert b"a bug" not in done.stderr
    assert b"here, a \\udce9 \\ud800 b" in done.stdout
