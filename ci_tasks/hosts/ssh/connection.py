"""Connections over SSH, by Fabric: opened as ~/.ssh/config says, to known hosts only, and made again when they died.

Fabric and paramiko are imported when a connection is made, since most commands make none. No configuration file of
theirs is read. Fabric accepts any host key and reads ProxyJump backwards, so the way to the host and the checks on it
are ours (`ssh_config`, `known_hosts`, `auth`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
from typing import IO, Any

from ci_tasks import debug_log
from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh import known_hosts, messages
from ci_tasks.hosts.ssh.auth import SSHKeys
from ci_tasks.hosts.ssh.messages import Hop
from ci_tasks.hosts.ssh.ssh_config import SSHTarget, resolve
from ci_tasks.hosts.transport import LinkDied, relay

CHANNEL_TIMEOUT = 15.0
_PROOF_TIMEOUT = 3.0  # within which a connection that was idle opens a channel, or it counts as dead
# A window that a fast and distant host can fill: 100 ms at 1 Gbit/s is 12 MB.
_WINDOW = 1 << 24
_PACKET = 1 << 18
_KEEPALIVE_S = 15  # what was sent is acknowledged within, or the kernel gives up
_STDERR_KEPT = 4096
_PROXY_WAIT = 0.5


class SSHConnection:
    """The connection to the host, inside of those to its gateways. It is made when it is needed."""

    is_server_running, python = False, "python3"

    def __init__(self, address: str) -> None:
        """`address`: an alias, host, user@host, host:port, [IPv6]:port. Raises UsageError."""
        # paramiko logs what it raises as well; without a handler, Python would show that on the terminal.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self.target = resolve(address)
        self.description = messages.describe_route(self.target)
        self._lock = threading.Lock()
        self._base: socket.socket | None = None
        self._proxy: ProxyCommand | None = None
        self._transports: list[Any] = []
        self._clients: list[Any] = []

    @property
    def is_up(self) -> bool:
        return bool(self._transports) and self._transports[-1].is_active()

    def open(self, command: str) -> socket.socket:
        """See ci_tasks.hosts.transport.Transport."""
        channel = self.channel(command)
        ours, theirs = socket.socketpair()
        threading.Thread(target=relay, args=(theirs, channel), daemon=True, name="ci-tasks relay").start()
        return ours

    def channel(self, command: str) -> Any:
        """paramiko's channel with the command, whose standard error comes with its output."""
        channel = self._session()
        channel.set_combine_stderr(True)
        self._ask(channel, lambda: _begin(channel, command))
        return channel

    def prove(self) -> None:
        """Open a channel for nothing: a connection that has died is made again."""
        self._session().close()

    def interactive(self, command: str) -> int:
        """Give our terminal to a command on the host; its exit code."""
        from ci_tasks.hosts.ssh import terminal

        channel, raw = self._session(), terminal.has_terminal()

        def run() -> int:
            if raw:
                terminal.ask_for_pty(channel)
            channel.exec_command(command)
            return terminal.pump(channel, raw=raw)

        code: int = self._ask(channel, run)
        if code < 0 and not self.is_up:
            raise self._died()
        return code if code >= 0 else 255  # a signal ended it, as ssh would say

    def close(self) -> None:
        if self._base is not None:
            # First, and whatever state it is in: nothing that paramiko still wants to say can block from here on.
            with contextlib.suppress(OSError):
                self._base.shutdown(socket.SHUT_RDWR)
            self._base.close()
        for client in reversed(self._clients):
            with debug_log.ignored("closing a connection"):
                client.close()
        if self._proxy is not None:
            self._proxy.close()
        self._base, self._proxy, self._clients, self._transports = None, None, [], []

    def _session(self) -> Any:
        """A channel without a command yet, over a new connection if the old one has died."""
        import paramiko

        with self._lock:
            for timeout in (_PROOF_TIMEOUT, CHANNEL_TIMEOUT) if self.is_up else (CHANNEL_TIMEOUT,):
                if timeout == CHANNEL_TIMEOUT:
                    self._connect()
                try:
                    return self._transports[-1].open_session(_WINDOW, _PACKET, timeout=timeout)
                except paramiko.ChannelException as error:
                    raise Blocked(f"{self.description}: the host opens no session ({error.text})") from error
                except (paramiko.SSHException, OSError, EOFError) as error:
                    debug_log.LOGGER.debug("%s: no channel", self.description, exc_info=error)
            self.close()
            raise self._died()

    def _ask(self, channel: Any, ask: Any) -> Any:
        import paramiko

        try:
            return ask()
        except (paramiko.SSHException, OSError, EOFError) as error:
            channel.close()
            raise self._died() from error

    def _died(self) -> LinkDied:
        return LinkDied(f"{self.description}: the connection was lost")

    def _connect(self) -> None:
        self.close()
        try:
            for hop in messages.hops(self.target):
                self._connect_hop(hop)
        except BaseException:
            self.close()
            raise
        self._transports[-1].set_keepalive(_KEEPALIVE_S)

    def _connect_hop(self, hop: Hop) -> None:
        """Connect to the next server on the way. Raises Blocked."""
        import fabric  # type: ignore[import-untyped]  # it has no stubs
        import paramiko

        target, keys = hop.target, SSHKeys(hop.target)
        sock = self._way_to(hop)
        try:
            entries = known_hosts.read((*target.user_known_hosts, *target.global_known_hosts))
        except OSError as error:
            raise Blocked(f"{hop.description}: {error.filename} cannot be read ({error.strerror})") from error
        names = _names(target)

        def transport(sock: Any, **options: Any) -> paramiko.Transport:
            made = paramiko.Transport(sock, default_window_size=_WINDOW, default_max_packet_size=_PACKET, **options)
            self._transports.append(made)
            _prefer(made, known_hosts.known_types(entries, names))
            return made

        connection = fabric.Connection(
            target.host,
            user=target.user,
            port=target.port,
            gateway=False,
            forward_agent=False,
            connect_timeout=max(1, round(target.connect_timeout)),
            connect_kwargs={
                "sock": sock,
                "transport_factory": transport,
                "banner_timeout": 2 * target.connect_timeout,  # the timeout above is for the greeting as well
                "channel_timeout": CHANNEL_TIMEOUT,
            },
            config=fabric.Config(
                lazy=True,
                ssh_config=paramiko.SSHConfig(),
                overrides={"authentication": {"strategy_class": lambda **_: keys}},
            ),
        )
        client = connection.client
        self._clients.append(client)
        client.set_missing_host_key_policy(_policy(hop, entries, names))
        try:
            connection.open()
        except Blocked:
            raise
        except paramiko.AuthenticationException as error:
            raise messages.refused_login(hop, keys) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise messages.no_handshake(hop, error, self._proxy.errors() if self._proxy else "") from error

    def _way_to(self, hop: Hop) -> Any:
        """What behaves like a socket to the server."""
        import paramiko

        target = hop.target
        if self._transports:
            try:
                way = (target.host, target.port), ("", 0), _WINDOW, _PACKET, target.connect_timeout
                return _GatewayChannel(self._transports[-1].open_channel("direct-tcpip", *way))
            except paramiko.ChannelException as error:
                raise messages.gateway_refused(hop, error.text) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise messages.gateway_refused(hop, str(error) or "the connection was lost") from error
        if target.proxy_command:
            self._proxy = ProxyCommand(target.proxy_command)
            self._base = self._proxy.socket
            return self._base
        try:
            self._base = _dial(target)
        except OSError as error:
            raise messages.unreachable(hop, error) from error
        return self._base


