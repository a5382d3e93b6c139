"""Connections to real SSH servers: how they are opened, refused, used and lost."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh import SSHConnection
from ci_tasks.hosts.transport import LinkDied
from tests.parts import sshd as servers
from tests.parts.proxy import TcpProxy

Sshd = Any  # a class of a module that is loaded by path
Connect = Callable[[str], SSHConnection]


@pytest.fixture
def connect(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """connect(address), with the settings of `sshd`; closed at the end."""
    for name, value in sshd.env.items():
        monkeypatch.setenv(name, value)
    links: list[SSHConnection] = []

    def open_link(address: str) -> SSHConnection:
        links.append(SSHConnection(address))
        links[-1].prove()
        return links[-1]

    yield open_link
    for link in links:
        link.close()


def whole(sock: socket.socket) -> bytes:
    out = b""
    while chunk := sock.recv(1 << 20):
        out += chunk
    return out


def said(link: SSHConnection, command: str) -> str:
    with link.open(command) as sock:
        return whole(sock).decode().strip()


def refused(connect: Connect, address: str = "box") -> str:
    """Why there is no connection, as a person reads it."""
    with pytest.raises(Blocked) as caught:
        connect(address)
    assert caught.value.exit_code == 125
    assert caught.value.hint
    return str(caught.value)


# Opening


@pytest.mark.parametrize("form", ["{ip}:{port}", "{user}@{ip}:{port}", "box", "{user}@box", "[{ip}]:{port}"])
def test_an_address_may_be_written_as(form: str, sshd: Sshd, connect: Connect) -> None:
    import getpass

    box = sshd.start("box")
    link = connect(form.format(ip=box.ip, port=box.port, user=getpass.getuser()))
    assert said(link, "echo hi") == "hi"
    assert f"@{box.ip}:{box.port}" in link.target.label


def test_the_way_leads_through_jump_hosts_in_their_order(sshd: Sshd, connect: Connect) -> None:
    goal = sshd.start("goal", jump="first,second")
    second = sshd.start("second", more=f"PermitOpen {goal.ip}:{goal.port}")
    sshd.start("first", more=f"PermitOpen {second.ip}:{second.port}")
    link = connect("goal")
    assert said(link, "echo $HOME") == str(goal.home)


def test_a_key_may_be_in_an_agent_only(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    sshd.start("box")
    with servers.agent(sshd.key) as sock:
        hidden = tmp_path / "hidden"
        sshd.key.rename(hidden)  # its public half stays, which is how IdentitiesOnly finds the one in the agent
        assert "no agent is running" in refused(connect)
        sshd.configure("box", IdentityAgent=f'"{sock}"')
        assert said(connect("box"), "echo hi") == "hi"


HOSTILE = "user: nobody\ngateway: nowhere.invalid\nport: 1\nconnect_kwargs: {key_filename: /nowhere, timeout: 0}\n"


def test_configuration_of_fabric_s_and_invoke_s_changes_nothing(
    sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.start("box")
    for name in ("fabric.yml", "fabric.yaml", "invoke.yaml", ".fabric.yaml", ".invoke.yaml"):
        (tmp_path / name).write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FABRIC_GATEWAY", "nowhere.invalid")
    assert said(connect("box"), "echo hi") == "hi"


# Host keys, and what else keeps us out


def test_an_unknown_key_is_refused_with_the_line_to_add(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", known=False)
    words = refused(connect)
    assert f"add this line to {sshd.known_hosts}:\n{box.known_as} {box.host_key}\n" in words
    assert fingerprint(box) in words and f"ssh-keyscan -p {box.port} {box.ip}" in words
    assert sshd.known_hosts.read_text() == ""
    line = next(line for line in words.splitlines() if line.startswith(box.known_as))
    sshd.known_hosts.write_text(f"{line}\n")
    assert said(connect("box"), "echo hi") == "hi"


def fingerprint(box: Any) -> str:
    words = ["ssh-keygen", "-lf", str(box.directory / "hostkey.pub")]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[1]


def test_a_changed_key_is_refused_with_the_old_line_and_both_fingerprints(sshd: Sshd, connect: Connect) -> None:
    sshd.start("elsewhere")
    box = sshd.start("box")
    old = fingerprint(box)
    box.new_host_key()
    box.restart()
    words = refused(connect)
    for part in (old, fingerprint(box), f"({sshd.known_hosts}:2)", "someone may be listening", "ask its admin"):
        assert part in words
    sshd.known_hosts.write_text(sshd.known_hosts.read_text().splitlines(keepends=True)[0])
    assert "is not known" in refused(connect)


def behind(sshd: Sshd, known: bool, changed: bool = True) -> Any:
    """A gateway whose key is not the one that is known, or not known at all."""
    sshd.start("box", jump="jump")
    jump = sshd.start("jump", known=known)
    if changed:
        jump.new_host_key()
        jump.restart()
    return jump


def unchecked(sshd: Sshd) -> None:
    sshd.start("box", known=False)
    sshd.configure("box", StrictHostKeyChecking="no", UserKnownHostsFile="/dev/null")


def stopped_behind_a_gateway(sshd: Sshd) -> None:
    box, _ = sshd.start("box", jump="jump"), sshd.start("jump")
    box.stop()


def unauthorized(server: Any) -> None:
    (server.directory / "authorized_keys").write_text("")


# What it is → how it becomes so, the address, and what is said of it.
REFUSALS: dict[str, tuple[Callable[[Sshd], object], str, list[str]]] = {
    "checking is switched off": (unchecked, "box", ["has to name as UserKnownHostsFile"]),
    "an unknown gateway": (lambda sshd: behind(sshd, False), "box", ["gateway jump (", "way to box", "is not known"]),
    "a changed gateway": (lambda sshd: behind(sshd, True), "box", ["gateway jump (", "way to box", "has changed"]),
    "an unknown host behind one": (
        lambda sshd: (sshd.start("box", jump="jump", known=False), sshd.start("jump")),
        "box",
        ["box (", "(on jump ("],
    ),
    "no login": (lambda sshd: unauthorized(sshd.start("box")), "box", ["keys tried: {key}; no agent is running"]),
    "a passphrase": (
        lambda sshd: (sshd.start("box"), servers.new_key(sshd.key, passphrase="a secret")),
        "box",
        ["ssh-add {key}"],
    ),
    "nobody listens": (lambda sshd: sshd.start("box").stop(), "box", ["cannot be reached: Connection refused"]),
    "a gateway without way on": (stopped_behind_a_gateway, "box", ["box (", "the gateway jump ("]),
    "a gateway that is down": (
        lambda sshd: behind(sshd, True, False).stop(),
        "box",
        ["gateway jump (", "Connection refused"],
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_keeps_us_out_is_named(what: str, sshd: Sshd, connect: Connect) -> None:
    spoil, address, parts = REFUSALS[what]
    spoil(sshd)
    words = refused(connect, address)
    parts = [part.format(known_hosts=sshd.known_hosts, key=sshd.key) for part in parts]
    assert [part for part in parts if part not in words] == []
    assert not parts[0].endswith("(") or words.startswith(parts[0])


def test_a_host_that_takes_the_connection_and_says_nothing(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    with TcpProxy((box.ip, box.port)) as proxy:
        proxy.blackhole()
        sshd.alias("silent", box, HostName="127.0.0.1", Port=str(proxy.port), ConnectTimeout="1")
        assert "no SSH server answers (not within 1 s)" in refused(connect, "silent")


# Using


def test_a_host_that_opens_no_more_sessions_is_no_dead_link(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    sshd.start("box", more="Match all\n  MaxSessions 1")
    monkeypatch.setenv("CI_TASKS_SSH_CONFIG", sshd.env["CI_TASKS_SSH_CONFIG"])
    link = SSHConnection("box")
    sock = link.open("sleep 60")
    with sock, pytest.raises(Blocked, match="refuses a session") as caught:
        link.open("true")
    assert not isinstance(caught.value, LinkDied)
    assert link.is_up
    link.close()


# Losing


def test_a_killed_server_process_ends_socket_and_the_next_command_connects_again(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    link = connect("box")
    with link.open("echo there; sleep 60") as sock:
        assert sock.recv(9) == b"there\n"
        box.kill_children()
        assert whole(sock) == b""
    assert said(link, "echo again") == "again"


# A terminal

SHELL = "import sys; from ci_tasks.hosts import ssh as c; sys.exit(c.SSHConnection('box').interactive(sys.argv[1]))"


def test_a_terminal_is_handed_over_and_given_back(sshd: Sshd) -> None:
    sshd.start("box")
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    before = termios.tcgetattr(theirs)
    command = "stty size; read line; echo got $line; until stty size | grep -q '44 111'; do sleep 0.05; done; exit 7"
    running = subprocess.Popen(
        [sys.executable, "-c", SHELL, command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **sshd.env, "TERM": "xterm", "COLUMNS": "12", "LINES": "7"},
        start_new_session=True,
    )
    try:
        assert b"33 99" in read_until(ours, b"33 99")
        os.write(ours, b"words\r")
        read_until(ours, b"got words")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
        os.killpg(running.pid, signal.SIGWINCH)  # as the kernel does
        assert running.wait() == 7
        assert termios.tcgetattr(theirs) == before
    finally:
        running.kill()
        running.wait()
        os.close(ours)
        os.close(theirs)


def read_until(fd: int, mark: bytes) -> bytes:
    out = b""
    while mark not in out:
        out += os.read(fd, 1 << 16)
    return out
