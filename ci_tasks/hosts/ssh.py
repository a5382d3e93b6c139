"""Connections over SSH, by Fabric: opened as ~/.ssh/config says, to known hosts only, and made again when they died.

Fabric and paramiko are imported when a connection is made, since most commands make none. No configuration file of
theirs is read. Fabric accepts any host key, reads ProxyJump backwards and knows no IdentityAgent, so the way to the
host, its key and ours are chosen here.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from ci_tasks import debug_log
from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh_config import HostKey, SSHTarget, check_host_key, config_file, known_keys, resolve, ssh_words
from ci_tasks.hosts.transport import HostKeyRefused, LinkDied, relay

CHANNEL_TIMEOUT = 15.0
_PROOF_TIMEOUT = 3.0  # within which a connection that was idle opens a channel, or it counts as dead
_AGENT_TIMEOUT = 10.0  # an agent behind a dead forwarding would keep us for ever; a person may have to touch a key
# A window that a fast and distant host can fill: 100 ms at 1 Gbit/s is 12 MB.
_WINDOW, _PACKET = 1 << 24, 1 << 18
_DEFAULT_KEY = re.compile(r"/\.ssh/id_[a-z0-9_]+$")  # which ssh tries if no IdentityFile is named
_KEEPALIVE_S = 15  # what was sent is acknowledged within, or the kernel gives up


class SSHConnection:
    """The connection to the host, inside of those to its gateways. It is made when it is needed."""

    def __init__(self, address: str) -> None:
        """`address`: an alias, host, user@host, host:port, [IPv6]:port. Raises UsageError."""
        # paramiko logs what it raises as well; without a handler, Python would show that on the terminal.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self._address, self.target = address, resolve(address)
        self._name = self.target.label
        self._lock = threading.Lock()
        self._base: socket.socket | None = None
        self._proxy: subprocess.Popen[bytes] | None = None
        self._clients: list[Any] = []  # paramiko's, of the gateways and of the host
        self._closed = 0  # times

    @property
    def _transport(self) -> Any:
        """paramiko's, of the server that was reached last; None before there is one."""
        return self._clients[-1].get_transport() if self._clients else None

    @property
    def is_up(self) -> bool:
        return self._transport is not None and bool(self._transport.is_active())

    def open(self, command: str) -> socket.socket:
        """As ci_tasks.hosts.transport.Transport has it."""
        channel = self.channel(command)
        ours, theirs = socket.socketpair()
        threading.Thread(target=relay, args=(theirs, channel), daemon=True, name="ci-tasks relay").start()
        return ours

    def channel(self, command: str) -> Any:
        """paramiko's channel with the command, whose standard error comes with its output. Nothing waits for the host's
        consent, a round trip: a refusal ends the channel."""
        import paramiko
        from paramiko.common import cMSG_CHANNEL_REQUEST

        channel, message = self._session(), paramiko.Message()
        channel.set_combine_stderr(True)
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        try:
            channel.get_transport()._send_user_message(message)
        except (paramiko.SSHException, OSError, EOFError) as error:
            channel.close()
            raise LinkDied(f"{self._name}: the connection was lost") from error
        return channel

    def prove(self) -> None:
        """Open a channel for nothing: a connection that has died is made again."""
        self._session().close()

    def interactive(self, command: str) -> int:
        """Give our terminal to a command on the host, by OpenSSH's client; its exit code."""
        terminal = ["-t"] if os.isatty(0) and os.isatty(1) else ["-T"]
        options = ["-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR"]
        return subprocess.call([*ssh_words(self._address, *terminal, *options), command])

    def close(self) -> None:
        self._closed += 1
        base, proxy, clients = self._base, self._proxy, self._clients
        self._base, self._proxy, self._clients = None, None, []  # another thread may close it too
        if base is not None:
            # First, and whatever state it is in: nothing that paramiko still wants to say can block from here on.
            with contextlib.suppress(OSError):
                base.shutdown(socket.SHUT_RDWR)
            base.close()
        for client in reversed(clients):
            with contextlib.suppress(Exception):  # whatever paramiko says of a dead connection
                client.close()
        if proxy is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(proxy.pid, signal.SIGKILL)
            proxy.wait()

    def _session(self) -> Any:
        """A channel without a command yet, over a new connection if the old one has died."""
        import paramiko

        with self._lock:
            for timeout in (_PROOF_TIMEOUT, CHANNEL_TIMEOUT) if self.is_up else (CHANNEL_TIMEOUT,):
                if timeout == CHANNEL_TIMEOUT:
                    self._connect()
                try:
                    return self._transport.open_session(_WINDOW, _PACKET, timeout=timeout)
                except paramiko.ChannelException as error:
                    raise Blocked(f"{self._name}: the host refuses a session ({error.text})") from error
                except (paramiko.SSHException, OSError, EOFError) as error:
                    debug_log.debug("%s: no channel", self._name, exc_info=error)
            self.close()
            raise LinkDied(f"{self._name}: the connection was lost")

    def _connect(self) -> None:
        self.close()
        closed = self._closed
        try:
            for server in (*self.target.jumps, self.target):
                self._connect_server(server)
            self._transport.set_keepalive(_KEEPALIVE_S)
        except BaseException as error:
            was_ended = self._closed != closed and isinstance(error, Exception)
            self.close()
            if was_ended:  # by another thread: what it met says nothing of the host
                raise LinkDied(f"{self._name}: the connection was lost") from error
            raise

    def _connect_server(self, target: SSHTarget) -> None:
        """Connect to the next server on the way. Raises Blocked."""
        import fabric  # type: ignore[import-untyped]  # it has no stubs
        import paramiko

        keys, known = SSHKeys(target), known_keys(target)

        def transport(sock: Any, **options: Any) -> paramiko.Transport:
            made = paramiko.Transport(sock, default_window_size=_WINDOW, default_max_packet_size=_PACKET, **options)
            _prefer(made, [key.type for key in known if not key.marker])
            return made

        class KnownHosts(paramiko.MissingHostKeyPolicy):
            """paramiko asks it about every key, since it is given no known hosts of its own."""

            def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
                shown = HostKey(key.get_name(), key.get_base64())
                verdict, line = check_host_key(known, target.names, shown)
                if verdict != "known":
                    raise host_key_refused(target, verdict, line, shown)

        connection = fabric.Connection(
            target.host,
            user=target.user,
            port=target.port,
            gateway=False,
            forward_agent=False,
            connect_timeout=max(1, round(target.connect_timeout)),
            connect_kwargs={
                "sock": self._way_to(target),
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
        self._clients.append(connection.client)
        connection.client.set_missing_host_key_policy(KnownHosts())
        try:
            connection.open()
        except Blocked:
            raise
        except paramiko.AuthenticationException as error:
            raise refused_login(target, keys) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise no_handshake(target, error) from error

    def _way_to(self, target: SSHTarget) -> Any:
        """What behaves like a socket to the server."""
        import paramiko

        if self._clients:
            try:
                way = (target.host, target.port), ("", 0), _WINDOW, _PACKET, target.connect_timeout
                return _GatewayChannel(self._transport.open_channel("direct-tcpip", *way))
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise gateway_refused(target, getattr(error, "text", "") or str(error)) from error
        if target.proxy_command:  # of paramiko's own the end is never noticed
            self._base, theirs = socket.socketpair()
            with theirs:
                end, shell = theirs.fileno(), ["/bin/sh", "-c", f"exec 2> /dev/null {target.proxy_command}"]
                # In a session of its own: a ^C is for us; we end it.
                self._proxy = subprocess.Popen(shell, stdin=end, stdout=end, start_new_session=True)
            return self._base
        try:
            base = self._base = socket.create_connection((target.host, target.port), target.connect_timeout)
        except (OSError, UnicodeError) as error:  # the second one for a part that is empty or too long for a name
            raise unreachable(target, error) from error
        base.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        base.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _KEEPALIVE_S)
        return base


class _GatewayChannel:
    """A channel in the place of a socket. Its farewell fails if the gateway is gone, in a thread of paramiko's."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def _prefer(transport: Any, types: list[str]) -> None:
    """Ask for the keys by which the host is known. RSA keys are known by one name and used under others."""
    options = transport.get_security_options()
    known = [kind for name in types for kind in (("rsa-sha2-512", "rsa-sha2-256") if name == "ssh-rsa" else (name,))]
    options.key_types = sorted(options.key_types, key=lambda kind: known.index(kind) if kind in known else len(known))
    # Authenticated by the cipher itself: a third faster than paramiko's first choice.
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)


class SSHKeys:
    """The agent's keys and key files, in ssh's order: what fabric calls an authentication strategy. Afterwards it knows
    what was tried. A person is asked for nothing."""

    def __init__(self, target: SSHTarget) -> None:
        self._target = target
        self.tried: list[str] = []
        self.unusable: list[str] = []  # files with a passphrase, or that are no keys
        self.agent_status = "no agent is running"
        self.wanted: list[str] = []  # what the host would accept, or wants besides a key
        self.is_partial = False  # a key was accepted, but more is wanted

    def authenticate(self, transport: Any) -> None:
        """Raises AuthenticationException."""
        import paramiko

        with contextlib.closing(socket.socket(socket.AF_UNIX)) as agent:
            try:
                for name, key in self._keys(agent):
                    self.tried.append(name)
                    with contextlib.suppress(paramiko.AuthenticationException):  # the next key may do
                        if not (remaining := transport.auth_publickey(self._target.user, key)):
                            return
                        self.is_partial, self.wanted = True, list(remaining)
                # Some servers know us by other means; the others answer with the ways that they accept.
                transport.auth_none(self._target.user)
            except paramiko.BadAuthenticationType as error:
                self.wanted = self.wanted or list(error.allowed_types)
                raise

    def _keys(self, agent: socket.socket) -> Iterator[tuple[str, Any]]:
        """As OpenSSH orders them: the agent's that are also named, the agent's others, files."""
        import paramiko

        named = {path: _public_blob(path) for path in self._target.identities}
        found = sorted(self._agent_keys(agent), key=lambda key: key.asbytes() not in named.values())
        offered = [key for key in found if key.asbytes() in named.values() or not self._target.identities_only]
        for key in offered:
            yield f"{getattr(key, 'comment', '') or key.get_name()} (agent)", key
        for path, blob in named.items():
            if not path.endswith(".pub") and os.path.isfile(path) and blob not in [key.asbytes() for key in offered]:
                try:
                    key = paramiko.PKey.from_path(path)
                except Exception:  # paramiko, cryptography and bcrypt each raise their own for what they cannot read
                    self.unusable.append(path)
                else:
                    yield path, key

    def _agent_keys(self, sock: socket.socket) -> list[Any]:
        from paramiko.agent import AgentSSH
        from paramiko.ssh_exception import SSHException

        if not self._target.agent:
            return []
        agent: Any = AgentSSH()
        try:
            sock.settimeout(_AGENT_TIMEOUT)
            sock.connect(self._target.agent)
            agent._connect(sock)  # paramiko.Agent does the same, but knows no IdentityAgent
        except (OSError, SSHException):
            self.agent_status = f"the agent at {self._target.agent} does not answer"
            return []
        keys = list(agent.get_keys())
        self.agent_status = f"the agent has {len(keys)} key{'' if len(keys) == 1 else 's'}"
        return keys


def _public_blob(path: str) -> bytes | None:
    """The public key beside a private one."""
    try:
        with open(path if path.endswith(".pub") else f"{path}.pub", "rb") as source:
            return base64.b64decode(source.read(1 << 16).split()[1], validate=True)
    except (OSError, IndexError, ValueError):
        return None


def host_key_refused(target: SSHTarget, verdict: str, known: HostKey | None, key: HostKey) -> HostKeyRefused:
    """Why `key` is not accepted; `known` is the line of known_hosts that says so."""
    name, place, shown = target.names[0], known.place if known else "", f"\n  shown: {key.shown}"
    host = target.description
    if known is not None and verdict == "changed":
        return HostKeyRefused(
            f"{host}: the host key of {name} has changed\n  known: {known.shown} ({place}){shown}",
            hint="someone may be listening, or the host was reinstalled; ask its admin which key is right\n"
            f"then, if it is the one shown, remove the line {place}, and connect again to see the line to add",
        )
    if verdict == "revoked":
        message = f"{host}: the host key of {name} is revoked ({place}){shown}"
        return HostKeyRefused(message, hint="ask its admin for the new key")
    files = [file for file in target.known_hosts if file != os.devnull]
    file = files[0] if files else f"a file that {config_file()} has to name as UserKnownHostsFile"
    where = f" (on {target.gateway})" if target.gateway else ""
    return HostKeyRefused(
        f"{host}: the host key of {name} is not known{shown}",
        hint=f"if this is its key, add this line to {file}:\n{name} {key.type} {key.blob}\n"
        f"to compare on a network that you trust{where}: ssh-keyscan -p {target.port} {target.host} | ssh-keygen -lf -",
    )


def refused_login(target: SSHTarget, keys: Any) -> Blocked:
    """`keys` is the SSHKeys that were offered."""
    wanted = ", ".join(keys.wanted) or "publickey"
    message = f"{target.description}: Permission denied ({wanted}) for {target.user}\n"
    message += f"  keys tried: {', '.join(keys.tried) or 'none'}; {keys.agent_status}"
    hint = f"add a public key to ~/.ssh/authorized_keys there, or User and IdentityFile to {config_file()}"
    for path in target.identities:
        if not os.path.exists(path) and not _DEFAULT_KEY.search(path):
            message += f"\n  IdentityFile {path} does not exist"
    if keys.unusable:
        message += f"\n  not tried (passphrase, or not a key): {', '.join(keys.unusable)}"
        hint = f"with an agent running (ssh-agent): ssh-add {shlex.quote(keys.unusable[0])}"
    if keys.is_partial or "publickey" not in wanted:
        accepted = "accepted a key, but also wants" if keys.is_partial else "takes only"
        hint = f"the host {accepted} {wanted}; ci-tasks never asks for passwords; set up a login by key alone"
    return Blocked(message, hint=hint)


def unreachable(target: SSHTarget, error: OSError | UnicodeError) -> Blocked:
    """What the network says of a server that we connect to ourselves."""
    why = getattr(error, "strerror", "") or str(error)
    if isinstance(error, TimeoutError):
        why = f"no answer within {target.connect_timeout:g} s (ConnectTimeout)"
    hint = f"check the host and its port, HostName in {config_file()}, the network of this machine, and the VPN"
    return Blocked(f"{target.description}: {target.host}:{target.port} cannot be reached: {why}", hint=hint)


def gateway_refused(target: SSHTarget, reason: str) -> Blocked:
    """The gateway is there, but does not connect to the target."""
    host, port = target.host, target.port
    message = f"{target.description}: the gateway {target.gateway} cannot connect to {host}:{port} ({reason})"
    return Blocked(message, hint=f"the name and port are looked up on the gateway: try there: ssh -p {port} {host}")


def no_handshake(target: SSHTarget, error: BaseException) -> Blocked:
    reason = str(error) or type(error).__name__
    if reason == "No existing session":  # so paramiko calls it that the time is over
        reason = f"not within {target.connect_timeout:g} s"
    # The command is not shown, since it may hold a password.
    what = "its ProxyCommand opened no SSH connection" if target.proxy_command else "no SSH server answers"
    return Blocked(f"{target.description}: {what} ({reason})", hint=f"read the output of: ssh -v {target.alias}")
