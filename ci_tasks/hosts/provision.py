"""What a host gets beside the code of its rows: their install steps and container images."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ci_tasks.agent import run_directory
from ci_tasks.agent.containers.docker_argv import NONE, ContainerRules
from ci_tasks.agent.containers.rewrite import qualified_image
from ci_tasks.agent.containers.run_containers import DAEMON_QUERY, QUERY_SECONDS
from ci_tasks.agent.directories import remove_tree
from ci_tasks.agent.files import open_file
from ci_tasks.agent.records import Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.background import Background
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError

if TYPE_CHECKING:
    from ci_tasks.hosts.queries import QueryRunner
    from ci_tasks.planning.planner import SharedSetup

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

    def __init__(self, run: RunDir, say: Callable[[str], None]) -> None:
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
    from ci_tasks.logs.causes import JobEnd
    from ci_tasks.logs.reading import read_run_log
    from ci_tasks.results.judge_run import log_triage

    if code == _BLOCKED and (blocked := read_run_log(run.log).facts.blocked):
        return f"{blocked} (log {run.log})"
    triage = log_triage(run, JobEnd(run_directory.END_EXIT, code or 1))
    lines = [triage.text, triage.line, *(each.line for each in triage.candidates)]
    line = next(filter(None, lines), "no output")
    return f"the install steps ended with {code}: {line} (log {run.log})"


def remove_setup(directory: str) -> list[str]:
    """Remove the venv and the checkout of install steps here. Returns a line for each thing that is left."""
    return [line for name in SETUP_PARTS for line in remove_tree(f"{directory}/{name}", None, "none", {})]


_MARKER = re.compile(r"^(?:##\[\w+\]|::endgroup::|::group::)")
_RULES = re.compile(r"^([=*#~_-])\1{2,}\s*|\s*([=*#~_-])\2{2,}$")
_TAIL = 1 << 14  # bytes: a line of metrics alone may have several thousand


def last_line(run: RunDir) -> str:
    """The last line of a log that says something, safe for a terminal; a line of metrics in short."""
    from ci_tasks.registry import metric_formats
    from ci_tasks.results.progress import line_summary

    try:
        with open_file(run.log) as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    formats = metric_formats()
    return next((text for line in reversed(lines) if (text := _words(line_summary(line, formats)))), "")


def _words(text: str) -> str:
    """The text without markers of GitHub's log and rules around it; "" where no word is left."""
    text = _RULES.sub("", _MARKER.sub("", text))
    return text if any(char.isalnum() for char in text) else ""


PULL_TIMEOUT_S = 2 * 3600.0  # an image of 30 GB over a slow line
DAEMON_TIMEOUT_S = 600.0  # without any answer; a daemon that is restarted is back sooner
DAEMON_QUERY_TIMEOUT_S = QUERY_SECONDS
POLL_INTERVAL_S = 10.0
REPORT_INTERVAL_S = 60.0  # between two lines for the user
_SLACK_S = 60.0
_PULL = 'timeout -k 10 "$@" || { code=$?; [ $code != 124 ] || echo "not pulled within $1 s" >&2; exit $code; }'


class DaemonSilent(CiTasksError):
    """No row that needs a container can run there."""


def can_pull(spec: HostSpec) -> bool:
    return spec.runtime in ("docker", "podman") and spec.pull != "never"


def pull_images(
    host: QueryRunner, spec: HostSpec, images: Sequence[str], note: Callable[[str], None], say: Callable[[str], None]
) -> Mapping[str, QueryAnswer]:
    """Pull `images`, and return how each pull ended. `note` is called with how it stands whenever that is known, `say`
    now and then. Raises DaemonSilent."""
    ended = threading.Event()

    def pull() -> Mapping[str, QueryAnswer]:
        try:
            commands = {image: pull_command(spec, image) for image in images}
            return host.run_queries(commands, PULL_TIMEOUT_S + _SLACK_S)
        finally:
            ended.set()

    pulling = Background(pull)
    begun = answered = said = time.monotonic()
    while not ended.wait(POLL_INTERVAL_S):
        query = {"daemon": [spec.runtime, *DAEMON_QUERY]}
        is_silent = host.run_queries(query, DAEMON_QUERY_TIMEOUT_S)["daemon"].timed_out
        now = time.monotonic()
        answered = answered if is_silent else now
        silence = f"{spec.runtime} has not answered for {now - answered:.0f} s"
        text = f"pulling {', '.join(images)} for {now - begun:.0f} s" + (f"; {silence}" if is_silent else "")
        if now - answered > DAEMON_TIMEOUT_S:
            raise DaemonSilent(f"{text}; is its daemon hung?")
        note(text)
        if now - said >= REPORT_INTERVAL_S:
            say(text)
            said = now
    return pulling.result()


def pull_command(spec: HostSpec, image: str) -> list[str]:
    full_name = qualified_image(image) if spec.runtime == "podman" else image
    return ["sh", "-c", _PULL, "pull", f"{PULL_TIMEOUT_S:.0f}", spec.runtime, "pull", "--quiet", full_name]
