"""Connections over SSH: opened as ~/.ssh/config says, to known hosts only, and known to be dead when they are.

fabric and paramiko are imported where a connection is made, since most commands make none. No configuration file of
theirs is read. Of fabric's Connection only the opening is used: it accepts any host key and reads ProxyJump backwards,
so the way to the host and the checks on it are ours (`ssh_config`, `known_hosts`, `ssh_auth`).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ci_tasks import debug_log
from ci_tasks.errors import Blocked
from ci_tasks.executors.link import LinkDied
from ci_tasks.executors.ssh import known_hosts, messages
from ci_tasks.executors.ssh.auth import SSHKeys
from ci_tasks.executors.ssh.messages import Hop
from ci_tasks.executors.ssh.packet_buffer import use_packet_buffer
from ci_tasks.executors.ssh.sockets import ProxyCommand, ReceivedBytes, dial
from ci_tasks.executors.ssh.ssh_config import SSHTarget, resolve
from ci_tasks.executors.ssh.stream import SSHStream

CHANNEL_TIMEOUT = 15.0
# A window that a fast and distant host can fill: 100 ms at 1 Gbit/s is 12 MB.
_WINDOW = 1 << 24
_PACKET = 1 << 18
_TICK = 1.0
_QUIET_TICKS = 13  # a host that says nothing for so long, although it is asked, is gone
_ASK_EVERY = 4.0
_SETTLE = 0.5


def connect(address: str, *, say: Callable[[str], None] | None = None) -> SSHLink:
    """One connection to `address`: an alias, host, user@host, host:port, [IPv6]:port. Raises Blocked, UsageError."""
    target = resolve(address)
    if say is not None:
        say(f"connecting to {messages.describe_route(target)}")
    link = SSHLink(target)
    try:
        for hop in messages.hops(target):
            link.connect_hop(hop)
        link.start_keepalive()
    except BaseException:
        link.close()
        raise
    return link


class SSHLink:
    """The connection to the host, inside of those to its gateways."""

    def __init__(self, target: SSHTarget) -> None:
        # paramiko logs what it raises as well; without a handler, Python would show that on the terminal.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self.description = messages.describe_route(target)
        self._base: socket.socket | None = None
        self._proxy: ProxyCommand | None = None
        self._transports: list[Any] = []
        self._clients: list[Any] = []
        self._received: ReceivedBytes | None = None
        self._over = threading.Event()
        self._reason = ""
        self._heard = _awake_and_asleep()

    @property
    def silent_for(self) -> float:
        """Seconds since the host was last seen to say something, by a look every second; naps of this machine count."""
        return _awake_and_asleep() - self._heard

    @property
    def alive(self) -> bool:
        return not self._over.is_set() and bool(self._transports) and self._transports[-1].is_active()

    def connect_hop(self, hop: Hop) -> None:
        """Connect to the next server on the way. Raises Blocked."""
        import fabric  # type: ignore[import-untyped]  # it has no stubs
        import paramiko

        target, keys = hop.target, SSHKeys(hop.target)
        self._received = ReceivedBytes(self._way_to(hop))
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
                "sock": self._received,
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
            raise messages.no_handshake(hop, error, self._proxy.stderr_tail() if self._proxy else "") from error

    def open(self, command: str) -> SSHStream:
        import paramiko

        channel = self._channel()
        use_packet_buffer(channel)
        try:
            _begin(channel, command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self.died_error() from error
        return SSHStream(self, channel)

    def interactive(self, command: str) -> int:
        import paramiko

        from ci_tasks.executors.ssh import terminal

        channel, raw = self._channel(), terminal.has_terminal()
        try:
            if raw:
                terminal.ask_for_pty(channel)
            channel.exec_command(command)
            code = terminal.pump(channel, raw=raw)
        except (paramiko.SSHException, EOFError) as error:
            raise self.died_error() from error
        if code < 0 and not self.is_still_alive():
            raise self.died_error()
        return code if code >= 0 else 255  # a signal ended it, as ssh would say

    def close(self) -> None:
        self._end("closed")

    def start_keepalive(self) -> None:
        """Ask the host for a sign of life now and then, and end the link when none comes."""
        for run in (self._ask, self._listen):
            threading.Thread(target=run, daemon=True, name="ci-tasks link").start()

    def died_error(self) -> LinkDied:
        return LinkDied(f"{self.description}: {self._reason or 'the connection was lost'}")

    def is_still_alive(self) -> bool:
        """Whether the link lives, after a moment in which paramiko notices what it has already told its channels."""
        self._transports[-1].join(0 if self._over.is_set() else _SETTLE)
        return self.alive

    def _channel(self) -> Any:
        import paramiko

        if not self.alive:
            raise self.died_error()
        try:
            return self._transports[-1].open_session(window_size=_WINDOW, max_packet_size=_PACKET)
        except paramiko.ChannelException as error:
            raise Blocked(f"{self.description}: the host opens no session ({error.text})") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self.alive:
                self._end(f"no session within {CHANNEL_TIMEOUT:g} s")
            raise self.died_error() from error

    def _way_to(self, hop: Hop) -> Any:
        """What behaves like a socket to the server."""
        import paramiko

        target = hop.target
        if self._transports:
            try:
                return self._transports[-1].open_channel(
                    "direct-tcpip", (target.host, target.port), ("", 0), _WINDOW, _PACKET, target.connect_timeout
                )
            except paramiko.ChannelException as error:
                raise messages.gateway_refused(hop, error.text) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise messages.gateway_refused(hop, str(error) or "the connection was lost") from error
        if target.proxy_command:
            self._proxy = ProxyCommand(target.proxy_command)
            self._base = self._proxy.socket
            return self._base
        try:
            self._base = dial(target)
        except OSError as error:
            raise messages.unreachable(hop, error) from error
        return self._base

    def _ask(self) -> None:
        import paramiko

        try:
            while not self._over.wait(_ASK_EVERY) and self._transports[-1].is_active():
                self._transports[-1].global_request("keepalive@openssh.com", wait=True)
        except (paramiko.SSHException, OSError, EOFError):  # it died in the middle of the question
            pass

    def _listen(self) -> None:
        # Ticks, not a clock: after ^Z or a nap of the laptop the host gets the whole time to answer.
        stream, quiet, last_count = self._received, 0, -1
        while stream is not None and not self._over.wait(_TICK) and self._transports[-1].is_active():
            quiet = quiet + 1 if stream.count == last_count else 0
            if not quiet:
                self._heard = _awake_and_asleep()
            last_count = stream.count
            if quiet >= _QUIET_TICKS:
                self._end(f"not a sign of life for {_QUIET_TICKS * _TICK:g} s")

    def _end(self, reason: str) -> None:
        if self._over.is_set():
            return
        self._reason = reason
        self._over.set()
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


def _awake_and_asleep() -> float:
    """A clock that a nap of this machine does not stop, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


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
