"""The containers of a run: those that carry the label of its directory. A job can write any name into docker.json, and
another label into plan.json; which directory is removed is known without them.

A killed `docker run` leaves its container running, so the end of the script says nothing about them. A daemon that is
dead or hangs must not keep a run from ending: its answers have a time limit, and a shorter one after a timeout.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .. import run_directory
from ..codec import RecordError
from ..processes import dying_with_parent
from ..programs import run_program
from ..quick_dataclass import dataclass
from ..records import DockerInvocation, DockerInvocations, Plan, QueryAnswer
from .rules import ENGINES

TIMEOUT = 30.0  # seconds for an answer of the daemon
SHORT_TIMEOUT = 5.0  # seconds, once it did not answer
GRACE = "1"  # seconds for a container that nobody asked to stop yet: a detached one
ATTEMPTS = 3  # removing a container fails while it is being created
_IN_PROGRESS = "is already in progress"  # docker, of a removal that the run's agent has started, say
_POLL_SECONDS = 0.2
LABEL_DIR = "ci-tasks.dir"  # an id is unique on one client; the directory is so on the host
QUERY_SECONDS = 15.0  # a daemon that is busy with a pull may take several
PAUSE_SECONDS = 5.0  # between an answer and the next query
DAEMON_QUERY = ("ps", "--quiet", "--last", "1")  # only whether there is an answer counts


class DockerResult(QueryAnswer):
    """Exit code and output of a docker command. `code` is None where there was no answer."""

    @property
    def problem(self) -> str:
        """The line that says why it failed."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else "exit code %s" % self.code


class DockerClient:
    """docker or podman, with the job's environment."""

    def __init__(self, runtime: str, env: Dict[str, str]) -> None:
        self.runtime, self.env, self.is_unresponsive = runtime, env, False

    def run(self, *args: str, timeout: float = TIMEOUT) -> DockerResult:
        seconds = min(timeout, SHORT_TIMEOUT) if self.is_unresponsive else timeout
        answer = run_program([self.runtime, *args], seconds, self.env)
        self.is_unresponsive = answer.timed_out
        return DockerResult(answer.code, answer.out, answer.err)

    def stream(self, *args: str) -> "subprocess.Popen[bytes]":
        """A command whose output is read as it comes. Raises OSError."""
        argv, nothing = [self.runtime, *args], subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, env=self.env)


@dataclass(frozen=True)
class RunContainer:
    """A container as `inspect` shows it. `number` counts the run's containers from 1."""

    client: DockerClient
    id: str
    name: str
    number: int
    image: str
    image_id: str
    running: bool
    started_at: str
    directory: str
    labels: Mapping[str, str] = field(default_factory=dict)


