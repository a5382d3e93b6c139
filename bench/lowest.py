"""The lowest versions that pyproject.toml allows, as pip's constraints: `python bench/lowest.py > constraints.txt`."""

from __future__ import annotations

import re
from pathlib import Path

from nox.project import load_toml

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)>=(?P<version>[0-9.]+)")


def constraints() -> list[str]:
    """One line for each dependency of the program; the tools of its developers may be newer."""
    return [_lowest(line) for line in load_toml(PYPROJECT)["project"]["dependencies"]]


def _lowest(requirement: str) -> str:
    found = _BOUND.match(requirement)
    if not found:
        raise SystemExit(f"{PYPROJECT.name}: {requirement!r} has no lowest version")
    return f"{found['name']}=={found['version']}"


if __name__ == "__main__":
    print("\n".join(constraints()))
