"""A command's streams and ours, where none of them is a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A command that repeats its input on both streams when that has ended.
PUMP = """
import queue, sys, threading
from ci_tasks.hosts.ssh import terminal

class Channel:
    closed, exit_status, status_event = False, int(sys.argv[1]), threading.Event()

    def __init__(self):
        self.read, self.out, self.err = b"", queue.Queue(), queue.Queue()

    def sendall(self, data):
        self.read += data

    def shutdown_write(self):
        for stream, name in ((self.out, b"out "), (self.err, b"err ")):
            for chunk in (name, self.read, b""):
                if chunk or stream.empty() is False:
                    stream.put(chunk)
        self.status_event.set()

    def recv(self, size):
        return self.out.get()

    def recv_stderr(self, size):
        return self.err.get()

sys.exit(terminal.pump(Channel(), raw=False))
"""


@pytest.mark.parametrize(("text", "code"), [(b"hello\n", 0), (b"\x00\xff" * 100_000, 7)], ids=["text", "bytes"])
def test_input_goes_there_and_output_and_the_exit_code_come_back(text: bytes, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PUMP, str(code)], input=text, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"out " + text, b"err " + text, code)
