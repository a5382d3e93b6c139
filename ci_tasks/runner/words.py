"""How a container call is told: the words of a deviation, and an argv with its secrets hidden. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Dict

Deviation = Dict[str, str]

_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(?P<head>(?:-[A-Za-z]*?e=?|--[a-z-]+=)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)(?P<value>.+)", re.DOTALL
)
MASK = "***"


def deviation(what: str, ci: str, here: str, why: str) -> Deviation:
    return {"what": what, "ci": ci, "here": here, "why": why}


def is_secret_name(name: str) -> bool:
    """Whether a variable's value is nobody's business, by its name."""
    return _SECRET_NAME.search(name) is not None


def masked(words: Sequence[str]) -> list[str]:
    """The words with secrets hidden, fit to be shown: the value of `-e HF_TOKEN=…`, a password of `docker login`."""
    shown: list[str] = []
    for at, word in enumerate(words):
        if at and "login" in words[:at] and words[at - 1] in ("-p", "--password"):
            word = MASK
        elif "login" in words[:at] and word.startswith("--password="):
            word = "--password=" + MASK
        found = _ASSIGNMENT.match(word)
        shown.append(found["head"] + MASK if found and _SECRET_NAME.search(found["name"]) else word)
    return shown
