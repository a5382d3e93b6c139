"""The commands that a test starts end with it, however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fixtures

# A command that never ends by itself, nor does what it has started.
ENDLESS = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("env", [{}, {"PYTHONDEVMODE": ""}], ids=["forked", "started"])
def test_a_command_that_still_runs_is_ended_with_its_test(tmp_path: Path, env: dict[str, str]) -> None:
    someone = fixtures.Person(tmp_path / "home", tmp_path, env, first=ENDLESS)
    client = someone.start("jobs")
    child = int(client.stdout.readline())
    assert is_running(child)
    fixtures.pytest_runtest_teardown()
    assert client.poll() == -9
    fixtures.until(lambda: not is_running(child), "what it has started is gone")
    client.communicate()
