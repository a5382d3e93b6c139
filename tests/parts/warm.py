"""Commands that need not load ci-tasks: a Python that has loaded all of it forks for each of them.

Loading is half of what a command costs, and the suite starts hundreds. What is forked is a process like any other, with
its own standard streams, session, directory, environment, signals, threads and way out; only its parent is that Python,
which tells how it ended, and ends it when the tests are gone. tests/cli/test_program.py starts its own from nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_ORDER = 1 << 20
_NUMBER = struct.Struct("i")
_LATE = ("fabric", "jinja2", "requests", "rich.live", "yaml")  # what commands load where they need it
# What Python itself reads, once and at its start.
_PYTHONS_OWN = ("PYTHON", "LC_", "LANG", "LD_", "TZ")


class Command:
    """A started command, as subprocess.Popen shows one whose output goes through pipes, as text."""

    def __init__(self, pid: int, exit_status: socket.socket, out: int, err: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8", errors="replace")
        self.stderr: IO[str] = os.fdopen(err, encoding="utf-8", errors="replace")
        self._exit_status = exit_status
        self._readers: list[_Reader] = []

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._exit_status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = _number(self._exit_status)
            self._exit_status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says from here on, and its end."""
        until = None if timeout is None else time.monotonic() + timeout
        self._readers = self._readers or [_Reader(self.stdout), _Reader(self.stderr)]
        for reader in self._readers:
            if not reader.has_ended(_left(until)):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(_left(until))
        return self._readers[0].text, self._readers[1].text

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def end_session(leader: int) -> None:
    """Kill a command and what it has started, but for what left its process group, as a run's agent does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class _Reader:
    """Reads a stream to its end, and closes it. One that the test has closed says nothing."""

    def __init__(self, stream: IO[str]) -> None:
        self.text = ""
        self._thread = None if stream.closed else threading.Thread(target=self._read, args=(stream,), daemon=True)
        if self._thread is not None:
            self._thread.start()

    def has_ended(self, timeout: float | None) -> bool:
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            self.text = stream.read()


class Warm:
    """Starts commands. The Python that forks for them is made at the first one, and goes with this process."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def can(self, environ: Mapping[str, str]) -> bool:
        """Whether a command with this environment may be forked: not where its Python itself is to be another."""
        return _pythons_own(environ) == _pythons_own(os.environ)

    def start(self, args: Sequence[str], *, first: str, cwd: Path, env: Mapping[str, str], stdin: int) -> Command:
        """`first`: Python that runs before the command."""
        exit_status, tells = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        order = json.dumps({"words": list(args), "first": first, "cwd": os.fspath(cwd), "env": dict(env)}).encode()
        try:
            socket.send_fds(self._fork_server(), [order], [stdin, out_end, err_end, tells.fileno()])
        finally:
            os.close(out_end)
            os.close(err_end)
            tells.close()
        return Command(_number(exit_status), exit_status, out, err)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._python.wait()

    def _fork_server(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER)
            with theirs:
                argv = [sys.executable, __file__, str(theirs.fileno())]
                # Its standard output is no file, as the commands' is none: Python remembers whether it can seek there.
                self._python = subprocess.Popen(
                    argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=theirs.fileno()
                )
        return self._control


def _pythons_own(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_PYTHONS_OWN)}


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _number(source: socket.socket) -> int:
    data = source.recv(_NUMBER.size)
    assert data, "the Python that forks has gone"
    return int(_NUMBER.unpack(data)[0])


# -- in the Python that forks ------------------------------------------------------------------------------------------


def load() -> None:
    import ci_tasks

    modules = pkgutil.walk_packages(ci_tasks.__path__, "ci_tasks.")
    for name in [*_LATE, *(module.name for module in modules if not module.name.endswith("__main__"))]:
        with contextlib.suppress(Exception):  # the command that needs it says so
            importlib.import_module(name)
    gc.freeze()


def next_command(control: socket.socket) -> dict[str, Any]:
    """What to do; returns in a process of its own for each order, and in this one never."""
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C ends the tests; what they have not ended themselves goes on
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _tell_ends(running)
        if control.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, _ORDER, 4)
        if not data:
            for pid in running:
                end_session(pid)
            _tell_ends(running, 0)
            os._exit(0)
        tells = socket.socket(fileno=descriptors[3])
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            for stream, handle in enumerate(descriptors[:3]):
                os.dup2(handle, stream)
                os.close(handle)
            for other in (control, tells, *running.values()):
                other.close()
            os.close(wake)
            os.close(woken)
            return dict(json.loads(data))
        for handle in descriptors[:3]:
            os.close(handle)
        tells.send(_NUMBER.pack(pid))
        running[pid] = tells


def _tell_ends(running: dict[int, socket.socket], options: int = os.WNOHANG) -> None:
    for pid, tells in list(running.items()):
        ended, status = os.waitpid(pid, options)
        if ended:
            with contextlib.suppress(OSError), running.pop(pid):
                tells.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def become(order: Mapping[str, Any]) -> None:
    """As if Python had just been started for it."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv[:] = ["-c", *order["words"]]
    sys.path[0] = ""
    tempfile.tempdir = None
    exec(order["first"], {})


if __name__ == "__main__":
    load()
    become(next_command(socket.socket(fileno=int(sys.argv[1]))))

    from ci_tasks.cli.program import main

    main()
