"""Kept connections: processes that outlive their command, as OpenSSH's ControlPersist, and how a command uses them.

A command sends one line of JSON and gets bytes: WAIT each second while the connection is made, then READY or HELD, and
from then on the socket is the channel; or REFUSED with the reason. A process that says nothing for PATIENCE_S was
stopped: its socket is removed, and the command connects by itself. Neither Fabric nor paramiko is loaded here.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError

if TYPE_CHECKING:
    import socket  # a command that only looks does not load it

    from ci_tasks.hosts.ssh.ssh_config import SSHTarget

PATIENCE_S = 5.0
WAIT, READY, HELD, REFUSED = b".", b"+", b"=", b"-"
LONGEST = 1 << 17  # bytes of a request or an answer
_START_S = 30.0  # that a process which was just started gets for its first word
_LONGEST_PATH = 107  # bytes of a socket's path
_ROOT = Path(__file__).resolve().parents[2]
# What a connection may depend on. No secret of the command that happens to be the first.
_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "KRB5CCNAME"),
    *("SSH_AUTH_SOCK", "CI_TASKS_SSH_CONFIG"),
)
# All that the process runs of ours.
MODULES = (
    *("__init__", "errors", "debug_log", "known_secrets", "hosts/__init__", "hosts/transport", "hosts/mux"),
    *("hosts/mux_process", "hosts/ssh/__init__", "hosts/ssh/connection", "hosts/ssh/messages", "hosts/ssh/ssh_config"),
    *("agent/__init__", "agent/argv_masking", "agent/codec", "agent/file_lock", "agent/quick_dataclass"),
    *("agent/serving/__init__", "agent/serving/frames"),
)


@dataclass(frozen=True)
class KeptConnection:
    """A process that keeps a connection, and how long it does if no command uses it."""

    address: str
    pid: int
    is_up: bool
    commands: int
    seconds_left: float


def directory() -> Path | None:
    """A directory that no other user can look into: below XDG_RUNTIME_DIR, or one of ours beside other temporary files.
    None if neither is there: no connection is kept then."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = Path(os.environ.get("TMPDIR") or "/tmp", f"ci-tasks-{os.geteuid()}")
    place = Path(runtime, "ci-tasks") if runtime else temporary
    if (runtime and not _is_private(Path(runtime))) or len(os.fsencode(place)) + 40 > _LONGEST_PATH:
        return None
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
    return place if _is_private(place) else None


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def kept_connections() -> list[KeptConnection]:
    """Those of this user that answer."""
    return [connection for _, connection in _processes()]


def end(address: str | None = None) -> list[KeptConnection]:
    """End those to `address`, or all. Commands that use one connect again."""
    ended = [(path, kept) for path, kept in _processes() if address in (None, kept.address)]
    for path, _ in ended:
        with contextlib.suppress(OSError, ValueError):
            _asked(path, "end")
    return [kept for _, kept in ended]


def _processes() -> Iterator[tuple[Path, KeptConnection]]:
    place = directory()
    for path in sorted(place.glob("*.sock")) if place else []:
        with contextlib.suppress(OSError, ValueError, TypeError):  # it has ended, or was stopped
            yield path, KeptConnection(**_asked(path, "status"))


def _asked(path: Path, what: str) -> dict[str, Any]:
    with _dial(path) or contextlib.nullcontext() as sock:
        if sock is None:
            raise FileNotFoundError(path)
        _request(sock, {what: True})
        return _answer(sock)


def _dial(path: Path) -> socket.socket | None:
    """None if no process listens. Raises OSError."""
    import socket

    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(PATIENCE_S)  # the queue of one that was stopped may be full
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        raise
    return sock


def _request(sock: socket.socket, what: Mapping[str, Any]) -> bytes:
    """What it says first, after WAIT; nothing if it ended."""
    sock.sendall(json.dumps(what).encode() + b"\n")
    while (said := sock.recv(1)) == WAIT:
        pass
    return said


def _answer(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while len(data) < LONGEST and (chunk := sock.recv(LONGEST)):
        data += chunk
    value: dict[str, Any] = json.loads(data)
    return value


class MuxTransport:
    """See ci_tasks.hosts.transport.Transport. Raises UsageError for an address that is none."""

    python = "python3"

    def __init__(self, place: Path, address: str) -> None:
        from ci_tasks.hosts.ssh.ssh_config import resolve

        self._address = address
        self.path = socket_path(place, resolve(address))
        self._own: Any = None
        self.is_server_running = False  # at the socket that was opened last

    def open(self, command: str) -> socket.socket:
        """What the process met is raised."""
        sock = self._from_process(command)
        if sock is not None:
            return sock
        from ci_tasks.hosts.ssh.connection import SSHConnection

        self.is_server_running = False
        self._own = self._own or SSHConnection(self._address)
        opened: socket.socket = self._own.open(command)
        return opened

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _from_process(self, command: str) -> socket.socket | None:
        """None if there is no process that answers."""
        from ci_tasks.agent.file_lock import LockTimeout
        from ci_tasks.hosts.ssh.messages import HostKeyRefused
        from ci_tasks.hosts.transport import LinkDied

        with contextlib.ExitStack() as closing:
            try:
                sock = closing.enter_context(_dial(self.path) or _started(self.path, self._address))
                said = _request(sock, {"open": command})
                refusal = _answer(sock) if said == REFUSED else {}
            except (OSError, ValueError, LockTimeout) as error:
                if isinstance(error, TimeoutError):  # stopped; when it goes on, it finds that it is not wanted
                    self.path.unlink(missing_ok=True)
                return None
            if refusal:
                kinds: Mapping[str, type[CiTasksError]] = {"LinkDied": LinkDied, "HostKeyRefused": HostKeyRefused}
                kind = {**kinds, "UsageError": UsageError}.get(refusal["kind"], Blocked)
                raise kind(refusal["message"], hint=refusal["hint"])
            if said not in (READY, HELD):
                return None  # it has ended just now
            self.is_server_running = said == HELD
            sock.settimeout(None)
            closing.pop_all()
            return sock


def socket_path(place: Path, target: SSHTarget) -> Path:
    """Named by all that the connection depends on: settings, known hosts, keys, gateways, the code of its process."""
    import hashlib

    digest = hashlib.sha256(json.dumps([asdict(target), sys.executable]).encode())
    files = [file for server in (*target.jumps, target) for file in (*server.known_hosts, *server.identities)]
    for file in (*files, *(f"{_ROOT}/ci_tasks/{name}.py" for name in MODULES)):
        try:
            data = Path(file).read_bytes()
        except OSError:
            data = b"-"
        digest.update(b"%d:%b" % (len(data), data))
    return place / f"{digest.hexdigest()[:32]}.sock"


def _started(path: Path, address: str) -> socket.socket:
    """Start the process, with a socket that takes commands already. Raises LockTimeout, OSError."""
    import socket
    import subprocess

    from ci_tasks.agent.file_lock import file_lock

    with file_lock(str(path.with_suffix(".lock")), exclusive=True, timeout=PATIENCE_S):
        if sock := _dial(path):
            return sock
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            # The shell, which is waited for, leaves the process to itself: it outlives this command.
            code = "import sys; sys.path.insert(0, sys.argv[3]); from ci_tasks.hosts.mux_process import main; main()"
            words = [sys.executable, "-I", "-c", code, str(listener.fileno()), address, str(_ROOT)]
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *words],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=path.parent,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
        sock = _dial(path)
        if sock is None:
            raise ConnectionRefusedError
        sock.settimeout(_START_S)
        return sock
