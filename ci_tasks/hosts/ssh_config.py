"""What OpenSSH's own client knows of an address: settings, as `ssh -G` prints them, and host keys, as `ssh-keygen -F`
finds them in the known_hosts files: by patterns, hashed names and ports.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, ConfigError, UsageError

FILE_VARIABLE = "CI_TASKS_SSH_CONFIG"
USER_FILE = "~/.ssh/config"
DEFAULT_PORT = 22
DEFAULT_TIMEOUT = 15.0
_MAX_JUMP_DEPTH = 8  # jump hosts with jump hosts of their own
# Without what OpenSSH refuses too: it would reach a shell by way of ProxyCommand or Match exec.
_HARMLESS = r"[^\s\x00-\x1f\x7f'\"`$\\;&<>|(){}\[\]"
_ADDRESS = re.compile(
    rf"(?:(?P<user>(?!-){_HARMLESS}]+)@)?"
    rf"(?P<host>(?!-){_HARMLESS}:@]+|(?!-){_HARMLESS}@]*:{_HARMLESS}@]*:{_HARMLESS}@]*|\[{_HARMLESS}@]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_FOUND = re.compile(r"# Host .* found: line (\d+) ?(CA|REVOKED)?")


@dataclass(frozen=True)
class SSHTarget:
    """One server to connect to. `jumps` are its jump hosts, flat, in the order of connection; of each of these `goal`
    is the label of the server behind them. `gateway` connects to it."""

    alias: str
    host: str
    port: int
    user: str
    connect_timeout: float = DEFAULT_TIMEOUT
    identities: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    proxy_command: str = ""
    jumps: tuple[SSHTarget, ...] = field(default=(), repr=False)
    gateway: str = ""
    goal: str = ""

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        full = f"{self.user}@{host}:{self.port}"
        return full if self.alias == self.host else f"{self.alias} ({full})"

    @property
    def description(self) -> str:
        return f"gateway {self.label}, on the way to {self.goal}" if self.goal else self.label

    @property
    def names(self) -> list[str]:
        """What it is called in known_hosts. Like OpenSSH, a key that is known for the host on its usual port will do on
        another."""
        if self.host_key_alias:
            return [self.host_key_alias.lower()]
        host = self.host.lower()
        return [host] if self.port == DEFAULT_PORT else [f"[{host}]:{self.port}", host]


def config_file() -> str:
    return os.environ.get(FILE_VARIABLE) or USER_FILE


def parse_address(text: str) -> tuple[str, str, int]:
    """(host, user, port) of `user@host:port`; "" and 0 for what was not given. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"] or DEFAULT_PORT) < 1 << 16:
        hint = "an alias of ~/.ssh/config, host, user@host, host:port or [IPv6]:port; ports are 1 to 65535"
        raise UsageError(f"{text!r} is not an address", hint=hint)
    return found["host"].strip("[]"), found["user"] or "", int(found["port"] or 0)


def ssh_words(address: str, *options: str) -> list[str]:
    """The command line of OpenSSH's client for an address. Raises UsageError, ConfigError."""
    host, user, port = parse_address(address)
    file = os.path.expanduser(os.environ.get(FILE_VARIABLE, ""))
    if file and not os.path.isfile(file):
        raise ConfigError(f"{FILE_VARIABLE} names this file, which does not exist", file=file)
    given = [("-F", file), ("-l", user), ("-p", str(port or ""))]
    return ["ssh", *options, *(word for pair in given if pair[1] for word in pair), host]


def resolve(address: str, depth: int = 0, *, is_first: bool = True) -> SSHTarget:
    """The server that `address` means to ssh. Of several jump hosts only the first may have jump hosts of its own, as
    with OpenSSH. Raises UsageError, ConfigError, Blocked."""
    target, settings = _settings(address.strip())
    if depth > _MAX_JUMP_DEPTH:
        raise ConfigError("ProxyJump forms a loop", file=config_file())
    command, names = settings.get("proxycommand", "none"), settings.get("proxyjump", "none")
    hops: list[SSHTarget] = []
    for number, name in enumerate(names.split(",") if is_first and names.lower() != "none" else ()):
        jump = name.strip().removeprefix("ssh://").rstrip("/")
        is_itself = parse_address(jump)[0] == target.alias
        hop = target if is_itself else resolve(jump, depth + 1, is_first=number == 0)
        if (hop.host, hop.port, hop.user) == (target.host, target.port, target.user):
            return target  # `Host *` with a ProxyJump matches the jump host too, which is not reached through itself
        hops += [*hop.jumps, replace(hop, jumps=())]
    gateways = ["", *(hop.label for hop in hops)]
    jumps = [replace(hop, gateway=before, goal=target.label) for hop, before in zip(hops, gateways, strict=False)]
    uses_command = is_first and not hops and command.lower() != "none"
    command = _expand(command, target) if uses_command else ""
    return replace(target, jumps=tuple(jumps), gateway=gateways[-1], proxy_command=command)


