"""The one door out: what the machine does not allow is blocked, what a terminal cannot show does not stop us."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ci_tasks import door
from ci_tasks.errors import EXIT_BLOCKED, EXIT_BUG


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_no_room_is_blocked_and_names_the_place(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise OSError(number, os.strerror(number), "/runs/x")

    assert door.run(flow) == EXIT_BLOCKED
    said = capsys.readouterr().err
    assert f"ci-tasks: blocked: {os.strerror(number)}: '/runs/x'" in said
    assert "CI_TASKS_HOME" in said


def test_another_fault_of_the_system_is_a_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def flow() -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file", "/runs/x")

    assert door.run(flow) == EXIT_BUG
    assert "a bug" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "utf-8:strict"])
def test_a_terminal_without_utf8_still_gets_its_lines(encoding: str) -> None:
    words = r"from ci_tasks import door; door.run(lambda: print('CI \u2192 here, a \udce9 b'))"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", words], env=env, capture_output=True, timeout=60)
    assert b"a bug" not in done.stderr
    assert b"here, a \\udce9 b" in done.stdout


def test_a_full_device_for_the_output_is_no_bug() -> None:
    words = "import sys; from ci_tasks import door; sys.exit(door.run(lambda: print('x', flush=True) or 0))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", words], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert b"ci-tasks: blocked: No space left on device" in done.stderr
