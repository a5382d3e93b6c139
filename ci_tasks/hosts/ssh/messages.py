"""What to say when a host cannot be reached over SSH: what happened, at which hop, and the next step. Pure."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh.ssh_config import DEFAULT_PORT, HostKey, KnownHostEntry, SSHTarget


@dataclass(frozen=True)
class Hop:
    """One server on the way to `destination`, which is empty if it is the host itself. `gateway` connects to it."""

    target: SSHTarget
    destination: str = ""
    gateway: str = ""

    @property
    def description(self) -> str:
        label = self.target.label
        return f"gateway {label}, on the way to {self.destination}" if self.destination else label


def hops(target: SSHTarget) -> Sequence[Hop]:
    """Every server on the way, the host itself last."""
    gateways = ["", *(jump.label for jump in target.jumps)]
    gates = [Hop(jump, target.label, before) for jump, before in zip(target.jumps, gateways, strict=False)]
    return [*gates, Hop(target, "", gateways[-1])]


def describe_route(target: SSHTarget) -> str:
    """For people: where a connection leads, and through what."""
    return " through ".join([target.label, *(hop.label for hop in reversed(target.jumps))])


class HostKeyRefused(Blocked):
    """The server at the other end is not shown to be the one that was meant."""


def host_key(hop: Hop, verdict: str, entry: KnownHostEntry | None, key: HostKey) -> HostKeyRefused:
    """Why `key` is not accepted; `entry` is the line of known_hosts that says so."""
    target, name, also = hop.target, hop.target.names[0], ""
    if entry is not None:
        place, exact = f"{entry.file}:{entry.line}", [*entry.pattern.lower().split(","), entry.pattern[:3]]
        if verdict == "changed":
            is_exact = name in exact or "|1|" in exact  # ssh-keygen -R takes no patterns
            removal = f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(entry.file)}"
            removal = removal if is_exact else f"take line {entry.line} out of {entry.file}"
            return HostKeyRefused(
                f"{hop.description}: the host key of {name} has changed\n"
                f"  known: {entry.key.shown} ({place})\n  shown: {key.shown}",
                hint="someone may be listening, or the host was reinstalled; ask its admin which key is right\n"
                f"then, if it is the one shown, {removal}; and connect again to see the line to add",
            )
        if verdict == "revoked":
            return HostKeyRefused(
                f"{hop.description}: the host key of {name} is revoked ({place})\n  shown: {key.shown}",
                hint="its owner cannot be trusted to be the host; ask its admin for the new key",
            )
        also = f"; only a @cert-authority line matches it ({place}), and paramiko supports no host certificates"
    file = next(iter(target.known_hosts), "")
    add = f"if this is its key, add this line to {file}:"
    if file in ("", "/dev/null"):
        add = (
            f"{target.config_file} keeps no known hosts for it (UserKnownHostsFile {file or 'none'}), and ci-tasks "
            "connects to known hosts only; name a file there for this host, with this line:"
        )
    where = f" (on {hop.gateway})" if hop.gateway else ""
    port = f"-p {target.port} " if target.port != DEFAULT_PORT else ""
    return HostKeyRefused(
        f"{hop.description}: the host key of {name} is not known{also}\n  shown: {key.shown}",
        hint=f"{add}\n{name} {key.type} {key.blob}\nto compare, on a network that you trust{where}: "
        f"ssh-keyscan {port}{target.host} | ssh-keygen -lf -",
    )


def refused_login(hop: Hop, keys: Any) -> Blocked:
    """`keys` is the SSHKeys that were offered."""
    wanted = ", ".join(keys.wanted)
    message = f"{hop.description}: Permission denied for {hop.target.user}\n"
    message += f"  keys tried: {', '.join(keys.tried) or 'none'}; {keys.agent_status}"
    hint = f"add a public key to ~/.ssh/authorized_keys there, or User and IdentityFile to {hop.target.config_file}"
    if keys.unusable:
        message += f"\n  not tried, since they have a passphrase or are no keys: {', '.join(keys.unusable)}"
        start = "" if keys.agent_status.startswith("the agent has") else 'eval "$(ssh-agent)" && '
        hint = f"{start}ssh-add {shlex.quote(keys.unusable[0])}"
    if keys.is_partial:
        message += f"\n  a key was accepted, but the host also wants {wanted}"
        hint = "ci-tasks never asks for passwords or codes; ask the host's admin for a login by key alone"
    elif wanted and "publickey" not in wanted:
        hint = f"the host takes {wanted} only; ci-tasks never asks for passwords: set up a key"
    return Blocked(message, hint=hint)


def unreachable(hop: Hop, error: OSError) -> Blocked:
    """What the network says of a server that we connect to ourselves."""
    target = hop.target
    place = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
    what = f"{place} cannot be reached ({error.strerror or error})"
    hint = "check the network of this machine, or whether a VPN is needed"
    if isinstance(error, socket.gaierror):
        what = f"there is no host of the name {target.host!r} ({error.strerror})"
        hint = f"check the address and HostName in {target.config_file}, or whether a VPN is needed"
    elif isinstance(error, ConnectionRefusedError):
        what = f"{place} refuses connections"
        hint = "no SSH server listens there: check the port, and whether the host is up"
    elif isinstance(error, TimeoutError):
        what = f"no answer from {place} within {target.connect_timeout:g} s"
        hint = "the host may be down, or a firewall or VPN in between; ConnectTimeout in ssh_config sets the limit"
    return Blocked(f"{hop.description}: {what}", hint=hint)


def gateway_refused(hop: Hop, reason: str) -> Blocked:
    """The gateway is there, but does not connect to `hop`."""
    place = f"{hop.target.host}:{hop.target.port}"
    return Blocked(
        f"{hop.description}: the gateway {hop.gateway} cannot connect to {place} ({reason})",
        hint=f"the name and port are looked up on the gateway: try there: ssh -p {hop.target.port} {hop.target.host}",
    )


def no_handshake(hop: Hop, error: BaseException) -> Blocked:
    target, reason = hop.target, str(error) or type(error).__name__
    if reason == "No existing session":  # so paramiko calls it that the time is over
        reason = f"not within {target.connect_timeout:g} s"
    if target.proxy_command:  # which is not shown, since it may hold a password
        what, words = f"its ProxyCommand gave no SSH connection ({reason})", f"ssh {target.alias}"
    else:
        what = f"something listens there, but the SSH connection did not come about ({reason})"
        words = f"ssh -v -p {target.port} {target.user}@{target.host}"
    return Blocked(f"{hop.description}: {what}", hint=f"see what ssh says: {words}")
