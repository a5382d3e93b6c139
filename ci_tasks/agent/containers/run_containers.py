"""The containers of a run: those that carry the label of its directory. A job can write any name into docker.json, and
another label into plan.json; which directory is removed is known without them.

A killed `docker run` leaves its container running, so the end of the script says nothing about them. A daemon that is
dead or hangs must not keep a run from ending: its answers have a time limit, and a shorter one after a timeout.

The command of a container that a failed run has kept has ended, and starting the container would run it again. So what
goes on with its files, a retry or a shell, runs in a container of an image that is made of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence

from .. import run_directory
from ..codec import RecordError
from ..mask import MASKED
from ..processes import dying_with_parent, run_program
from ..quick_dataclass import dataclass
from ..records import DockerInvocation, DockerInvocations, Plan, QueryAnswer
from ..run_directory import RunDir, job_environment
from .docker_argv import ENGINES, DockerArgvError, DockerRun, option, parse_run, render

TIMEOUT = 30.0  # seconds for an answer of the daemon
SHORT_TIMEOUT = 5.0  # seconds, once it did not answer
GRACE = "1"  # seconds for a container that nobody asked to stop yet: a detached one
REMOVE_SECONDS = 20.0  # a removal fails while the container is created, or removed by another
_POLL_SECONDS = 0.2
LABEL_DIR = "ci-tasks.dir"  # an id is unique on one client; the directory is so on the host
QUERY_SECONDS = 15.0  # a daemon that is busy with a pull may take several
PAUSE_SECONDS = 5.0  # between an answer and the next query
DAEMON_QUERY = ("ps", "--quiet", "--last", "1")  # only whether there is an answer counts


class DockerClient:
    """docker or podman, with the job's environment."""

    def __init__(self, runtime: str, env: Mapping[str, str]) -> None:
        self.runtime, self.env, self.is_unresponsive = runtime, env, False

    def run(self, *args: str, timeout: float = TIMEOUT) -> QueryAnswer:
        seconds = min(timeout, SHORT_TIMEOUT) if self.is_unresponsive else timeout
        answer = run_program([self.runtime, *args], seconds, self.env)
        self.is_unresponsive = answer.timed_out
        return answer

    def stream(self, *args: str) -> "subprocess.Popen[bytes]":
        """A command whose output is read as it comes. Raises OSError."""
        argv, nothing = [self.runtime, *args], subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, env=self.env)


@dataclass(frozen=True)
class RunContainer:
    """A container as `inspect` shows it. `number` counts the run's containers from 1, `run_dir` is its run's."""

    client: DockerClient
    id: str
    name: str
    number: int
    image: str
    image_id: str
    running: bool
    started_at: str
    run_dir: str = ""


