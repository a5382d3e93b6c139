"""A failure's stable identity: equal for two runs of one failure, different for two failures.

It has the exception's type, the message without what varies (numbers, addresses, ids, the volatile parts of paths),
and the innermost calls of the code under test.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_HOST = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\[?(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\]?(?::\d+)?")
_PATH = re.compile(r"(?:/[\w.@+~=-]+){2,}/?")
_HEX = re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b")
_NUMBER = re.compile(r"(?<![A-Za-z_\d])[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
_UNIT = re.compile(r"(?<=#)(?: ?[KMGTP]i?B| bytes| B)\b")
_NAME = re.compile(
    r"\braysubmit_\w+|\bsession_\d[\w-]*"
    r"|\b(?=\w*\d)(?:tmp|session|job|task|actor|worker|node|pid|rank|port|core)[-_]?\w+",
    re.I,
)
_COUNTED = re.compile(
    r"(?i:(rank|gpu|step|iter|iteration|epoch|rollout|request|req|sample|batch|shard|attempt)[-_]?)\d+"
    r"|(?<![A-Za-z])([TDPEC]P)\d+(?![A-Za-z\d])|(?<=_)\d{5,}"
)
_QUOTED = r"""(?:'[^'{}]*'|"[^"{}]*")"""
_SET = re.compile(rf"\{{{_QUOTED}(?:, {_QUOTED})+\}}")
_SPACE = re.compile(r"\s+")
_THIRD_PARTY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen|<string>|<stdin>|importlib|/ray/_private|\.pyenv/"
)
_FRAMES = 3
_SHOWN = 80


def stable(message: str) -> str:
    """A message without what differs from run to run."""
    text = _UUID.sub("<id>", message)
    text = _HOST.sub("<host>", text)
    text = _ADDRESS.sub("<address>", text)
    text = _PATH.sub(_last_parts, text)
    text = _NAME.sub("<name>", text)
    text = _COUNTED.sub(lambda match: f"{match[1] or match[2] or ''}#", text)
    text = _HEX.sub("<id>", text)
    text = _NUMBER.sub("#", text)
    text = _UNIT.sub(" B", text)
    text = _SET.sub(_in_order, text)
    return _SPACE.sub(" ", text).strip()


def _in_order(match: re.Match[str]) -> str:
    """A set of strings, which Python prints in another order in each process."""
    return "{" + ", ".join(sorted(re.findall(_QUOTED, match[0]))) + "}"


def _last_parts(match: re.Match[str]) -> str:
    """The file's own name; the directories before it are another's on another machine."""
    name = match[0].rstrip("/").rsplit("/", 1)[-1]
    return "…/" + (name if re.search(r"\.[A-Za-z]\w*$", name) else "<path>")


def of_code(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost calls of the code under test as `file:function`, outermost first; where all are of packages, the
    innermost."""
    own = [frame for frame in frames if not _THIRD_PARTY.search(frame)] or list(frames)[-1:]
    return tuple(_short(frame) for frame in own[-_FRAMES:])


def _short(frame: str) -> str:
    path, _, function = frame.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}:{function}"


def sign(name: str, message: str, frames: Sequence[str]) -> str:
    """`name` is the exception's type, or the rule's. A few words for people, and a hash of all."""
    normalized = stable(message)
    calls = of_code(frames)
    digest = hashlib.sha256("\0".join((name, normalized, *calls)).encode("utf-8", "replace")).hexdigest()[:8]
    shown = f"{name}: {normalized}" if normalized else name
    return f"{shown[:_SHOWN]}#{digest}"
