"""A job gets a clean machine's environment and what the plan names; its secrets are shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import run_directory as environment
from ci_tasks.agent.records import Plan

if TYPE_CHECKING:
    from tests.agent.conftest import Run

CALLERS = {
    "PYTHONPATH": "/mine",
    "CUDA_VISIBLE_DEVICES": "3",
    "VIRTUAL_ENV": "/venv",
    "BASH_ENV": "/my/bashrc",
    "LD_PRELOAD": "",
    "PYTEST_ADDOPTS": "-x",
    "GITHUB_TOKEN": "not-in-the-plan",
    "CI": "true",
}
MACHINES = {
    "HOME": "/home/me",
    "https_proxy": "http://proxy:1",
    "NO_PROXY": "localhost",
    "LC_ALL": "C.UTF-8",
    "PIP_INDEX_URL": "https://index",
    "HF_ENDPOINT": "https://hub",
    "DOCKER_HOST": "unix:///x",
    "SLURM_CONF": "/opt/slurm.conf",
    "ENROOT_CACHE_PATH": "/cache",
}
SECRET = "s3cret-w/ $chars'\""
MULTI_LINE = "first-line\nsecond-line\nzz"


def _printed(run: Run) -> dict[str, str]:
    entries = run.log().decode().rpartition(" to mask\n")[2].split("\0")  # behind the line about a value such as "key"
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_the_jobs_environment_is_the_machines_and_the_plans_not_the_callers(run: Run) -> None:
    run.plan.update(host_env={"TEAM_CACHE": "/cache dir", "LC_ALL": "C"}, secrets=["WANDB_API_KEY", "ABSENT"])
    run.start("env -0", **CALLERS, **MACHINES, WANDB_API_KEY="key").ended()
    got = _printed(run)
    assert not set(CALLERS) & set(got)
    assert {name: got[name] for name in MACHINES} == {**MACHINES, "LC_ALL": "C"}
    assert (got["TEAM_CACHE"], got["WANDB_API_KEY"]) == ("/cache dir", "key")
    assert "ABSENT" not in got
    assert (got["PATH"], got["CI_TASKS_RUN_DIR"]) == (os.environ["PATH"], str(run.path))
    assert {*MACHINES} - {"HOME", "LC_ALL"} <= set(run.status().shell)
    assert not {"HOME", "LC_ALL", "PATH", "WANDB_API_KEY", *CALLERS} & set(run.status().shell)


@pytest.mark.parametrize(("path", "is_first"), [("/venv/bin:/usr/bin:/bin", True), ("/usr/bin:/venv/bin", False)])
def test_an_activated_venv_is_noted_where_a_job_finds_its_python(
    monkeypatch: pytest.MonkeyPatch, path: str, is_first: bool
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("PATH", path)
    assert ("VIRTUAL_ENV" in environment.shell_variables()) == is_first


def test_a_secret_reaches_the_job_and_no_file_and_no_argv(run: Run, until: Callable[..., Any]) -> None:
    run.plan["secrets"] = ["TOKEN", "KEY"]
    run.start(
        'echo "token=$TOKEN"; echo "$KEY"; printf %s "${#TOKEN}"; touch "$CI_TASKS_RUN_DIR/ready"; sleep 300',
        TOKEN=SECRET,
        KEY=MULTI_LINE,
    )
    until(lambda: run.has("ready") and run.log().endswith(str(len(SECRET)).encode()))
    hidden = [SECRET.encode(), b"first-line", b"second-line"]
    argvs = b"".join(_argv(pid) for pid in os.listdir("/proc") if pid.isdigit())
    run.cancel()
    run.ended()
    files = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    assert {"plan.json", "status.json", "events.jsonl", "log", "run.sh"} <= set(files)
    assert [(name, value) for name, data in files.items() for value in hidden if value in data] == []
    assert not any(value in argvs for value in hidden)
    assert run.log().startswith(b"token=***\n***\n")


def _argv(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_secrets_that_would_blank_out_the_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHORT": "abc", "WORD": "main", "YEAR": "2026", "TOKEN": "hf_0123456789", "EMPTY": ""}.items():
        monkeypatch.setenv(name, value)
    plan = Plan(secrets=("SHORT", "WORD", "TOKEN", "EMPTY", "ABSENT", "YEAR"))
    assert environment.unmasked_secrets(plan) == ["SHORT", "WORD", "YEAR"]
