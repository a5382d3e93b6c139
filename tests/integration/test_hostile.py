"""What a person may hand us: each has its own clear error and exit code 2, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

WORKFLOW = ".github/workflows/pr-test.yml"
# what is wrong → (file, text that stands there, text instead, command, parts of the message)
SPOILT: dict[str, tuple[str, str, str, str, list[str]]] = {
    "broken YAML": (WORKFLOW, "jobs:\n", "jobs: [\n", "jobs", [f"{WORKFLOW}:", "invalid YAML"]),
    "a key that stands twice": (
        WORKFLOW,
        "    runs-on: ubuntu-latest\n",
        "    runs-on: ubuntu-latest\n    runs-on: other\n",
        "jobs",
        ["duplicate key 'runs-on'", "runs-on: other"],
    ),
    "an unknown key of a job": (
        WORKFLOW,
        "    runs-on: ubuntu-latest\n",
        "    runs_on: ubuntu-latest\n",
        "jobs",
        ["has no key 'runs_on'", "did you mean 'runs-on'?"],
    ),
    "an unknown function in a job's env": (
        WORKFLOW,
        "${{ matrix.info.enable_eval || '1' }}",
        "${{ startWith(matrix.info.enable_eval, '1') }}",
        "jobs",
        ["job cpu-unittest", "startWith", "did you mean 'startsWith'?"],
    ),
    "an unknown function in a step's script": (
        WORKFLOW,
        'TEST_PATH="${{ matrix.info.test_file }}"',
        'TEST_PATH="${{ trim(matrix.info.test_file) }}"',
        "jobs",
        ["job cpu-unittest", "step 'Execute'", "trim"],
    ),
    "an action without equivalent": (
        WORKFLOW,
        "uses: actions/setup-python@v5",
        "uses: someone/setup-everything@v1",
        "plan cpu-unittest",
        ["someone/setup-everything@v1", "no equivalent here", "overrides:"],
    ),
    "a row whose test file is gone": (
        WORKFLOW,
        "test_tiny_sglang_config_offload.py",
        "test_tiny_renamed.py",
        "remote sglang-config --host sim",
        ["runs tests/test_tiny_renamed.py, which is not in the checkout"],
    ),
    "a shell that is not here": (
        WORKFLOW,
        "shell: bash",
        "shell: pwsh",
        "plan cpu-unittest",
        ["the shell 'pwsh' is not supported here; valid: bash"],
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_checkout_is_an_error_that_names_the_place(person: Any, what: str) -> None:
    file, before, after, command, parts = SPOILT[what]
    person.edit(file, before, after)
    said = person.ci_tasks(*command.split())
    assert said.code == 2, said.out + said.err
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.err
    assert not list((person.home / "runs").glob("*"))


@pytest.mark.parametrize("what", ["an unknown function in a step's script", "an unknown key of a job"])
def test_the_error_names_the_very_line(person: Any, what: str) -> None:
    file, before, after, command, _ = SPOILT[what]
    person.edit(file, before, after)
    said = person.ci_tasks(*command.split())
    lines = (person.checkout / WORKFLOW).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if after.strip() in line)
    assert f"{WORKFLOW}:{number}: " in said.err


def test_a_spoilt_template_is_an_error_with_its_line(person: Any) -> None:
    (person.checkout / WORKFLOW).unlink()
    person.edit(WORKFLOW + ".j2", "<%- endfor %>", "<%- endfro %>")
    said = person.ci_tasks("jobs")
    assert said.code == 2
    assert f"{WORKFLOW}.j2:" in said.err
    assert "endfro" in said.err


def test_without_the_yml_the_template_gives_the_same_rows(person: Any) -> None:
    before = person.ci_tasks("jobs", "--json").out
    (person.checkout / WORKFLOW).unlink()
    assert person.ci_tasks("jobs", "--json").out == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts:\n  sim: {kind: local, gpu: 8}\n", "hosts.yaml:2: host sim: unknown key 'gpu'; did you mean 'gpus'?"),
        ("hosts:\n  sim: {kind: lokal}\n", "hosts.yaml:2: host sim: unknown kind 'lokal'; did you mean 'local'?"),
        ("hosts: [\n", "invalid YAML"),
    ],
)
def test_a_spoilt_hosts_yaml_is_an_error_that_names_the_line(person: Any, text: str, message: str) -> None:
    person.write_hosts(text)
    said = person.ci_tasks("remote", "--host", "sim", "ckpt")
    assert said.code == 2
    assert message in said.err


def test_a_hosts_yaml_of_the_checkout_counts_once_it_is_trusted(person: Any) -> None:
    person.write("hosts.yaml", 'overrides: [{job: cpu-unittest, step: "Install", run: echo evil}]\n')
    plan = ("plan", "cpu-unittest", "--only", "rewards")
    untrusted = person.ci_tasks(*plan)
    assert untrusted.code == 0
    assert "hosts.yaml is part of the checkout and does not count" in untrusted.err
    assert "echo evil" not in untrusted.out
    assert "Install" not in person.ci_tasks("hosts").out
    trusted = person.ci_tasks("hosts", "--trust")
    assert trusted.code == 0 and "echo evil" in trusted.out, "what is trusted is shown"
    assert "echo evil; override in hosts.yaml:1" in person.ci_tasks(*plan).out
    assert "cpu-unittest     Install  run      hosts.yaml:1\n" in person.ci_tasks("hosts").out


def test_a_misspelt_override_is_a_warning_with_the_nearest_name(person: Any) -> None:
    person.write_hosts("overrides:\n  - {job: cpu-unitest, step: Install, skip: true}\n")
    planned = person.ci_tasks("plan", "cpu-unittest", "--only", "rewards")
    assert planned.code == 0
    assert "hosts.yaml:2: this override changes nothing: there is no job 'cpu-unitest'; did you mean" in planned.err


def test_hosts_json_says_where_each_key_comes_from(person: Any) -> None:
    file = person.write_hosts("hosts:\n  sim:\n    gpus: 4\n")
    sim = next(host for host in person.ci_tasks("hosts", "--json").json if host["name"] == "sim")
    assert sim["gpus"] == 4 and sim["simulate"]
    assert sim["sources"]["gpus"].endswith(f"{file.name}:3") and sim["sources"]["simulate"] == "built in"


def test_without_git_the_message_says_so(person: Any, tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("bash", "sh", "dirname", "mkdir"):
        found = next(Path(folder, name) for folder in os.environ["PATH"].split(":") if Path(folder, name).exists())
        (directory / name).symlink_to(found)
    person.env["PATH"] = str(directory)
    said = person.ci_tasks("remote", "--host", "sim", "ckpt")
    assert said.code == 2
    assert "git is not installed" in said.err


def test_a_directory_with_several_other_workflows_lists_them(person: Any) -> None:
    """One alone would be taken."""
    other = (person.checkout / WORKFLOW).rename(person.checkout / ".github/workflows/other.yml")
    other.with_name("another.yml").write_text(other.read_text())
    (person.checkout / (WORKFLOW + ".j2")).unlink()
    said = person.ci_tasks("jobs", "--repo", str(person.checkout))
    assert said.code == 2
    assert "--workflow FILE picks one of: .github/workflows/another.yml, .github/workflows/other.yml" in said.err
    assert (
        person.ci_tasks("jobs", "--repo", str(person.checkout), "--workflow", ".github/workflows/other.yml").code == 0
    )


def test_a_revision_that_is_not_there_lists_the_branches(person: Any) -> None:
    said = person.ci_tasks("jobs", "--rev", "v9.9")
    assert said.code == 2
    assert "has no revision 'v9.9'\n" in said.err
    assert "origin/main" in said.err


def test_a_base_that_is_not_there_is_an_error_that_says_what_to_pass(person: Any) -> None:
    person.git("update-ref", "-d", "refs/remotes/origin/main")
    said = person.ci_tasks("remote", "--host", "sim", "changed")
    assert said.code == 2
    assert "pass --base REV; branches here: main" in said.err


def test_simulated_gpus_are_refused_to_a_checkout_that_would_touch_the_real_locks(person: Any) -> None:
    person.edit("tests/ci/gpu_lock_exec.py", "CI_TASKS_GPU_LOCK_DIR", "SOMETHING_ELSE")
    said = person.ci_tasks("remote", "--host", "sim", "ckpt")
    assert said.code == 125
    assert "simulated GPUs would touch the real locks" in said.out


@pytest.mark.parametrize("command", ["plan ckpt", "jobs --rev main", "jobs changed --run-needs"])
def test_another_persons_checkout_is_read_like_any_other_since_nothing_of_it_is_executed(
    person: Any, command: str
) -> None:
    person.env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    said = person.ci_tasks(*command.split())
    assert said.code == 0, said.err


@pytest.mark.parametrize("words", [[], ["--rev", "main"]])
def test_a_bare_repository_is_said_to_be_one(person: Any, tmp_path: Path, words: list[str]) -> None:
    person.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    said = person.ci_tasks("jobs", "--repo", str(tmp_path / "bare.git"), *words)
    assert said.code == 2
    assert "is a bare repository" in said.err
    assert "worktree add DIR" in said.err


def test_runs_are_not_kept_in_the_checkout_unless_git_ignores_them(person: Any) -> None:
    person.env["CI_TASKS_HOME"] = "mine"
    said = person.ci_tasks("plan", "precision")
    assert said.code == 2
    assert "inside the checkout" in said.err
    assert not (person.checkout / "mine").exists()
    person.write(".git/info/exclude", "/mine/\n")
    assert person.ci_tasks("plan", "precision").code == 0


def test_a_plan_without_rows_leaves_nothing(person: Any) -> None:
    said = person.ci_tasks("plan", "changed", "--run-needs")
    assert said.code == 0, said.err
    assert "label changed has no row here" in said.out
    assert not list((person.home / "runs").glob("*"))


def test_a_plan_may_be_written_where_git_ignores_it(person: Any) -> None:
    person.write(".git/info/exclude", "/mine/\n")
    said = person.ci_tasks("plan", "precision", "--out", "mine/plan")
    assert said.code == 0, said.err
    assert person.git("status", "--porcelain") == ""


def test_a_row_whose_checkout_fails_is_blocked_and_the_others_run(person: Any, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        'case "$PWD $*" in */02/workspace*" checkout "*) echo "fatal: No space left on device" >&2; exit 128 ;; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    fake.chmod(0o755)
    person.env["PATH"] = f"{fake.parent}:{os.environ['PATH']}"
    said = person.ci_tasks("remote", "--host", "sim", "sglang-config")
    assert said.code == 125, said.out + said.err
    assert [record["status"] for record in person.records()] == ["passed", "blocked"]
    assert "No space left on device" in person.records()[1]["reason"]
    assert person.processes() == []


def test_rows_do_not_go_on_when_nobody_reads_any_more(person: Any) -> None:
    person.env["TINY_STEP_SECONDS"] = "0.5"
    started = person.start("remote", "--host", "sim", "ckpt", "--only", "async,gpu-load-optimizer-gpu")
    while "running" not in started.stdout.readline():
        assert started.poll() is None
    started.stdout.close()
    started.wait(60)
    started.stderr.close()
    assert person.processes() == []


def test_a_job_cannot_control_the_terminal(person: Any) -> None:
    sequence = "\x1b]52;c;cm0gLXJm\x07\x9d0;title\x9c"
    test = person.checkout / "tests/test_tiny_parallel_check.py"
    test.write_text(f"print({sequence!r} + '\\x1b[31mred\\x1b[0m', flush=True)\n{test.read_text()}")
    result = person.ci_tasks("remote", "--host", "sim", "precision")
    assert result.code == 0, result.out + result.err
    shown = "\\x1b]52;c;cm0gLXJm\\x07\\x9d0;title\\x9c\x1b[31mred\x1b[0m\n"
    assert shown in result.out and sequence not in result.out
    assert shown in person.ci_tasks("logs", "last").out
    assert sequence in person.ci_tasks("logs", "last", "--raw").out
