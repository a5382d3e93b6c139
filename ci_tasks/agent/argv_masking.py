"""Hides the secrets in an argv that is shown or recorded. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Compiled at their first use: few commands show an argv.
_SECRET_NAME = r"(?i)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$"
_ASSIGNMENT = r"(?s)(?P<head>(?:-[A-Za-z]*?e=?|--[a-z-]+=)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)(?P<value>.+)"
MASK = "***"


def is_secret_name(name: str) -> bool:
    """Whether a variable's value is nobody's business, by its name."""
    return re.search(_SECRET_NAME, name) is not None


def masked(argv: Sequence[str]) -> list[str]:
    """The words with secrets hidden, fit to be shown: the value of `-e HF_TOKEN=…`, a password of `docker login`."""
    shown: list[str] = []
    for at, word in enumerate(argv):
        if at and "login" in argv[:at] and argv[at - 1] in ("-p", "--password"):
            word = MASK
        elif "login" in argv[:at] and word.startswith("--password="):
            word = "--password=" + MASK
        assignment = re.match(_ASSIGNMENT, word)
        shown.append(assignment["head"] + MASK if assignment and is_secret_name(assignment["name"]) else word)
    return shown
