"""Who we are for GitHub: a token of the environment, or of the program gh. Its value is never printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from ci_tasks.errors import UsageError
from ci_tasks.forge.address import Address

_PUBLIC = ("GH_TOKEN", "GITHUB_TOKEN")
_ENTERPRISE = ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
_GH_SECONDS = 15.0  # it may ask a keyring, which may ask the person


@dataclass(frozen=True)
class Token:
    """`source` says where it is from, for people."""

    value: str = field(repr=False)
    source: str


def names_for(address: Address) -> tuple[str, ...]:
    """The variables that hold a token for the host of `address`. No host gets a token that is meant for another."""
    return _PUBLIC if address.is_public_host else _ENTERPRISE


def find(address: Address) -> Token | None:
    """Raises UsageError where a variable holds something that cannot be a token."""
    for name in names_for(address):
        value = os.environ.get(name, "").strip()
        if value:
            return _token(value, name)
    said = _gh(address.host)
    return _token(said, "gh") if said else None


def _token(value: str, source: str) -> Token:
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"what {source} has is no token: there are blanks or control characters in it")
    return Token(value, source)


def _gh(host: str) -> str:
    program = shutil.which("gh")
    if not program:
        return ""
    try:
        asked = subprocess.run(
            [program, "auth", "token", "--hostname", host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode("ascii", "replace").strip() if asked.returncode == 0 else ""
