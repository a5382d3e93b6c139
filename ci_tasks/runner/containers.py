"""The containers of a run, by the names that the adapter gave them: a killed `docker run` leaves its container running."""

from __future__ import annotations

import json
import subprocess
from typing import Any, List

from . import layout

PATIENCE = 30.0  # seconds that a daemon gets to answer; a dead one must not keep a run from ending


def remove(run_dir: str) -> None:
    """Remove every container that the run started and that is still there."""
    for entry in _entries(layout.RunDir(run_dir).docker):
        name, runtime = entry.get("name"), entry.get("runtime")
        if not name or runtime not in ("docker", "podman"):
            continue
        try:
            subprocess.run(
                [runtime, "rm", "--force", "--volumes", name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue


def _entries(path: str) -> List[Any]:
    try:
        with open(path, encoding="utf-8") as source:
            found = json.load(source)
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
