"""git with an identity of its own, and repositories made of given files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def git(directory: Path, *argv: str) -> str:
    """What git prints, without the newline at its end."""
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    command = ["git", *identity, *argv]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def repository(path: Path, files: Mapping[str, str] | None = None) -> Path:
    """A repository on main with one commit: what is in the directory already, and `files`."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in (files or {}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "init", "-q", "-b", "main")
    git(path, "add", "--all")
    git(path, "commit", "-q", "--allow-empty", "-m", "1")
    return path
