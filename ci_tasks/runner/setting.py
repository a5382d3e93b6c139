"""Making a run directory: everything that the runner needs in one place that can also be copied elsewhere."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any, Mapping

from .layout import RunDir, write_json

_ADAPTER = """#!/bin/sh
# The container adapter: gets the words that CI gives to docker, and does on this host what they mean.
here=$(dirname -- "$0")
exec {python} -I "$here/runner.pyz" docker "$(dirname -- "$here")" -- "$@"
"""


def write_run_dir(run: RunDir, plan: Mapping[str, Any], script: str, runner: bytes) -> None:
    """plan.json, run.sh, the runner and the container adapter. The plan comes last: with it the directory is whole."""
    os.makedirs(run.artifacts, exist_ok=True)
    os.makedirs(run.bin, exist_ok=True)
    _executable(run.script, script)
    _executable(run.adapter, _ADAPTER.format(python=shlex.quote(sys.executable)))
    with open(run.runner, "wb") as out:
        out.write(runner)
    write_json(run.plan, plan)


def _executable(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
        out.write(text)
    os.chmod(path, 0o755)
