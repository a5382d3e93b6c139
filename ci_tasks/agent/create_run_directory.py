"""Making a run directory: everything that the agent needs in one place that can also be copied elsewhere."""

from __future__ import annotations

import os
import shlex
import sys

from .probe import install
from .records import Plan
from .run_directory import RunDir, write_record

_ADAPTER = """#!/bin/sh
# The container adapter: gets the words that CI gives to docker, and does on this host what they mean.
here=$(dirname -- "$0")
exec {python} -I -S "$here/agent.pyz" docker "$(dirname -- "$here")" -- "$@"
"""


def write_run_dir(run: RunDir, plan: Plan, agent: bytes) -> None:
    """plan.json, run.sh, the agent and the container adapter. The plan comes last: with it the directory is whole."""
    os.makedirs(run.artifacts, exist_ok=True)
    os.makedirs(run.bin, exist_ok=True)
    _executable(run.script, plan.script)
    _executable(run.adapter, _ADAPTER.format(python=shlex.quote(sys.executable)))
    with open(run.agent, "wb") as out:
        out.write(agent)
    if plan.probe is not None:
        install.write_files(run, plan.probe, plan.workspace)
    if plan.client_seconds is not None:
        with open(run.client, "wb"):
            pass
    write_record(run.plan, plan)


def _executable(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
        out.write(text)
    os.chmod(path, 0o755)
