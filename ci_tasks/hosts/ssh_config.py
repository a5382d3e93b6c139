"""What ~/.ssh/config says about an address: by paramiko's parser, with what it lacks (Include, chained jumps)."""

from __future__ import annotations

import getpass
import glob
import io
import os
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from ci_tasks.errors import ConfigError, UsageError

FILE_VARIABLE = "CI_TASKS_SSH_CONFIG"
USER_FILE = "~/.ssh/config"
SYSTEM_FILE = "/etc/ssh/ssh_config"
DEFAULT_TIMEOUT = 15.0
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_DEEPEST = 8  # jump hosts that jump, and files that include files
# What OpenSSH refuses too: it would reach a shell by way of ProxyCommand or Match exec.
_DANGEROUS = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}\[\]]|^-")
_SETTING = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


@dataclass(frozen=True)
class Address:
    """`user@host:port`, as far as somebody wrote it."""

    host: str
    user: str = ""
    port: int = 0


@dataclass(frozen=True)
class Target:
    """One server to connect to, and by which ways."""

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
    jumps: tuple[Target, ...] = field(default=(), repr=False)

    @property
    def words(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        full = f"{self.user}@{host}:{self.port}"
        return full if self.alias == self.host else f"{self.alias} ({full})"


def parse_address(text: str) -> Address:
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
        return Address(host, user)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"{text!r}: {port!r} is not a port", hint="a number from 1 to 65535")
    return Address(host, user, int(port))


def resolve(address: str) -> Target:
    """Raises UsageError, ConfigError."""
    return Reader().target(parse_address(address.strip()))


