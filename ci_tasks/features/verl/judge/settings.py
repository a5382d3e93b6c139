"""verl's settings: those that it prints when it starts, and what a training asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.levels.levels import SETTINGS, WRAPPER, Training

_MOST_LINES, _MOST_CHARS = 20_000, 2_000_000  # verl prints about 1,000 lines
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INFINITE = re.compile(r"(?<=: )(-?)(?:inf|nan)(?=[,}\]])")
_ROOT_KEY = "actor_rollout_ref"
_OVERRIDE = re.compile(r"^[+]{0,2}([A-Za-z_][\w]*(?:\.[\w-]+)+)=(.*)$", re.DOTALL)
_NULL = ("null", "none", "~", "")
_CONTINUED = re.compile(r" +(?:['\"{}\[\]()\d-]|True\b|False\b|None\b|inf\b|nan\b).*[,}\])'\"]$")
_LIST_SIGNS = re.compile(r"[\s'\"\[\](){}]")
_ACTOR = "actor_rollout_ref.actor.megatron."
_OTHER_ROLES = {"REF": "actor_rollout_ref.ref.megatron.", "CRITIC": "critic.megatron."}


class _Missing:
    def __repr__(self) -> str:
        return "not in the settings"


MISSING: Final = _Missing()


@dataclass(frozen=True)
class Settings:
    """The resolved settings, nested or by dotted names; `place` is where they were seen. Empty where they were not."""

    values: Mapping[str, Any] = field(default_factory=dict)
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

    def flat(self) -> dict[str, Any]:
        return _flat(self.values)


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return flat


@dataclass(frozen=True)
class AskedSetting:
    """`value` in the words of a shell or of Hydra; `by` is the variable or the override that asks for it."""

    value: str
    by: str


def asked_settings(training: Training) -> dict[str, AskedSetting]:
    """Each setting that the training's variables and overrides ask for, by its dotted name. verl's wrapper passes what
    it is given for the actor on to the reference model and the critic, where those have no variable of their own. Hydra
    takes the last value that it is given."""
    found: dict[str, AskedSetting] = {}
    is_wrapper = training.level != 4 or training.script == WRAPPER
    for name, dotted in SETTINGS.items():
        if name not in training.env:
            continue
        found[dotted] = AskedSetting(training.env[name], name)
        passed_on = is_wrapper and dotted.startswith(_ACTOR) and "router_replay" not in dotted
        for role, prefix in _OTHER_ROLES.items() if passed_on else ():
            own = f"{role}_{name.partition('_')[2]}" in training.env or ("VANILLA" in name and role == "CRITIC")
            if not own:
                found[prefix + dotted.removeprefix(_ACTOR)] = found[dotted]
    for override in training.overrides:
        pair = parse_override(override)
        if pair and "$" not in pair[1]:
            found[pair[0]] = AskedSetting(pair[1], override)
    return found


def parse_override(text: str) -> tuple[str, str] | None:
    """(setting, value) of an override of Hydra's such as `++a.b=c`; None for what sets no single value by its path."""
    match = _OVERRIDE.match(text)
    return (match[1], match[2]) if match and not match[1].startswith("hydra.") else None


def equals_asked(asked: str, resolved: Any) -> bool:
    """Whether a setting has the value that was asked for in the words of a shell or of Hydra."""
    text = asked.strip().strip("'\"")
    if resolved is MISSING:
        return False
    if resolved is None:
        return text.lower() in _NULL
    if isinstance(resolved, bool):
        return text.lower() == str(resolved).lower()
    if isinstance(resolved, list | tuple | dict):
        return _LIST_SIGNS.sub("", text) == _LIST_SIGNS.sub("", str(resolved))
    other = str(resolved).strip("'\"")
    try:
        return text == other or float(text) == float(other)
    except ValueError:
        return text.lower() == other.lower() and text.lower() in ("true", "false", *_NULL)


class PrintedSettings:
    """A nested dict that pprint prints over many lines, while others write between them, its own process too: a warning
    is no line of a dict."""

    BEGIN = re.compile(r"^\{'\w+':")

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
