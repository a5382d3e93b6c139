"""verl's settings as its log shows them: the resolved ones that it prints when it starts, or, with less trust, those of
the command that `set -x` shows."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from ci_tasks.agent.quick_dataclass import dataclass

_MOST_LINES, _MOST_CHARS = 20_000, 2_000_000  # verl prints about 1,000 lines
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INFINITE = re.compile(r"(?<=: )(-?)(?:inf|nan)(?=[,}\]])")
_ROOT_KEY = "actor_rollout_ref"
_WORD = re.compile(r"^[+]{0,2}([A-Za-z_][\w]*(?:\.[\w-]+)+)=(.*)$", re.DOTALL)
_NULL = ("null", "none", "~", "")
_BOOLEAN = ("true", "false")
_CONTINUED = re.compile(r" +(?:['\"{}\[\]()\d-]|True\b|False\b|None\b|inf\b|nan\b).*[,}\])'\"]$")
_LIST_SIGNS = re.compile(r"[\s'\"\[\](){}]")


class _Missing:
    def __repr__(self) -> str:
        return "not in the settings"


MISSING: Final = _Missing()


@dataclass(frozen=True)
class Settings:
    """`resolved` is False for those of the command: what was asked, not what became of it. `place` is where they were
    seen."""

    values: Mapping[str, Any] = field(default_factory=dict)
    resolved: bool = False
    place: str = ""

    def __bool__(self) -> bool:
        return bool(self.values)

    def get(self, dotted: str) -> Any:
        """The value at `a.b.c`, MISSING where there is none."""
        if dotted in self.values:
            return self.values[dotted]
        value: Any = self.values
        for name in dotted.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return MISSING
            value = value[name]
        return value


def equals_requested(requested: str, resolved: Any) -> bool:
    """Whether a setting has the value that was asked for in the words of a shell or of Hydra."""
    text = requested.strip().strip("'\"")
    if resolved is MISSING:
        return False
    if resolved is None:
        return text.lower() in _NULL
    if isinstance(resolved, str):
        other = resolved.strip("'\"")
        return text == other or (text.lower() == other.lower() and text.lower() in (*_BOOLEAN, *_NULL))
    if isinstance(resolved, bool):
        return text.lower() == str(resolved).lower()
    if isinstance(resolved, list | tuple | dict):
        return _LIST_SIGNS.sub("", text) == _LIST_SIGNS.sub("", str(resolved))
    try:
        return float(text) == float(resolved)
    except (TypeError, ValueError):
        return text == str(resolved)


def parse_override(text: str) -> tuple[str, str] | None:
    """(setting, value) of an override of Hydra's such as `++a.b=c`; None for what sets no single value by its path."""
    match = _WORD.match(text)
    return (match[1], match[2]) if match and not match[1].startswith("hydra.") else None


def overrides_of_trace(trace: str) -> dict[str, Any]:
    """The overrides in a line that `set -x` prints. Empty where it has none, or no shell would read it."""
    try:
        argv = shlex.split(trace)
    except ValueError:
        return {}
    return dict(pair for pair in map(parse_override, argv) if pair)


class PrintedSettings:
    """A nested dict that pprint prints over many lines, while others write between them, its own process too: a warning
    is no line of a dict."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._lines: list[str] = []
        self._depth = self._size = 0
        self.open = True

    def feed(self, origin: str, text: str) -> bool:
        """Whether the line is a part of it; afterwards `open` says whether more has to come."""
        if origin != self._origin or (self._lines and not _CONTINUED.match(text)):
            return False
        self._lines.append(text)
        self._size += len(text)
        bare = _STRING.sub("", text)
        self._depth += sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))
        self.open = self._depth > 0 and len(self._lines) < _MOST_LINES and self._size < _MOST_CHARS
        return True

    def value(self) -> Mapping[str, Any] | None:
        """The dict; None where it is not verl's settings, or not whole."""
        if self._depth != 0:
            return None
        text = _INFINITE.sub(lambda match: f"{match[1]}1e999", "\n".join(self._lines))
        try:
            settings = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return settings if isinstance(settings, dict) and _ROOT_KEY in settings else None
