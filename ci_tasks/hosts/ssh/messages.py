"""What to say when a host cannot be reached over SSH: what happened, at which hop, and the next step. Pure."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh.auth import SSHKeys
from ci_tasks.hosts.ssh.known_hosts import DEFAULT_PORT, HostKey, KnownHostEntry, KnownHostsLookup
from ci_tasks.hosts.ssh.ssh_config import SSHTarget


@dataclass(frozen=True)
class Hop:
    """One server on the way. `goal` is empty where it is the host itself, else the host that it is the gateway of."""

    target: SSHTarget
    destination: str = ""
    gateway: str = ""  # the gateway that connects to it

    @property
    def description(self) -> str:
        return (
            f"gateway {self.target.label}, on the way to {self.destination}" if self.destination else self.target.label
        )


class HostKeyRefused(Blocked):
    """The server at the other end is not shown to be the one that was meant."""


def host_key(hop: Hop, finding: KnownHostsLookup, key: HostKey, name: str, file: str) -> HostKeyRefused:
    """Why `key` is not accepted. `file`: where the user keeps known hosts."""
    keyscan = _keyscan(hop)
    shown_key = f"{key.type} {key.fingerprint}"
    if finding.verdict == "changed" and finding.entry is not None:
        known_key = finding.entry.key
        return HostKeyRefused(
            f"{hop.description}: the host key of {name} has changed\n"
            f"  known: {known_key.type} {known_key.fingerprint} ({finding.entry.place})\n"
            f"  shown: {shown_key}",
            hint="someone may be listening, or the host was reinstalled; ask its admin which key is right\n"
            f"then, if it is the one shown, {_removal(finding.entry, name)}; and connect again to see the line to add",
        )
    if finding.verdict == "revoked" and finding.entry is not None:
        return HostKeyRefused(
            f"{hop.description}: the host key of {name} is revoked ({finding.entry.place})\n  shown: {shown_key}",
            hint="whoever has this key cannot be trusted to be the host; ask its admin for the new key",
        )
    also = ""
    if finding.verdict == "authority" and finding.entry is not None:
        also = (
            f"; only a @cert-authority line matches it ({finding.entry.place}), which ci-tasks cannot use: host "
            "certificates are not supported by paramiko"
        )
    if file in ("", "/dev/null"):
        add = (
            f"{hop.target.config_file} keeps no known hosts for it (UserKnownHostsFile {file or 'none'}), and ci-tasks "
            "connects to known hosts only; name a file there for this host, with this line:"
        )
    else:
        add = f"if this is its key, add this line to {file}:"
    return HostKeyRefused(
        f"{hop.description}: the host key of {name} is not known{also}\n  shown: {shown_key}",
        hint=f"{add}\n{key.line(name)}\nto compare, where you trust the network{keyscan}",
    )


def _removal(entry: KnownHostEntry, name: str) -> str:
    if entry.names.startswith("|1|") or name in entry.names.lower().split(","):
        return f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(entry.file)}"
    return f"take line {entry.line} out of {entry.file}"  # ssh-keygen knows no patterns


def _keyscan(hop: Hop) -> str:
    port = f"-p {hop.target.port} " if hop.target.port != DEFAULT_PORT else ""
    where = f" (on {hop.gateway})" if hop.gateway else ""
    return f"{where}: ssh-keyscan {port}{hop.target.host} | ssh-keygen -lf -"


def refused_login(hop: Hop, keys: SSHKeys) -> Blocked:
    tried = ", ".join(keys.tried) or "none"
    message = f"{hop.description}: does not let {keys.user} in\n  keys tried: {tried}; {keys.agent_status}"
    if keys.encrypted:
        message += f"\n  not tried, since a passphrase protects them: {', '.join(keys.encrypted)}"
    if keys.unreadable:
        message += f"\n  not tried, since they cannot be read as keys: {', '.join(keys.unreadable)}"
    if keys.was_disconnected:
        hint = "the host broke off, perhaps after too many keys: name one with IdentityFile and IdentitiesOnly yes"
    elif keys.is_partial:
        message += f"\n  a key was accepted, but the host also wants {', '.join(keys.allowed_methods)}"
        hint = "ci-tasks never asks for passwords or codes; ask the host's admin for a login by key alone"
    elif keys.encrypted:
        start = "" if keys.agent_status.startswith("the agent has") else 'eval "$(ssh-agent)" && '
        hint = f"{start}ssh-add {shlex.quote(keys.encrypted[0])}"
    elif keys.allowed_methods and "publickey" not in keys.allowed_methods:
        hint = f"the host takes {', '.join(keys.allowed_methods)} only; ci-tasks never asks for passwords: set up a key"
    else:
        hint = f"add a public key to ~/.ssh/authorized_keys there, or User and IdentityFile to {hop.target.config_file}"
    return Blocked(message, hint=hint)


def unreachable(hop: Hop, error: OSError) -> Blocked:
    """The network's words about a server that we connect to ourselves."""
    target = hop.target
    place = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
    if isinstance(error, socket.gaierror):
        no_hostname = "" if target.alias != target.host else f"; {target.config_file} has no HostName for it"
        return Blocked(
            f"{hop.description}: there is no host of the name {target.host!r} ({error.strerror}){no_hostname}",
            hint=f"check the address and HostName in {target.config_file}, or whether a VPN is needed",
        )
    if isinstance(error, ConnectionRefusedError):
        return Blocked(
            f"{hop.description}: {place} refuses connections",
            hint="no SSH server listens there: check the port, and whether the host is up",
        )
    if isinstance(error, TimeoutError):
        return Blocked(
            f"{hop.description}: no answer from {place} within {target.connect_timeout:g} s",
            hint="the host may be down, or a firewall or VPN in between; ConnectTimeout in ssh_config sets the limit",
        )
    return Blocked(
        f"{hop.description}: {place} cannot be reached ({error.strerror or error})",
        hint="check the network of this machine, or whether a VPN is needed",
    )


