"""A connection that is kept between commands, over a real sshd: used again, ended, replaced, never shared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.hosts import mux
from ci_tasks.hosts.runs import open_connection
from ci_tasks.hosts.transport import HostKeyRefused
from tests.fixtures import until
from tests.parts.sshd import Sshd, SSHServer, new_key

WAIT_S = 10.0


@pytest.fixture
def place(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the sockets are; no process is left behind."""
    for name, value in sshd.env.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory() as runtime:  # private, and its name is short, as a socket's has to be
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        found = mux.directory()
        assert found is not None
        yield found
        mux.end()
        until(lambda: not list(found.glob("*.sock")), "it is closed")


@pytest.fixture
def box(sshd: Sshd) -> SSHServer:
    return sshd.start("box")


def logins(box: SSHServer) -> int:
    return box.log.count("Accepted publickey")


def output(stream: socket.socket) -> bytes:
    with closing(stream):
        return b"".join(iter(lambda: stream.recv(1 << 16), b""))


def test_commands_share_one_login_and_their_bytes_arrive_whole(box: SSHServer, place: Path) -> None:
    large = os.urandom(3 << 20)
    with closing(mux.MuxTransport(place, "box").open(f"head -c {len(large)}")) as stream:
        sending = threading.Thread(target=stream.sendall, args=(large,))
        sending.start()
        received = b"".join(iter(lambda: stream.recv(1 << 20), b""))
        sending.join()
        assert (received, stream.gettimeout()) == (large, None)  # a slow link may take its time
    assert output(mux.MuxTransport(place, "box").open("echo out; echo last words >&2; exit 7")) == b"out\nlast words\n"
    assert logins(box) == 1
    (path,) = place.glob("*.sock")
    assert path.stat().st_mode & 0o777 == 0o600


COMMAND = """
import sys
from ci_tasks.cli.program import main
try:
    main()
finally:
    print(sorted({"fabric", "paramiko", "cryptography"} & set(sys.modules)), file=sys.stderr)
"""


def test_who_uses_one_loads_no_ssh_library_and_clean_closes_it(box: SSHServer, place: Path, person: Any) -> None:
    person.env.update(box.world.env, XDG_RUNTIME_DIR=str(place.parent))
    person.write_hosts('{"hosts": {"near": {"kind": "ssh", "address": "box", "runtime": "none"}}}')
    for number in (1, 2):
        words = [sys.executable, "-c", COMMAND, "doctor", "--host", "near"]
        done = subprocess.run(words, cwd=person.checkout, env=person.environment(), capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == "[]", done.stderr
        assert "connected to box; the connection is kept" in done.stdout, f"{number}: {done.stdout}"
    assert logins(box) == 1
    hosts = {host["name"]: host["kept"] for host in person.ci_tasks("hosts", "--json").json}
    assert hosts["near"]["is_up"] and hosts["sim"] is None
    assert "near: process" in person.ci_tasks("hosts").out
    assert "the connection to box that process" in person.ci_tasks("clean", "--host", "near").out
    assert "near: process" not in person.ci_tasks("hosts").out
    person.write_hosts('{"hosts": {"near": {"kind": "ssh", "address": "box", "runtime": "none", "persist": false}}}')
    found = person.ci_tasks("doctor", "--host", "near").out
    assert "connected to box" in found and "is kept" not in found
    until(lambda: not list(place.glob("*.sock")), "it is closed")


@pytest.mark.parametrize("what", ["its process is killed", "every connection dies", "sshd is restarted"])
def test_one_that_died_is_made_again(box: SSHServer, place: Path, what: str) -> None:
    link = mux.MuxTransport(place, "box")
    stream = link.open("echo begun; cat")
    assert stream.recv(100) == b"begun\n"
    if what == "its process is killed":
        os.kill(mux.kept_connections()[0].pid, signal.SIGKILL)
    elif what == "every connection dies":
        box.kill_children()
    else:
        box.stop()
        box.restart()
    stream.settimeout(WAIT_S)
    assert (output(stream), output(mux.MuxTransport(place, "box").open("echo again"))) == (b"", b"again\n")


def test_what_keeps_a_connection_from_being_made_is_said_and_nothing_is_kept(sshd: Sshd, place: Path) -> None:
    sshd.start("stranger", known=False)
    with pytest.raises(HostKeyRefused, match="is not known"):
        mux.MuxTransport(place, "stranger").open("true")
    sshd.start("gone").stop()
    with pytest.raises(Blocked, match="cannot be reached: Connection refused"):
        mux.MuxTransport(place, "gone").open("true")
    until(lambda: not mux.kept_connections(), "it is closed")


def test_another_key_user_host_or_known_hosts_has_another_connection(
    sshd: Sshd, box: SSHServer, place: Path, tmp_path: Path
) -> None:
    links: list[mux.MuxTransport] = [mux.MuxTransport(place, "box"), mux.MuxTransport(place, "somebody@box")]
    sshd.configure("box", IdentityFile=f'"{new_key(tmp_path / "other")}"')
    links.append(mux.MuxTransport(place, "box"))
    sshd.configure("box", IdentityFile=None)
    links.append(mux.MuxTransport(place, sshd.alias("same", box)))
    sshd.known_hosts.write_text(sshd.known_hosts.read_text() + "# a comment\n")
    links.append(mux.MuxTransport(place, "box"))
    assert len({link.path for link in links}) == len(links)


@pytest.fixture
def near(box: SSHServer, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What a shell command prints on the box, each time as a command of its own. The box has the agent."""
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "client"))

    def ask(command: str) -> str:
        with closing(open_connection(HostSpec(name="box", kind="ssh"))) as runner:
            return runner.run_queries({"question": ["sh", "-c", command]}, WAIT_S)["question"].out

    ask("true")
    return ask


def test_one_server_serves_a_command_after_the_other(box: SSHServer, near: Callable[[str], str]) -> None:
    servers = {near("echo $PPID; cat /proc/$PPID/stat | cut -d' ' -f4").split()[-1] for _ in range(3)}
    assert len(servers) == 1
    assert logins(box) == 1


def test_a_process_that_was_stopped_keeps_nobody_from_their_host(
    box: SSHServer, near: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "PATIENCE_S", 1.0)
    (stopped,) = mux.kept_connections()
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        assert (near("echo here"), near("echo kept again")) == ("here\n", "kept again\n")
        assert stopped.pid not in [connection.pid for connection in mux.kept_connections()]
    finally:
        os.kill(stopped.pid, signal.SIGCONT)


def test_it_knows_no_secret_of_its_first_command(near: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    mux.end()
    until(lambda: not mux.kept_connections(), "it is closed")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    near("true")
    (connection,) = mux.kept_connections()
    assert b"hf_secret" not in Path(f"/proc/{connection.pid}/environ").read_bytes()
