"""Kept connections: processes that outlive their command, as OpenSSH's ControlPersist, and how a command uses them.

A command sends one line of JSON and gets bytes: WAIT each second while the connection is made, then READY or HELD, and
from then on the socket is the channel; or REFUSED with the reason. A process that says nothing for PATIENCE_S was
stopped: its socket is removed, and the command connects by itself. Neither Fabric nor paramiko is loaded here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CiTasksError, UsageError

if TYPE_CHECKING:
    import socket  # a command that only looks does not load it

    from ci_tasks.hosts.ssh import SSHConnection
    from ci_tasks.hosts.ssh_config import SSHTarget

PATIENCE_S = 5.0
WAIT, READY, HELD, REFUSED = b".", b"+", b"=", b"-"
LONGEST = 1 << 17  # bytes of a request or an answer
_START_S = 30.0  # that a process which was just started gets for its first word
_ROOT = Path(__file__).resolve().parents[2]
# What a connection may depend on. No secret of the command that happens to be the first.
_ENVIRONMENT = (
    "SSH_AUTH_SOCK",
    "CI_TASKS_SSH_CONFIG",
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "KRB5CCNAME"),
)
# Our modules that the process runs.
MODULES = ("*.py", "hosts/*.py", "agent/*.py")


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
    place = Path(runtime, "ci-tasks") if runtime else Path("/tmp", f"ci-tasks-{os.geteuid()}")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = [path.lstat() for path in ([Path(runtime), place] if runtime else [place])]
    except OSError:
        return None
    are_ours = (stat.S_ISDIR(each.st_mode) and each.st_uid == os.geteuid() for each in found)
    return place if all(are_ours) and not any(each.st_mode & 0o077 for each in found) else None


def kept_connections() -> list[KeptConnection]:
    """This user's connections whose process answers."""
    return [kept for _, kept in _processes()]


def end(address: str | None = None) -> list[KeptConnection]:
    """End those to `address`, or all. Commands that use one connect again."""
    ended = [(path, kept) for path, kept in _processes() if address in (None, kept.address)]
    for path, _ in ended:
        with contextlib.suppress(OSError, ValueError):
            _ask(path, "end")
    return [kept for _, kept in ended]


def _processes() -> Iterator[tuple[Path, KeptConnection]]:
    place = directory()
    for path in sorted(place.glob("*.sock")) if place else []:
        with contextlib.suppress(OSError, ValueError, TypeError):  # it has ended, or was stopped
            yield path, KeptConnection(**_ask(path, "status"))


def _ask(path: Path, what: str) -> dict[str, Any]:
    with _dial(path) as sock:
        _request(sock, what)
        return _answer(sock)


def _dial(path: Path, patience: float = PATIENCE_S) -> socket.socket:
    """Raises OSError: FileNotFoundError or ConnectionRefusedError if no process listens."""
    import socket

    with contextlib.ExitStack() as closing:
        sock = closing.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(PATIENCE_S)  # the queue of one that was stopped may be full
        sock.connect(str(path))
        sock.settimeout(patience)
        closing.pop_all()
        return sock


def _request(sock: socket.socket, what: str, command: str = "") -> bytes:
    """What it says first, after WAIT; nothing if it ended."""
    sock.sendall(json.dumps({what: command}).encode() + b"\n")
    while (said := sock.recv(1)) == WAIT:
        pass
    return said


def _answer(sock: socket.socket) -> dict[str, Any]:
    with sock.makefile("rb") as stream:
        value: dict[str, Any] = json.loads(stream.read(LONGEST))
    return value


class MuxTransport:
    """See ci_tasks.hosts.transport.Transport. `place` is a private directory for the socket of a process that keeps the
    connection; without one, the connection ends with this command. Raises UsageError for an address that is none."""

    python = "python3"

    def __init__(self, place: Path | None, address: str) -> None:
        from ci_tasks.hosts.ssh_config import resolve

        target = resolve(address)
        self._address = address
        self.path = socket_path(place, target) if place else None
        self._own: Any = None
        self.is_server_running = False  # at the socket that was opened last

    def open(self, command: str) -> socket.socket:
        """What the process met is raised."""
        from ci_tasks.agent.files import LockTimeout

        self.is_server_running = False
        if self.path is not None:
            try:
                return self._from_process(self.path, command)
            except TimeoutError:  # stopped; when it continues, it finds that it is not wanted
                self.path.unlink(missing_ok=True)
            except (OSError, ValueError, LockTimeout):  # it has ended just now, or there cannot be one
                pass
        from ci_tasks.hosts.ssh import SSHConnection

        self._own = self._own or SSHConnection(self._address)
        opened: socket.socket = self._own.open(command)
        return opened

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _from_process(self, path: Path, command: str) -> socket.socket:
        """Raises what the process met; OSError, ValueError, LockTimeout if there is none that answers."""
        from ci_tasks.hosts.transport import HostKeyRefused, LinkDied

        with contextlib.ExitStack() as closing:
            sock = closing.enter_context(_started(path, self._address))
            said = _request(sock, "open", command)
            if said == REFUSED:
                refusal = _answer(sock)
                kinds = {kind.__name__: kind for kind in (LinkDied, HostKeyRefused, UsageError)}
                raise kinds.get(refusal["kind"], Blocked)(refusal["message"], hint=refusal["hint"])
            if said not in (READY, HELD):
                raise ConnectionError
            self.is_server_running = said == HELD
            sock.settimeout(None)
            closing.pop_all()
            return sock


