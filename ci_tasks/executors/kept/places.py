"""Where kept connections have their sockets, and which connection may be used again."""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import __version__

if TYPE_CHECKING:
    from ci_tasks.executors.ssh.ssh_config import SSHTarget

_LONGEST = 100  # bytes of a socket's path; the kernel's own limit is 107


def directory() -> Path | None:
    """A directory that nobody else can look into: below XDG_RUNTIME_DIR, else one of ours beside other temporary
    files. None where neither can be had: no connection is kept then."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    place = Path(runtime, "ci-tasks") if runtime else _temporary()
    if (runtime and not _is_private(Path(runtime))) or len(os.fsencode(place)) > _LONGEST - 40:
        return None
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return place if _is_private(place) else None


def _temporary() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp", f"ci-tasks-{os.geteuid()}")


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def socket_path(place: Path, target: SSHTarget) -> Path:
    """The socket of a connection to `target`. Another name for whatever would have made another connection: settings
    of ssh_config, known hosts, key files, the agent, the gateways, and our own code."""
    code = Path(__file__)
    parts = [asdict(target), _files(target), os.geteuid(), sys.executable, __version__, str(code), _stamp(code)]
    return place / f"{_hash(json.dumps(parts).encode())[:32]}.sock"


def _hash(data: bytes) -> str:
    import hashlib  # and OpenSSL with it; a list of hosts needs none

    return hashlib.sha256(data).hexdigest()


def _files(target: SSHTarget) -> list[object]:
    """What the connection would be checked against and proven with, gateways included."""
    known = [_content(path) for path in (*target.user_known_hosts, *target.global_known_hosts)]
    keys = [_stamp(Path(path)) for path in target.identities]
    return [known, keys, *(_files(jump) for jump in target.jumps)]


def _content(path: str) -> str:
    try:
        return _hash(Path(path).read_bytes())
    except OSError:
        return ""


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns)