def gateway_refused(hop: Hop, reason: str) -> Blocked:
    """The gateway is there, but does not get us to `hop`."""
    return Blocked(
        f"{hop.description}: the gateway {hop.gateway} cannot connect to "
        f"{hop.target.host}:{hop.target.port} ({reason})",
        hint=f"the name and port are looked up on the gateway: try there: ssh -p {hop.target.port} {hop.target.host}",
    )


def no_handshake(hop: Hop, error: BaseException, proxy_stderr: str = "") -> Blocked:
    reason = str(error) or type(error).__name__
    if reason == "No existing session":  # so paramiko calls it that the time is over
        reason = f"not within {hop.target.connect_timeout:g} s"
    if hop.target.proxy_command:
        proxy_output = f"; it said: {proxy_stderr.strip()}" if proxy_stderr.strip() else ""
        return Blocked(
            f"{hop.description}: its ProxyCommand gave no SSH connection ({reason}){proxy_output}",
            hint=f"try it by hand: ssh {hop.target.alias} (the command stands in {hop.target.config_file})",
        )
    return Blocked(
        f"{hop.description}: something listens there, but the SSH connection did not come about ({reason})",
        hint=f"see what ssh says: ssh -v -p {hop.target.port} {hop.target.user}@{hop.target.host}",
    )


def describe_route(target: SSHTarget) -> str:
    """For people: where a connection leads, and through what."""
    via = " through ".join(hop.label for hop in reversed(target.jumps))
    return f"{target.label} through {via}" if via else target.label


def hops(target: SSHTarget) -> Sequence[Hop]:
    """Every server on the way, the host itself last."""
    befores: list[Any] = [""] + [jump.label for jump in target.jumps]
    goals = [target.label for _ in target.jumps] + [""]
    return [Hop(*of) for of in zip((*target.jumps, target), goals, befores, strict=True)]
