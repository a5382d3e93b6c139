"""The program as a process, started as `ci-tasks` and by invoke."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import CommandResult, Person

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "ci-tasks": [sys.executable, "-c", "from ci_tasks.cli.program import main; main()"],
    "invoke": [sys.executable, "-m", "invoke"],
}


def run(program: str, arguments: str, tmp_path: Path) -> CommandResult:
    person = Person(tmp_path, ROOT, {"CI_TASKS_REPO": "examples/tiny-slime"})
    if program == "ci-tasks":
        return person.ci_tasks(*arguments.split())
    words, pipe = [*PROGRAMS[program], *arguments.split()], subprocess.PIPE
    done = subprocess.run(words, cwd=ROOT, env=person.environment(), stdout=pipe, stderr=pipe, text=True, timeout=60)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", ["frob", "jobs --label ckpt", "plan"])
def test_every_program_prints_the_same_errors(arguments: str, tmp_path: Path) -> None:
    ours, of_invoke = (run(program, arguments, tmp_path) for program in PROGRAMS)
    assert ours.code == of_invoke.code == 2 and ours.err == of_invoke.err != ""


@pytest.mark.parametrize("options", ["--collection tasks", "--no-dedupe", "--echo -r ."])
def test_options_of_invoke_itself_may_precede_a_command(options: str, tmp_path: Path) -> None:
    done = run("invoke", f"{options} jobs precision", tmp_path)
    assert (done.code, "tiny_parallel_check" in done.out) == (0, True), done.err


def test_calls_in_help_and_hints_are_of_ci_tasks_whatever_was_started(tmp_path: Path) -> None:
    assert "\n  gh run view 123 --log | ci-tasks triage -\n" in run("invoke", "triage --help", tmp_path).out
    assert "\n`ci-tasks hosts` lists them\n" in run("invoke", "remote ckpt", tmp_path).err


@pytest.mark.parametrize("label", ["precision", "run-ci-precision", "e2e-test-precision"])
def test_a_pr_label_or_job_name_is_accepted_as_a_label(label: str, tmp_path: Path) -> None:
    done = run("ci-tasks", f"jobs {label}", tmp_path)
    words = [line.split()[0] for line in done.out.splitlines()[1:] if line]
    assert words == ["LABEL", "precision", "ROW", "tiny_parallel_check"], done.err


@pytest.mark.parametrize("arguments", ["--list", "--version", "--help jobs", "hosts", "jobs", "runs"])
def test_output_that_cannot_be_written_is_no_bug(arguments: str, tmp_path: Path) -> None:
    """A pipe and a terminal that were closed, and a disk that is full."""
    (read, write), (master, slave) = os.pipe(), os.openpty()
    os.close(read)
    os.close(master)
    argv, env = [*PROGRAMS["ci-tasks"], *arguments.split()], {**os.environ, "CI_TASKS_HOME": str(tmp_path)}
    with os.fdopen(write, "w") as closed, open("/dev/full", "w") as full, os.fdopen(slave, "w") as gone:
        ends = [
            subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
            for out in (closed, full, gone)
        ]
    assert [done.returncode for done in ends] == [141, 125, 141]
    assert (ends[0].stderr, ends[1].stderr[:42]) == ("", "ci-tasks: blocked: No space left on device")
    assert "Traceback" not in ends[1].stderr
