"""This machine's programs are asked, and answer as what they are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.hosts.queries import LocalQueryRunner
from tests import fixtures as support


def test_questions_are_answered_by_name() -> None:
    answers = LocalQueryRunner().run_queries(
        {"yes": ["sh", "-c", "echo out; echo err >&2; exit 3"], "no": ["no-such-program"]}, 30
    )
    assert answers["yes"] == QueryAnswer(3, "out\n", "err\n")
    assert answers["no"].is_missing
    assert "no-such-program" in answers["no"].last_line


def test_a_program_that_hangs_spoils_no_other_answer() -> None:
    answers = LocalQueryRunner().run_queries({"hangs": ["sleep", "600"], "answers": ["echo", "here"]}, 0.5)
    assert answers["answers"] == QueryAnswer(0, "here\n")
    assert answers["hangs"].timed_out
    assert not answers["hangs"].is_missing


def test_a_query_loads_no_module_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m pip` and `python -c "import platform"` in a checkout are Python's own."""
    (tmp_path / "platform.py").write_text("print('executed')")
    monkeypatch.chdir(tmp_path)
    queries = {"c": [sys.executable, "-c", "import platform"], "m": [sys.executable, "-m", "platform"]}
    answers = LocalQueryRunner().run_queries(queries, 30)
    assert answers["c"] == QueryAnswer(0)
    assert "executed" not in answers["m"].out


def test_programs_are_asked_in_the_environment_of_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a person's shell adds is no property of the host; what hosts.yaml adds is, PATH included."""
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\necho "$DOCKER_HOST,${DOCKER_CONTEXT-unset},${CUDA_VISIBLE_DEVICES-unset}"\n')
    program.chmod(0o755)
    host_env = {"DOCKER_HOST": "unix:///theirs", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    answers = LocalQueryRunner(host_env).run_queries({"docker": ["docker"]}, 30)
    assert answers["docker"].out == "unix:///theirs,unset,unset\n"


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {shlex.quote(f'{tmp_path}/child')}; sleep 300"
    assert "no answer from sh within 1 s" in LocalQueryRunner().run_queries({"it": ["sh", "-c", script]}, 1)["it"].err
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    support.until(lambda: not child.exists() or child.read_text().split()[2] == "Z", "the child has ended")
