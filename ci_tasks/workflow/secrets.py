"""Secrets as names. Evaluated text holds a mark where a value would stand; the value joins it only when bash runs.

A mark uses control characters that YAML forbids in a file, so that ordinary text never turns into one. Who writes them
as escapes has named a secret, which `${{ secrets.NAME }}` does as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARK = re.compile("\x02([A-Za-z_][A-Za-z0-9_]*)\x03")


def mark(name: str) -> str:
    """What stands in evaluated text for the value of secret `name`."""
    return f"\x02{name}\x03"


def marks(names: Iterable[str]) -> dict[str, str]:
    """The `secrets` context for the given names; a name that is not among them is null, as an unset secret is."""
    return {name: mark(name) for name in names}


def names(text: str) -> list[str]:
    """The secrets that `text` needs, in order of appearance."""
    return list(dict.fromkeys(_MARK.findall(text)))


def shown(text: str) -> str:
    """`text` for a person: each secret by its name."""
    return _MARK.sub(lambda match: f"<secret {match[1]}>", text)


def split(text: str) -> list[tuple[str, str | None]]:
    """`text` as (literal, secret that follows it or None) pairs."""
    pieces = _MARK.split(text)
    follow: list[str | None] = [*pieces[1::2], None]
    return list(zip(pieces[0::2], follow, strict=True))
