"""The keys that are offered to a server, and what is said of those that are not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import paramiko
import pytest

from ci_tasks.hosts.ssh.auth import SSHKeys
from ci_tasks.hosts.ssh.ssh_config import SSHTarget

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")


class Server:
    """Accepts the key whose comment file is `accepts`; `methods` is what it wants after that."""

    def __init__(self, accepts: str = "", methods: tuple[str, ...] = ()) -> None:
        self.accepts, self.methods, self.offered = accepts, methods, list[str]()

    def auth_publickey(self, user: str, key: Any) -> list[str]:
        self.offered.append(key.get_base64())
        if key.get_base64() == self.accepts:
            return list(self.methods)
        raise paramiko.AuthenticationException("no")

    def auth_none(self, user: str) -> None:
        raise paramiko.BadAuthenticationType("no", ["publickey", "password"])

    def is_active(self) -> bool:
        return True


def key(path: Path, passphrase: str = "") -> str:
    """Makes a key. Returns its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path.with_name(f"{path.name}.pub").read_text().split()[1]


def keys_of(*identities: Path) -> SSHKeys:
    return SSHKeys(SSHTarget("box", "box", 22, "ada", "", identities=tuple(map(str, identities))))


def test_key_files_are_offered_in_their_order_until_one_is_accepted(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first", "second", "third")]
    public = [key(file) for file in files]
    keys, server = keys_of(*files), Server(accepts=public[1])
    keys.authenticate(server)
    assert server.offered == public[:2]
    assert (keys.tried, keys.is_partial) == ([str(file) for file in files[:2]], False)


def test_keys_that_cannot_be_offered_are_named_with_the_reason(tmp_path: Path) -> None:
    secret, broken, good = tmp_path / "secret", tmp_path / "broken", tmp_path / "good"
    key(secret, "passphrase")
    broken.write_text("no key")
    public = key(good)
    keys, server = keys_of(secret, tmp_path / "absent", broken, good), Server()
    with pytest.raises(paramiko.BadAuthenticationType):
        keys.authenticate(server)
    assert server.offered == [public]
    assert (keys.encrypted, keys.unreadable) == ([str(secret)], [str(broken)])
    assert keys.allowed_methods == ["publickey", "password"]


def test_a_server_that_wants_more_than_a_key_is_an_error_that_says_what(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "id")
    server = Server(accepts=key(tmp_path / "id"), methods=("keyboard-interactive",))
    with pytest.raises(paramiko.AuthenticationException, match="more is wanted"):
        keys.authenticate(server)
    assert (keys.is_partial, keys.allowed_methods) == (True, ["keyboard-interactive"])
