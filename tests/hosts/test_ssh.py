"""What is said about a connection over SSH that does not come about. Real ones: tests/integration/test_ssh_link.py."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from ci_tasks.hosts import ssh
from ci_tasks.hosts.ssh import SSHConnection, SSHKeys
from ci_tasks.hosts.ssh_config import HostKey, SSHTarget
from ci_tasks.hosts.transport import LinkDied
from tests.fixtures import until
from tests.parts.sshd import agent

BOX = SSHTarget("box", "box.example.com", 2222, "alice", known_hosts=("/known",))
KEY, NAME = HostKey("ssh-ed25519", "a2V5"), "[box.example.com]:2222"


@pytest.mark.parametrize(
    ("error", "phrases"),
    [
        (socket.gaierror(-2, "Name or service not known"), ["reached: Name or service not known", "HostName"]),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ["box.example.com:2222 cannot be reached: refused"]),
        (TimeoutError(), ["box.example.com:2222", "no answer within 15 s", "ConnectTimeout"]),
        (UnicodeError("label empty or too long"), ["cannot be reached: label empty or too long"]),
    ],
)
def test_the_network_s_words_are_shown(error: OSError | UnicodeError, phrases: list[str]) -> None:
    message = str(ssh.unreachable(BOX, error))
    assert [word for word in phrases if word not in message] == []


def line(marker: str = "") -> HostKey:
    return HostKey("ssh-rsa", "b2xk", "/known:7", NAME, marker)


@pytest.mark.parametrize(
    ("verdict", "found", "phrases"),
    [
        ("unknown", None, ["is not known", "add this line to /known", f"{NAME} ssh-ed25519 a2V5", KEY.shown]),
        ("changed", line(), ["has changed", "/known:7", KEY.shown, "remove the line /known:7", "be listening"]),
        ("revoked", line("REVOKED"), ["is revoked (/known:7)"]),
    ],
)
def test_a_refused_host_key_comes_with_the_next_step(verdict: str, found: HostKey | None, phrases: list[str]) -> None:
    message = str(ssh.host_key_refused(BOX, verdict, found, KEY))
    assert [word for word in phrases if word not in message] == []


@pytest.mark.parametrize(
    ("attributes", "phrases"),
    [
        ({"tried": ["/id"]}, ["Permission denied (publickey) for alice", "tried: /id; no agent", "authorized_keys"]),
        ({"unusable": ["/my id"]}, ["or not a key): /my id", "ssh-add '/my id'"]),
        ({"is_partial": True, "wanted": ["keyboard-interactive"]}, ["accepted a key, but also wants keyboard-"]),
        ({"wanted": ["password"]}, ["Permission denied (password)", "takes only password", "never asks"]),
    ],
)
def test_a_refused_login_says_what_was_tried(attributes: dict[str, object], phrases: list[str]) -> None:
    keys = SSHKeys(BOX)
    vars(keys).update(attributes)
    message = str(ssh.refused_login(BOX, keys))
    assert [word for word in phrases if word not in message] == []


def test_a_key_file_that_is_named_and_does_not_exist_is_said(tmp_path: Path) -> None:
    default, named = str(tmp_path / ".ssh/id_rsa"), str(tmp_path / "lab_key")
    message = str(ssh.refused_login(replace(BOX, identities=(default, named)), SSHKeys(BOX)))
    assert f"IdentityFile {named} does not exist" in message and default not in message


def test_a_proxy_command_is_not_shown_since_it_may_hold_a_password() -> None:
    box = replace(BOX, proxy_command="corkscrew --auth alice:hunter2 %h")
    assert "hunter2" not in str(ssh.no_handshake(box, EOFError()))


def test_what_a_server_says_cannot_move_the_terminal_s_cursor() -> None:
    assert "\x1b" not in str(ssh.gateway_refused(replace(BOX, gateway="jump"), "\x1b[2J"))


# The keys that are offered


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


def keys_of(*identities: Path, agent: str = "") -> SSHKeys:
    return SSHKeys(SSHTarget("box", "box", 22, "ada", identities=tuple(map(str, identities)), agent=agent))


def test_the_agents_named_keys_its_others_and_then_files_are_offered_until_one_is_accepted(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("other", "first", "named", "second", "third")]
    other, first, named, second, _ = [key(file) for file in files]
    with agent(*files[:3:2]) as sock:
        keys, server = keys_of(*files[1:], agent=str(sock)), Server(accepts=second)
        keys.authenticate(server)
    assert server.offered == [named, other, first, second]
    assert (keys.tried[2:], keys.is_partial) == ([str(files[1]), str(files[3])], False)


def test_keys_that_cannot_be_offered_are_named_with_the_reason(tmp_path: Path) -> None:
    secret, broken, good = tmp_path / "secret", tmp_path / "broken", tmp_path / "good"
    key(secret, "passphrase")
    broken.write_text("no key")
    public = key(good)
    keys, server = keys_of(secret, tmp_path / "absent", broken, good), Server()
    with pytest.raises(paramiko.BadAuthenticationType):
        keys.authenticate(server)
    assert server.offered == [public]
    assert (keys.unusable, keys.wanted) == ([str(secret), str(broken)], ["publickey", "password"])


def test_a_connection_that_is_closed_while_it_is_made_is_lost_and_says_nothing_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept connection is used by several commands: the failure of one closes it for all."""
    begun = tmp_path / "begun"
    monkeypatch.setenv("BEGUN", str(begun))
    (tmp_path / "config").write_text("Host box\n  ProxyCommand sh -c 'touch \"$BEGUN\"; sleep 60'\n")
    monkeypatch.setenv("CI_TASKS_SSH_CONFIG", str(tmp_path / "config"))
    connection = SSHConnection("box")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(connection.open, "true")
        until(begun.exists, "it connects")
        connection.close()
        with pytest.raises(LinkDied, match="the connection was lost"):
            opening.result()
    assert logging.getLogger("paramiko").handlers, "else Python shows what it logs"
