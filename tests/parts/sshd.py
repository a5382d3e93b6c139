"""Real SSH servers: OpenSSH's sshd on 127.0.0.2, 127.0.0.3, … each with a host key and a home.

    with Sshd(directory) as sshd:
        box = sshd.start("box")            # `server` is an alias in sshd.config_file, its key is known
        person.env.update(sshd.env)        # CI_TASKS_SSH_CONFIG and what keeps the tester's own keys and agent out
        box.home                           # what ~ is on it; box.run("…") runs a command there with OpenSSH's client
        box.kill_children()                # every connection dies, as if its sshd had been killed
        box.stop(); box.restart()
        sshd.start("far", jump="box")      # behind a ProxyJump
        sshd.alias("slow", box, HostName="127.0.0.1", Port=str(proxy.port))   # box by another way

Raises Missing where sshd is not installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ci_tasks.agent import processes
from tests.parts import Missing
from tests.parts.processes import kill

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
START_TIMEOUT_S = 10
CONFIG = """\
ListenAddress {address}
Port {port}
HostKey "{directory}/hostkey"
PidFile "{directory}/sshd.pid"
AuthorizedKeysFile "{directory}/authorized_keys"
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserRC no
PrintMotd no
MaxSessions 50
MaxStartups 100
LogLevel VERBOSE
Subsystem sftp internal-sftp
SetEnv {environment}
{more}
"""


@contextlib.contextmanager
def agent(*keys: Path) -> Iterator[Path]:
    """An ssh-agent with these keys: the path of its socket, which has at most 107 characters."""
    command = ["sh", "-c", 'ssh-add -q "$@" && echo "$SSH_AUTH_SOCK" && cat', "sh", *map(str, keys)]
    env, pipe = {**os.environ, "TMPDIR": "/tmp"}, subprocess.PIPE
    with subprocess.Popen(["ssh-agent", *command], env=env, stdin=pipe, stdout=pipe) as running:  # it ends with that
        assert running.stdout
        yield Path(running.stdout.readline().decode().strip())


class Sshd:
    """Some servers, and the client's side of them: a key, an ssh_config, a known_hosts."""

    def __init__(self, directory: Path) -> None:
        if not os.access(SSHD, os.X_OK):
            raise Missing("not installed: sshd (Debian: apt-get install openssh-server)")
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True)
        self.config_file = directory / "config"
        self.known_hosts = directory / "known_hosts"
        self.key = new_key(directory / "id")
        self.known_hosts.touch()
        self.hosts: dict[str, dict[str, str]] = {}
        self.servers: list[SSHServer] = []
        self._write()

    @property
    def env(self) -> dict[str, str]:
        """For a person who is to see these servers and nothing else."""
        return {"CI_TASKS_SSH_CONFIG": str(self.config_file), "SSH_AUTH_SOCK": ""}

    def start(self, name: str, *, known: bool = True, jump: str = "", more: str = "") -> SSHServer:
        """A server, running. `more`: lines for its sshd_config."""
        number = len(self.servers) + 2
        server = SSHServer(self, name, f"127.0.0.{number}", self.directory / name, more)
        self.servers.append(server)
        self.hosts[name] = {"HostName": server.ip, "Port": str(server.port), **({"ProxyJump": jump} if jump else {})}
        self._write()
        if known:
            with self.known_hosts.open("a") as out:
                out.write(f"{server.known_as} {server.host_key}\n")
        server.restart()
        return server

    def alias(self, name: str, server: SSHServer, **options: str) -> str:
        """Another name for `server`, under the host key of the first."""
        self.hosts[name] = {"HostName": server.ip, "Port": str(server.port), "HostKeyAlias": server.known_as, **options}
        self._write()
        return name

    def configure(self, name: str, **options: str | None) -> None:
        """Set settings of ssh_config for one host; None takes one away."""
        merged = {**self.hosts[name], **options}
        self.hosts[name] = {key: value for key, value in merged.items() if value is not None}
        self._write()

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def _write(self) -> None:
        blocks = [
            "\n".join([f"Host {name}", *(f"    {key} {value}" for key, value in options.items())])
            for name, options in self.hosts.items()
        ]
        everywhere = {
            "IdentityFile": f'"{self.key}"',
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": f'"{self.known_hosts}"',
            "GlobalKnownHostsFile": "/dev/null",
            "ConnectTimeout": "10",
        }
        blocks.append("\n".join(["Host *", *(f"    {key} {value}" for key, value in everywhere.items())]))
        self.config_file.write_text("\n\n".join(blocks) + "\n")


