"""The containers of a run, by the names the adapter gave them: a killed `docker run` leaves its container running."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List

from . import layout

PATIENCE = 30.0  # seconds that a daemon gets to answer; a dead one must not keep a run from ending


def remove(run_dir: str) -> None:
    """Remove every container that the run started and that is still there."""
    paths = layout.RunDir(run_dir)
    for runtime, names in _names(_entries(paths.docker)).items():
        try:
            subprocess.run(
                [runtime, "rm", "--force", "--volumes", *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(paths),
                timeout=PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue


def _names(entries: List[Any]) -> Dict[str, List[str]]:
    """The containers by runtime: one call removes all of one, also where some are gone."""
    found: Dict[str, List[str]] = {}
    for entry in entries:
        name, runtime = (entry.get("name"), entry.get("runtime")) if isinstance(entry, dict) else (None, None)
        if name and runtime in ("docker", "podman"):
            found.setdefault(runtime, []).append(name)
    return found


def _environment(paths: layout.RunDir) -> Dict[str, str]:
    """The host's `env` counts here as it does for the job: DOCKER_HOST says which daemon has the containers."""
    try:
        given = layout.read_json(paths.plan).get("host_env") or {}
    except (OSError, ValueError):
        given = {}
    return {**os.environ, **given}


def _entries(path: str) -> List[Any]:
    try:
        with open(path, encoding="utf-8") as source:
            found = json.load(source)
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
