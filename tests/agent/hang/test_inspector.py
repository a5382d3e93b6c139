"""The inspector disturbs nobody: a signal goes only where its handler is, and what a job forges is bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci_tasks.agent.hang import inspector, procfs
from ci_tasks.agent.hang.inspector import Inspector
from ci_tasks.agent.hang.procfs import has_handler, others, read_process, send_signal
from ci_tasks.agent.probe.payload.evidence_file import OFF

NUMBER = signal.SIGRTMIN + 7
# A file that looks like the probe's, for which the process has a handler, or claims one.
_PROGRAM = """
import faulthandler, json, os, signal, sys, time
directory, handler, number, name = sys.argv[1:5]
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
out = open(f"{directory}/{name % os.getpid() if '%' in name else name}-{start}-00000000.jsonl", "a")
line = {"event": "start", "t": 1.0, "signal": int(number), "descriptor": out.fileno()}
line["env"] = {"RANK": "3", "EVIL": "x"}
out.write(json.dumps(line) + "\\n")
out.flush()
if handler == "yes":
    faulthandler.register(int(number), file=out, all_threads=True)
if handler == "huge":
    os.ftruncate(out.fileno(), 1 << 30)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(directory: Path, handler: str, number: int = NUMBER, name: str = "%d") -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", _PROGRAM, str(directory), handler, str(int(number)), name]
    env = {"PATH": os.environ["PATH"]}  # what is shown of it is what the program wrote, and pytest sets variables too
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def test_the_probe_writes_the_stacks_of_a_process(tmp_path: Path) -> None:
    with process(tmp_path, "yes") as child:
        (found,) = Inspector([child.pid], "", between=0.1).inspect()["processes"]
        assert child.poll() is None
    assert [stack["by"] for stack in found["stacks"]] == ["probe"]
    assert "in <module>" in found["stacks"][0]["text"]
    assert found["env"] == {"RANK": "3"}


@pytest.mark.parametrize(
    ("handler", "number", "name"),
    [
        ("no", NUMBER, "%d"),  # it says that it has a handler, and has none
        ("no", signal.SIGKILL, "%d"),
        ("no", signal.SIGTERM, "%d"),
        ("huge", NUMBER, "%d"),
        ("yes", NUMBER, "1"),  # the file of another process
    ],
)
def test_a_process_without_the_handler_gets_no_signal(tmp_path: Path, handler: str, number: int, name: str) -> None:
    with process(tmp_path, handler, number, name) as child:
        (found,) = Inspector([child.pid], "", between=0.1).inspect()["processes"]
        assert child.poll() is None, "it was killed"
    assert found["stacks"] == []


def test_a_signal_that_no_handler_catches_is_not_sent() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        seen = read_process(child.pid)
        assert seen is not None
        assert not send_signal(child.pid, seen["start"], NUMBER)
        assert not send_signal(child.pid, seen["start"] + 1, NUMBER)
        assert child.poll() is None
        child.kill()


@pytest.mark.parametrize(
    ("caught", "blocked", "ignored", "has"),
    [
        ("0000010000000000", "0" * 16, "0" * 16, True),
        ("0000010000000000", "0000010000000000", "0" * 16, False),
        ("0" * 16, "0" * 16, "0" * 16, False),
    ],
)
def test_the_handler_is_the_bit_of_its_signal(caught: str, blocked: str, ignored: str, has: bool) -> None:
    status = f"Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n"
    assert has_handler(status, 41) == has


def test_a_process_that_dies_between_the_looks_is_said_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "100"])
    slept = time.sleep

    def die(seconds: float) -> None:
        child.kill()
        child.wait()
        slept(0)

    monkeypatch.setattr(time, "sleep", die)
    (found,) = Inspector([child.pid, 1 << 22], "", between=0.1).inspect()["processes"]
    assert found["ended"]
    assert os.path.exists("/proc/self")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("Error: no Python", "py-spy: Error: no Python"),
        ("Permission Denied: Try running", "py-spy: it may not read the process: "),
        ("Error: Failed to get it\nCaused by:\n  0: Permission denied", "py-spy: it may not read the process: "),
        ("Error: Operation not permitted", "py-spy: it may not read the process: "),
    ],
)
def test_a_py_spy_that_fails_is_a_reason_and_no_error(tmp_path: Path, error: str, why: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
    program.chmod(0o755)
    with process(tmp_path, "no") as child:
        (found,) = Inspector([child.pid], str(program), between=0.1).inspect()["processes"]
    assert [line[: len(why)] for line in found["could_not"]] == [why]


def test_without_py_spy_it_is_said_why(tmp_path: Path) -> None:
    with process(tmp_path, "no") as child:
        found = Inspector([child.pid], "", "it is not here", between=0.1).inspect()
    assert found["could_not"] == ["stacks of 1 processes that the probe did not reach: it is not here"]
    with process(tmp_path, "yes") as child:
        found = Inspector([child.pid], "", "it is not here", between=0.1).inspect()
    assert found["could_not"] == ["native frames: it is not here"]


def test_what_the_agent_itself_runs_in_a_container_is_not_the_job_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, variable in (("7", OFF), ("8", f"X_{OFF}"), ("9", "RANK")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(f"PATH=/bin\0{variable}=1\0".encode())
    monkeypatch.setattr(procfs, "_PROC", str(tmp_path))
    assert others() == [8, 9]


def test_nobody_listens_for_nccl() -> None:
    text, why = inspector.ask_ras(1.0, port=1)
    assert text == ""
    assert "127.0.0.1:1" in why
