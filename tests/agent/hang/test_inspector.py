"""The inspector disturbs nobody: a signal goes only where its handler is, and what a job forges is bounded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.agent.hang import inspector
from ci_tasks.agent.hang.facts import HangFacts, ProcessFacts
from ci_tasks.agent.hang.inspector import Inspector, has_handler, others, read_process, send_signal
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


def _look(pid: int, py_spy: str = "") -> ProcessFacts:
    seen = decode(HangFacts, Inspector([pid, 1 << 22], py_spy, between=0.1).inspect(), where="look")
    (found,) = seen.processes
    return found


def test_the_probe_writes_the_stacks_of_a_process(tmp_path: Path) -> None:
    with process(tmp_path, "yes") as child:
        found = _look(child.pid)
        assert child.poll() is None
    assert [stack.by for stack in found.stacks] == ["probe"]
    assert "in <module>" in found.stacks[0].text
    assert (found.env, found.forked, found.python) == ({"RANK": "3"}, False, True)


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
        found = _look(child.pid)
        assert child.poll() is None, "it was killed"
    assert found.stacks == ()


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
    found = _look(child.pid)
    assert found.ended
    assert os.path.exists("/proc/self")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("Error: no Python", "py-spy: Error: no Python"),
        ("Permission Denied: Try running", "py-spy: it may not read the process ("),
        ("Error: Failed to get it\nCaused by:\n  0: Permission denied", "py-spy: it may not read the process ("),
        ("Error: Operation not permitted", "py-spy: it may not read the process ("),
    ],
)
def test_a_py_spy_that_fails_is_a_reason_and_no_error(tmp_path: Path, error: str, why: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
    program.chmod(0o755)
    with process(tmp_path, "no") as child:
        found = _look(child.pid, str(program))
    assert [line[: len(why)] for line in found.could_not] == [why]


def test_without_py_spy_it_is_said_why(tmp_path: Path) -> None:
    with process(tmp_path, "no") as child:
        found = Inspector([child.pid], "", "it is not here", between=0.1).inspect()
    assert found["could_not"] == ["stacks of 1 processes without the probe: it is not here"]
    with process(tmp_path, "yes") as child:
        found = Inspector([child.pid], "", "it is not here", between=0.1).inspect()
    assert found["could_not"] == ["native frames: it is not here"]


def test_what_the_agent_itself_runs_in_a_container_is_not_the_jobs() -> None:
    argv, path = ["sh", "-c", "sleep 100 & echo $!; wait"], os.environ["PATH"]
    children = [
        subprocess.Popen(argv, env={"PATH": path, name: "1"}, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for name in (OFF, f"X_{OFF}", "RANK")
    ]
    pids = [int(child.stdout.readline()) for child in children if child.stdout]
    try:
        found = others()
        assert [pid in found for pid in pids] == [False, True, True]
        assert os.getpid() not in found and os.getppid() not in found
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def test_nobody_listens_for_nccl() -> None:
    assert inspector.ask_ras(1.0, port=1) == ("", "nothing listens on 127.0.0.1:1 (Connection refused)")


def test_what_nccl_answers_is_read_until_its_end() -> None:
    """It keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            link, _ = server.accept()
            request = b""
            while b"verbose status\n" not in request:
                request += link.recv(100)
            link.sendall(b"Communicators... ")
            link.sendall(b"Rank 0 has launched up to operation 6\n")
            links.append(link)

        links: list[socket.socket] = []
        thread = threading.Thread(target=answer)
        thread.start()
        text, why = inspector.ask_ras(10.0, server.getsockname()[1])
        thread.join()
        links[0].close()
    assert (text, why) == ("Communicators... Rank 0 has launched up to operation 6\n", "")