class RunContainers:
    """The containers of one run. `thorough`: ask the daemon even where docker.json names no container."""

    def __init__(self, run_dir: str, thorough: bool = False, environ: Mapping[str, str] = os.environ) -> None:
        self.paths, self.thorough = run_directory.RunDir(run_dir), thorough
        self.plan = read_plan(self.paths)
        self.problems: List[str] = []
        runtime = self.plan.container_runtime or ""
        # None for a runtime without a daemon.
        self.client = DockerClient(runtime, environment(self.plan, environ)) if runtime in ENGINES else None

    def find(self) -> List[RunContainer]:
        """All that exist. `problems` says that the daemon did not answer."""
        calls = read_invocations(self.paths)
        names = [call.name for call in calls or () if call.name]
        if not (names or self.thorough or calls is None):
            self.problems = []
            return []
        containers = self._labelled(LABEL_DIR + "=" + self.paths.path, are_expected=bool(names))
        containers.sort(key=lambda each: names.index(each.name) if each.name in names else len(names))
        return [replace(container, number=number) for number, container in enumerate(containers, 1)]

    def find_of_any_run(self) -> List[RunContainer]:
        return self._labelled(LABEL_DIR)

    def stop(self) -> None:
        """Stop those that run. Their files stay, for their logs."""
        running = [container.id for container in self.find() if container.running]
        if self.client is not None and running:
            self.client.run("stop", "-t", GRACE, "--", *running)

    def remove(self) -> List[str]:
        """Remove all. Returns what is left and why."""
        tries, until = 0, time.monotonic() + TIMEOUT
        while True:
            containers = self.find()
            if self.client is None or not containers:
                return self.problems
            result = self.client.run("rm", "--force", "--volumes", "--", *[container.id for container in containers])
            tries += _IN_PROGRESS not in result.problem
            if result.code == 0:
                return self.problems
            if tries == ATTEMPTS or time.monotonic() > until:
                return self.problems + [
                    "container %s: %s" % (container.name, result.problem) for container in containers
                ]
            time.sleep(_POLL_SECONDS)

    def expect_no_answer(self) -> None:
        """The daemon is known to hang: the next answer gets the short timeout."""
        if self.client is not None:
            self.client.is_unresponsive = True

    def _labelled(self, label: str, are_expected: bool = False) -> List[RunContainer]:
        self.problems = []
        if self.client is None:
            return []
        result = self.client.run("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + label)
        ids = result.out.split()
        if ids:
            result = self.client.run("inspect", "--type", "container", "--", *ids)
        # That a container does not exist any more is an answer too; a program that is missing has made none.
        errors = [line for line in result.err.splitlines() if "no such" not in line.lower()]
        if result.timed_out or (result.code != 0 and errors and (ids or are_expected)):
            self.problems.append("containers may be left: %s" % result.problem)
        return [_container(self.client, item) for item in (json.loads(result.out or "[]") if ids else [])]


def is_container_problem(line: str) -> bool:
    """Whether `line`, of a status's `left`, is about containers."""
    return line.startswith(("container ", "containers may be left"))


def remove(run_dir: str) -> List[str]:
    """Remove every container that the run started and that still exists. Returns what is left and why."""
    return RunContainers(run_dir).remove()


def read_plan(paths: run_directory.RunDir) -> Plan:
    """The plan, or an empty one where it cannot be read: what a run left is removed without one, too."""
    try:
        return run_directory.read_plan(paths)
    except (OSError, ValueError):
        return Plan()


def environment(plan: Plan, environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """The host's `env` counts here as it does for the job: DOCKER_HOST says which daemon has the containers."""
    return {**environ, **plan.host_env}


def read_invocations(paths: run_directory.RunDir) -> Optional[Sequence[DockerInvocation]]:
    """The content of docker.json: nothing where it does not exist, since then no container was started; None where it
    cannot be read."""
    try:
        record = run_directory.read_record(DockerInvocations, paths.docker)
    except (OSError, RecordError):
        return None
    return record.calls if record is not None else ()


def names_by_runtime(invocations: Sequence[DockerInvocation]) -> Dict[str, List[str]]:
    calls = [call for call in invocations if call.name]
    return {runtime: [call.name or "" for call in calls if call.runtime == runtime] for runtime in ENGINES}


def _container(client: DockerClient, item: Mapping[str, Any]) -> RunContainer:
    config, state, image_id = item.get("Config") or {}, item.get("State") or {}, item.get("Image") or ""
    if image_id and ":" not in image_id:  # podman's
        image_id = "sha256:" + image_id
    name, image, labels = item.get("Name") or item["Id"], config.get("Image") or "", config.get("Labels") or {}
    running, started_at = bool(state.get("Running")), state.get("StartedAt") or ""
    directory = config.get("WorkingDir") or "/"
    return RunContainer(
        client, item["Id"], name.lstrip("/"), 0, image, image_id, running, started_at, directory, labels
    )


class DaemonMonitor:
    """Asks the container daemon every few seconds whether it answers, beside the `docker run` that waits for it: one
    that hangs ends nothing and prints nothing. Does nothing for a plan without docker or podman. `on_first_answer` is
    called once, in the monitor's thread."""

    def __init__(self, plan: Plan, on_first_answer: Callable[[], object]) -> None:
        self.runtime = plan.container_runtime if plan.image else None
        self._env, self._on_first_answer = environment(plan), on_first_answer
        self._unanswered_since: Optional[float] = None
        self._stopped = threading.Event()

    @property
    def silent_seconds(self) -> float:
        """For how long there has been no answer; 0 as long as no query has timed out."""
        since = self._unanswered_since
        return time.monotonic() - since if since is not None else 0.0

    def start(self) -> None:
        if self.runtime in ENGINES:
            threading.Thread(target=self._run, name="container daemon", daemon=True).start()

    def close(self) -> None:
        """Does not wait for the thread; a query that runs ends with the process."""
        self._stopped.set()

    def _run(self) -> None:
        has_answered = False
        while not self._stopped.is_set():
            asked_at = time.monotonic()
            answer = run_program(dying_with_parent([self.runtime or "", *DAEMON_QUERY]), QUERY_SECONDS, self._env)
            if answer.timed_out:
                self._unanswered_since = self._unanswered_since or asked_at
                continue
            self._unanswered_since = None  # an error is an answer, too
            if answer.code == 0 and not has_answered:
                has_answered = True
                self._on_first_answer()
            self._stopped.wait(PAUSE_SECONDS)
