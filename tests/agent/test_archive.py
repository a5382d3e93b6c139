"""agent.pyz is reproducible, complete, and runs on hosts that have only an old Python."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent import archive

if TYPE_CHECKING:
    from tests.agent.conftest import Run

ROOM = Path(archive.__file__).parent
SOURCES = sorted(ROOM.rglob("*.py"))
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
OLD = ["3.8", "3.9"]  # besides the Python of these tests, as far as this machine has them


def _interpreter(version: str) -> str | None:
    candidates = [f"python{version}", *(str(path) for path in PYENV.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        with suppress(OSError):
            if subprocess.run([candidate, "-c", "pass"], capture_output=True).returncode == 0:
                return candidate
    return None


def test_equal_sources_give_equal_bytes() -> None:
    """Also in another process, with another clock zone, hash seed and directory."""
    code = "import sys; from ci_tasks.agent import archive; sys.stdout.buffer.write(archive.build())"
    env = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[2])}
    built = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, check=True).stdout
    assert built == archive.build() == archive.build()


def test_it_holds_every_module_and_byte_code_is_that_of_its_own_sources(tmp_path: Path) -> None:
    """A file that has changed since the archive was built must not reach into it."""
    changed = io.BytesIO(archive.build())
    with zipfile.ZipFile(changed, "a") as agent:
        agent.writestr("agent/extra.py", "print('as archived')")
    (tmp_path / "agent.pyz").write_bytes(archive.with_bytecode(changed.getvalue()))
    names = zipfile.ZipFile(tmp_path / "agent.pyz").namelist()
    sources = ["__main__.py", "agent/extra.py", *(f"agent/{path.relative_to(ROOM)}" for path in SOURCES)]
    assert sorted(names) == sorted(sources + [f"{name}c" for name in sources])
    for python in [sys.executable, *filter(None, map(_interpreter, OLD))]:
        imported = [python, "-c", "import sys; sys.path = ['agent.pyz', *sys.path]; import agent.extra, agent.codec"]
        done = subprocess.run(imported, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "as archived\n"


@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_the_agent_is_python_3_8_and_imports_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("python", [sys.executable, *filter(None, map(_interpreter, OLD))])
def test_every_python_at_hand_runs_a_job_and_the_adapter(run: Run, python: str) -> None:
    run.python = python
    run.plan["container"] = {"runtime": "none"}
    script = f"'{python}' bin/agent.pyz docker . -- run img echo adapted; setsid sleep 300 & exit 3"
    status = run.start(script).ended()
    assert (status.end, status.exit_code) == ("exit", 3)
    assert run.log() == b"adapted\n"
    assert not run.alive()
