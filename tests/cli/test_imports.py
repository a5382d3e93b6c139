"""What a command that only looks may import: start-up is most of its time. `python bench/startup.py` measures it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results.runs import record_not_started
from tests.parts.json_files import write_json

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = f"--repo {shlex.quote(str(ROOT / 'examples/tiny-slime'))}"
RUN = "20260101-120000-ckpt.01"
# Other programs' code, connections, web clients, templates, and what only a debug log or documentation needs.
NEVER = {"invoke", "nox", "fabric", "paramiko", "cryptography", "requests", "urllib3", "httpx", "huggingface_hub"}
NEVER |= {"jinja2", "mcp", "rich", "pygments", "re2", "packaging"}
NEVER |= {"asyncio", "concurrent.futures", "multiprocessing", "socket", "ssl", "http.client", "email", "urllib.request"}
NEVER |= {"unittest", "logging", "traceback", "inspect", "ast", "argparse", "difflib", "statistics", "decimal"}
# A table is text: what packs, hashes and writes files belongs to runs.
NO_FILES = {"tempfile", "shutil", "zipfile", "tarfile", "zlib", "bz2", "lzma", "random", "hashlib"}
NO_YAML = {"yaml", "ci_tasks.config", "ci_tasks.workflow.model"}
NO_GIT = {"subprocess", "ci_tasks.checkout.repository"}
NO_RECORDS = {"sqlite3", "ci_tasks.records", "ci_tasks.agent.records"}
# What judges, begins or follows a run; a run that has ended needs none of it.
NO_RUN = {"ci_tasks.results.judge_run", "ci_tasks.run.attach", "ci_tasks.run.find_rows"}
NO_RUN |= {"ci_tasks.hosts.runs", "ci_tasks.hosts.executor", "ci_tasks.run.label"}
LOOKS = NEVER | NO_FILES | NO_RUN
NOTHING_READ = LOOKS | NO_YAML | NO_GIT | NO_RECORDS
# The options of a command are those of its module, which every look at them loads.
NO_COMMAND = {"json", "pathlib", "datetime", "textwrap", "ci_tasks.cli.commands.labels"}
FORBIDDEN = {
    "--version": NOTHING_READ | NO_COMMAND | {"ci_tasks.features"},
    "--list": NOTHING_READ | NO_COMMAND - {"textwrap"},
    "--help remote": NOTHING_READ,
    "--complete -- ru": NOTHING_READ | NO_COMMAND,
    "--complete -- remote ckpt --re": NOTHING_READ,
    "--complete -- remote ckpt --host l": LOOKS | NO_GIT | NO_RECORDS,
    f"--complete -- run {SAMPLE} ck": LOOKS | NO_RECORDS,
    "--complete -- logs l": NOTHING_READ - {"ci_tasks.agent.records"},
    "hosts": LOOKS | NO_GIT | NO_RECORDS,
    f"jobs {SAMPLE}": LOOKS - {"ci_tasks.run.find_rows"} | NO_RECORDS - {"ci_tasks.agent.records"},  # git's programs
    "runs": LOOKS | NO_YAML | NO_GIT | {"ci_tasks.features"},
    f"logs {RUN}": LOOKS | NO_YAML | NO_GIT | {"sqlite3", "ci_tasks.features"},
}
MAIN = """
import sys
from ci_tasks.cli.program import main
try:
    main()
except SystemExit as end:
    print(end.code, *sys.modules, file=open({answer!r}, "w"))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of one run, which was not begun."""
    run = RunDir(str(tmp_path / "runs/20260101-120000-ckpt/01"))
    Path(run.path).mkdir(parents=True)
    write_json(run.plan, {"id": RUN, "label": "ckpt", "row": "async", "host": "sim"})
    Path(run.log).write_text("no GPU\n")
    record_not_started(run, "blocked", "no GPU")
    return tmp_path


@pytest.mark.parametrize("arguments", FORBIDDEN)
def test_a_command_that_only_looks_imports_nothing_it_does_not_need(arguments: str, home: Path) -> None:
    code, modules = imported(arguments, home)
    assert code == 0
    assert sorted(FORBIDDEN[arguments] & set(modules)) == []


def test_a_command_that_runs_rows_imports_nothing_of_other_programs_before_it_knows_its_host(home: Path) -> None:
    code, modules = imported(f"remote ckpt --host nowhere {SAMPLE}", home)
    assert code == 2
    assert sorted((NEVER - {"difflib"} | {"sqlite3"}) & set(modules)) == [], "difflib finds the host that was meant"


def imported(arguments: str, home: Path) -> tuple[int, list[str]]:
    """The exit code of a command, and the modules that it has loaded."""
    answer = home / "answer.json"
    _python(MAIN.format(answer=str(answer)), home, *shlex.split(arguments))
    code, *modules = answer.read_text().split()
    return int(code), modules


def test_the_list_of_sessions_needs_no_records_of_runs(tmp_path: Path) -> None:
    """`nox -l` in a checkout, after nox itself."""
    program = """
import sys, nox
before = set(sys.modules)
from ci_tasks.cli import sessions
sessions.register()
print(*sorted(set(sys.modules) - before))
"""
    modules = _python(program, tmp_path).split()
    assert "ci_tasks.run.checkout_source" in modules
    assert sorted((LOOKS | NO_RECORDS | {"ci_tasks.config", "ci_tasks.cli.program"}) & set(modules)) == []


def test_the_agent_of_a_row_loads_nothing_for_what_few_rows_have(tmp_path: Path) -> None:
    """Archives, docker's words, tracebacks: its start is most of what a short row costs."""
    find = f"import sys; sys.path.insert(0, {str(ROOT / 'ci_tasks')!r}); "
    modules = _python(find + "import agent.supervisor; print(*sys.modules)", tmp_path).split()
    assert "agent.finish" in modules
    few = {"zipfile", "tarfile", "pathlib", "platform", "traceback", "difflib", "agent.docker_adapter"}
    few |= {"asyncio", "ssl", "inspect", "logging", "unittest"}
    assert sorted(few & set(modules)) == []


def _python(program: str, tmp_path: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CI_TASKS_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env={**env, "CI_TASKS_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
