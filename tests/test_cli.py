"""The command line: what is wrong leaves with exit code 2, a message and the next step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "ci-tasks": [sys.executable, "-c", "from ci_tasks.cli import main; main()"],
    "invoke": [sys.executable, "-m", "invoke"],
}
# what was typed → what the message says
WRONG = {
    "frob": "there is no command 'frob'",
    "plan": "plan needs a label",
    "jobs --frob": "jobs has no flag --frob",
    "jobs ckpt agents": "jobs: 'agents' is one word too many",
    "jobs ckptt": "no label 'ckptt' in .github/workflows/pr-test.yml; did you mean 'ckpt'?",
    "run ckpt --jobs many": "--jobs is a number of rows at once, not 'many'",
    "remote ckpt": "remote needs --host",
    "remote ckpt --host smi": "no host 'smi' in",
    "remote ckpt --host sim --only asink": "no row 'asink' in label ckpt",
    "logs nosuchrun": "no run 'nosuchrun'",
    "jobs --repo /no/such/place": "--repo names /no/such/place, which is not a directory",
    "jobs --workflow .github/workflows/other.yml": "has no .github/workflows/other.yml",
}


def run(program: str, words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    import os

    env = {name: value for name, value in os.environ.items() if not name.startswith("CI_TASKS_")}
    return subprocess.run(
        [*PROGRAMS[program], *words.split()],
        cwd=ROOT,
        env={**env, "CI_TASKS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_word_is_exit_code_2_with_a_message_and_a_next_step(words: str, tmp_path: Path) -> None:
    done = run("ci-tasks", words, tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert WRONG[words] in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing is left of a run that was never begun"


@pytest.mark.parametrize("words", ["frob", "jobs --frob", "plan"])
def test_bare_invoke_says_the_same(words: str, tmp_path: Path) -> None:
    done = run("invoke", words, tmp_path)
    assert done.returncode == 2
    assert WRONG[words] in done.stderr
    assert "`invoke --list` names the commands" in done.stderr


def test_jobs_takes_a_label_or_none(tmp_path: Path) -> None:
    every = run("invoke", "jobs", tmp_path).stdout
    one = run("invoke", "jobs precision", tmp_path).stdout
    assert "sglang-config" in every
    assert "sglang-config" not in one
    assert "tiny_parallel_check" in one


def test_a_flag_before_the_label_keeps_its_value(tmp_path: Path) -> None:
    done = run("invoke", f"jobs --repo {ROOT / 'examples/tiny-slime'} precision", tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("tiny_parallel_check") == 1


def test_every_command_has_help_with_its_flags(tmp_path: Path) -> None:
    for command in ["jobs", "plan", "run", "remote", "hosts", "runs", "logs", "cancel"]:
        done = run("ci-tasks", f"--help {command}", tmp_path)
        assert done.returncode == 0
        what, _, flags = done.stdout.partition("Options:")
        assert "\n  none\n" not in what
        assert f"invoke {command}" in what, "an example"
        assert "STRING\n" not in flags, "every flag says what it is"
        lines = [line.strip() for line in flags.splitlines() if line.startswith("  -")]
        assert lines and not [line for line in lines if not re.search(r"\S {2,}\S", line)], "a flag without a word"
        assert not [line for line in lines if not line.startswith("--")], "of another meaning for another command"


def test_help_may_stand_behind_the_command_too(tmp_path: Path) -> None:
    behind, before = run("ci-tasks", "jobs --help", tmp_path), run("ci-tasks", "--help jobs", tmp_path)
    assert (behind.returncode, behind.stdout) == (0, before.stdout), behind.stderr


def test_hosts_are_listed_with_the_file_they_come_from(tmp_path: Path) -> None:
    done = run("ci-tasks", "hosts", tmp_path)
    assert done.stdout.splitlines()[0].endswith("hosts.yaml")
    assert "8 (pretend)" in done.stdout


def test_no_run_yet_is_said(tmp_path: Path) -> None:
    assert run("ci-tasks", "runs", tmp_path).stdout == "no runs yet\n"
