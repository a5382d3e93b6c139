"""The containers of a run, a shell in one, and the removal of directories in which one may have left anything: root's
files, modes of 000, very deep trees.

A run's containers carry the label of its directory. A job can write any name into docker.json, and another label into
plan.json; which directory is removed is known without them. A killed `docker run` leaves its container running, so the
end of the script says nothing about them. A daemon that is dead or hangs must not keep a run from ending: its answers
have a time limit, and a shorter one after a timeout.

What another user owns is removed by a container of the image that made it. Links are not followed, and where a file
system is mounted inside, nothing is removed at all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Iterator, List, Mapping, Optional, Sequence

from .docker_argv import ENGINES, option, parse_run, render
from .files import content_of
from .mask import MASKED
from .processes import run_program
from .quick_dataclass import dataclass
from .records import ContainerState, DockerInvocation, DockerInvocations, Plan, QueryAnswer
from .run_directory import RunDir, job_environment, read_if_readable

TIMEOUT = 15.0  # seconds for an answer of the daemon; one that is busy with a pull takes several
SHORT_TIMEOUT = 5.0  # seconds, once it did not answer
REMOVE_SECONDS = 20.0  # a removal fails while the container is created, or removed by another; it takes as long
LABEL_DIR = "ci-tasks.dir"  # an id is unique on one client; the directory is so on the host


class DockerClient:
    """docker or podman, with the job's environment."""

    def __init__(self, runtime: str, env: Mapping[str, str]) -> None:
        self.runtime, self.env, self.is_unresponsive = runtime, env, False

    def run(self, *args: str, timeout: Optional[float] = None) -> QueryAnswer:
        seconds = timeout or TIMEOUT
        seconds = min(seconds, SHORT_TIMEOUT) if self.is_unresponsive else seconds
        answer = run_program([self.runtime, *args], seconds, self.env)
        self.is_unresponsive = answer.timed_out
        return answer

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

    def state(self) -> ContainerState:
        """What is recorded of it."""
        form = '{{join .RepoDigests "\\n"}}'
        digests = self.client.run("image", "inspect", "--format", form, self.image_id).out.split()
        return ContainerState(self.name, self.image, self.image_id, tuple(digests), self.started_at)


class RunContainers:
    """The containers of one run. `thorough`: ask the daemon even where the run has called no docker."""

    def __init__(self, run_dir: str, thorough: bool = False) -> None:
        self.paths, self.thorough = RunDir(run_dir), thorough
        # What a run left is removed without a plan, too.
        self.plan = read_if_readable(Plan, self.paths.plan) or Plan()
        self.problems: List[str] = []
        self._ids: Sequence[str] = ()
        runtime = self.plan.container_runtime or ""
        # None for a runtime without a daemon. DOCKER_HOST of the host's `env` says which daemon has the containers.
        self.client = DockerClient(runtime, {**os.environ, **self.plan.host_env}) if runtime in ENGINES else None

    def find(self) -> List[RunContainer]:
        """All that exist, in the order of their creation. `problems` says that the daemon did not answer."""
        self.problems = []
        has_called = os.path.lexists(self.paths.docker)
        if self.client is None or not (has_called or self.thorough):
            return []
        label = "label=%s=%s" % (LABEL_DIR, self.paths.path)
        answer = self.client.run("ps", "--all", "--quiet", "--no-trunc", "--filter", label)
        ids = answer.out.split()
        if ids:
            answer = self.client.run("inspect", "--type", "container", "--", *ids)
        # That a container does not exist any more is an answer too.
        is_gone = all("no such" in line.lower() for line in answer.err.splitlines())
        if answer.timed_out or (answer.code != 0 and not is_gone and (ids or has_called)):
            self.problems.append("containers may be left: %s" % answer.last_line)
        items = sorted(json.loads(answer.out or "[]") if ids else [], key=lambda item: str(item.get("Created")))
        return [_container(self.client, number, item) for number, item in enumerate(items, 1)]

    def ids(self) -> Sequence[str]:
        """The ids of the containers that the run has started so far."""
        if len(started_containers(self.paths)) > len(self._ids):
            self._ids = [container.id for container in self.find()]
        return self._ids

    def silence(self) -> str:
        """Why the daemon is taken to hang; "" if it answers, also with an error, or if there is none."""
        if self.client is None:
            return ""
        answer = self.client.run("ps", "--quiet", "--last", "1")
        return answer.err if answer.timed_out else ""

    def stop(self) -> None:
        """Stop the running containers. Their files stay, for their logs."""
        running = [container.id for container in self.find() if container.running]
        if self.client is not None and running:
            self.client.run("stop", "-t", "1", "--", *running)  # a detached one gets a second

    def remove(self) -> List[str]:
        """Remove all. Returns what is left and why."""
        until = time.monotonic() + REMOVE_SECONDS
        while True:
            containers = self.find()
            if self.client is None or not containers:
                return self.problems
            ids = [container.id for container in containers]
            answer = self.client.run("rm", "--force", "--volumes", "--", *ids, timeout=REMOVE_SECONDS)
            if answer.code == 0:
                return self.problems
            if time.monotonic() > until:
                return ["container %s: %s" % (container.name, answer.last_line) for container in containers]
            time.sleep(0.2)


