"""`shell`: bash where a run is, or where a failed one was kept."""

from __future__ import annotations

import shlex
import subprocess
import sys

from ci_tasks.agent.run_directory import read_remote
from ci_tasks.results.runs import find_one


def shell(name: str) -> int:
    """Open bash in the run's container, or beside its workspace; its exit code."""
    _, run = find_one(name)
    remote = read_remote(run)
    if remote is None:
        return subprocess.call([sys.executable, "-I", run.agent, "shell", run.path])
    from ci_tasks.hosts.ssh import SSHConnection

    directory = remote.directory
    connection = SSHConnection(remote.address or remote.host)
    try:
        runner = shlex.quote(f"{directory}/bin/agent.pyz")
        message = "ci-tasks: nothing is left of the run on its host; --keep keeps a failed one"
        script = f"[ -e {runner} ] || {{ echo {shlex.quote(message)} >&2; exit 2; }}; "
        script += f"exec python3 -I {runner} shell {shlex.quote(directory)}"
        return connection.interactive(f"exec sh -c {shlex.quote(script)}")
    finally:
        connection.close()
