"""Files that ship with the project, the embedded sample and hosts.yaml: in a clone or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Where `name` (`hosts.yaml`, `examples/tiny-slime`) is: beside the package in a clone, inside it in a wheel."""
    beside = _PACKAGE.parent / name
    return beside if beside.exists() else _PACKAGE / "_shipped" / name


def text(name: str) -> str:
    """The text of a file of the package itself (`judge/triage/rules.yaml`): data that is as fixed as code."""
    return (_PACKAGE / name).read_text(encoding="utf-8")