class _GatewayChannel:
    """A channel in the place of a socket. Its farewell fails if the gateway is gone, in a thread of paramiko's."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def close(self) -> None:
        with debug_log.ignored("closing a channel"):
            self._channel.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class ProxyCommand:
    """A command whose standard input and output lead to the server. paramiko's own never notices that it has ended."""

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        shell = shutil.which("sh") or "/bin/sh"
        with theirs:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # a ^C is for us; we end it
            )
        assert self._process.stderr
        self._kept = b""
        self._reader = threading.Thread(target=self._drain, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def errors(self) -> str:
        """The last of what it wrote to its standard error."""
        self._reader.join(_PROXY_WAIT)
        return self._kept.decode(errors="replace")

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PROXY_WAIT)
                return

    def _drain(self, errors: IO[bytes]) -> None:
        with errors:
            for line in errors:
                self._kept = (self._kept + line)[-_STDERR_KEPT:]


def _dial(target: SSHTarget) -> socket.socket:
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(target.family, socket.AF_UNSPEC)
    last: OSError | None = None
    try:
        places = socket.getaddrinfo(target.host, target.port, family, socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of it is empty or too long for a name
        raise socket.gaierror(socket.EAI_NONAME, "not a possible name") from error
    for address in places:
        made = socket.socket(*address[:3])
        try:
            made.settimeout(target.connect_timeout)
            made.connect(address[4])
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _KEEPALIVE_S)
            return made
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
    raise last or OSError(f"{target.host} has no address")


def _begin(channel: Any, command: str) -> None:
    """What `exec_command` does, less the wait for the host's consent, a round trip. A refusal ends the channel."""
    import paramiko
    from paramiko.common import cMSG_CHANNEL_REQUEST

    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command)
    channel.get_transport()._send_user_message(message)


def _names(target: SSHTarget) -> list[str]:
    if target.host_key_alias:
        return [target.host_key_alias.lower()]
    # Like OpenSSH, a key that is known for the host on its usual port will do on another.
    return list(dict.fromkeys([known_hosts.known_hosts_name(target.host, target.port), target.host.lower()]))


def _prefer(transport: Any, types: list[str]) -> None:
    """Ask for the keys by which the host is known. RSA keys are known by one name and used under others."""
    options = transport.get_security_options()
    preferred = [
        kind
        for key_type in types
        for kind in (("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,))
    ]
    offered = list(options.key_types)
    first = [kind for kind in preferred if kind in offered]
    options.key_types = [*first, *(kind for kind in offered if kind not in first)]
    # Authenticated by the cipher itself: a third faster than paramiko's first choice.
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)


def _policy(hop: Hop, entries: list[known_hosts.KnownHostEntry], names: list[str]) -> Any:
    """paramiko asks it about every key, since it is given no known hosts of its own."""
    import paramiko

    class Known(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            shown = known_hosts.HostKey(key.get_name(), key.asbytes())
            finding = known_hosts.check_host_key(entries, names, shown)
            if finding.verdict != "known":
                file = hop.target.user_known_hosts[0] if hop.target.user_known_hosts else ""
                raise messages.host_key(hop, finding, shown, names[0], file)

    return Known()
