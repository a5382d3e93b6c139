"""The inspector disturbs nobody: a signal goes only where its handler is, and what a job forges is bounded."""

from __future__ import annotations

import functools
import json
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

from ci_tasks.agent import inspector
from ci_tasks.agent.codec import decode
from ci_tasks.agent.hang import HangFacts
from ci_tasks.agent.inspector import ask_ras, has_handler, inspect, processes_here

NUMBER = signal.SIGRTMIN + 7
# A file that looks like the probe's, for which the process has a handler, or claims one.
_PROGRAM = """
import faulthandler, json, os, signal, sys, time
directory, handler, number, name = sys.argv[1:5]
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
out = open(f"{directory}/{name % os.getpid() if '%' in name else name}-{start}-00000000.jsonl", "a")
line = {"event": "start", "t": 1.0, "signal": int(number), "descriptor": out.fileno()}
out.write(json.dumps(line) + "\\n")
out.flush()
if handler in ("yes", "writes"):
    faulthandler.register(int(number), file=out, all_threads=True)
if handler == "huge":
    os.ftruncate(out.fileno(), 1 << 30)
print("ready", flush=True)
if handler == "writes":
    sys.stdout.write("x" * (1 << 20))
    sys.stdout.flush()
sys.stdin.read()
"""


@contextmanager
def process(directory: Path, handler: str, number: int = NUMBER, name: str = "%d") -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", _PROGRAM, str(directory), handler, str(int(number)), name]
    env = {"PATH": os.environ["PATH"], "RANK": "3", "EVIL_TOKEN": "x"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def _look(pid: int) -> HangFacts:
    return decode(HangFacts, inspect([pid, 1 << 22], between=0.1), where="look")


def test_the_probe_writes_the_stacks_of_a_process(tmp_path: Path) -> None:
    with process(tmp_path, "yes") as child:
        (found,) = _look(child.pid).processes
        assert child.poll() is None
    assert "in <module>" in found.stacks
    assert (found.env, found.python) == ({"RANK": "3"}, True)
    assert found.same_stacks is not None, "it was asked twice"


@pytest.mark.parametrize(
    ("handler", "number", "name"),
    [
        ("no", NUMBER, "%d"),  # it says that it has a handler, and has none
        ("no", signal.SIGKILL, "%d"),
        ("huge", NUMBER, "%d"),
        ("yes", NUMBER, "1"),  # the file of another process
    ],
)
def test_a_process_without_the_handler_gets_no_signal(tmp_path: Path, handler: str, number: int, name: str) -> None:
    with process(tmp_path, handler, number, name) as child:
        seen = _look(child.pid)
        assert child.poll() is None, "it was killed"
    assert seen.processes[0].stacks == ""
    assert seen.could_not == (f"stacks of pid {child.pid}: its probe did not answer",)


def test_a_write_that_waits_is_not_interrupted(tmp_path: Path) -> None:
    """Python 3.11 would lose the rest of the text."""
    with process(tmp_path, "writes") as child:
        until = time.monotonic() + 20
        while "write" not in Path(f"/proc/{child.pid}/wchan").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        (seen,) = _look(child.pid).processes
        assert child.stdout is not None
        written = child.stdout.read(1 << 20)
    assert (seen.stacks, len(written)) == ("", 1 << 20)


def test_the_handler_is_the_bit_of_its_signal() -> None:
    bit, none = "0000010000000000", "0" * 16
    masks = [(bit, none, none), (bit, bit, none), (none, none, none)]
    texts = [f"Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ign}\nSigCgt:\t{caught}\n" for caught, blocked, ign in masks]
    assert [has_handler(text, 41) for text in texts] == [True, False, False]


def test_a_process_that_dies_between_the_looks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "100"])

    def die(seconds: float) -> None:
        child.kill()
        child.wait()

    monkeypatch.setattr(time, "sleep", die)
    assert _look(child.pid).processes == ()


def test_a_thread_that_has_run_between_the_looks_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads files, and was in state D in both."""
    seen = iter([{1: ["nfs", "5"], 2: ["fuse", "5"]}, {1: ["nfs", "6"], 2: ["fuse", "5"], 3: ["nfs", "1"]}])
    monkeypatch.setattr(inspector, "_held_threads", lambda top: next(seen))
    assert [process.held for process in _look(os.getpid()).processes] == [("fuse",)]


def test_all_processes_here_are_the_jobs_but_the_one_that_looks() -> None:
    found = processes_here()
    assert (os.getppid() in found, os.getpid() in found) == (True, False)


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
        text = ask_ras(10.0, server.getsockname()[1])
        thread.join()
        links[0].close()
    assert text == "Communicators... Rank 0 has launched up to operation 6\n"
    with pytest.raises(ConnectionRefusedError):
        ask_ras(1.0, port=1)


def test_a_job_without_nccl_is_told_in_plain_words_that_none_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspector, "ask_ras", functools.partial(ask_ras, port=1))
    monkeypatch.setattr(inspector, "inspect", functools.partial(inspect, between=0.0))
    inspector.main([])
    found = json.loads(capsys.readouterr().out)
    assert (found["could_not"], "ras" in found) == ([inspector.NO_NCCL], False)
