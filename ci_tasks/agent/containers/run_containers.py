"""The containers of a run: those that carry the label of its directory. A job can write any name into docker.json, and
another label into plan.json; which directory is removed is known without them.

A killed `docker run` leaves its container running, so the end of the script says nothing about them. A daemon that is
dead or hangs must not keep a run from ending: its answers have a time limit, and a shorter one after a timeout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import field
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from .. import process_tree, run_directory
from ..codec import RecordError
from ..quick_dataclass import dataclass
from ..records import DockerInvocation, DockerInvocations, Plan

TIMEOUT = 30.0  # seconds for the daemons to find, stop or remove all containers of a run
SHORT_TIMEOUT = 5.0  # seconds, once one of them did not answer
GRACE = "1"  # seconds for a container that nobody asked to stop yet: a detached one
ATTEMPTS = 3  # removing a container fails while it is being created
_IN_PROGRESS = "is already in progress"  # docker, of a removal that somebody else has begun: the run's agent, say
_POLL_SECONDS = 0.2
RUNTIMES = ("docker", "podman")
LABEL_DIR = "ci-tasks.dir"  # an id is unique on one client; the directory is so on the host
_LEFT = "container %s: %s"
_MAY_BE_LEFT = "containers may be left (%s): %s"


class DockerResult(NamedTuple):
    """Exit code and output of a docker command. `code` is None where there was no answer."""

    code: Optional[int]
    out: str
    err: str
    timed_out: bool = False

    @property
    def problem(self) -> str:
        """The line that says why it failed."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else "exit code %s" % self.code


@dataclass
class DockerClient:
    """docker or podman, with the job's environment; no command runs beyond `deadline`."""

    runtime: str
    env: Dict[str, str]
    deadline: float = float("inf")
    is_unresponsive: bool = False
    _process: "Optional[subprocess.Popen[bytes]]" = field(default=None, init=False)

    def run(self, *args: str, timeout: float = TIMEOUT) -> DockerResult:
        seconds = min(timeout, self.deadline - time.monotonic())
        if seconds <= 0:
            return DockerResult(None, "", "%s did not answer" % self.runtime, timed_out=True)
        try:
            process = self._process = self._start(args, stderr=subprocess.PIPE)
        except OSError as error:
            return DockerResult(None, "", "%s: %s" % (self.runtime, error.strerror))
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.is_unresponsive = self.is_unresponsive or timeout >= TIMEOUT
            process_tree.kill_and_reap(process)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            message = "%s did not answer within %.0f s" % (self.runtime, seconds)
            return DockerResult(None, "", message, timed_out=True)
        self.is_unresponsive = False
        return DockerResult(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def abort(self) -> None:
        """Kill the command that runs, from another thread."""
        if self._process is not None and self._process.returncode is None:
            process_tree.kill_and_reap(self._process)

    def stream(self, *args: str) -> "subprocess.Popen[bytes]":
        """A command whose output is read as it comes. Raises OSError."""
        return self._start(args, stderr=subprocess.DEVNULL)

    def _start(self, args: Sequence[str], stderr: int) -> "subprocess.Popen[bytes]":
        argv = [self.runtime, *args]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=self.env)


