"""What a person may hand us: each has its own clear error and exit code, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKFLOW = ".github/workflows/pr-test.yml"


def edited(before: str, after: str, file: str = WORKFLOW) -> Callable[[Any], object]:
    return lambda person: person.edit(file, before, after)


def with_home_in_the_checkout(person: Any) -> None:
    person.env["CI_TASKS_HOME"] = "mine"


def with_two_other_workflows(person: Any) -> None:
    """One alone would be taken."""
    other = (person.checkout / WORKFLOW).rename(person.checkout / ".github/workflows/other.yml")
    other.with_name("another.yml").write_text(other.read_text())
    (person.checkout / (WORKFLOW + ".j2")).unlink()


# How it becomes so, the command, its exit code, and what it says of it.
SPOILT: list[tuple[Callable[[Any], object], str, int, str]] = [
    (edited("jobs:\n", "jobs: [\n"), "jobs", 2, "invalid YAML"),
    (edited("setup-python@v5", "unknown@v1"), "plan cpu-unittest", 2, "no equivalent here"),
    (
        edited("test_tiny_sglang_config_offload.py", "test_tiny_renamed.py"),
        "remote sglang-config --host sim",
        2,
        "runs tests/test_tiny_renamed.py, which is not in the checkout",
    ),
    (
        edited("CI_TASKS_GPU_LOCK_DIR", "SOMETHING_ELSE", "tests/ci/gpu_lock_exec.py"),
        "remote --host sim ckpt",
        125,
        "simulated ones serve the sample only",
    ),
    (with_home_in_the_checkout, "plan precision", 2, "inside the checkout"),
    (
        with_two_other_workflows,
        "jobs --repo .",
        2,
        "--workflow FILE picks one of: .github/workflows/another.yml, .github/workflows/other.yml",
    ),
]


@pytest.mark.parametrize(("spoil", "command", "code", "message"), SPOILT, ids=[each[-1] for each in SPOILT])
def test_what_is_wrong_is_said_and_leaves_nothing(
    person: Any, spoil: Callable[[Any], object], command: str, code: int, message: str
) -> None:
    spoil(person)
    said = person.ci_tasks(*command.split())
    assert said.code == code, said.out + said.err
    assert message in said.out + said.err
    assert "Traceback" not in said.err
    assert not (person.checkout / "mine").exists()
    assert code != 2 or not list((person.home / "runs").glob("*"))


def test_a_hosts_yaml_of_the_checkout_counts_once_it_is_trusted(person: Any) -> None:
    person.write("hosts.yaml", 'overrides: [{job: cpu-unittest, step: "Install", run: echo evil}]\n')
    plan = ("plan", "cpu-unittest", "--only", "rewards")
    untrusted = person.ci_tasks(*plan)
    assert "hosts.yaml is part of the checkout and does not count" in untrusted.err
    assert "echo evil" not in untrusted.out
    trusted = person.ci_tasks("hosts", "--trust")
    assert trusted.code == 0 and "echo evil" in trusted.out, "what is trusted is shown"
    assert "echo evil; override in hosts.yaml:1" in person.ci_tasks(*plan).out


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
