"""`triage` of whatever somebody hands it: an answer or a clear error, and never a byte that moves the cursor. It is
printed by `ci_tasks.report.triage` and `ci_tasks.report.brief`."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.logs.github_format import zipped
from tests.parts.commands import run_command

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


ANSWERED = [
    ("one line of 100 MB", b"x" * 100_000_000 + b"\n" + OOM + b"\n", 2),
    ("escape sequences", b"\x1b]0;owned\x07\x1b[2J\x1b[31m" + OOM + b"\x1b[0m\n\x1b[9A\n", 1),
    ("a zip of one job", zipped({"0_ckpt.txt": OOM + b"\n"}), 1),
    ("NULs within", b"\0\0\0 0 1\n" * 3 + b"fine\n" * 9 + OOM + b"\n", 13),
]


def test_a_hostile_log_has_an_answer_and_what_is_none_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content, line_no in ANSWERED:
        (tmp_path / "a.log").write_bytes(content)
        assert run_command("triage", log=str(tmp_path / "a.log")) == 0, name
        out, err = capsys.readouterr()
        assert "cuda_oom" in out and f"line {line_no}" in out and not err, name
        assert all(char.isprintable() or char == "\n" for char in out), name
    (tmp_path / "a.log").write_bytes(zipped({"0_ckpt.txt": OOM * 2000})[:-900])
    assert run_command("triage", log=str(tmp_path / "a.log")) == 2
    out, err = capsys.readouterr()
    assert (out, "zip" in err) == ("", True)


def test_all_failed_jobs_are_listed_alike_ones_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"0_a.txt": OOM, "0_b.txt": OOM, "0_c.txt": b"no space left on device"}))
    assert run_command("triage", log=str(tmp_path / "a.zip"), json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == "cuda_oom" and "version" not in found
    assert {name: how.partition(",")[0] for name, how in found["jobs"].items()} == {"a, b": "failed", "c": "blocked"}


def test_failed_tests_are_named_with_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "##[group]Run x\ndocker run --gpus all x\n##[endgroup]\n"
    log += "== FAILURES ==\n____ test_x ____\ntests/a.py:42: in test_x\n    assert f() == 1\nE   assert 2 == 1\n"
    log += "FAILED tests/a.py::test_x - assert 2 == 1\nFAILED tests/b.py::test_y[3] - OSError: disk\n"
    (tmp_path / "a.log").write_text(log)
    assert run_command("triage", log=str(tmp_path / "a.log")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 tests failed: tests/a.py::test_x (tests/a.py:42), tests/b.py::test_y[3]" in out
    path = shlex.quote(str(tmp_path / "a.log"))
    tests = "--test tests/a.py::test_x --test tests/b.py::test_y"
    assert f"next: ci-tasks reproduce --log {path} --host HOST --on-my-tree --label LABEL --only ROW {tests}" in out


def test_a_pipe_is_read_and_json_has_the_fields_of_the_contract(person: Any) -> None:
    gh = b"".join(b"e2e-test-ckpt\tExecute\t2026-01-02T03:04:05.1234567Z " + line + b"\n" for line in (b"hi", OOM))
    done = subprocess.run(
        person.command("triage", "-", "--json"),
        input=gh,
        capture_output=True,
        cwd=person.checkout,
        env=person.environment(),
        check=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    contract = "cause group verdict line_no line signature confidence candidates context reason"
    assert set(answer) >= set(contract.split())
    assert (answer["cause"], answer["verdict"], answer["line_no"]) == ("cuda_oom", "failed", 2)
    assert answer["text"] == OOM.decode()
