"""The install steps that the rows of a command share: they are a run like any other, with neither container nor GPU."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from ci_tasks.agent import run_directory
from ci_tasks.agent.containers.docker_argv import NONE, ContainerRules
from ci_tasks.agent.directories import remove_tree
from ci_tasks.agent.files import open_file
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.config import HostSpec
from ci_tasks.hosts.last_line import last_line
from ci_tasks.hosts.prepared_row import Say
from ci_tasks.logs.causes import JobEnd
from ci_tasks.logs.reading import read_run_log
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.results.judge_run import log_triage

SETUP_PARTS = ("venv", "workspace", "tmp")  # what rows use of the directory of install steps; log and plan stay
_OURS = b"ci-tasks: "  # what our own program prints among the steps' output
_LONGEST_LINE = 300
_BLOCKED = 125  # the exit code of what run.sh itself gives up
_TIMEOUT_MINUTES = 60.0
# That they go on without a client. On another host: a laptop may sleep, or its network be away. Here the client's own
# process is missing.
_CLIENT_SECONDS, _CLIENT_SECONDS_HERE = 900.0, 2.0
_REMINDER_S = 20.0  # after which they say how far they are
_COLLECTED = re.compile(rb"Collecting ([\w.-]+)")
_SIZE = re.compile(rb"Downloading \S+ \(([\d.]+) ([kMG])B\)")
_MEGABYTES = {b"k": 0.001, b"M": 1.0, b"G": 1000.0}
_EXPECTED = re.compile(rb"(\d+) packages, ")


def setup_plan(setup: SharedSetup, host: HostSpec) -> Plan:
    """plan.json of the install steps."""
    return Plan(
        id=os.path.basename(setup.directory),
        secrets=setup.secrets,
        host_env=host.env,
        timeout_minutes=_TIMEOUT_MINUTES,
        stall_minutes=host.stall_minutes,
        container=ContainerRules(runtime=NONE),
        script=setup.script,
        workspace=setup.workspace,
        keeps_workspace=True,
        install=setup.install,
        client_seconds=_CLIENT_SECONDS_HERE if host.kind == "local" else _CLIENT_SECONDS,
    )


class InstallLog:
    """The log of install steps as it grows: passes on what our own program says, and says how far they are."""

    def __init__(self, run: RunDir, say: Say) -> None:
        self._run, self._say, self._begun = run, say, time.monotonic()
        self._offset, self._spoken = 0, self._begun
        self._packages: set[bytes] = set()
        self._megabytes, self._expected = 0.0, ""
        say(f"install steps: running, log {run.log}")

    def poll(self) -> None:
        with suppress(OSError), open_file(self._run.log) as log:
            log.seek(self._offset)
            for line in log:
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    self._read(line)
        if time.monotonic() - self._spoken > _REMINDER_S:
            self._spoken = time.monotonic()
            packages = f", package {len(self._packages)}{self._expected}" if self._packages else ""
            size = f", {self._megabytes:.0f} MB" if self._megabytes else ""
            elapsed = f"{self._spoken - self._begun:.0f} s"
            self._say(f"install steps: {elapsed}{packages}{size}: {last_line(self._run)}")

    def _read(self, line: bytes) -> None:
        if line.startswith(_OURS):
            self._say(line[len(_OURS) :][:_LONGEST_LINE].decode("utf-8", "replace").strip())
            found = _EXPECTED.search(line)
            self._expected = f" of {found[1].decode()}" if found else self._expected
        self._packages.update(_COLLECTED.findall(line))
        self._megabytes += sum(float(size) * _MEGABYTES[unit] for size, unit in _SIZE.findall(line))

    def finish(self, code: int | None) -> None:
        self.poll()
        if code == 0:
            self._say(f"install steps: done in {time.monotonic() - self._begun:.0f} s")


def failure_message(run: RunDir, code: int | None) -> str:
    """Why install steps ended with `code`."""
    if code == _BLOCKED and (blocked := read_run_log(run.log).facts.blocked):
        return f"{blocked} (log {run.log})"
    triage = log_triage(run, JobEnd(run_directory.END_EXIT, code or 1))
    lines = [triage.text, triage.line, *(each.line for each in triage.candidates)] if triage else []
    line = next(filter(None, lines), "no output")
    return f"the install steps ended with {code}: {line} (log {run.log})"


def remove_setup(directory: str) -> list[str]:
    """Remove the venv and the checkout of install steps here. Returns a line for each thing that is left."""
    return [line for name in SETUP_PARTS for line in remove_tree(f"{directory}/{name}", None, "none", {})]
