"""Connections to real SSH servers: how they are opened, refused, used and lost."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import Blocked
from ci_tasks.executors.ssh.connection import SSHConnection
from ci_tasks.executors.transport import LinkDied
from tests import fixtures as support
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


def test_a_box_has_a_home_of_its_own(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    assert said(connect("box"), "echo $HOME") == str(box.home)


@pytest.mark.parametrize("form", ["{ip}:{port}", "{user}@{ip}:{port}", "box", "{user}@box", "[{ip}]:{port}"])
def test_an_address_may_be_written_as(form: str, sshd: Sshd, connect: Connect) -> None:
    import getpass

    box = sshd.start("box")
    link = connect(form.format(ip=box.ip, port=box.port, user=getpass.getuser()))
    assert said(link, "echo hi") == "hi"
    assert f"@{box.ip}:{box.port}" in link.description


def test_an_ipv6_address_is_dialled_with_its_port(sshd: Sshd, connect: Connect) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert f"[::1]:{port} " in refused(connect, f"[::1]:{port}")


def test_the_way_leads_through_jump_hosts_in_their_order(sshd: Sshd, connect: Connect) -> None:
    goal = sshd.start("goal", jump="first,second")
    second = sshd.start("second", more=f"PermitOpen {goal.ip}:{goal.port}")
    sshd.start("first", more=f"PermitOpen {second.ip}:{second.port}")
    link = connect("goal")
    assert said(link, "echo $HOME") == str(goal.home)
    assert "through second" in link.description


def test_a_jump_host_may_have_one_itself(sshd: Sshd, connect: Connect) -> None:
    goal = sshd.start("goal", jump="second")
    second = sshd.start("second", jump="first", more=f"PermitOpen {goal.ip}:{goal.port}")
    sshd.start("first", more=f"PermitOpen {second.ip}:{second.port}")
    assert said(connect("goal"), "echo $HOME") == str(goal.home)


def test_a_proxy_command_carries_the_connection_and_ends_with_it(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    box, _ = sshd.start("box"), sshd.start("jump")
    sshd.configure(
        "box", ProxyCommand=f"sh -c 'echo $$ > {tmp_path}/pid; exec ssh -F {sshd.config_file} -W %h:%p jump'"
    )
    link = connect("box")
    assert said(link, "echo $HOME") == str(box.home)
    link.close()
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_proxy_command_that_does_not_want_to_end_is_ended(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    sshd.start("box")
    sshd.start("jump")
    script = (
        f"trap : TERM; echo $$ > {tmp_path}/pid; ssh -F {sshd.config_file} -W %h:%p jump; while :; do sleep 1; done"
    )
    sshd.configure("box", ProxyCommand=f"sh -c '{script}'")
    connect("box").close()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_key_may_be_in_an_agent_only(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    sshd.start("box")
    with agent(tmp_path, sshd.key) as sock:
        hidden = tmp_path / "hidden"
        sshd.key.rename(hidden)  # its public half stays, which is how IdentitiesOnly finds the one in the agent
        assert "no agent is running" in refused(connect)
        sshd.configure("box", IdentityAgent=str(sock))
        assert said(connect("box"), "echo hi") == "hi"


@contextlib.contextmanager
def agent(directory: Path, *keys: Path) -> Iterator[Path]:
    sock = directory / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL) as running:
        try:
            support.until(sock.exists, "the agent listens")
            env = {**os.environ, "SSH_AUTH_SOCK": str(sock)}
            subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True, env=env)
            yield sock
        finally:
            running.terminate()


HOSTILE = "user: nobody\ngateway: nowhere.invalid\nport: 1\nconnect_kwargs: {key_filename: /nowhere, timeout: 0}\n"


@pytest.mark.parametrize("hostile", [HOSTILE, "{ no yaml"])
def test_configuration_of_fabric_s_and_invoke_s_changes_nothing(
    hostile: str, sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.start("box")
    for name in ("fabric.yml", "fabric.yaml", "invoke.yaml", ".fabric.yaml", ".invoke.yaml"):
        (tmp_path / name).write_text(hostile)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FABRIC_GATEWAY", "nowhere.invalid")
    assert said(connect("box"), "echo hi") == "hi"


# Host keys


def test_an_unknown_key_is_refused_with_the_line_to_add(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", known=False)
    words = refused(connect)
    assert f"add this line to {sshd.known_hosts}:\n{box.known_as} {box.host_key}\n" in words
    assert fingerprint(box) in words
    assert f"ssh-keyscan -p {box.port} {box.ip}" in words
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
    command = next(line for line in words.splitlines() if "ssh-keygen -R" in line)
    subprocess.run(
        ["sh", "-c", command[command.index("ssh-keygen") :].partition(";")[0]], check=True, capture_output=True
    )
    assert "is not known" in refused(connect)


def test_a_key_of_another_type_than_the_known_one_has_changed(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", key_type="ecdsa")
    assert said(connect("box"), "echo hi") == "hi"
    box.new_host_key("ed25519")
    box.restart()
    assert "has changed" in refused(connect)


def test_a_host_of_several_keys_shows_the_one_that_is_known(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", known=False)
    rsa = servers.new_key(box.directory / "rsa", "rsa")
    box.more = f"HostKey {rsa}"
    box.restart()
    sshd.know(box, " ".join(Path(f"{rsa}.pub").read_text().split()[:2]))
    assert said(connect("box"), "echo hi") == "hi"


def test_a_revoked_key_is_refused_although_it_is_known(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    with sshd.known_hosts.open("a") as out:
        out.write(f"@revoked * {box.host_key}\n")
    assert f"is revoked ({sshd.known_hosts}:2)" in refused(connect)


def test_hashed_known_hosts_are_known(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    subprocess.run(["ssh-keygen", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True)
    assert box.ip not in sshd.known_hosts.read_text()
    assert said(connect("box"), "echo hi") == "hi"


def test_an_authority_for_host_keys_is_named_as_what_we_cannot_use(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", known=False)
    sshd.known_hosts.write_text(f"@cert-authority * {box.host_key}\n")
    words = refused(connect)
    assert "only a @cert-authority line matches it" in words
    assert box.known_as in words


def test_a_host_key_alias_and_another_file_are_honoured(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    box = sshd.start("box", known=False)
    other = tmp_path / "other known hosts"
    other.write_text(f"the-box {box.host_key}\n")
    sshd.configure("box", HostKeyAlias="the-box", UserKnownHostsFile=f'"{other}"')
    assert said(connect("box"), "echo hi") == "hi"
    sshd.configure("box", HostKeyAlias="the-box", UserKnownHostsFile="none", GlobalKnownHostsFile=str(other))
    assert said(connect("box"), "echo hi") == "hi"


def test_checking_cannot_be_switched_off(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", known=False)
    sshd.configure("box", StrictHostKeyChecking="no", UserKnownHostsFile="/dev/null")
    assert "UserKnownHostsFile /dev/null" in refused(connect)


@pytest.mark.parametrize("fault", ["unknown", "changed"])
def test_a_gateway_s_key_is_checked_too(fault: str, sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", jump="jump")
    jump = sshd.start("jump", known=fault == "changed")
    jump.new_host_key()
    jump.restart()
    words = refused(connect)
    assert words.startswith("gateway jump (")
    assert "on the way to box" in words
    assert ("has changed" if fault == "changed" else "is not known") in words


def test_a_host_s_key_is_checked_behind_a_gateway(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", jump="jump", known=False)
    sshd.start("jump")
    words = refused(connect)
    assert words.startswith("box (")
    assert "(on jump (" in words


# What else keeps us out


def test_a_login_that_is_refused_names_user_and_keys(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    (box.directory / "authorized_keys").write_text("")
    words = refused(connect)
    assert f"keys tried: {sshd.key}; no agent is running" in words


def test_a_gateway_s_refused_login_is_the_gateway_s(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", jump="jump")
    jump = sshd.start("jump")
    (jump.directory / "authorized_keys").write_text("")
    assert refused(connect).startswith("gateway jump (")


def test_a_key_with_a_passphrase_is_for_the_agent(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    servers.new_key(sshd.key, passphrase="a secret")
    assert f"ssh-add {sshd.key}" in refused(connect)


def test_junk_for_a_key_is_named(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    sshd.key.write_text("junk")
    assert f"cannot be read as keys: {sshd.key}" in refused(connect)


def test_a_host_that_wants_more_than_a_key_says_what(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", more="AuthenticationMethods publickey,publickey")
    assert "a key was accepted, but the host also wants publickey" in refused(connect)
    second = servers.new_key(sshd.directory / "second")
    with (sshd.servers[0].directory / "authorized_keys").open("a") as out:
        out.write(Path(f"{second}.pub").read_text())
    sshd.configure("box", IdentityFile=str(second))
    assert said(connect("box"), "echo hi") == "hi"


def test_a_host_that_takes_passwords_only_is_not_for_us(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", more="Match all\n  PubkeyAuthentication no\n  PasswordAuthentication yes")
    assert "takes password only" in refused(connect)


@pytest.mark.parametrize("name", ["nowhere.invalid", "no..where", "x" * 70])
def test_a_name_that_does_not_exist(name: str, sshd: Sshd, connect: Connect) -> None:
    assert f"no host of the name {name!r}" in refused(connect, name)


def test_a_port_where_nobody_listens(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    box.stop()
    assert f"{box.ip}:{box.port} refuses connections" in refused(connect)


def test_a_gateway_that_cannot_reach_the_host_is_named(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box", jump="jump")
    sshd.start("jump")
    box.stop()
    words = refused(connect)
    assert words.startswith("box (")
    assert "the gateway jump (" in words


def test_a_gateway_that_is_down_is_named(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box", jump="jump")
    sshd.start("jump").stop()
    words = refused(connect)
    assert words.startswith("gateway jump (")
    assert "refuses connections" in words


def test_a_host_that_does_not_answer_is_waited_for_as_ssh_config_says(sshd: Sshd, connect: Connect) -> None:
    # A full queue of connections that nobody accepts: the kernel answers no more of them.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with contextlib.ExitStack() as held:
            for _ in range(3):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(deaf.getsockname())
            sshd.hosts["deaf"] = {"HostName": "127.0.0.1", "Port": str(deaf.getsockname()[1]), "ConnectTimeout": "1"}
            sshd.configure("deaf")
            assert "within 1 s" in refused(connect, "deaf")


def test_a_host_that_takes_the_connection_and_says_nothing(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    with TcpProxy((box.ip, box.port)) as proxy:
        proxy.blackhole()
        sshd.alias("silent", box, HostName="127.0.0.1", Port=str(proxy.port), ConnectTimeout="1")
        assert "the SSH connection did not come about (not within 1 s)" in refused(connect, "silent")


def test_a_proxy_command_that_fails_is_quoted_at_once(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    sshd.configure("box", ProxyCommand="sh -c 'echo no such tunnel >&2; exit 1'")
    assert "ProxyCommand gave no SSH connection" in (words := refused(connect))
    assert "it said: no such tunnel" in words


def test_a_handshake_that_breaks_off_leaves_nothing_that_keeps_the_program(sshd: Sshd, connect: Connect) -> None:
    def answer() -> None:
        near, _ = server.accept()
        with near:
            near.sendall(b"SSH-2.0-pretender\r\n")
            near.recv(1 << 16)
            support.until(timers, "the handshake is under way")

    def timers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer)
        answering.start()
        refused(connect, f"127.0.0.1:{server.getsockname()[1]}")
        answering.join()
    ours = set(threading.enumerate()) - before
    assert [thread for thread in ours if not thread.daemon] == []


# Using


def test_fifty_megabytes_go_both_ways_unchanged(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    data = os.urandom(50_000_000)
    back = hashlib.sha256()
    with connect("box").open(f"head -c {len(data)}") as sock:
        sending = threading.Thread(target=sock.sendall, args=(data,))
        sending.start()
        while chunk := sock.recv(1 << 17):
            back.update(chunk)
        sending.join()
    assert back.digest() == hashlib.sha256(data).digest()


def test_errors_come_with_the_output(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    assert said(connect("box"), "echo one; echo two >&2; exit 3") == "one\ntwo"


def test_several_commands_share_a_connection(sshd: Sshd, connect: Connect) -> None:
    sshd.start("box")
    link = connect("box")
    socks = [link.open(f"read x; echo {number} $x") for number in range(5)]
    for sock in reversed(socks):
        sock.sendall(b"hi\n")
    assert [whole(sock) for sock in socks] == [b"%d hi\n" % number for number in range(5)]
    for sock in socks:
        sock.close()


def test_a_host_that_opens_no_more_sessions_is_no_dead_link(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    sshd.start("box", more="Match all\n  MaxSessions 1")
    monkeypatch.setenv("CI_TASKS_SSH_CONFIG", sshd.env["CI_TASKS_SSH_CONFIG"])
    link = SSHConnection("box")
    sock = link.open("sleep 60")
    with sock, pytest.raises(Blocked, match="opens no session") as caught:
        link.open("true")
    assert not isinstance(caught.value, LinkDied)
    assert link.is_up
    link.close()


# Losing


def test_a_killed_server_process_ends_the_socket_and_the_next_command_connects_again(
    sshd: Sshd, connect: Connect
) -> None:
    box = sshd.start("box")
    link = connect("box")
    with link.open("echo there; sleep 60") as sock:
        assert sock.recv(9) == b"there\n"
        box.kill_children()
        assert whole(sock) == b""
    assert said(link, "echo again") == "again"


def test_a_connection_outlives_a_restart_of_the_server(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    link = connect("box")
    box.restart()
    assert said(link, "echo hi") == "hi"


def test_a_reset_is_noticed(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    with TcpProxy((box.ip, box.port)) as proxy:
        sock = connect(sshd.alias("near", box, HostName="127.0.0.1", Port=str(proxy.port))).open("sleep 60")
        proxy.cut()
        assert whole(sock) == b""
        sock.close()


def test_a_command_over_a_link_into_a_black_hole_is_given_up_soon(
    sshd: Sshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_tasks.executors.ssh.connection._PROOF_TIMEOUT", 0.2)
    box = sshd.start("box")
    with TcpProxy((box.ip, box.port)) as proxy:
        link = connect(sshd.alias("near", box, HostName="127.0.0.1", Port=str(proxy.port), ConnectTimeout="1"))
        proxy.blackhole()
        with pytest.raises(Blocked):
            link.open("true")


def test_a_program_ends_though_it_never_closed_its_link(sshd: Sshd) -> None:
    box = sshd.start("box")
    code = (
        "from ci_tasks.executors.ssh import connection as c; "
        "print(c.SSHConnection('box').open('echo hi; sleep 60').recv(9))"
    )
    with TcpProxy((box.ip, box.port)) as proxy:
        sshd.configure("box", HostName="127.0.0.1", Port=str(proxy.port), HostKeyAlias=box.known_as)
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **sshd.env}, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'hi\\n'\n", "")


# A terminal

SHELL = (
    "import sys; from ci_tasks.executors.ssh import connection as c; "
    "sys.exit(c.SSHConnection('box').interactive(sys.argv[1]))"
)


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
    )
    try:
        assert b"33 99" in read_until(ours, b"33 99")
        os.write(ours, b"words\r")
        read_until(ours, b"got words")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
        running.send_signal(signal.SIGWINCH)
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


def test_without_a_terminal_the_three_streams_stay_apart(sshd: Sshd) -> None:
    sshd.start("box")
    done = subprocess.run(
        [sys.executable, "-c", SHELL, "cat; echo oh >&2; exit 5"],
        input=b"hi\0there",
        env={**os.environ, **sshd.env},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, b"hi\0there", b"oh\n")


def test_a_link_that_dies_under_a_shell_is_an_error_of_the_link(sshd: Sshd, connect: Connect) -> None:
    box = sshd.start("box")
    link = connect("box")
    failed: list[BaseException] = []

    def work() -> None:
        try:
            link.interactive("touch there; sleep 60".replace("there", str(box.home / "there")))
        except LinkDied as error:
            failed.append(error)

    working = threading.Thread(target=work)
    working.start()
    support.until((box.home / "there").exists, "the command runs")
    box.kill_children()
    working.join()
    assert failed
