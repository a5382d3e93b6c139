"""Paths of what ships with the project (the sample), in a clone or an installed wheel, and of our own state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

HOME_ENV = "CI_TASKS_HOME"
_XDG_DEFAULTS = {"state": "~/.local/state", "config": "~/.config", "cache": "~/.cache"}
_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """The path of `name` (`examples/tiny-slime`): beside the package in a clone, inside it in a wheel."""
    in_clone = _PACKAGE.parent / name
    return in_clone if in_clone.exists() else _PACKAGE / "_shipped" / name


def text(name: str) -> str:
    """The text of a file of the package itself, such as `report/page.css`."""
    return (_PACKAGE / name).read_text(encoding="utf-8")


def home() -> Path:
    """The directory of runs, history and logs: CI_TASKS_HOME, else the user's state directory."""
    if directory := os.environ.get(HOME_ENV):
        return Path(directory).expanduser().resolve()
    return user_directory("state")


def user_path(name: str) -> Path:
    """The path that a person has typed, with `~`."""
    return Path(os.path.expanduser(name))


def user_directory(kind: Literal["state", "config", "cache"]) -> Path:
    """The user's directory of ours of this kind."""
    named = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    return Path(named if os.path.isabs(named) else _XDG_DEFAULTS[kind], "ci-tasks").expanduser()


def users_hosts() -> Path:
    """The user's own file, which need not be there."""
    return user_directory("config") / "hosts.yaml"


def shown(file: Path) -> str:
    """The path as a person would write it."""
    text, home = str(file), os.path.expanduser("~")
    return f"~{text.removeprefix(home)}" if home != "/" and text.startswith(f"{home}/") else text


def make_home() -> Path:
    """The same directory, which exists now; one that is made here is closed to other users: logs are in it."""
    path = home()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
