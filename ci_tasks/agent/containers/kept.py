"""Containers that a failed run has kept, and a shell in what is left of a run.

The command of a kept container has ended, and starting the container would run it again. So what goes on with its
files, a retry or a shell, runs in a container of an image that is made of it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from typing import List, Optional, Sequence

from ..argv_masking import MASK
from ..job_environment import job_environment
from ..run_directory import RunDir
from .docker_argv import DockerArgvError, DockerRun, option, parse_run, render
from .run_containers import RunContainer, RunContainers, started_containers

COMMIT_SECONDS = 600.0  # the container's own files are copied
_REPOSITORY = "ci-tasks-kept"
_NO_IMAGE = re.compile("no such image|image not known", re.IGNORECASE)
_NOT_IN_SHELL = ("name", "detach", "interactive", "tty", "entrypoint", "pull", "cidfile", "label", "rm")
EXIT_NOTHING = 2


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
    env = {name: value for name, value in env.items() if MASK not in value}
    return subprocess.call(["bash", "-c", script], cwd=plan.workspace, env={**env, "GITHUB_WORKSPACE": plan.workspace})


def _terminal() -> List[str]:
    return ["--interactive", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--interactive"]


def _say(text: str) -> None:
    print("ci-tasks: " + text, file=sys.stderr, flush=True)
