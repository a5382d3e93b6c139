"""The containers of a run: found by the names that the adapter gave them and by the labels of the plan.

A killed `docker run` leaves its container running, so the end of the script says nothing about them. A daemon that is
dead or hangs must not keep a run from ending: what is asked of it has a limit, and one that was silent gets less.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

from .. import layout

PATIENCE = 30.0  # seconds that the daemons get to find, stop or remove all containers of a run
SHORT_PATIENCE = 5.0  # seconds, once one of them did not answer
GRACE = "1"  # seconds for a container that nobody asked to stop yet: a detached one
LOOKS = 3  # a container may be removed in vain while it is being created
RUNTIMES = ("docker", "podman")
LABEL_RUN = "ci-tasks.run"
LABEL_DIR = "ci-tasks.dir"  # an id is unique on one client; the directory is so on the host


class Answer(NamedTuple):
    """What docker said. `code` is None where it did not answer."""

    code: Optional[int]
    out: str
    err: str

    @property
    def problem(self) -> str:
        """The line that says why it failed."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else "exit code %s" % self.code


@dataclass
class Client:
    """docker or podman as the job would find it; `until` is when its patience is at an end."""

    runtime: str
    env: Dict[str, str]
    until: float = float("inf")
    silent: bool = False

    def ask(self, *words: str, within: float = PATIENCE) -> Answer:
        seconds = min(within, self.until - time.monotonic())
        if seconds <= 0:
            return Answer(None, "", "%s did not answer" % self.runtime)
        try:
            done = subprocess.run(
                [self.runtime, *words], stdin=subprocess.DEVNULL, capture_output=True, env=self.env, timeout=seconds
            )
        except OSError as error:
            return Answer(None, "", "%s: %s" % (self.runtime, error.strerror))
        except subprocess.TimeoutExpired:
            self.silent = self.silent or within >= PATIENCE
            return Answer(None, "", "%s did not answer within %.0f s" % (self.runtime, seconds))
        return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def stream(self, *words: str) -> "subprocess.Popen[bytes]":
        """One whose output is read as it comes. Raises OSError."""
        return subprocess.Popen(
            [self.runtime, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.env,
        )


@dataclass
class Container:
    """A container that is there, running or ended. `nth` counts the run's containers from 1."""

    client: Client
    id: str
    name: str
    nth: int
    image: str
    image_id: str
    running: bool
    started_at: str
    directory: str


class Containers:
    """Those of one run. `thorough` asks the daemon for labels also where docker.json knows of no container."""

    def __init__(self, run_dir: str, thorough: bool = False) -> None:
        self.paths = layout.RunDir(run_dir)
        self.plan = read_plan(self.paths)
        self.thorough = thorough
        self.problems: List[str] = []
        self._clients: Dict[str, Client] = {}

    def find(self) -> List[Container]:
        """All that are there. Where a daemon cannot say, `problems` does."""
        self._be_patient()
        return list(self._find())

    def stop(self) -> None:
        """End those that run. Their files stay, for their logs."""
        self._be_patient()
        for client, found in _by_client(self._find()):
            running = [container.id for container in found if container.running]
            if running:
                client.ask("stop", "-t", GRACE, "--", *running)

    def remove(self) -> List[str]:
        """Remove all. Returns what is left and why."""
        self._be_patient()
        left: List[Container] = []
        for _ in range(LOOKS):
            left, why = list(self._find()), ""
            if not left:
                break
            for client, found in _by_client(left):
                answer = client.ask("rm", "--force", "--volumes", "--", *(container.id for container in found))
                why = why if answer.code == 0 else answer.problem
            if not why:
                left = []
        return self.problems + ["container %s: %s" % (container.name, why) for container in left]

    def client(self, runtime: str) -> Client:
        if runtime not in self._clients:
            self._clients[runtime] = Client(runtime, environment(self.plan))
        return self._clients[runtime]

    def _be_patient(self) -> None:
        self.problems = []
        silent = any(client.silent for client in self._clients.values())
        until = time.monotonic() + (SHORT_PATIENCE if silent else PATIENCE)
        for runtime in RUNTIMES:
            self.client(runtime).until = until

    def _find(self) -> Iterator[Container]:
        names = names_by_runtime(read_entries(self.paths.docker))
        ours = (self.plan.get("container") or {}).get("runtime")
        if ours in RUNTIMES and (self.thorough or not _is_list(self.paths.docker)):
            names.setdefault(ours, [])
        self.problems = []
        for runtime, given in names.items():
            yield from self._inspect(self.client(runtime), given)

    def _inspect(self, client: Client, names: List[str]) -> Iterator[Container]:
        labelled = self._labelled(client)
        answer = Answer(0, "", "")
        if names or labelled:
            answer = client.ask("inspect", "--type", "container", "--", *names, *labelled)
        if not _is_known(answer):
            self.problems.append("containers may be left (%s): %s" % (" ".join(names) or "by label", answer.problem))
        seen: Set[str] = set()
        late = len(names)  # those that docker.json does not know of are counted behind those it knows
        for fact in _facts(answer.out):
            if fact["Id"] in seen or not self._is_ours(fact):
                continue
            seen.add(fact["Id"])
            container = _container(client, fact)
            late += container.name not in names
            container.nth = 1 + names.index(container.name) if container.name in names else late
            yield container

    def _labelled(self, client: Client) -> List[str]:
        label = self._label()
        if label is None:
            return []
        return client.ask("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + label).out.split()

    def _label(self) -> Optional[str]:
        labels = (self.plan.get("container") or {}).get("labels") or {}
        for key in (LABEL_DIR, LABEL_RUN):
            if key in labels:
                return "%s=%s" % (key, labels[key])
        return None

    def _is_ours(self, fact: Dict[str, Any]) -> bool:
        """Two clients may count alike on one daemon: a name, or an id, can be somebody else's."""
        ours = (self.plan.get("container") or {}).get("labels") or {}
        found = (fact.get("Config") or {}).get("Labels") or {}
        return all(found.get(key, ours.get(key)) == ours.get(key) for key in (LABEL_DIR, LABEL_RUN) if key in ours)


def remove(run_dir: str) -> List[str]:
    """Remove every container that the run started and that is still there. Returns what is left and why."""
    return Containers(run_dir).remove()


def read_plan(paths: layout.RunDir) -> Dict[str, Any]:
    try:
        return layout.read_json(paths.plan)
    except (OSError, ValueError):
        return {}


def environment(plan: Dict[str, Any]) -> Dict[str, str]:
    """The host's `env` counts here as it does for the job: DOCKER_HOST says which daemon has the containers."""
    return {**os.environ, **(plan.get("host_env") or {})}


def read_entries(path: str) -> List[Any]:
    """What docker.json holds, as far as it can be read."""
    try:
        with open(path, encoding="utf-8") as source:
            found = json.load(source)
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def names_by_runtime(entries: List[Any]) -> Dict[str, List[str]]:
    """The containers by runtime: one call asks for all of one, also where some are gone."""
    found: Dict[str, List[str]] = {}
    for entry in entries:
        name, runtime = (entry.get("name"), entry.get("runtime")) if isinstance(entry, dict) else (None, None)
        if name and runtime in RUNTIMES:
            found.setdefault(runtime, []).append(str(name))
    return found


def _is_list(path: str) -> bool:
    """Whether docker.json says what it knows. Where there is none, no container was started."""
    if not os.path.lexists(path):
        return True
    try:
        with open(path, encoding="utf-8") as source:
            return isinstance(json.load(source), list)
    except (OSError, ValueError):
        return False


def _is_known(answer: Answer) -> bool:
    """Whether docker said all that there is: containers that are gone are an answer too."""
    complaints = [line for line in answer.err.splitlines() if "no such" not in line.lower()]
    return answer.code == 0 or (answer.code is not None and not complaints)


def _facts(text: str) -> List[Dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [fact for fact in found if isinstance(fact, dict) and fact.get("Id")] if isinstance(found, list) else []


def _container(client: Client, fact: Dict[str, Any]) -> Container:
    config, state = fact.get("Config") or {}, fact.get("State") or {}
    return Container(
        client=client,
        id=fact["Id"],
        name=str(fact.get("Name") or fact["Id"]).lstrip("/"),
        nth=0,
        image=str(config.get("Image") or ""),
        image_id=str(fact.get("Image") or ""),
        running=bool(state.get("Running")),
        started_at=str(state.get("StartedAt") or ""),
        directory=str(config.get("WorkingDir") or "/"),
    )


def _by_client(found: Iterator[Container] | List[Container]) -> List[Any]:
    groups: Dict[str, List[Container]] = {}
    for container in found:
        groups.setdefault(container.client.runtime, []).append(container)
    return [(members[0].client, members) for members in groups.values()]
