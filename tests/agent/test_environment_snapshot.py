"""The facts of environment.json, from the words of nvidia-smi and of a Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import environment_snapshot as snapshots
from ci_tasks.agent.records import DirectUrl, Packages, QueryAnswer

if TYPE_CHECKING:
    from tests.agent.conftest import Run


SMI = "0, GPU-0, NVIDIA H200, 570.86.15, 4, 143771\n1, GPU-1, NVIDIA H200, 570.86.15, 4, 143771\n"


def test_a_python_that_says_nothing_useful_is_a_problem() -> None:
    problem = "its packages could not be listed: sh: no python3"
    for text in ("", "no json", "[1]", "3"):
        assert snapshots.parse_packages(QueryAnswer(1, text, "sh: no python3")) == Packages(problem=problem)


def test_a_password_in_the_url_of_a_package_is_hidden() -> None:
    output = {"python": "3.12.1", "packages": {"a": "1"}, "direct": {"a": {"url": "git+https://me:hf_x@host/a?b=c@d"}}}
    packages = snapshots.parse_packages(QueryAnswer(0, "noise\n" + json.dumps(output)))
    assert packages.direct == {"a": DirectUrl("git+https://***@host/a?b=c@d")}


def _package(directory: Path, name: str, version: str, url: str | None = None) -> None:
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))


def test_packages_are_those_that_the_job_would_import(tmp_path: Path) -> None:
    """The first of a name on the path wins, and a module of the working directory does not get in the way."""
    _package(tmp_path / "one", "slime", "1.0", "file:///w")
    _package(tmp_path / "two", "slime", "0.9")
    _package(tmp_path / "two", "odd", '1.0+"\\\u00fc')
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}/one:{tmp_path}/two"}
    argv = [sys.executable, "-c", snapshots.LIST_PACKAGES]
    text = subprocess.check_output(argv, env=env, cwd=tmp_path, text=True)
    listed = snapshots.parse_packages(QueryAnswer(0, text))
    assert (listed.python, listed.direct["slime"]) == (sys.version.split()[0], DirectUrl("file:///w"))
    assert (listed.packages["slime"], listed.packages["odd"]) == ("1.0", '1.0+"\\\u00fc')


def test_a_job_with_its_own_venv_is_asked_through_it(run: Run) -> None:
    output = json.dumps({"python": "3.99.0", "packages": {"own": "1"}, "direct": {}})
    script = f"""\
mkdir -p "$CI_TASKS_RUN_DIR/tmp/venv/bin"
printf '#!/bin/sh\\necho %s\\n' {json.dumps(json.dumps(output))} > "$CI_TASKS_RUN_DIR/python3"
chmod +x "$CI_TASKS_RUN_DIR/python3"
mv "$CI_TASKS_RUN_DIR/python3" "$CI_TASKS_RUN_DIR/tmp/venv/bin/python3"
until [ -e "$CI_TASKS_RUN_DIR/environment.json" ]; do sleep 0.05; done"""
    run.plan["container"] = {"runtime": "none"}
    run.start(script)
    run.ended()
    assert json.loads(Path(run.paths.environment).read_text())["packages"] == {"own": "1"}


@pytest.mark.parametrize("locks", [{"count": 2, "simulated": 8}, None])
def test_simulated_gpus_are_not_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, locks: dict[str, int] | None, until: Callable[..., Any]
) -> None:
    run.write("", container={"runtime": "none"}, gpus=2, gpu_locks=locks)
    monkeypatch.setattr(snapshots, "run_program", lambda *_: QueryAnswer(0, SMI))
    snapshot = snapshots.EnvironmentSnapshot(str(run.path))
    snapshot.begin()
    until(lambda: snapshot.environment.problem)  # what nvidia-smi says is no list of packages
    assert snapshot.environment.driver == (None if locks else "570.86.15")
    snapshot.finish([])