@dataclass
class SSHServer:
    """One server. `name` is its alias."""

    world: Sshd
    name: str
    ip: str
    directory: Path
    more: str = ""
    port: int = 0
    listener: subprocess.Popen[bytes] | None = None
    _sessions: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.home = self.directory / "home"
        self.home.mkdir()
        new_key(self.directory / "hostkey")
        shutil.copy(f"{self.world.key}.pub", self.directory / "authorized_keys")
        with socket.socket() as free:
            free.bind((self.ip, 0))
            self.port = free.getsockname()[1]

    @property
    def known_as(self) -> str:
        return f"[{self.ip}]:{self.port}"

    @property
    def host_key(self) -> str:
        """Its type and base64."""
        return " ".join((self.directory / "hostkey.pub").read_text().split()[:2])

    @property
    def log(self) -> str:
        return (self.directory / "sshd.log").read_text(errors="replace")

    def new_host_key(self) -> None:
        """As if the host had been reinstalled; takes effect with `restart`."""
        (self.directory / "hostkey").unlink()
        new_key(self.directory / "hostkey")

    def restart(self) -> None:
        """The server anew, on the same port. Connections live on, as with a real restart."""
        self._stop_listening()
        with contextlib.suppress(OSError):
            os.makedirs("/run/sshd", exist_ok=True)  # where root's sshd goes without rights
        settings = self.directory / "sshd_config"
        # Its home: what a run leaves in ~ lies in the test's directory. No configuration of git's but the box's own.
        environment = f'"HOME={self.home}" GIT_CONFIG_NOSYSTEM=1 "PATH={os.environ["PATH"]}"'
        settings.write_text(
            CONFIG.format(
                address=self.ip, port=self.port, directory=self.directory, environment=environment, more=self.more
            )
        )
        with (self.directory / "sshd.log").open("ab") as log:
            self.listener = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await()

    def stop(self) -> None:
        """The server and its connections."""
        sessions = self.sessions()
        self._stop_listening()
        kill(sessions)

    def kill_children(self) -> None:
        """Every connection dies at once; what runs on the box goes on, as far as it left the session."""
        kill(self.sessions())

    def sessions(self) -> set[int]:
        """Its sshd processes but for the one that listens: one or two for every connection."""
        pids = {pid for pid in self._sessions if _is_sshd(pid)}
        if self.listener is not None:
            pids |= {pid for pid in processes.below(self.listener.pid) if _is_sshd(pid)}
        self._sessions = pids
        return set(pids)

    def run(self, command: str) -> str:
        """What a command there says, through OpenSSH's own client."""
        done = subprocess.run(
            ["ssh", "-F", str(self.world.config_file), "-o", "BatchMode=yes", self.name, command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: exit {done.returncode}: {done.stderr}"
        return done.stdout

    def _stop_listening(self) -> None:
        if self.listener is not None:
            self.sessions()  # remembered: they outlive their parent
            self.listener.kill()
            self.listener.wait()
            self.listener = None
            self._await_free_port()

    def _await_free_port(self) -> None:
        """A process that it had just forked for a connection has its socket for a moment longer: the next server could
        not listen then, and who connects would reach nobody."""
        end = time.monotonic() + START_TIMEOUT_S
        while not self._is_port_free():
            assert time.monotonic() < end, f"a process that sshd left still listens on {self.known_as}"
            time.sleep(0.01)

    def _is_port_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended do not count
            try:
                probe.bind((self.ip, self.port))
            except OSError:
                return False
        return True

    def _await(self) -> None:
        assert self.listener is not None
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and self.listener.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.ip, self.port), timeout=1):
                return
            time.sleep(0.01)
        raise Missing(f"sshd did not start (exit code {self.listener.poll()}):\n{self.log[-2000:]}")


def new_key(path: Path, passphrase: str = "") -> Path:
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False
