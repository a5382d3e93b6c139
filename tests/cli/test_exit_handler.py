"""The one door out: what the machine does not allow is blocked, what a terminal cannot show does not stop us."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.cli import exit_handler
from ci_tasks.errors import EXIT_BLOCKED, EXIT_USAGE, Blocked


@pytest.fixture(autouse=True)
def home_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))


def test_a_message_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise Blocked("first " + "x" * 80_000 + " last")

    assert exit_handler.run(flow) == EXIT_BLOCKED
    error = capsys.readouterr().err
    assert len(error) < 4200 and "first" in error and "76,011 characters left out" in error and "last" in error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES])
def test_a_full_disk_is_blocked_and_names_the_path(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise OSError(number, os.strerror(number), "/runs/x")

    assert exit_handler.run(flow) == EXIT_BLOCKED
    err = capsys.readouterr().err
    assert f"ci-tasks: blocked: {os.strerror(number)}: '/runs/x'" in err
    assert "CI_TASKS_HOME" in err


def test_a_word_that_no_file_can_be_called_is_an_error_of_whoever_typed_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_handler.run(lambda: Path("w" * 5000).stat().st_size) == EXIT_USAGE
    err = capsys.readouterr().err
    assert err.startswith("ci-tasks: File name too long: 'www") and len(err) < 200


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "utf-8:strict", "utf-8:surrogateescape"])
def test_output_is_escaped_for_a_terminal_without_utf8(encoding: str) -> None:
    code = r"from ci_tasks.cli import exit_handler as e; e.run(lambda: print('CI \u2192 here, a \udce9 \ud800 b'))"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert b"a bug" not in done.stderr
    assert b"here, a \\udce9 \\ud800 b" in done.stdout