def socket_path(place: Path, target: SSHTarget) -> Path:
    """Named by everything that the connection depends on: settings, known hosts, keys, gateways, the code of its
    process."""
    import hashlib

    digest = hashlib.sha256(json.dumps([asdict(target), sys.executable]).encode())
    files = [Path(file) for server in (*target.jumps, target) for file in (*server.known_hosts, *server.identities)]
    for file in [*files, *(file for names in MODULES for file in sorted((_ROOT / "ci_tasks").glob(names)))]:
        data = file.read_bytes() if file.is_file() else b"-"
        digest.update(b"%d:%b" % (len(data), data))
    return place / f"{digest.hexdigest()[:32]}.sock"


def _started(path: Path, address: str) -> socket.socket:
    """A socket to the process, which is started if there is none. Raises LockTimeout, OSError."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return _dial(path)
    import socket
    import subprocess

    from ci_tasks.agent.files import file_lock

    with file_lock(str(path.with_suffix(".lock")), exclusive=True, timeout=PATIENCE_S):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return _dial(path)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:  # takes commands already
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            # The shell, which is waited for, leaves the process to itself: it outlives this command.
            # It finds what this command found, also by PYTHONPATH, and nothing of the directory that it runs in.
            code = "import sys; sys.path[:] = sys.argv[3:]; from ci_tasks.hosts.mux import main; main()"
            paths = [str(_ROOT), *filter(os.path.isabs, sys.path)]
            words = [sys.executable, "-I", "-c", code, str(listener.fileno()), address, *paths]
            subprocess.run(
                ["/bin/sh", "-c", '"$@" < /dev/null > /dev/null 2>&1 &', "sh", *words],
                pass_fds=[listener.fileno()],
                cwd=path.parent,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
        return _dial(path, _START_S)


IDLE_S = 600.0
_TICK_S = 1.0
_TRUST_S = 10.0  # a connection that was idle for longer is tried before it is used


class MuxProcess:
    """Serves the clients of one socket."""

    def __init__(self, listener: socket.socket, address: str, connection: SSHConnection) -> None:
        self._listener, self._address, self._connection, self._idle_s = listener, address, connection, IDLE_S
        self._path = Path(listener.getsockname())
        self._inode = self._path.stat().st_ino
        self._lock = threading.Lock()
        self._commands, self._last_used = 0, time.monotonic()
        self._held: dict[str, tuple[Any, float]] = {}  # command → the server that runs it, and since when it is free

    def serve(self) -> None:
        """Until no command has needed it for a while, or its socket is gone."""
        while self._commands or (self._is_wanted() and self._seconds_left() > 0):
            if select.select([self._listener], [], [], _TICK_S)[0]:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()
        if self._is_wanted():
            self._path.unlink(missing_ok=True)
        self._listener.close()
        self._connection.close()

    def _is_wanted(self) -> bool:
        """Whether its socket is still there, and not another process's."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_ino == self._inode
        return False

    def _seconds_left(self) -> float:
        return max(0.0, self._last_used + self._idle_s - time.monotonic())

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError, TypeError):  # what is no request gets no answer
            client.settimeout(PATIENCE_S)
            request = dict(json.loads(client.makefile("rb").readline(LONGEST)))
            if "open" in request:
                self._count(1)
                try:
                    self._open(client, str(request["open"]))
                finally:
                    self._count(-1)
                return
            left = 0.0 if self._commands else self._seconds_left()
            status = {"address": self._address, "pid": os.getpid(), "is_up": self._connection.is_up}
            client.sendall(READY + json.dumps({**status, "commands": self._commands, "seconds_left": left}).encode())
            if "end" in request:
                self._end()

    def _count(self, step: int) -> None:
        with self._lock:
            self._commands += step
            self._last_used = time.monotonic()

    def _end(self) -> None:
        """No command finds it from now on, and commands that use it connect again."""
        self._path.unlink(missing_ok=True)
        self._connection.close()

    def _open(self, client: socket.socket, command: str) -> None:
        made: list[tuple[Any, bytes]] = []
        making = threading.Thread(target=lambda: made.append(self._make(command)), daemon=True)
        making.start()
        making.join(_TICK_S)
        while making.is_alive():
            client.sendall(WAIT)
            making.join(_TICK_S)
        channel, said = made[0]
        if isinstance(channel, CiTasksError):
            refusal = {"kind": type(channel).__name__, "message": channel.message, "hint": channel.hint}
            client.sendall(said + json.dumps(refusal).encode())
            if not self._connection.is_up:  # nothing to keep
                self._end()
            return
        client.sendall(said)
        client.settimeout(None)
        from ci_tasks.hosts.transport import relay

        if relay(client, channel):
            with self._lock:
                other = self._held.pop(command, None)
                self._held[command] = channel, time.time()
            if other is not None:
                other[0].close()

    def _make(self, command: str) -> tuple[Any, bytes]:
        """A channel with the command, or the error, and what to say of it."""
        try:
            with self._lock:
                channel, since = self._held.pop(command, (None, 0.0))
            if channel is not None and time.time() - since > _TRUST_S:  # this clock runs while the machine sleeps
                self._connection.prove()
            if channel is not None and not (channel.closed or channel.eof_received):
                return channel, HELD
            return self._connection.channel(command), READY
        except CiTasksError as error:
            return error, REFUSED
        except Exception as error:  # the command that waits reports it; there is no other place for it
            return Blocked(f"{type(error).__name__}: {error}"), REFUSED


def main() -> None:
    import socket

    from ci_tasks.hosts.ssh import SSHConnection

    listener, address = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    connection = SSHConnection(address)
    path = Path(listener.getsockname())
    if socket_path(path.parent, connection.target) == path:  # no file was edited while it began
        MuxProcess(listener, address, connection).serve()
