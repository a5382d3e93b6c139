"""Paths of what ships with the project (the sample), in a clone or an installed wheel, and of our own state."""

from __future__ import annotations

import os
from pathlib import Path

HOME_ENV = "CI_TASKS_HOME"
_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """The path of `name` (`examples/tiny-slime`): beside the package in a clone, inside it in a wheel."""
    in_clone = _PACKAGE.parent / name
    return in_clone if in_clone.exists() else _PACKAGE / "_shipped" / name


def text(name: str) -> str:
    """The text of a file of the package itself, such as `report/html/page.css`."""
    return (_PACKAGE / name).read_text(encoding="utf-8")


def names(folder: str) -> list[str]:
    """The names of the files in a folder of the package itself."""
    return [path.name for path in (_PACKAGE / folder).iterdir()]


def home() -> Path:
    """The directory of runs, history and logs: CI_TASKS_HOME, else the user's state directory."""
    if directory := os.environ.get(HOME_ENV):
        return Path(directory).expanduser().resolve()
    from platformdirs import user_state_path

    return user_state_path("ci-tasks")


def make_home() -> Path:
    """The same directory, which is there now; nobody else may enter one that is made here: logs are in it."""
    path = home()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
