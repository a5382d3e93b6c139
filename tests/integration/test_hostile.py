"""What a person may hand us: each has its own clear error and exit code, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

WORKFLOW = ".github/workflows/pr-test.yml"


def with_other_workflows(count: int, person: Any) -> None:
    for number in range(count):
        person.write(f".github/workflows/a{number}.yml", "jobs: {}")
    (person.checkout / WORKFLOW).unlink()
    (person.checkout / (WORKFLOW + ".j2")).unlink()


# What is said of it: how it becomes so, and the command.
SPOILT: dict[str, tuple[Callable[[Any], object], str]] = {
    "inside the checkout": (lambda person: person.env.update(CI_TASKS_HOME="mine"), "plan precision"),
    "--workflow FILE picks one of: a0.yml, a1.yml": (partial(with_other_workflows, 2), "jobs --repo ."),
    "a6.yml and 3 more; `ci-tasks jobs --changed` lists": (partial(with_other_workflows, 15), "jobs --repo ."),
}


@pytest.mark.parametrize("message", SPOILT)
def test_what_is_wrong_is_said_and_leaves_nothing(person: Any, message: str) -> None:
    spoil, command = SPOILT[message]
    spoil(person)
    said = person.ci_tasks(*command.split())
    assert (said.code, message in said.err, "Traceback" in said.err) == (2, True, False), said.out + said.err
    assert not (person.checkout / "mine").exists()
    assert not list((person.home / "runs").glob("*"))


def test_a_row_whose_checkout_fails_is_blocked_and_the_others_run(person: Any, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        'case "$PWD $*" in */02/workspace*" read-tree --reset "*)\n'
        '  echo "fatal: No space left on device" >&2; exit 128 ;; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    fake.chmod(0o755)
    person.env["PATH"] = f"{fake.parent}:{os.environ['PATH']}"
    said = person.ci_tasks("remote", "--host", "sim", "sglang-config")
    assert said.code == 125, said.out + said.err
    assert [record["status"] for record in person.records()] == ["passed", "blocked"]
    assert "No space left on device" in person.records()[1]["reason"]
    assert person.processes() == []


def test_a_job_cannot_control_the_terminal_and_ends_when_nobody_reads_any_more(person: Any) -> None:
    sequence = "\x1b]52;c;cm0gLXJm\x07\x9d0;title\x9c"
    test = person.checkout / "tests/test_tiny_parallel_check.py"
    test.write_text(f"print({sequence!r} + '\\x1b[31mred\\x1b[0m', flush=True)\n{test.read_text()}")
    result = person.ci_tasks("remote", "--host", "sim", "precision")
    assert result.code == 0, result.out + result.err
    shown = "\\x1b]52;c;cm0gLXJm\\x07\\x9d0;title\\x9c\x1b[31mred\x1b[0m\n"
    assert shown in result.out and sequence not in result.out
    assert sequence in person.ci_tasks("logs", "last", "--raw").out
    person.env["TINY_STEP_SECONDS"] = "0.5"
    started = person.start("remote", "--host", "sim", "ckpt", "--only", "async,gpu-load-optimizer-gpu")
    while "running" not in started.stdout.readline():
        assert started.poll() is None
    started.stdout.close()
    started.wait(60)
    started.stderr.close()
    assert person.processes() == []
