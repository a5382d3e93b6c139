"""What a command that only looks may import: start-up is most of its time. `python bench/startup.py` measures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = f"--repo {ROOT / 'examples/tiny-slime'}"
# Connections, web clients, templates, and what invoke would load for tests of its own.
NEVER = {"asyncio", "ssl", "unittest.mock", "fabric", "paramiko", "cryptography", "requests", "httpx", "http.client"}
NEVER |= {"huggingface_hub", "jinja2", "nox", "mcp", "rich.live", "rich.markdown", "pygments", "invoke.vendor.yaml"}
# Completion runs at every press of Tab, and looks at no record.
NO_TABLE = {"rich", "sqlite3", "ci_tasks.records", "ci_tasks.agent.records"}
# What judges, begins or follows a run; a run that has ended needs none of it.
NO_RUN = {
    "ci_tasks.results.judge_run",
    "ci_tasks.run.attach",
    "ci_tasks.executors.open_executor",
    "ci_tasks.run.listing",
}
NO_RUN |= {"ci_tasks.workflow.model", "ci_tasks.executors.kept.client"}
FORBIDDEN = {
    "--version": NEVER | NO_TABLE,
    "--complete -- ci-tasks ru": NEVER | NO_TABLE,
    f"jobs {SAMPLE}": NEVER | {"sqlite3"},
    "runs": NEVER | NO_RUN,
    "hosts": NEVER | {"sqlite3", "ci_tasks.records", "ci_tasks.run.listing", "ci_tasks.executors.kept.client"},
}
MAIN = """
import json, sys
from ci_tasks.cli.program import main
try:
    main()
except SystemExit as end:
    json.dump([end.code, list(sys.modules)], open({answer!r}, "w"))
"""


@pytest.mark.parametrize("arguments", FORBIDDEN, ids=[name.split()[0] for name in FORBIDDEN])
def test_a_command_that_only_looks_imports_nothing_it_does_not_need(arguments: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    _python(MAIN.format(answer=str(answer)), tmp_path, *arguments.split())
    code, modules = json.loads(answer.read_text())
    assert code in (0, None)
    assert sorted(FORBIDDEN[arguments] & set(modules)) == []


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
    assert "ci_tasks.run.outline" in modules
    assert sorted((NEVER | NO_TABLE | {"invoke", "ci_tasks.config"}) & set(modules)) == []


def test_the_agent_of_a_row_loads_nothing_for_what_few_rows_have(tmp_path: Path) -> None:
    """Archives, docker's words, tracebacks: its start is most of what a short row costs."""
    find = f"import sys; sys.path.insert(0, {str(ROOT / 'ci_tasks')!r}); "
    modules = _python(find + "import agent.supervisor; print(*sys.modules)", tmp_path).split()
    assert "agent.cleanup.end_of_run" in modules
    few = {"zipfile", "tarfile", "pathlib", "platform", "traceback", "difflib", "agent.containers.adapter"}
    assert sorted((NEVER | few) & set(modules)) == []


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
