"""The secrets that this process knows, and the client's own masking of what it keeps and shows.

A host masks what leaves it. It may be of another mind, or may have been given other values than the caller has here, so
that everything is masked once more on arrival.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ci_tasks.agent.mask import is_secret_name

MASK = "***"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.I)
# Secrets that are recognized by their form: a login or a query in an address, tokens of GitHub and Hugging Face.
_FORMS = (
    r"(?<=://)[^/\s@]+(?=@)|(?<=\?)[^\s\"'?]*=[^\s\"']*|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bhf_[A-Za-z0-9]{16,}"
    r"|(?<=[Bb]earer )\S+"
)
_LOGIN = r"://[^/\s@]+@"
_added: set[str] = set()


def add(values: Iterable[str]) -> None:
    """Tokens from a file or a program, variables that hosts.yaml or a workflow names."""
    _added.update(value for value in values if value)


def add_variables(names: Iterable[str]) -> None:
    """The variables of our environment that a plan names as secrets."""
    add(os.environ.get(name, "") for name in names)


def values() -> list[str]:
    """Those that were added, and those of variables whose names say so."""
    return sorted({*_added, *secret_variables().values()})


def may_be_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None or is_secret_name(name)


def is_private(name: str, value: str) -> bool:
    """Whether a variable may be a secret, by its name or by its value."""
    is_hidden = MASK in value or "<secret " in value or masked(value) != value
    return may_be_secret(name) or is_hidden or re.search(_LOGIN, value) is not None


def secret_variables() -> dict[str, str]:
    """Variables whose names say that they are secrets, but for paths of files that hold one."""
    variables = os.environ.copy().items()
    return {name: value for name, value in variables if value and value[0] != "/" and _SECRET_NAME.search(name)}


def masked(text: str) -> str:
    known = values()
    if not known:
        return text
    from ci_tasks.agent.mask import mask_text

    return mask_text(known, text)


def masked_with_forms(text: str) -> str:
    """`text` without known secrets, and without what has the form of one."""
    return re.sub(_FORMS, MASK, masked(text))
