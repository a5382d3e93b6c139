"""A shell for a run: in its container, in a new container with its files, or in its workspace.

A running container is entered with `docker exec`. One that a failed run left (`--keep`) has ended, and starting it
would run CI's command again: it is committed to an image, and the shell runs in a container of that image.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from typing import Dict, List, Optional

from .. import run_directory
from ..argv_masking import MASK
from ..job_environment import job_environment
from ..records import Plan
from . import kept
from .bare import inner_environment
from .docker_argv import DockerArgvError, DockerRun, is_run, option, parse_run, render
from .rules import ContainerRules
from .run_containers import RunContainer, RunContainers, read_invocations, read_plan

EXIT_NOTHING = 2
_DROPPED = ("name", "detach", "interactive", "tty", "entrypoint", "pull", "cidfile", "label", "rm")


def main(run_dir: str) -> int:
    """Open bash. Returns its exit code, or EXIT_NOTHING where nothing is left of the run."""
    paths = run_directory.RunDir(run_dir)
    plan = read_plan(paths)
    containers = RunContainers(paths.path, thorough=True).find()
    if containers:
        last = containers[-1]
        return _exec(last) if last.running else _run_committed(last, paths)
    if os.path.isdir(plan.workspace):
        return _run_in_workspace(paths, plan)
    _print_message(
        "nothing is left of the run to open a shell in; `--keep` keeps the container and workspace of a failed one"
    )
    return EXIT_NOTHING


def _exec(container: RunContainer) -> int:
    _print_message("in the running container %s" % container.name)
    return _run([container.client.runtime, "exec", *_terminal(), container.id, "bash"], container.client.env)


def _run_committed(container: RunContainer, paths: run_directory.RunDir) -> int:
    client, image = container.client, kept.image_of(container)
    answer = kept.commit(container)
    if answer.code != 0:
        _print_message("container %s: %s" % (container.name, answer.problem))
        return EXIT_NOTHING
    try:
        _print_message("in a container with the files of %s, whose command has ended" % container.name)
        argv = render(shell_run(_docker_run_of(container.name, paths), image))
        return _run([client.runtime, *argv], client.env)
    finally:
        client.run("rmi", "--", image)


def shell_run(run: Optional[DockerRun], image: str) -> DockerRun:
    """CI's `docker run` with bash for its command and `image` for its image. Pure."""
    options = tuple(item for item in run.options if item.name not in _DROPPED) if run else ()
    flags = [option("rm"), option("entrypoint", "bash")]
    flags += [option({"-i": "interactive", "-t": "tty"}[word]) for word in _terminal()]
    base = run or parse_run(["run", image])
    return dataclasses.replace(base, options=options + tuple(flags), image=image, command=())


def _docker_run_of(name: str, paths: run_directory.RunDir) -> Optional[DockerRun]:
    for invocation in read_invocations(paths) or ():
        if invocation.name == name and is_run(invocation.here):
            return parse_run(invocation.here)
    return None


def _run_in_workspace(paths: run_directory.RunDir, plan: Plan) -> int:
    """Without a container: with the job's variables, its directory, its venv."""
    env, directory = bare_environment(paths, plan)
    _print_message("in %s" % directory)
    rc = "".join(". %s\n" % shlex.quote(path) for path in _rc_files(paths, plan) if os.path.exists(path))
    read, write = os.pipe()
    os.write(write, rc.encode("utf-8", "surrogateescape"))
    os.close(write)
    os.set_inheritable(read, True)
    argv = ["bash", "--rcfile", "/dev/fd/%d" % read] if sys.stdin.isatty() else ["bash"]
    env = env if sys.stdin.isatty() else {**env, "BASH_ENV": "/dev/fd/%d" % read}
    return subprocess.call(argv, cwd=directory, env=env, pass_fds=[read])


def bare_environment(paths: run_directory.RunDir, plan: Plan) -> "tuple[Dict[str, str], str]":
    """The variables and the directory of the job's last `docker run`, or of its steps where there was none."""
    env = {**job_environment(plan, paths.path), "TERM": os.environ.get("TERM", "dumb"), **plan.env}
    env["GITHUB_WORKSPACE"] = directory = plan.workspace
    calls = [call.ci for call in read_invocations(paths) or () if is_run(call.ci)]
    if calls:
        try:
            run = parse_run(calls[-1])
            env = {**env, **inner_environment(run, ContainerRules(runtime="none"), env, lambda _: [])}
            directory = run.last("workdir") or directory
        except DockerArgvError:
            pass
    shown = {name: value for name, value in env.items() if MASK not in value}
    return shown, directory if os.path.isdir(directory) else plan.workspace


def _rc_files(paths: run_directory.RunDir, plan: Plan) -> List[str]:
    shared = [os.path.join(plan.setup, "ready")] if plan.setup else []
    own = plan.retry.directories[0] if plan.retry is not None else paths.path
    return [*shared, os.path.join(own, "tmp", "venv", "bin", "activate")]


def _terminal() -> List[str]:
    return ["-i", "-t"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]


def _run(argv: List[str], env: Dict[str, str]) -> int:
    try:
        return subprocess.call(argv, env=env)
    except OSError as error:
        _print_message("%s: %s" % (argv[0], error.strerror))
        return EXIT_NOTHING


def _print_message(text: str) -> None:
    print("ci-tasks: " + text, file=sys.stderr, flush=True)