class RunContainers:
    """The containers of one run. `thorough`: ask the daemon even where the run has called no docker."""

    def __init__(self, run_dir: str, thorough: bool = False, environ: Mapping[str, str] = os.environ) -> None:
        self.paths, self.thorough = run_directory.RunDir(run_dir), thorough
        self.plan = read_plan(self.paths)
        self.problems: List[str] = []
        runtime = self.plan.container_runtime or ""
        # None for a runtime without a daemon. DOCKER_HOST of the host's `env` says which daemon has the containers.
        self.client = DockerClient(runtime, {**environ, **self.plan.host_env}) if runtime in ENGINES else None

    def find(self) -> List[RunContainer]:
        """All that exist, in the order of their creation. `problems` says that the daemon did not answer."""
        self.problems = []
        has_called = os.path.lexists(self.paths.docker)
        if not (has_called or self.thorough):
            return []
        return self._labelled(LABEL_DIR + "=" + self.paths.path, has_called)

    def find_of_any_run(self) -> List[RunContainer]:
        return self._labelled(LABEL_DIR, False)

    def stop(self) -> None:
        """Stop those that run. Their files stay, for their logs."""
        running = [container.id for container in self.find() if container.running]
        if self.client is not None and running:
            self.client.run("stop", "-t", GRACE, "--", *running)

    def remove(self) -> List[str]:
        """Remove all. Returns what is left and why."""
        until = time.monotonic() + REMOVE_SECONDS
        while True:
            containers = self.find()
            if self.client is None or not containers:
                return self.problems
            answer = self.client.run("rm", "--force", "--volumes", "--", *[container.id for container in containers])
            if answer.code == 0 or time.monotonic() > until:
                lines = ["container %s: %s" % (container.name, answer.last_line) for container in containers]
                return self.problems + (lines if answer.code != 0 else [])
            time.sleep(_POLL_SECONDS)

    def expect_no_answer(self) -> None:
        """The daemon is known to hang: the next answer gets the short timeout."""
        if self.client is not None:
            self.client.is_unresponsive = True

    def _labelled(self, label: str, are_expected: bool) -> List[RunContainer]:
        if self.client is None:
            return []
        answer = self.client.run("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + label)
        ids = answer.out.split()
        if ids:
            answer = self.client.run("inspect", "--type", "container", "--", *ids)
        # That a container does not exist any more is an answer too.
        is_gone = all("no such" in line.lower() for line in answer.err.splitlines())
        if answer.timed_out or (answer.code != 0 and not is_gone and (ids or are_expected)):
            self.problems.append("containers may be left: %s" % answer.last_line)
        items = sorted(json.loads(answer.out or "[]") if ids else [], key=lambda item: str(item.get("Created")))
        return [_container(self.client, number, item) for number, item in enumerate(items, 1)]


def is_container_problem(line: str) -> bool:
    """Whether `line`, of a status's `left`, is about containers."""
    return line.startswith(("container ", "containers may be left"))


def read_plan(paths: run_directory.RunDir) -> Plan:
    """The plan, or an empty one where it cannot be read: what a run left is removed without one, too."""
    try:
        return run_directory.read_plan(paths)
    except (OSError, ValueError):
        return Plan()


def started_containers(paths: run_directory.RunDir) -> Sequence[DockerInvocation]:
    """The calls of docker.json that started a container; none where it cannot be read."""
    try:
        record = run_directory.read_record(DockerInvocations, paths.docker)
    except (OSError, RecordError):
        return ()
    return [call for call in record.calls if call.name] if record is not None else ()


def _container(client: DockerClient, number: int, item: Mapping[str, Any]) -> RunContainer:
    config, state, image_id = item.get("Config") or {}, item.get("State") or {}, item.get("Image") or ""
    if image_id and ":" not in image_id:  # podman's
        image_id = "sha256:" + image_id
    name, running, started_at = item.get("Name") or item["Id"], bool(state.get("Running")), state.get("StartedAt") or ""
    image, run_dir = config.get("Image") or "", (config.get("Labels") or {}).get(LABEL_DIR, "")
    return RunContainer(client, item["Id"], name.lstrip("/"), number, image, image_id, running, started_at, run_dir)


class DaemonMonitor:
    """Asks the container daemon every few seconds whether it answers, beside the `docker run` that waits for it: one
    that hangs ends nothing and prints nothing. Does nothing for a plan without docker or podman. `on_first_answer` is
    called once, in the monitor's thread."""

    def __init__(self, plan: Plan, on_first_answer: Callable[[], object]) -> None:
        self.runtime = plan.container_runtime if plan.image else None
        self._env, self._on_first_answer = {**os.environ, **plan.host_env}, on_first_answer
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


COMMIT_SECONDS = 600.0  # the container's own files are copied
_REPOSITORY = "ci-tasks-kept"
_NO_IMAGE = re.compile("no such image|image not known", re.IGNORECASE)
_NOT_IN_SHELL = ("name", "detach", "interactive", "tty", "entrypoint", "pull", "cidfile", "label", "rm")
EXIT_NOTHING = 2


# -- kept containers ---------------------------------------------------------------------------------------------------


def image_to_go_on(ci: Sequence[str], directories: Sequence[str], program: str) -> Optional[str]:
    """The image of the container of an earlier run in `directories`, the oldest first, in which CI's `docker run` goes
    on; None where none of them came to it. Raises DockerArgvError where it is gone."""
    # `docker` is the adapter itself on the job's PATH.
    environ = {**os.environ, "PATH": os.path.dirname(program) + os.pathsep + os.environ.get("PATH", os.defpath)}
    for directory in reversed(directories):
        calls = started_containers(RunDir(directory))[::-1]
        # The last one of these words, or else of this image: a word may name the commit.
        same = [call.name for call in calls if list(call.ci) == list(ci)]
        same += [call.name for call in calls if parse_run(call.ci).image == parse_run(ci).image]
        if same:
            containers = RunContainers(directory, thorough=True, environ=environ)
            found = [container for container in containers.find() if container.name == same[0]]
            if found:
                return _image_made_of(found[0])
            why = "; ".join(containers.problems) or "it was removed"
            raise DockerArgvError(f"the kept container {same[0]} is gone ({why}); run the row again")
    return None


def remove_images(containers: Sequence[RunContainer]) -> List[str]:
    """Remove the images that were made of containers, and for them. Returns a line for each that stays."""
    left = []
    for container in containers:
        own = {container.image} if container.image.partition(":")[0].endswith(_REPOSITORY) else set()
        for image in sorted({_image_of(container), *own}):
            answer = container.client.run("rmi", "--", image)
            if answer.code != 0 and not _NO_IMAGE.search(answer.err):
                remedy = f"`{container.client.runtime} rmi {image}` removes it when nothing uses it"
                left.append(f"image {image}: {answer.last_line}; {remedy}")
    return left


def _image_of(container: RunContainer) -> str:
    return f"{_REPOSITORY}:{container.id[:12]}"


def _image_made_of(container: RunContainer) -> str:
    """The image of the container's files. Raises DockerArgvError."""
    client, image = container.client, _image_of(container)
    if client.run("image", "inspect", "--format", "{{.Id}}", image).code != 0:  # an ended container does not change
        answer = client.run("commit", "--", container.id, image, timeout=COMMIT_SECONDS)
        if answer.code != 0:
            raise DockerArgvError(f"the kept container {container.name}: {answer.last_line}")
    return image


# -- shell -----------------------------------------------------------------------------------------------------------


def shell(run_dir: str) -> int:
    """Open bash in the run's container, in a new container with its files, or in its workspace. Returns its exit code,
    or EXIT_NOTHING where nothing is left of the run."""
    containers = RunContainers(run_dir, thorough=True)
    last = next(reversed(containers.find()), None)
    if last is not None and last.running:
        _say(f"in the running container {last.name}")
        return subprocess.call([last.client.runtime, "exec", *_terminal(), last.id, "bash"], env=last.client.env)
    if last is not None:
        return _shell_in_image(last, containers.paths)
    if os.path.isdir(containers.plan.workspace):
        return _shell_in_workspace(containers)
    _say("nothing is left of the run to open a shell in; `--keep` keeps the container and workspace of a failed one")
    return EXIT_NOTHING


def _shell_in_image(container: RunContainer, paths: RunDir) -> int:
    client = container.client
    try:
        image = _image_made_of(container)
    except DockerArgvError as error:
        _say(str(error))
        return EXIT_NOTHING
    _say(f"in a container with the files of {container.name}, whose command has ended")
    calls = [call.here for call in started_containers(paths) if call.name == container.name]
    run = shell_run(parse_run(calls[0] if calls else ["run", image]), image)
    try:
        return subprocess.call([client.runtime, *render(run)], env=client.env)
    finally:
        client.run("rmi", "--", image)


def shell_run(run: DockerRun, image: str) -> DockerRun:
    """CI's `docker run` with bash for its command and `image` for its image."""
    options = [item for item in run.options if item.name not in _NOT_IN_SHELL]
    options += [option("rm"), option("entrypoint", "bash"), *map(option, (word[2:] for word in _terminal()))]
    return dataclasses.replace(run, options=tuple(options), image=image, command=())


def _shell_in_workspace(containers: RunContainers) -> int:
    """With the variables of the job's steps, and its venv."""
    plan, run_dir = containers.plan, containers.paths.path
    _say(f"in {plan.workspace}")
    own = plan.retry.directories[0] if plan.retry is not None else run_dir
    files = [os.path.join(plan.setup or "", "ready"), os.path.join(own, "tmp", "venv", "bin", "activate")]
    script = "".join(f". {shlex.quote(path)}; " for path in files if os.path.exists(path)) + "exec bash"
    env = {**job_environment(plan, run_dir), "TERM": os.environ.get("TERM", "dumb"), **plan.env}
    env = {name: value for name, value in env.items() if MASKED not in value}
    return subprocess.call(["bash", "-c", script], cwd=plan.workspace, env={**env, "GITHUB_WORKSPACE": plan.workspace})


def _terminal() -> List[str]:
    return ["--interactive", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--interactive"]


def _say(text: str) -> None:
    print("ci-tasks: " + text, file=sys.stderr, flush=True)
