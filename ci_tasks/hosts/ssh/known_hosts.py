"""known_hosts files as OpenSSH reads them: patterns, hashed names, ports, revoked keys; each entry with file and line.

paramiko's own reader takes neither patterns nor @revoked, and its errors cannot say which line was meant.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from ci_tasks.agent.quick_dataclass import dataclass

DEFAULT_PORT = 22


@dataclass(frozen=True)
class HostKey:
    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def line(self, name: str) -> str:
        """The line of known_hosts that makes it known."""
        return f"{name} {self.type} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True)
class KnownHostEntry:
    file: str
    line: int
    marker: str
    names: str
    key: HostKey

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def matches(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        matched = False
        for pattern in self.names.split(","):
            if _pattern_matches(pattern.removeprefix("!"), name):
                if pattern.startswith("!"):
                    return False
                matched = True
        return matched


@dataclass(frozen=True)
class KnownHostsLookup:
    """`word`: known, unknown, changed, revoked or authority; `entry`: the line that says so."""

    verdict: str
    entry: KnownHostEntry | None = None


def known_hosts_name(host: str, port: int) -> str:
    """What a host is called in known_hosts."""
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


def read(files: Iterable[str]) -> list[KnownHostEntry]:
    """Every entry of the files that exist. Raises OSError for one that may not be read."""
    entries: list[KnownHostEntry] = []
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                entries += parse(file, lines)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return entries


def parse(file: str, lines: Iterable[str]) -> list[KnownHostEntry]:
    """Lines that OpenSSH would pass over, such as comments and damaged ones, are passed over."""
    return [entry for number, line in enumerate(lines, 1) if (entry := _entry(file, number, line)) is not None]


def _entry(file: str, number: int, line: str) -> KnownHostEntry | None:
    fields = line.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < 3 or fields[0].startswith("#"):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return KnownHostEntry(file, number, marker, fields[0], HostKey(fields[1], blob))


def known_types(entries: Sequence[KnownHostEntry], names: Sequence[str]) -> list[str]:
    """The types of the keys that we know the host by, so that it is asked for one of them."""
    keys = (entry for entry in entries if not entry.marker and any(entry.matches(name) for name in names))
    return list(dict.fromkeys(entry.key.type for entry in keys))


def check_host_key(entries: Sequence[KnownHostEntry], names: Sequence[str], key: HostKey) -> KnownHostsLookup:
    """What known_hosts says about `key`; `names`: the host's own name first, then others that will do as well."""
    for entry in entries:
        # A revoked key is refused wherever it is met under one of its names, before anything that would allow it.
        if entry.marker == "@revoked" and entry.key.blob == key.blob and any(entry.matches(name) for name in names):
            return KnownHostsLookup("revoked", entry)
    for name in names:
        named = [entry for entry in entries if not entry.marker and entry.matches(name)]
        for entry in named:
            if entry.key.blob == key.blob:
                return KnownHostsLookup("known", entry)
        if named and name == names[0]:
            # The host was asked for keys of the known types first. One that shows another does not have the known key.
            same_type = [entry for entry in named if entry.key.type == key.type]
            return KnownHostsLookup("changed", (same_type or named)[0])
    for entry in entries:
        if entry.marker == "@cert-authority" and entry.matches(names[0]):
            return KnownHostsLookup("authority", entry)
    return KnownHostsLookup("unknown")


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _pattern_matches(pattern: str, name: str) -> bool:
    # Not fnmatch: to OpenSSH the brackets of [host]:port are only brackets.
    wild = "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in pattern.lower())
    return re.fullmatch(wild, name, re.DOTALL) is not None
