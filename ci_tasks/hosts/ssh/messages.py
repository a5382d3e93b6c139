"""What to say when a host cannot be reached over SSH: what happened, at which hop, and the next step. Pure."""

from __future__ import annotations

import shlex
import socket
from typing import Any

from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh.ssh_config import DEFAULT_PORT, HostKey, SSHTarget, config_file


class HostKeyRefused(Blocked):
    """The server at the other end is not shown to be the one that was meant."""


def host_key(target: SSHTarget, verdict: str, known: HostKey | None, key: HostKey) -> HostKeyRefused:
    """Why `key` is not accepted; `known` is the line of known_hosts that says so."""
    name, place, shown = target.names[0], known.place if known else "", f"\n  shown: {key.shown}"
    if known is not None and verdict == "changed":
        return HostKeyRefused(
            f"{target.description}: the host key of {name} has changed\n  known: {known.shown} ({place}){shown}",
            hint="someone may be listening, or the host was reinstalled; ask its admin which key is right\n"
            f"then, if it is the one shown, remove the line {place}, and connect again to see the line to add",
        )
    if verdict == "revoked":
        hint = "its owner cannot be trusted to be the host; ask its admin for the new key"
        return HostKeyRefused(f"{target.description}: the host key of {name} is revoked ({place}){shown}", hint=hint)
    also = f"; only a @cert-authority line matches it ({place}), and paramiko supports no host certificates"
    file = next(iter(target.known_hosts), "/dev/null")
    add = f"if this is its key, add this line to {file}:"
    if file == "/dev/null":
        add = f"name a UserKnownHostsFile for it in {config_file()}, with this line:"
    where = f" (on {target.gateway})" if target.gateway else ""
    port = f"-p {target.port} " if target.port != DEFAULT_PORT else ""
    return HostKeyRefused(
        f"{target.description}: the host key of {name} is not known{also if known else ''}{shown}",
        hint=f"{add}\n{name} {key.type} {key.blob}\nto compare, on a network that you trust{where}: "
        f"ssh-keyscan {port}{target.host} | ssh-keygen -lf -",
    )


def refused_login(target: SSHTarget, keys: Any) -> Blocked:
    """`keys` is the SSHKeys that were offered."""
    wanted = ", ".join(keys.wanted)
    message = f"{target.description}: Permission denied for {target.user}\n"
    message += f"  keys tried: {', '.join(keys.tried) or 'none'}; {keys.agent_status}"
    hint = f"add a public key to ~/.ssh/authorized_keys there, or User and IdentityFile to {config_file()}"
    if keys.unusable:
        message += f"\n  not tried, since they have a passphrase or are no keys: {', '.join(keys.unusable)}"
        hint = f"with an agent running (ssh-agent): ssh-add {shlex.quote(keys.unusable[0])}"
    if keys.is_partial:
        message += f"\n  a key was accepted, but the host also wants {wanted}"
        hint = "ci-tasks never asks for passwords or codes; ask the host's admin for a login by key alone"
    elif wanted and "publickey" not in wanted:
        hint = f"the host takes {wanted} only; ci-tasks never asks for passwords: set up a key"
    return Blocked(message, hint=hint)


def unreachable(target: SSHTarget, error: OSError) -> Blocked:
    """What the network says of a server that we connect to ourselves."""
    why, place = error.strerror or error, f"{target.host}:{target.port}"
    what, hint = f"{place} cannot be reached ({why})", "check the network of this machine, or whether a VPN is needed"
    if isinstance(error, socket.gaierror):
        what = f"there is no host of the name {target.host!r} ({why})"
        hint = f"check the address and HostName in {config_file()}, or whether a VPN is needed"
    elif isinstance(error, ConnectionRefusedError):
        what = f"{place} refuses connections"
        hint = "no SSH server listens there: check the port, and whether the host is up"
    elif isinstance(error, TimeoutError):
        what = f"no answer from {place} within {target.connect_timeout:g} s"
        hint = "the host may be down, or a firewall or VPN in between; ConnectTimeout in ssh_config sets the limit"
    return Blocked(f"{target.description}: {what}", hint=hint)


def gateway_refused(target: SSHTarget, reason: str) -> Blocked:
    """The gateway is there, but does not connect to `hop`."""
    host, port = target.host, target.port
    return Blocked(
        f"{target.description}: the gateway {target.gateway} cannot connect to {host}:{port} ({reason})",
        hint=f"the name and port are looked up on the gateway: try there: ssh -p {port} {host}",
    )


def no_handshake(target: SSHTarget, error: BaseException) -> Blocked:
    reason = str(error) or type(error).__name__
    if reason == "No existing session":  # so paramiko calls it that the time is over
        reason = f"not within {target.connect_timeout:g} s"
    what = f"something listens there, but the SSH connection did not come about ({reason})"
    if target.proxy_command:  # which is not shown, since it may hold a password
        what = f"its ProxyCommand gave no SSH connection ({reason})"
    return Blocked(f"{target.description}: {what}", hint=f"see what ssh says: ssh -v {target.alias}")