class Reader:
    """The files, read once for a target and all its jump hosts."""

    def __init__(self) -> None:
        named = os.environ.get(FILE_VARIABLE)
        self._named = named or USER_FILE
        if named and not os.path.isfile(os.path.expanduser(named)):
            raise ConfigError(f"there is no such file, which {FILE_VARIABLE} names", file=named)
        user = "\n".join(_lines(os.path.expanduser(self._named), "~/.ssh"))
        system = "" if named else "\n".join(_lines(SYSTEM_FILE, "/etc/ssh"))
        self._texts = (user, system)

    def target(self, address: Address, *, jumps: bool = True, depth: int = 0) -> Target:
        if depth > _DEEPEST:
            raise ConfigError("ProxyJump goes round in circles", file=self._named)
        said = self._lookup(address)
        target = self._target(address, said)
        way = next((key for key in said if key in ("proxyjump", "proxycommand")), "") if jumps else ""
        if way == "proxycommand" and said[way]:
            return replace(target, proxy_command=said[way].replace("%%", "%"))
        if way == "proxyjump" and said[way].lower() != "none":
            return replace(target, jumps=self._jumps(target, said[way], depth))
        return target

    def _jumps(self, target: Target, words: str, depth: int) -> tuple[Target, ...]:
        """In the order in which they are visited. The first may have jumps of its own, as with OpenSSH."""
        hops: list[Target] = []
        for number, word in enumerate(words.split(",")):
            address = parse_address(word.strip().removeprefix("ssh://").rstrip("/"))
            hop = self.target(address, jumps=number == 0, depth=depth + 1) if address.host != target.alias else target
            if (hop.host, hop.port, hop.user) == (target.host, target.port, target.user):
                return ()  # `Host *` with a ProxyJump means the jump host as well, which is not reached through itself
            hops += [*hop.jumps, replace(hop, jumps=())]
        return tuple(hops)

    def _lookup(self, address: Address) -> dict[str, Any]:
        from paramiko.config import SSHConfig
        from paramiko.ssh_exception import SSHException

        # What the address itself says comes first, since the first word on a matter counts.
        own = "".join(f"{key} {value}\n" for key, value in (("User", address.user), ("Port", address.port)) if value)
        texts = (own, *self._texts)
        config = _parser(SSHConfig, "".join(texts))
        try:
            for text in texts:
                config.parse(io.StringIO(text))
            return dict(config.lookup(address.host))
        except (SSHException, ValueError, KeyError) as error:
            words = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"not understood: {words}", file=self._named) from error

    def _target(self, address: Address, said: dict[str, Any]) -> Target:
        host = said["hostname"]
        user = said.get("user") or getpass.getuser()
        tokens = {"%d": os.path.expanduser("~"), "%h": host, "%u": getpass.getuser(), "%r": user, "%%": "%"}
        known = said.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
        known_to_all = said.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
        return Target(
            alias=address.host,
            host=host,
            port=self._port(said.get("port", "22")),
            user=user,
            config_file=self._named,
            connect_timeout=self._seconds(said.get("connecttimeout", "none")),
            family=said.get("addressfamily", "any").lower(),
            identities=_identities(said.get("identityfile")),
            identities_only=said.get("identitiesonly", "no").lower() == "yes",
            agent=_agent(said.get("identityagent", "SSH_AUTH_SOCK"), tokens),
            user_known_hosts=_files(known, tokens),
            global_known_hosts=_files(known_to_all, tokens),
            host_key_alias=said.get("hostkeyalias", ""),
        )

    def _port(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
            raise ConfigError(f"Port {text!r} is not a number from 1 to 65535", file=self._named)
        return int(text)

    def _seconds(self, text: str) -> float:
        if text.lower() in ("none", "0"):
            return DEFAULT_TIMEOUT
        match = re.fullmatch(r"(\d+)([smh]?)", text.lower())
        if match is None:
            raise ConfigError(f"ConnectTimeout {text!r} is not a time", file=self._named)
        return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _parser(base: Any, text: str) -> Any:
    """paramiko asks the name server for this machine's full name for every lookup, needed or not; not so here."""
    tokens = {
        key: [*words, *(["%n"] if key == "proxycommand" else [])] for key, words in base.TOKENS_BY_CONFIG_KEY.items()
    }
    needed = {key: [word for word in words if word in text] for key, words in tokens.items()}
    return type("Parser", (base,), {"TOKENS_BY_CONFIG_KEY": needed})()


def _lines(path: str, base: str, depth: int = 0) -> list[str]:
    """The lines of a file, with those of the files that it includes in their places."""
    if depth > _DEEPEST:
        raise ConfigError("Include goes round in circles", file=path)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as source:
            text = source.read()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from error
    out: list[str] = []
    block = "Host *"
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        setting = _SETTING.match(bare)
        if not bare or bare.startswith("#"):
            continue
        if setting is None:
            raise ConfigError(f"not understood: {bare}", file=path, line=number)
        if setting[1].lower() != "include":
            block = bare if setting[1].lower() in ("host", "match") else block
            out.append(bare)
            continue
        included = [line for file in _included(setting[2], base) for line in _lines(file, base, depth + 1)]
        if block != "Host *" and any(line.split()[0].lower() in ("host", "match") for line in included):
            raise ConfigError(
                f"Include within {block!r} of a file that has Host or Match itself is not supported",
                file=path,
                line=number,
                hint="move the Include to the top of the file",
            )
        out += [*included, block]
    return out


def _included(words: str, base: str) -> list[str]:
    try:
        patterns = shlex.split(words)
    except ValueError:
        patterns = [words]
    places = (os.path.join(os.path.expanduser(base), os.path.expanduser(pattern)) for pattern in patterns)
    return [path for place in places for path in sorted(glob.glob(place))]


def _identities(named: list[str] | None) -> tuple[str, ...]:
    if named is None:
        named = [f"~/.ssh/{name}" for name in _DEFAULT_KEYS]
    return tuple(os.path.expanduser(path) for path in named if path.lower() != "none")


def _agent(named: str, tokens: dict[str, str]) -> str:
    if named.lower() == "none":
        return ""
    if named == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if named.startswith("$"):
        return os.environ.get(named[1:].strip("{}"), "")
    return _expanded(named, tokens)


def _files(words: str, tokens: dict[str, str]) -> tuple[str, ...]:
    whole = _expanded(words, tokens)
    if os.path.exists(whole):
        return (whole,)  # its name has spaces; paramiko took the quotes away
    try:
        named = shlex.split(words)
    except ValueError:
        named = words.split()
    return tuple(_expanded(name, tokens) for name in named if name.lower() != "none")


def _expanded(path: str, tokens: dict[str, str]) -> str:
    return os.path.expanduser(re.sub("%.", lambda match: tokens.get(match[0], match[0]), path))
