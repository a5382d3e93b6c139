"""What OpenSSH's own client knows of an address: settings, as `ssh -G` prints them, and host keys, as `ssh-keygen -F`
finds them in the known_hosts files: by patterns, hashed names and ports."""

from __future__ import annotations

import base64
import getpass
import hashlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, ConfigError, UsageError

FILE_VARIABLE = "CI_TASKS_SSH_CONFIG"
USER_FILE = "~/.ssh/config"
DEFAULT_PORT = 22
DEFAULT_TIMEOUT = 15.0
_MAX_JUMP_DEPTH = 8  # jump hosts with jump hosts of their own
_ADDRESS = re.compile(r"(?:(?P<user>.+)@)?(?:\[(?P<ip>[^\[\]]+)\](?::(?P<port>.*))?|(?P<host>[^@]*))", re.DOTALL)
# What OpenSSH refuses too: it would reach a shell by way of ProxyCommand or Match exec.
_DANGEROUS = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}\[\]]|^-")
_FOUND = re.compile(r"# Host .* found: line (\d+) ?(CA|REVOKED)?")


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
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    proxy_command: str = ""
    jumps: tuple[SSHTarget, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        full = f"{self.user}@{host}:{self.port}"
        return full if self.alias == self.host else f"{self.alias} ({full})"

    @property
    def names(self) -> list[str]:
        """What it is called in known_hosts. Like OpenSSH, a key that is known for the host on its usual port will do on
        another."""
        if self.host_key_alias:
            return [self.host_key_alias.lower()]
        host = self.host.lower()
        return [host] if self.port == DEFAULT_PORT else [f"[{host}]:{self.port}", host]


def parse_address(text: str) -> tuple[str, str, int]:
    """(host, user, port) of `user@host:port`; "" and 0 for what was not given. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    host, port = (found["ip"], found["port"]) if found and found["ip"] else ((found and found["host"]) or "", None)
    if host.count(":") == 1:  # a bare IPv6 address has no room for a port
        host, port = host.split(":")
    user = (found and found["user"]) or ""
    if not host or _DANGEROUS.search(host) or _DANGEROUS.search(user) or text.startswith("@"):
        raise UsageError(
            f"{text!r} is not an address", hint="an alias of ~/.ssh/config, host, user@host, host:port or [IPv6]:port"
        )
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"{text!r}: {port!r} is not a port", hint="a number from 1 to 65535")
    return host, user, int(port or 0)


def ssh_words(address: str, *options: str) -> list[str]:
    """The command line of OpenSSH's client for an address. Raises UsageError, ConfigError."""
    host, user, port = parse_address(address)
    file = os.path.expanduser(os.environ.get(FILE_VARIABLE, ""))
    if file and not os.path.isfile(file):
        raise ConfigError(f"{FILE_VARIABLE} names this file, which does not exist", file=file)
    given = [("-F", file), ("-l", user), ("-p", str(port or ""))]
    return ["ssh", *options, *(word for pair in given if pair[1] for word in pair), host]


def resolve(address: str) -> SSHTarget:
    """The server that `address` means to ssh. Raises UsageError, ConfigError, Blocked."""
    return _resolve(address.strip())


def _resolve(address: str, *, with_proxy: bool = True, depth: int = 0) -> SSHTarget:
    file = os.environ.get(FILE_VARIABLE) or USER_FILE
    if depth > _MAX_JUMP_DEPTH:
        raise ConfigError("ProxyJump forms a loop", file=file)
    done = _run(ssh_words(address, "-T", "-G"))
    if "jumphost loop" in done.stderr:
        done = _run(ssh_words(address, "-T", "-G", "-o", "ProxyJump=none"))
    if done.returncode:
        raise ConfigError(f"ssh -G {address}: {done.stderr.strip()}", file=file)
    settings: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    target = _target(parse_address(address)[0], settings, file)
    command, jumps = _last(settings, "proxycommand"), _last(settings, "proxyjump")
    if with_proxy and jumps.lower() not in ("", "none"):
        return replace(target, jumps=_jump_hosts(target, jumps, depth))
    return replace(target, proxy_command=_expand(command, target) if with_proxy and command.lower() != "none" else "")


def _jump_hosts(target: SSHTarget, names: str, depth: int) -> tuple[SSHTarget, ...]:
    """In the order of connection. Only the first may have jump hosts of its own, as with OpenSSH."""
    hops: list[SSHTarget] = []
    for number, name in enumerate(names.split(",")):
        address = name.strip().removeprefix("ssh://").rstrip("/")
        is_itself = parse_address(address)[0] == target.alias
        hop = target if is_itself else _resolve(address, with_proxy=number == 0, depth=depth + 1)
        if (hop.host, hop.port, hop.user) == (target.host, target.port, target.user):
            return ()  # `Host *` with a ProxyJump matches the jump host too, which is not reached through itself
        hops += [*hop.jumps, replace(hop, jumps=())]
    return tuple(hops)


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise Blocked(f"{words[0]} cannot be run: {error.strerror}", hint="install OpenSSH's client") from None


def _target(alias: str, settings: dict[str, list[str]], file: str) -> SSHTarget:
    timeout, agent = _last(settings, "connecttimeout"), _last(settings, "identityagent") or "SSH_AUTH_SOCK"
    target = SSHTarget(
        alias=alias,
        host=_last(settings, "hostname") or alias,
        port=int(_last(settings, "port") or DEFAULT_PORT),
        user=_last(settings, "user") or getpass.getuser(),
        config_file=file,
        connect_timeout=float(timeout) if timeout.isdigit() and timeout != "0" else DEFAULT_TIMEOUT,
        family=_last(settings, "addressfamily").lower(),
        identities_only=_last(settings, "identitiesonly").lower() == "yes",
        host_key_alias=_last(settings, "hostkeyalias"),
    )
    known_hosts = [_last(settings, f"{who}knownhostsfile") for who in ("user", "global")]
    return replace(
        target,
        identities=tuple(_expand(path, target) for path in settings.get("identityfile", ()) if path.lower() != "none"),
        agent=_expand("${SSH_AUTH_SOCK}" if agent == "SSH_AUTH_SOCK" else agent if agent != "none" else "", target),
        known_hosts=tuple(path for paths in known_hosts for path in _files(paths, target)),
    )


def _last(settings: dict[str, list[str]], key: str) -> str:
    return settings.get(key, [""])[-1]


def _files(paths: str, target: SSHTarget) -> list[str]:
    if os.path.exists(_expand(paths, target)):
        return [_expand(paths, target)]  # one file whose name has spaces: ssh -G prints no quotes
    return [_expand(name, target) for name in paths.split() if name.lower() != "none"]


def _expand(text: str, target: SSHTarget) -> str:
    """Tokens, environment variables and ~ of a setting that `ssh -G` prints as it was written."""
    home, user = os.path.expanduser("~"), getpass.getuser()
    tokens = {"%d": home, "%h": target.host, "%n": target.alias, "%p": str(target.port), "%r": target.user}
    tokens |= {"%u": user, "%i": str(os.getuid()), "%k": target.host_key_alias or target.alias, "%%": "%"}
    expanded = re.sub("%.", lambda match: tokens.get(match[0], match[0]), text)
    variable = re.fullmatch(r"\$\{?(\w+)\}?", expanded)
    return os.environ.get(variable[1], "") if variable else os.path.expanduser(expanded)


# -- known hosts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostKey:
    type: str
    blob: str  # in base64

    @property
    def shown(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return f"{self.type} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


@dataclass(frozen=True)
class KnownHostEntry:
    """A line of a known_hosts file for the host, which it calls `name`; `marker` is "", CA or REVOKED."""

    file: str
    line: int
    name: str
    marker: str
    pattern: str
    key: HostKey


def known_host_entries(target: SSHTarget) -> list[KnownHostEntry]:
    """Raises Blocked for a file that cannot be read."""
    return [entry for file in target.known_hosts for name in target.names for entry in _entries(file, name)]


def _entries(file: str, name: str) -> Iterator[KnownHostEntry]:
    if not os.path.exists(file):
        return
    if not os.access(file, os.R_OK):
        raise Blocked(f"{file} cannot be read (Permission denied)")
    lines = _run(["ssh-keygen", "-F", name, "-f", file]).stdout.splitlines()
    for head, text in itertools.pairwise(lines):
        found, fields = _FOUND.fullmatch(head.strip()), text.split()
        fields = fields[1 if found and found[2] else 0 :]
        if found and len(fields) > 2:
            yield KnownHostEntry(file, int(found[1]), name, found[2] or "", fields[0], HostKey(*fields[1:3]))


def check_host_key(
    entries: Sequence[KnownHostEntry], names: Sequence[str], key: HostKey
) -> tuple[str, KnownHostEntry | None]:
    """What known_hosts says about `key`: known, unknown, changed, revoked or authority, and the line that says so."""
    for entry in entries:  # a revoked key is refused before anything that would allow it
        if entry.marker == "REVOKED" and entry.key.blob == key.blob:
            return "revoked", entry
    keys = [entry for entry in entries if not entry.marker]
    for entry in keys:
        if entry.key.blob == key.blob and (entry.name == names[0] or not any(each.name == names[0] for each in keys)):
            return "known", entry
    # The host was asked for keys of the known types first. One that shows another does not have the known key.
    named = sorted((entry for entry in keys if entry.name == names[0]), key=lambda entry: entry.key.type != key.type)
    if named:
        return "changed", named[0]
    authorities = [entry for entry in entries if entry.marker == "CA" and entry.name == names[0]]
    return ("authority", authorities[0]) if authorities else ("unknown", None)