@dataclass
class RunContainer:
    """An existing container, running or ended. `number` counts the run's containers from 1."""

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
    """The containers of one run. `thorough`: ask the daemon for labels even where docker.json names no container."""

    def __init__(self, run_dir: str, thorough: bool = False, environ: Mapping[str, str] = os.environ) -> None:
        self.paths = run_directory.RunDir(run_dir)
        self.plan = read_plan(self.paths)
        self.thorough = thorough
        self.problems: List[str] = []
        self._clients = {runtime: DockerClient(runtime, environment(self.plan, environ)) for runtime in RUNTIMES}

    @property
    def client(self) -> Optional[DockerClient]:
        """That of the plan's containers; None for a runtime without a daemon."""
        return self._clients.get(self.plan.container_runtime or "")

    def find(self) -> List[RunContainer]:
        """All that exist. `problems` says which daemons did not answer."""
        self._set_deadline()
        return list(self._find())

    def find_of_any_run(self) -> List[RunContainer]:
        self._set_deadline()
        client = self.client
        if client is None:
            return []
        ids = client.run("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + LABEL_DIR).out.split()
        result = client.run("inspect", "--type", "container", "--", *ids) if ids else None
        return list(_parse_inspect(client, result.out)) if result is not None else []

    def stop(self) -> None:
        """Stop those that run. Their files stay, for their logs."""
        self._set_deadline()
        for runtime in self._names():
            client = self._clients[runtime]
            running = client.run("ps", "--quiet", "--no-trunc", "--filter", self._label).out.split()
            if running:
                client.run("stop", "-t", GRACE, "--", *running)

    def remove(self) -> List[str]:
        """Remove all. Returns what is left and why."""
        self._set_deadline()
        attempts = 0
        while True:
            results = []
            containers = list(self._find())
            for client in self._clients.values():
                ids = [container.id for container in containers if container.client is client]
                results += [client.run("rm", "--force", "--volumes", "--", *ids)] if ids else []
            problem = next((result.problem for result in results if result.code != 0), "")
            in_progress = _IN_PROGRESS in problem
            attempts += not in_progress
            until = min(client.deadline for client in self._clients.values())
            if not problem or attempts == ATTEMPTS or (in_progress and time.monotonic() + 2 * _POLL_SECONDS > until):
                return self.problems + [_LEFT % (container.name, problem) for container in containers if problem]
            time.sleep(_POLL_SECONDS if in_progress else 0.0)

    def expect_no_answer(self) -> None:
        """The daemons are known to hang: the next answer gets the short timeout."""
        for client in self._clients.values():
            client.is_unresponsive = True

    def _set_deadline(self) -> None:
        self.problems = []
        is_unresponsive = any(client.is_unresponsive for client in self._clients.values())
        for client in self._clients.values():
            client.deadline = time.monotonic() + (SHORT_TIMEOUT if is_unresponsive else TIMEOUT)

    def _names(self) -> Dict[str, List[str]]:
        """The runtimes that may have containers of the run, each with the names of those that docker.json has."""
        invocations = read_invocations(self.paths)
        names = names_by_runtime(invocations or ())
        runtime = self.plan.container_runtime
        if runtime in RUNTIMES and (self.thorough or invocations is None):
            names.setdefault(runtime, [])
        return names

    def _find(self) -> Iterator[RunContainer]:
        self.problems = []
        for runtime, names in self._names().items():
            yield from self._inspect(self._clients[runtime], names)

    def _inspect(self, client: DockerClient, names: List[str]) -> Iterator[RunContainer]:
        listed = client.run("ps", "--all", "--quiet", "--no-trunc", "--filter", self._label)
        labelled = listed.out.split()
        if not (names or labelled):
            if listed.timed_out:
                self.problems.append(_MAY_BE_LEFT % ("by label", "%s did not answer" % client.runtime))
            return
        result = client.run("inspect", "--type", "container", "--", *names, *labelled)
        # That a container does not exist is an answer too.
        errors = [line for line in result.err.splitlines() if "no such" not in line.lower()]
        if result.code is None or (result.code != 0 and errors):
            self.problems.append(_MAY_BE_LEFT % (" ".join(names) or "by label", result.problem))
        number = len(names)  # those that docker.json does not name come after those that it names
        for container in {container.id: container for container in _parse_inspect(client, result.out)}.values():
            if container.labels.get(LABEL_DIR) == self.paths.path:
                number += container.name not in names
                container.number = 1 + names.index(container.name) if container.name in names else number
                yield container

    @property
    def _label(self) -> str:
        return "label=%s=%s" % (LABEL_DIR, self.paths.path)


def is_container_problem(line: str) -> bool:
    """Whether `line`, of a status's `left`, is about containers."""
    return line.startswith(tuple(text.partition("%")[0] for text in (_LEFT, _MAY_BE_LEFT)))


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
    names: Dict[str, List[str]] = {}
    for invocation in invocations:
        if invocation.name and invocation.runtime in RUNTIMES:
            names.setdefault(invocation.runtime, []).append(invocation.name)
    return names


def _parse_inspect(client: DockerClient, text: str) -> Iterator[RunContainer]:
    try:
        items = json.loads(text)
    except ValueError:
        return
    for item in items:
        config, state = item.get("Config") or {}, item.get("State") or {}
        yield RunContainer(
            client=client,
            id=item["Id"],
            name=(item.get("Name") or item["Id"]).lstrip("/"),
            number=0,
            image=config.get("Image") or "",
            image_id=_image_id(item.get("Image") or ""),
            running=bool(state.get("Running")),
            started_at=state.get("StartedAt") or "",
            directory=config.get("WorkingDir") or "/",
            labels=config.get("Labels") or {},
        )


def _image_id(text: str) -> str:
    """As docker writes it; podman leaves the kind of hash out."""
    return "sha256:" + text if re.fullmatch("[0-9a-f]{64}", text) else text