def started_containers(paths: RunDir) -> Sequence[DockerInvocation]:
    """The calls of docker.json that started a container; none where it cannot be read."""
    record = read_if_readable(DockerInvocations, paths.docker)
    return [call for call in record.calls if call.name] if record is not None else ()


def _container(client: DockerClient, number: int, item: Mapping[str, Any]) -> RunContainer:
    config, state, image_id = item.get("Config") or {}, item.get("State") or {}, item.get("Image") or ""
    return RunContainer(
        client,
        item["Id"],
        (item.get("Name") or item["Id"]).lstrip("/"),
        number,
        config.get("Image") or "",
        "sha256:" + image_id if image_id and ":" not in image_id else image_id,  # podman's has no such prefix
        bool(state.get("Running")),
        state.get("StartedAt") or "",
    )


# -- a shell -----------------------------------------------------------------------------------------------------------


def shell(run_dir: str) -> int:
    """Open bash in the run's container, in a new one like it if its command has ended, or in the run's workspace.
    Returns its exit code, or 2 where nothing is left of the run."""
    containers = RunContainers(run_dir, thorough=True)
    last = next(reversed(containers.find()), None)
    if last is not None and last.running:
        _say(f"in the running container {last.name}")
        return subprocess.call([last.client.runtime, "exec", *_terminal(), last.id, "bash"], env=last.client.env)
    if last is not None:
        return _shell_in_new_container(last, containers.paths)
    if os.path.isdir(containers.plan.workspace):
        return _shell_in_workspace(containers.plan, containers.paths.path)
    _say("the run's container and workspace are gone: a retry took them, or `--keep` was not given")
    return 2


def _shell_in_new_container(container: RunContainer, paths: RunDir) -> int:
    """With its options, so with the same mounts: starting the container itself would run its command again."""
    runtime = container.client.runtime
    _say(f"in a new container with the mounts of {container.name}, whose command has ended")
    _say(f"see `{runtime} diff {container.name}` for its own files, and `{runtime} cp {container.name}:PATH .`")
    calls = [call.here for call in started_containers(paths) if call.name == container.name]
    run = parse_run(calls[0] if calls else ["run", container.image])
    others = ("name", "detach", "interactive", "tty", "entrypoint", "pull", "cidfile", "label", "rm")
    options = [item for item in run.options if item.name not in others]
    options += [option("rm"), option("entrypoint", "bash"), *map(option, (word[2:] for word in _terminal()))]
    run = dataclasses.replace(run, options=tuple(options), image=container.image_id, command=())
    return subprocess.call([runtime, *render(run)], env=container.client.env)


def _shell_in_workspace(plan: Plan, run_dir: str) -> int:
    """With the variables of the job's steps, and its venv."""
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