def _settings(address: str) -> tuple[SSHTarget, dict[str, str]]:
    """The server without the way to it, and what `ssh -G` prints, the last line of each setting."""
    done = _run(ssh_words(address, "-T", "-G"))
    if "jumphost loop" in done.stderr:
        done = _run(ssh_words(address, "-T", "-G", "-o", "ProxyJump=none"))
    if done.returncode:
        raise ConfigError(f"ssh -G {address}: {done.stderr.strip()}", file=config_file())
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    settings, alias = dict(lines), parse_address(address)[0]
    timeout, agent = settings.get("connecttimeout", ""), settings.get("identityagent", "SSH_AUTH_SOCK")
    target = SSHTarget(
        alias=alias,
        host=settings.get("hostname", alias),
        port=int(settings.get("port", DEFAULT_PORT)),
        user=settings.get("user") or getpass.getuser(),
        connect_timeout=float(timeout) if timeout.isdigit() and timeout != "0" else DEFAULT_TIMEOUT,
        identities_only=settings.get("identitiesonly") == "yes",
        host_key_alias=settings.get("hostkeyalias", ""),
    )

    def expanded(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(_expand(path, target) for path in paths if path != "none")

    known_hosts = [settings.get(f"{who}knownhostsfile", "") for who in ("user", "global")]
    return replace(
        target,
        identities=expanded(value for key, value in lines if key == "identityfile"),
        # ssh prints them without their quotes: a name with a space ends before what begins another.
        known_hosts=expanded(re.split(r" (?=[/~%$]|none$)", " ".join(filter(None, known_hosts)))),
        agent="".join(expanded(["${SSH_AUTH_SOCK}" if agent == "SSH_AUTH_SOCK" else agent])),
    ), settings


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise Blocked(f"{words[0]} cannot be run: {error.strerror}", hint="install OpenSSH's client") from None


def _expand(text: str, target: SSHTarget) -> str:
    """Tokens, an environment variable and ~ of a setting that `ssh -G` prints as it was written."""
    tokens = {"%d": "~", "%h": target.host, "%n": target.alias, "%p": str(target.port), "%r": target.user}
    tokens |= {"%u": getpass.getuser(), "%i": str(os.getuid()), "%k": target.host_key_alias or target.alias, "%%": "%"}
    expanded = re.sub("%.", lambda match: tokens.get(match[0], match[0]), text)
    variable = re.fullmatch(r"\$\{?(\w+)\}?", expanded)
    return os.environ.get(variable[1], "") if variable else os.path.expanduser(expanded)


# -- known hosts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostKey:
    """A key that a host shows, or that a line of a known_hosts file, `place`, gives to `name`; `marker` is "", CA or
    REVOKED."""

    type: str
    blob: str  # in base64
    place: str = ""
    name: str = ""
    marker: str = ""

    @property
    def shown(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return f"{self.type} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def known_keys(target: SSHTarget) -> list[HostKey]:
    return [key for file in target.known_hosts for name in target.names for key in _known_keys(file, name)]


def _known_keys(file: str, name: str) -> Iterator[HostKey]:
    lines = _run(["ssh-keygen", "-F", name, "-f", file]).stdout.splitlines() if os.path.exists(file) else []
    for head, text in itertools.pairwise(lines):
        found, fields = _FOUND.fullmatch(head.strip()), text.split()
        key = fields[2:4] if found and found[2] else fields[1:3]
        if found and len(key) == 2:
            yield HostKey(key[0], key[1], f"{file}:{found[1]}", name, found[2] or "")


def check_host_key(known: Sequence[HostKey], names: Sequence[str], key: HostKey) -> tuple[str, HostKey | None]:
    """What known_hosts says about `key`: known, unknown, changed or revoked, and the line that says so. A
    certificate authority's line says nothing: paramiko supports no host certificates."""
    for each in known:  # a revoked key is refused before anything that would allow it
        if each.marker == "REVOKED" and each.blob == key.blob:
            return "revoked", each
    keys = [each for each in known if not each.marker]
    # The host was asked for keys of the known types first. One that shows another does not have the known key.
    named = sorted((each for each in keys if each.name == names[0]), key=lambda each: each.type != key.type)
    for each in named or keys:
        if each.blob == key.blob:
            return "known", each
    return ("changed", named[0]) if named else ("unknown", None)
