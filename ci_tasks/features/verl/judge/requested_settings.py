"""What a training asks of verl: what its wrapper makes of the variables, and the overrides. Pure.

The wrapper passes one variable on to several roles (COMMON_TP to actor, ref, critic and, through INFER_TP, to the
rollout), and at each revision to others: its own text is the only list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.resolved_settings import parse_override
from ci_tasks.features.verl.levels.levels import SETTINGS, Training

_ASSIGNED = re.compile(r"^(\s*)(?:export )?([A-Za-z_]\w*)=(.*)$")
_PASSED = re.compile(r"^\s*[+]{0,2}([a-z_]\w*(?:\.[\w-]+)+)=(.*?)\s*\\?$")
_PARAMETER = re.compile(r"\$(?:\{(\w+)(?::?-((?:[^{}]|\{[^{}]*\})*))?\}|(\w+))")
_COMMENT = re.compile(r"\s+#.*$")


@dataclass(frozen=True)
class RequestedSetting:
    """`value` in the words of a shell or of Hydra; `by` are the variables or the override that ask for it."""

    value: str
    by: str


@dataclass(frozen=True)
class _Expansion:
    """The value of a word, None where only a shell knows it, and the variables of the environment that are in it."""

    text: str | None
    names: frozenset[str] = frozenset()


def requested_settings(training: Training, script: str = "") -> dict[str, RequestedSetting]:
    """Each setting that the training's variables and overrides ask for; `script` is its wrapper's text. Hydra takes the
    last value that it is given."""
    found = _of_script(script, training.env)
    passed_on = {name for setting in found.values() for name in setting.by.split(", ")}
    for name, value in training.env.items():
        if name in SETTINGS and name not in passed_on and SETTINGS[name] not in found:
            found[SETTINGS[name]] = RequestedSetting(value, name)
    for override in training.overrides:
        pair = parse_override(override)
        if pair and "$" not in pair[1]:
            found[pair[0]] = RequestedSetting(pair[1], override)
    return found


def _of_script(script: str, env: Mapping[str, str]) -> dict[str, RequestedSetting]:
    shell: dict[str, _Expansion] = {}
    found: dict[str, RequestedSetting] = {}
    for line in script.split("\n"):
        if line.startswith("elif "):  # what follows is for other devices
            break
        if match := _ASSIGNED.match(line):
            value = _expand(_COMMENT.sub("", match[3]), shell, env)
            # What stands indented is set under a condition.
            shell[match[2]] = _Expansion(None, value.names) if match[1] else value
        elif match := _PASSED.match(line):
            value = _expand(match[2], shell, env)
            if value.names and value.text is not None:
                found[match[1]] = RequestedSetting(value.text, ", ".join(sorted(value.names)))
    return found


def _expand(word: str, shell: Mapping[str, _Expansion], env: Mapping[str, str]) -> _Expansion:
    names: set[str] = set()
    known = "$(" not in word and "`" not in word

    def value_of(match: re.Match[str]) -> str:
        nonlocal known
        name = match[1] or match[3]
        if name in shell:
            expansion = shell[name]
        elif name in env:
            expansion = _Expansion(env[name], frozenset((name,)))
        elif match[2] is not None:
            expansion = _expand(match[2], shell, env)
        else:
            expansion = _Expansion(None)
        names.update(expansion.names)
        known = known and expansion.text is not None
        return expansion.text or ""

    text = _PARAMETER.sub(value_of, word)
    known = known and "$" not in text
    return _Expansion(text.strip("\"'") if known else None, frozenset(names))