# -- what is below a directory, and its removal ------------------------------------------------------------------------

TREE_SECONDS = 600.0  # for one tree; a hundred thousand files on a network file system take their time
_MOUNTS = "/proc/self/mountinfo"


def remove_own(path: str) -> str:
    """Remove `path`, a directory, file or link. Returns the problem if something is left."""
    path = os.path.abspath(path)
    if not os.path.lexists(path):
        return ""
    answer = run_program(["rm", "-rf", "--", path], TREE_SECONDS)
    if answer.code and os.path.isdir(path) and not os.path.islink(path):
        run_program(["chmod", "-R", "u+rwX", "--", path], TREE_SECONDS)
        answer = run_program(["rm", "-rf", "--", path], TREE_SECONDS)
    return "" if answer.code == 0 else answer.last_line


def below(top: str, excluded: str = "") -> Iterator["os.DirEntry[str]"]:
    """Everything below `top`, without links, and without what is in `excluded`. As deep as it may be: os.walk of older
    Pythons is recursive."""
    pending = [top]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield entry
                    if entry.is_dir(follow_symlinks=False) and entry.path != excluded:
                        pending.append(entry.path)


def mounted_below(path: str) -> List[str]:
    """The places at or below `path`, an absolute one without links, where a file system is mounted."""
    lines = content_of(_MOUNTS).decode("utf-8", "surrogateescape").splitlines()
    # The kernel writes blanks, newlines and backslashes as octal numbers.
    points = [re.sub(r"\\([0-7]{3})", lambda char: chr(int(char[1], 8)), line.split(" ")[4]) for line in lines]
    return [point for point in points if (point + "/").startswith(path + "/")]


def remove_tree(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> List[str]:
    """Remove `path`, a directory, file or link. Returns a line for each problem; none is success."""
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path.rstrip("/")))
    mounts = mounted_below(path)
    if mounts:
        return ["%s: a file system is mounted there" % mount for mount in mounts]
    problem = remove_own(path)
    if os.path.lexists(path):
        answer = _in_container(path, image, runtime, env, "rm", "-rf")
        problem = answer.last_line if answer.code else problem
    return ["%s: %s" % (path, problem or "it still exists")] if os.path.lexists(path) else []


def make_readable(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """Everything below the directory `path` can be read by us afterwards, also what root wrote in a container."""
    run_program(["chmod", "-R", "u+rX", "--", path], TREE_SECONDS)
    if not all(os.access(entry, os.R_OK) for entry in below(path)):
        _in_container(path, image, runtime, env, "chmod", "-R", "a+rX")


def take_ownership(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """What root wrote in a container below the directory `path` is ours afterwards, as far as its image has chown."""
    entries = [] if mounted_below(path) else below(path)
    if any(entry.stat(follow_symlinks=False).st_uid != os.geteuid() for entry in entries):
        _in_container(path, image, runtime, env, "chown", "-hR", "%d:%d" % (os.geteuid(), os.getegid()))


def _in_container(
    path: str, image: Optional[str], runtime: str, env: Mapping[str, str], program: str, *args: str
) -> QueryAnswer:
    """`PROGRAM WORDS PATH` as root in a container that sees nothing but the directory of `path`."""
    if not image or runtime not in ENGINES:
        return QueryAnswer(None)
    client = DockerClient(runtime, env)
    # A large tree takes long; a daemon that hangs is not waited for as long.
    answer = client.run("version", timeout=SHORT_TIMEOUT)
    if answer.timed_out:
        return answer
    parent, name = os.path.split(path)
    return client.run(
        *("run", "--rm", "--pull=never", "--network", "none", "--user", "0:0", "--workdir", "/"),
        *("--security-opt", "label=disable", "--entrypoint", program),
        *("--mount", "type=bind,source=%s,destination=/x" % parent),
        *(image, *args, "--", "/x/" + name),
        timeout=TREE_SECONDS,
    )
