"""Which Python the checkout says that it needs, against the one that its rows would get. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

# `requires-python` of pyproject.toml, `python_requires` of setup.cfg and setup.py
_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_REQUIREMENT = re.compile(r"""^\s*(?:requires-python|python_requires)\s*=\s*["']?([^"'#\n]+)""", re.MULTILINE)


def requires_python(read_file: Callable[[str], str | None]) -> str:
    """The checkout's own version specifier, such as `>=3.10`; empty where it names none."""
    texts = (read_file(name) or "" for name in _FILES)
    return next((found[1].strip() for text in texts if (found := _REQUIREMENT.search(text))), "")


def python_problem(requirement: str, version: str) -> str:
    """What is wrong with a Python of `version`; empty where nothing is, or where nobody can tell."""
    if not requirement or not version:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(requirement).contains(version, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return ""
    return "" if fits else f"Python {requirement}, as the checkout requires (found {version})"
