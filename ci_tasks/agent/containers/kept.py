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
from ..records import Plan
from ..run_directory import RunDir
from .docker_argv import DockerArgvError, DockerOption, DockerRun, is_run, option, parse_run, render
from .run_containers import RunContainer, RunContainers, read_invocations, read_plan

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
        calls = read_invocations(RunDir(directory)) or ()
        runs = [call for call in reversed(calls) if call.name and is_run(call.ci)]
        # The last one of these words, or else of this image: a word may name the commit.
        same = [call for call in runs if list(call.ci) == list(ci)]
        same += [call for call in runs if parse_run(call.ci).image == parse_run(ci).image]
        if not same:
            continue
        containers = RunContainers(directory, thorough=True, environ=environ)
        container = next((each for each in containers.find() if each.name == same[0].name), None)
        if container is None:
            why = "; ".join(containers.problems) or "it was removed"
            raise DockerArgvError(f"the kept container {same[0].name} is gone ({why}); run the row again")
        problem = _commit(container)
        if problem:
            raise DockerArgvError(f"the kept container {container.name}: {problem}")
        return _image_of(container)
    return None


def remove_images(containers: Sequence[RunContainer]) -> List[str]:
    """Remove the images that were made of containers, and for them. Returns a line for each that stays."""
    left = []
    for container in containers:
        own = {container.image} if container.image.partition(":")[0].endswith(_REPOSITORY) else set()
        for image in sorted({_image_of(container), *own}):
            answer = container.client.run("rmi", "--", image)
            if answer.code != 0 and not _NO_IMAGE.search(answer.problem):
                remedy = "`%s rmi %s` removes it when nothing uses it" % (container.client.runtime, image)
                left.append("image %s: %s; %s" % (image, answer.problem, remedy))
    return left


def _image_of(container: RunContainer) -> str:
    return "%s:%s" % (_REPOSITORY, container.id[:12])


def _commit(container: RunContainer) -> str:
    """Make the image, unless it is there: an ended container does not change. Returns why not, or ""."""
    client, image = container.client, _image_of(container)
    if client.run("image", "inspect", "--format", "{{.Id}}", image).code == 0:
        return ""
    answer = client.run("commit", "--", container.id, image, timeout=COMMIT_SECONDS)
    return "" if answer.code == 0 else answer.problem


# -- shell -----------------------------------------------------------------------------------------------------------


def shell(run_dir: str) -> int:
    """Open bash in the run's container, in a new container with its files, or in its workspace. Returns its exit code,
    or EXIT_NOTHING where nothing is left of the run."""
    paths = RunDir(run_dir)
    plan = read_plan(paths)
    last = next(reversed(RunContainers(paths.path, thorough=True).find()), None)
    if last is not None and last.running:
        _say("in the running container %s" % last.name)
        terminal = [item.argv[0] for item in _terminal()]
        return subprocess.call([last.client.runtime, "exec", *terminal, last.id, "bash"], env=last.client.env)
    if last is not None:
        return _shell_in_image(last, paths)
    if os.path.isdir(plan.workspace):
        return _shell_in_workspace(paths, plan)
    _say("nothing is left of the run to open a shell in; `--keep` keeps the container and workspace of a failed one")
    return EXIT_NOTHING


def _shell_in_image(container: RunContainer, paths: RunDir) -> int:
    client, image, problem = container.client, _image_of(container), _commit(container)
    if problem:
        _say("container %s: %s" % (container.name, problem))
        return EXIT_NOTHING
    try:
        _say("in a container with the files of %s, whose command has ended" % container.name)
        calls = [call.here for call in read_invocations(paths) or () if call.name == container.name]
        run = next((parse_run(argv) for argv in calls if is_run(argv)), parse_run(["run", image]))
        return subprocess.call([client.runtime, *render(shell_run(run, image))], env=client.env)
    finally:
        client.run("rmi", "--", image)


def shell_run(run: DockerRun, image: str) -> DockerRun:
    """CI's `docker run` with bash for its command and `image` for its image."""
    options = [item for item in run.options if item.name not in _NOT_IN_SHELL]
    options += [option("rm"), option("entrypoint", "bash"), *_terminal()]
    return dataclasses.replace(run, options=tuple(options), image=image, command=())


def _shell_in_workspace(paths: RunDir, plan: Plan) -> int:
    """With the variables of the job's steps, and its venv."""
    _say("in %s" % plan.workspace)
    own = plan.retry.directories[0] if plan.retry is not None else paths.path
    files = [os.path.join(plan.setup or "", "ready"), os.path.join(own, "tmp", "venv", "bin", "activate")]
    script = "".join(". %s; " % shlex.quote(path) for path in files if os.path.exists(path)) + "exec bash"
    env = {**job_environment(plan, paths.path), "TERM": os.environ.get("TERM", "dumb"), **plan.env}
    env = {name: value for name, value in env.items() if MASK not in value}
    return subprocess.call(["bash", "-c", script], cwd=plan.workspace, env={**env, "GITHUB_WORKSPACE": plan.workspace})


def _terminal() -> List[DockerOption]:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return [option("interactive"), *([option("tty")] if is_terminal else [])]


def _say(text: str) -> None:
    print("ci-tasks: " + text, file=sys.stderr, flush=True)
