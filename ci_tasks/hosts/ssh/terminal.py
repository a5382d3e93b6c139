"""Our terminal, handed to a command at the other end of an SSH channel until it ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_GLANCE = 0.25  # seconds between two looks at the window's size
_CHUNK = 1 << 15


def has_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


def ask_for_pty(channel: Any) -> None:
    size = os.get_terminal_size(1)  # not shutil's, which believes an inherited COLUMNS
    channel.get_pty(term=os.environ.get("TERM", "xterm"), width=size.columns, height=size.lines)


def pump(channel: Any, *, raw: bool) -> int:
    """Our standard input to the command, its output to ours; its exit code, -1 where there is none."""
    if not raw:
        _pump_input(channel)
        return _pump_output(channel)
    with _raw_mode():
        _pump_input(channel)
        with _window_changes(channel):
            return _pump_output(channel)


def _pump_input(channel: Any) -> None:
    """In a thread that nobody waits for: reading a terminal cannot be called off."""

    def run() -> None:
        try:
            while not channel.closed:
                if not select.select([0], [], [], _GLANCE)[0]:
                    continue
                chunk = os.read(0, _CHUNK)
                if not chunk:
                    break
                channel.sendall(chunk)
            channel.shutdown_write()
        except (OSError, EOFError, _ssh_exception()):  # the command has ended, or there is no standard input
            pass

    threading.Thread(target=run, daemon=True, name="ci-tasks input").start()


def _pump_output(channel: Any) -> int:
    def errors() -> None:
        while chunk := channel.recv_stderr(_CHUNK):
            _write(2, chunk)

    other = threading.Thread(target=errors, daemon=True, name="ci-tasks errors")
    other.start()
    while chunk := channel.recv(_CHUNK):
        _write(1, chunk)
    other.join()
    channel.status_event.wait()
    code: int = channel.exit_status
    return code


def _ssh_exception() -> type[Exception]:
    from paramiko import SSHException

    return SSHException


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextmanager
def _raw_mode() -> Iterator[None]:
    import termios
    import tty

    before = termios.tcgetattr(0)
    sys.stdout.flush()
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _window_changes(channel: Any) -> Iterator[None]:
    """The other side learns of them from a thread: in a signal handler, a lock of paramiko's may be ours already."""
    changed, ended = threading.Event(), threading.Event()

    def run() -> None:
        while not ended.is_set():
            if changed.wait(_GLANCE):
                changed.clear()
                size = os.get_terminal_size(1)
                try:
                    channel.resize_pty(width=size.columns, height=size.lines)
                except (OSError, EOFError, _ssh_exception()):  # the command has ended
                    return

    mine = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGWINCH, lambda *_: changed.set()) if mine else None
    threading.Thread(target=run, daemon=True, name="ci-tasks window").start()
    try:
        yield
    finally:
        ended.set()
        if mine:
            signal.signal(signal.SIGWINCH, before)
