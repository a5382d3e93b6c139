"""verl's settings by dotted name: those that it prints when it starts, and those that a training asks for. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from ci_tasks.features.verl.levels.levels import SETTINGS, WRAPPER, Training

MISSING: Final = object()  # the value of a setting that was not seen
_MOST_CHARS = 2_000_000  # verl prints about 1,000 lines
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INFINITE = re.compile(r"(?<=: )(-?)(?:inf|nan)(?=[,}\]])")
_CONTINUED = re.compile(r" +(?:['\"{}\[\]()\d-]|True\b|False\b|None\b|inf\b|nan\b).*[,}\])'\"]$")
_OVERRIDE = re.compile(r"^[+]{0,2}((?!hydra\.)[A-Za-z_]\w*(?:\.[\w-]+)+)=([^$]*)$")
_LIST_SIGNS = re.compile(r"[\s'\"\[\](){}]")
_NULL = ("null", "none", "~", "")
_ACTOR = "actor_rollout_ref.actor.megatron."
_OTHER_ROLES = {"REF": "actor_rollout_ref.ref.megatron.", "CRITIC": "critic.megatron."}
# What makes another training no baseline. Its other settings may be the change itself.
_OF_A_BASELINE = re.compile(
    r"(actor_rollout_ref|critic)\.model\.path|.*seed|data\.(train_files|val_files|train_batch_size|max_\w+_length)"
    r"|actor_rollout_ref\.(actor\.ppo_(mini|micro)_batch_size\w*|rollout\.(n|response_length))|reward\..*model_path"
)


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return found


def asked_settings(training: Training) -> dict[str, str]:
    """Each setting that the training's variables and overrides ask for, in the words of a shell or of Hydra. verl's
    wrapper passes what it is given for the actor on to the reference model and the critic, if those have no variable of
    their own. Hydra takes the last value that it is given."""
    found: dict[str, str] = {}
    for name, dotted in SETTINGS.items():
        if name not in training.env:
            continue
        found[dotted] = training.env[name]
        is_wrapper = training.level != 4 or training.script == WRAPPER
        passed_on = is_wrapper and dotted.startswith(_ACTOR) and "router_replay" not in dotted
        for role, prefix in _OTHER_ROLES.items() if passed_on else ():
            own = f"{role}_{name.partition('_')[2]}" in training.env or ("VANILLA" in name and role == "CRITIC")
            if not own:
                found[prefix + dotted.removeprefix(_ACTOR)] = found[dotted]
    pairs = (_OVERRIDE.match(override) for override in training.overrides)
    return {**found, **{pair[1]: pair[2] for pair in pairs if pair}}


def equals_asked(asked: str, resolved: Any) -> bool:
    """Whether a setting has the value that was asked for in the words of a shell or of Hydra."""
    text = asked.strip().strip("'\"")
    if resolved is MISSING:
        return False
    if resolved is None:
        return text.lower() in _NULL
    if isinstance(resolved, list | tuple | dict):
        return _LIST_SIGNS.sub("", text) == _LIST_SIGNS.sub("", str(resolved))
    other = str(resolved).strip("'\"")
    try:
        return text == other or float(text) == float(other)
    except ValueError:
        return text.lower() == other.lower() and text.lower() in ("true", "false", *_NULL)


def value_text(value: Any) -> str:
    return "not in the settings" if value is MISSING else "null" if value is None else str(value)


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What of model, data, batch, response length and seed another training has otherwise, each as a line. Of a path
    its last two parts count."""

    def short(settings: Mapping[str, Any], name: str) -> str:
        return re.sub(r"[^'\",\[]*/([^/'\",]+/[^/'\",]+)", r"\1", value_text(settings.get(name, MISSING)))

    names = sorted(name for name in {*ours, *theirs} if _OF_A_BASELINE.fullmatch(name))
    pairs = {name: (short(theirs, name), short(ours, name)) for name in names}
    return [f"{name}: baseline {other}, here {own}" for name, (other, own) in pairs.items() if other != own]


class PrintedSettings:
    """A nested dict that pprint prints over many lines, while others write between them, its own process too: a warning
    is no line of a dict."""

    BEGIN = re.compile(r"^\{'\w+':")

    def __init__(self, origin: str, line_no: int) -> None:
        self._origin, self.line_no = origin, line_no
        self._lines: list[str] = []
        self._depth, self._left, self.open = 0, _MOST_CHARS, True

    def feed(self, origin: str, text: str) -> bool:
        """Whether the line is a part of it; afterwards `open` says whether more has to come."""
        if origin != self._origin or (self._lines and not _CONTINUED.match(text)):
            return False
        self._lines.append(text)
        bare = _STRING.sub("", text)
        self._left -= len(text)
        self._depth += sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))
        self.open = self._depth > 0 and self._left > 0
        return True

    def value(self) -> dict[str, Any]:
        """The settings by dotted name; empty if it is another dict, or not whole."""
        text = _INFINITE.sub(lambda match: f"{match[1]}1e999", "\n".join(self._lines))
        try:
            settings = ast.literal_eval(text) if self._depth == 0 else {}
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
        return flat(settings) if isinstance(settings, dict) and "actor_rollout_ref" in settings else {}
