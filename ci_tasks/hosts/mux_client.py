"""Reaching a host through a kept connection: neither Fabric nor paramiko is loaded here.

The first command begins the process that keeps it. One that was stopped is left alone: its socket is removed, and the
command connects by itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci_tasks.agent.file_lock import LockTimeout, file_lock
from ci_tasks.errors import Blocked, CiTasksError, UsageError
from ci_tasks.hosts.mux import HELD, PATIENCE_S, READY, REFUSED, answer, dial, request
from ci_tasks.hosts.ssh import messages
from ci_tasks.hosts.ssh.ssh_config import SSHTarget, resolve
from ci_tasks.hosts.transport import LinkDied

_START_S = 30.0  # that a process that was begun just now gets for its first word
_ROOT = Path(__file__).resolve().parents[2]
# What a connection may depend on. No secret of the command that happens to be the first.
_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "KRB5CCNAME"),
    *("SSH_AUTH_SOCK", "CI_TASKS_SSH_CONFIG"),
)
# All that the process runs of ours.
MODULES = (
    *("__init__", "errors", "debug_log", "known_secrets", "hosts/__init__", "hosts/transport"),
    *("hosts/mux_process", "hosts/mux", "hosts/mux_client", "hosts/ssh/__init__"),
    *("hosts/ssh/connection", "hosts/ssh/auth", "hosts/ssh/known_hosts", "hosts/ssh/messages"),
    *(
        "hosts/ssh/ssh_config",
        "agent/__init__",
        "agent/argv_masking",
        "agent/codec",
        "agent/file_lock",
        "agent/quick_dataclass",
    ),
    *("agent/serving/__init__", "agent/serving/frames"),
)
_ERRORS: dict[str, type[CiTasksError]] = {
    error.__name__: error for error in (Blocked, LinkDied, UsageError, messages.HostKeyRefused)
}


class MuxTransport:
    """See ci_tasks.hosts.transport.Transport. Raises UsageError for an address that is none."""

    python = "python3"

    def __init__(self, place: Path, address: str) -> None:
        self._address = address
        self._path = socket_path(place, resolve(address))
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
        try:
            sock = dial(self._path) or _begin(self._path, self._address)
        except (OSError, LockTimeout):
            return None
        try:
            said = request(sock, {"open": command})
            if said in (READY, HELD):
                self.is_server_running = said == HELD
                sock.settimeout(None)
                return sock
            refusal = answer(sock) if said == REFUSED else {}
        except OSError as error:
            refusal = {}
            if isinstance(error, TimeoutError):  # it was stopped; when it goes on, it finds that it is not wanted
                self._path.unlink(missing_ok=True)
        sock.close()
        if not refusal:  # it has ended just now
            return None
        kind = _ERRORS.get(str(refusal.get("kind")), Blocked)
        raise kind(str(refusal.get("message")), hint=str(refusal.get("hint", "")))


def socket_path(place: Path, target: SSHTarget) -> Path:
    """Named by all that the connection depends on: settings, known hosts, keys, gateways, the code of its process."""
    import hashlib

    digest = hashlib.sha256(json.dumps([asdict(target), sys.executable]).encode())
    for server in (*target.jumps, target):
        for path in (*server.user_known_hosts, *server.global_known_hosts, *server.identities):
            digest.update(_content(Path(path)))
    for name in MODULES:
        digest.update(_content(_ROOT / "ci_tasks" / f"{name}.py"))
    return place / f"{digest.hexdigest()[:32]}.sock"


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError:
        return b"-"
    return b"%d:%b" % (len(data), data)


def _begin(path: Path, address: str) -> socket.socket:
    """Begin the process, with a socket that takes commands already. Raises LockTimeout, OSError."""
    with file_lock(str(path.with_suffix(".lock")), exclusive=True, timeout=PATIENCE_S):
        if sock := dial(path):
            return sock
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            begin = (
                f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from ci_tasks.hosts.mux_process import main; main()"
            )
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", begin, str(listener.fileno()), address],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=path.parent,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
            process.returncode = 0  # it outlives us: no wait and no warning
        sock = dial(path)
        if sock is None:
            raise ConnectionRefusedError
        sock.settimeout(_START_S)
        return sock
