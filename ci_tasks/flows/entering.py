"""`shell`: bash where a run is, or where a failed one was kept."""

from __future__ import annotations

import shlex
import subprocess
import sys

from ci_tasks.errors import UsageError
from ci_tasks.runner.layout import read_json
from ci_tasks.runs import store


def shell(name: str) -> int:
    """Open bash in the run's container, or beside its workspace; its exit code."""
    found = store.find(name)
    if len(found) > 1:
        raise UsageError(f"{name!r} means {len(found)} runs", hint="one of: " + ", ".join(id for id, _ in found))
    ((_, run),) = found
    remote = read_json(run.remote)
    if not remote:
        return subprocess.call([sys.executable, "-I", run.runner, "shell", run.path])
    from ci_tasks.hosts.ssh import connect

    directory = remote["directory"]
    link = connect(remote["address"])
    try:
        runner = shlex.quote(f"{directory}/bin/runner.pyz")
        gone = "ci-tasks: nothing is left of the run on its host; --keep keeps a failed one"
        script = f"[ -e {runner} ] || {{ echo {shlex.quote(gone)} >&2; exit 2; }}; "
        script += f"exec python3 -I {runner} shell {shlex.quote(directory)}"
        return link.interactive(f"exec sh -c {shlex.quote(script)}")
    finally:
        link.close()
