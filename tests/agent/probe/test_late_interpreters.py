"""Interpreters that a job makes while it runs have the probe, by the job's PYTHONPATH; others are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.probe.evidence import write_files
from ci_tasks.agent.probe.payload.probe import vanishes
from ci_tasks.agent.records import ProbeRules
from tests.agent.probe.interpreters import Interpreter, make_interpreter, pythons


@pytest.fixture(params=[pythons()[0], pythons()[-1]], ids=["oldest", "newest"])
def late(tmp_path: Path, request: pytest.FixtureRequest) -> Interpreter:
    """A venv in the workspace of a run whose probe was written before."""
    python = make_interpreter(tmp_path / "workspace", request.param, probe=False)
    write_files(python.run, ProbeRules(("special",)), str(tmp_path / "workspace"))
    return python


def path_of(python: Interpreter, *more: str) -> dict[str, str]:
    return {"PYTHONPATH": ":".join([python.run.probe + "/start", *more])}


def test_a_new_interpreter_is_seen_and_stays_so_under_a_path_of_the_jobs_own(late: Interpreter) -> None:
    assert late("-c", "pass", env=path_of(late)) == (0, "", "")
    assert late("-c", "raise KeyError(1)", env={"PYTHONPATH": "/nowhere"})[0] == 1
    first, second = late.processes()
    assert (first.executable, second.executable) == (late.program, late.program)
    assert [failure.chain[0].type for failure in second.exceptions] == ["builtins.KeyError"]


def test_the_program_sees_the_path_and_the_sitecustomize_that_it_would_have_without(
    late: Interpreter, tmp_path: Path
) -> None:
    program = "import sys; print(sys.path, 'sitecustomize' in sys.modules)"
    plain = make_interpreter(tmp_path / "plain", str(Path(late.venv / "bin/python").resolve()), probe=False)
    before = plain("-c", program, env={"PYTHONPATH": "/a:/b"})[1]
    assert late("-c", program, env=path_of(late, "/a", "/b"))[1] == before.replace(str(plain.venv), str(late.venv))
    late.install(sitecustomize="print('theirs', __name__, 'ci_tasks_probe' in __file__)")
    assert late("-c", "print('program')", env=path_of(late))[1] == "theirs sitecustomize False\nprogram\n"
    late.install(sitecustomize="raise ValueError('theirs')")
    code, out, err = late("-c", "print('program')", env=path_of(late))
    assert (code, out) == (0, "program\n") and "ValueError: theirs" in err


def test_an_interpreter_outside_the_run_is_seen_and_nothing_is_written_there(late: Interpreter, tmp_path: Path) -> None:
    outside = make_interpreter(tmp_path / "outside", probe=False)
    files = sorted(outside.packages.iterdir())
    assert outside("-c", "pass", env=path_of(late))[0] == 0
    assert outside("-c", "pass", env={"PYTHONPATH": "/nowhere"})[0] == 0
    assert sorted(outside.packages.iterdir()) == files
    assert [process.executable for process in late.processes()] == [outside.program]


def test_a_probe_that_an_earlier_run_left_is_replaced(late: Interpreter) -> None:
    (late.packages / "ci_tasks_probe.pth").write_text("import sys; exec('import ci_tasks_probe')\n")
    late.install(ci_tasks_probe="_file = None\ndef begin(*words): raise OSError\n")
    late("-c", "pass", env=path_of(late))
    late("-c", "pass", env={})
    assert [process.executable for process in late.processes()] == [late.program] * 2


@pytest.mark.parametrize(("place", "expected"), [("/usr/lib/python3", True), ("/proc/sys", False), ("/proc", False)])
def test_in_a_container_what_is_mounted_stays_as_it_is(place: str, expected: bool) -> None:
    """It may be the host's own Python."""
    assert vanishes(place, ()) is expected
