"""Secrets as names. Evaluated text has a mark in place of a value; bash inserts the value when it runs. Only a
comparison reads the value before: what it says is no text of it.

A mark uses control characters that YAML forbids in a file, so that ordinary text never turns into one. Who writes them
as escapes has named a secret, which `${{ secrets.NAME }}` does as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ci_tasks.workflow.values import OpenObject, Unknown

_MARK = re.compile("\x02([A-Za-z_][A-Za-z0-9_]*)\x03")


def mark(name: str) -> str:
    """The mark in evaluated text for the value of secret `name`."""
    return f"\x02{name}\x03"


def marks(names: Iterable[str]) -> dict[str, str]:
    """The members of the `secrets` context for the given names."""
    return {name: mark(name) for name in names}


class SecretsObject(OpenObject):
    """The `secrets` context. A name that is neither in `set_` nor in `empty` is absent. `read` gives the value of a
    name for a comparison, or None."""

    def __init__(
        self, set_: Iterable[str] = (), empty: Iterable[str] = (), read: Callable[[str], str | None] = lambda name: None
    ) -> None:
        super().__init__("secrets", {**marks(set_), **dict.fromkeys(empty, "")}, absent=True)
        self._read = read

    def compared(self, text: str) -> str | Unknown:
        values = {name: self._read(name) for name in names(text)}
        unread = tuple(f"secrets.{name}" for name, value in values.items() if value is None)
        return Unknown(unread) if unread else _MARK.sub(lambda match: values[match[1]] or "", text)


def names(text: str) -> list[str]:
    """The secrets that `text` needs, in order of appearance."""
    return list(dict.fromkeys(_MARK.findall(text)))


def shown(text: str) -> str:
    return _MARK.sub(lambda match: f"<secret {match[1]}>", text)


def split(text: str) -> list[tuple[str, str | None]]:
    """`text` as (literal, secret that follows it or None) pairs."""
    pieces = _MARK.split(text)
    follow: list[str | None] = [*pieces[1::2], None]
    return list(zip(pieces[0::2], follow, strict=True))
