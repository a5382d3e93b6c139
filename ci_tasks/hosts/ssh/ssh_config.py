"""What ~/.ssh/config says about an address, as OpenSSH's own `ssh -G` prints it.

Without an OpenSSH client, paramiko's parser reads the user's file; it does not support Include.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import field, replace

from ci_tasks import debug_log
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import ConfigError, UsageError

FILE_VARIABLE = "CI_TASKS_SSH_CONFIG"
USER_FILE = "~/.ssh/config"
DEFAULT_TIMEOUT = 15.0
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MAX_JUMP_DEPTH = 8  # jump hosts with jump hosts of their own
# What OpenSSH refuses too: it would reach a shell by way of ProxyCommand or Match exec.
_DANGEROUS = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}\[\]]|^-")

Settings = Mapping[str, list[str]]
"""Keyword of ssh_config in lower case → its values, in order."""


@dataclass(frozen=True)
class SSHAddress:
    """`user@host:port`; "" and 0 for what was not given."""

    host: str
    user: str = ""
    port: int = 0


@dataclass(frozen=True)
class SSHTarget:
    """One server to connect to. `jumps` are its jump hosts, flat, in the order of connection."""

    alias: str
    host: str
    port: int
    user: str
    config_file: str
    connect_timeout: float = DEFAULT_TIMEOUT
    family: str = "any"
    identities: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    proxy_command: str = ""
    jumps: tuple[SSHTarget, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        full = f"{self.user}@{host}:{self.port}"
        return full if self.alias == self.host else f"{self.alias} ({full})"


def parse_address(text: str) -> SSHAddress:
    """Raises UsageError."""
    user, _, place = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(.*))?", place)
    if bracketed:
        host, port = bracketed[1], bracketed[2]
    elif place.count(":") == 1:
        host, port = place.split(":")
    else:
        host, port = place, None  # a bare IPv6 address has no room for a port
    if not host or (text.startswith("@")) or _DANGEROUS.search(host) or (user and _DANGEROUS.search(user)):
        raise UsageError(
            f"{text!r} is not an address", hint="an alias of ~/.ssh/config, host, user@host, host:port or [IPv6]:port"
        )
    if port is None:
        return SSHAddress(host, user)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"{text!r}: {port!r} is not a port", hint="a number from 1 to 65535")
    return SSHAddress(host, user, int(port))


def resolve(address: str) -> SSHTarget:
    """The server that `address` means to ssh. Raises UsageError, ConfigError."""
    file = os.environ.get(FILE_VARIABLE, "")
    if file and not os.path.isfile(os.path.expanduser(file)):
        raise ConfigError(f"{FILE_VARIABLE} names this file, which does not exist", file=file)
    return _resolve(parse_address(address.strip()), file)


def _resolve(address: SSHAddress, file: str, *, with_proxy: bool = True, depth: int = 0) -> SSHTarget:
    if depth > _MAX_JUMP_DEPTH:
        raise ConfigError("ProxyJump forms a loop", file=file or USER_FILE)
    settings = _openssh_settings(address, file) if shutil.which("ssh") else _paramiko_settings(address, file)
    target = _target(address, settings, file or USER_FILE)
    command, jumps = _last(settings, "proxycommand"), _last(settings, "proxyjump")
    if not with_proxy:
        return target
    if jumps.lower() not in ("", "none"):
        return replace(target, jumps=_jump_hosts(target, jumps, file, depth))
    return replace(target, proxy_command="" if command.lower() == "none" else _expand(command, target))


def _jump_hosts(target: SSHTarget, names: str, file: str, depth: int) -> tuple[SSHTarget, ...]:
    """In the order of connection. Only the first may have jump hosts of its own, as with OpenSSH."""
    hops: list[SSHTarget] = []
    for number, name in enumerate(names.split(",")):
        address = parse_address(name.strip().removeprefix("ssh://").rstrip("/"))
        hop = (
            _resolve(address, file, with_proxy=number == 0, depth=depth + 1) if address.host != target.alias else target
        )
        if (hop.host, hop.port, hop.user) == (target.host, target.port, target.user):
            return ()  # `Host *` with a ProxyJump matches the jump host too, which is not reached through itself
        hops += [*hop.jumps, replace(hop, jumps=())]
    return tuple(hops)


def _openssh_settings(address: SSHAddress, file: str) -> Settings:
    command = ["ssh", "-T", "-G", *(["-F", os.path.expanduser(file)] if file else [])]
    command += [*(["-l", address.user] if address.user else []), *(["-p", str(address.port)] if address.port else [])]
    done = _run([*command, address.host])
    if "jumphost loop" in done.stderr:
        done = _run([*command, "-o", "ProxyJump=none", address.host])
    if done.returncode:
        raise ConfigError(f"ssh -G {address.host}: {done.stderr.strip()}", file=file or USER_FILE)
    settings: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape")


def _paramiko_settings(address: SSHAddress, file: str) -> Settings:
    from paramiko.config import SSHConfig
    from paramiko.ssh_exception import SSHException

    path = os.path.expanduser(file or USER_FILE)
    debug_log.LOGGER.debug("no OpenSSH client: paramiko reads %s", path)
    try:
        config = SSHConfig.from_path(path) if os.path.exists(path) else SSHConfig()
        settings = dict(config.lookup(address.host))
    except (SSHException, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot be parsed: {error}", file=path) from error
    if "include" in settings:
        raise ConfigError(
            "Include is not supported without OpenSSH's client", file=path, hint="install it, so that ssh is on PATH"
        )
    settings.update({key: value for key, value in (("user", address.user), ("port", str(address.port or ""))) if value})
    return {key: value if isinstance(value, list) else [value] for key, value in settings.items()}


def _target(address: SSHAddress, settings: Settings, file: str) -> SSHTarget:
    timeout = _last(settings, "connecttimeout")
    agent = _last(settings, "identityagent") or "SSH_AUTH_SOCK"
    target = SSHTarget(
        alias=address.host,
        host=_last(settings, "hostname") or address.host,
        port=int(_last(settings, "port") or 22),
        user=_last(settings, "user") or getpass.getuser(),
        config_file=file,
        connect_timeout=float(timeout) if timeout.isdigit() and timeout != "0" else DEFAULT_TIMEOUT,
        family=_last(settings, "addressfamily").lower(),
        identities_only=_last(settings, "identitiesonly").lower() == "yes",
        host_key_alias=_last(settings, "hostkeyalias"),
    )
    identities = settings.get("identityfile", list(_DEFAULT_KEYS))
    return replace(
        target,
        identities=tuple(_expand(path, target) for path in identities if path.lower() != "none"),
        agent=_expand("${SSH_AUTH_SOCK}" if agent == "SSH_AUTH_SOCK" else agent if agent != "none" else "", target),
        user_known_hosts=_files(_last(settings, "userknownhostsfile") or _DEFAULT_KNOWN_HOSTS, target),
        global_known_hosts=_files(_last(settings, "globalknownhostsfile") or _DEFAULT_GLOBAL_KNOWN_HOSTS, target),
    )


def _last(settings: Settings, key: str) -> str:
    return settings.get(key, [""])[-1]


def _files(paths: str, target: SSHTarget) -> tuple[str, ...]:
    if os.path.exists(_expand(paths, target)):
        return (_expand(paths, target),)  # one file whose name has spaces: ssh -G prints no quotes
    try:
        names = shlex.split(paths)
    except ValueError:
        names = paths.split()
    return tuple(_expand(name, target) for name in names if name.lower() != "none")


def _expand(text: str, target: SSHTarget) -> str:
    """Tokens, environment variables and ~ of a setting that `ssh -G` prints as it was written."""
    home, user = os.path.expanduser("~"), getpass.getuser()
    tokens = {"%d": home, "%h": target.host, "%n": target.alias, "%p": str(target.port), "%r": target.user}
    tokens |= {"%u": user, "%i": str(os.getuid()), "%k": target.host_key_alias or target.alias, "%%": "%"}
    expanded = re.sub("%.", lambda match: tokens.get(match[0], match[0]), text)
    variable = re.fullmatch(r"\$\{?(\w+)\}?", expanded)
    return os.environ.get(variable[1], "") if variable else os.path.expanduser(expanded)
