"""A shell where a run is, or was: in its container, in one like it, or beside its workspace.

A running container is entered. One that a failed run left (`--keep`) has ended, and to start it would run CI's command
again: its files become an image, and the shell runs in a container of that image with the options of CI's own.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from typing import Any, Dict, List, Optional

from .. import layout
from ..environment import job_environment
from ..words import MASK
from .bare import inner_environment
from .containers import Container, Containers, read_entries, read_plan
from .docker_argv import DockerArgvError, DockerRun, is_run, option, parse_run, render
from .rules import Rules

EXIT_NOTHING = 2
_DROPPED = ("name", "detach", "interactive", "tty", "entrypoint", "pull", "cidfile", "label")


def main(run_dir: str) -> int:
    """Open bash; its exit code. Says what to do where nothing is left of the run."""
    paths = layout.RunDir(run_dir)
    plan = read_plan(paths)
    found = Containers(paths.path, thorough=True).find()
    if found:
        last = found[-1]
        return _enter(last) if last.running else _relive(last, paths)
    if os.path.isdir(str(plan.get("workspace"))):
        return _beside(paths, plan)
    _say("nothing is left of the run to open a shell in; `--keep` keeps the container and workspace of a failed one")
    return EXIT_NOTHING


def _enter(container: Container) -> int:
    _say("in the running container %s" % container.name)
    return _run([container.client.runtime, "exec", *_terminal(), container.id, "bash"], container.client.env)


def _relive(container: Container, paths: layout.RunDir) -> int:
    client, image = container.client, "ci-tasks-kept:" + container.id[:12]
    answer = client.ask("commit", "--", container.id, image)
    if answer.code != 0:
        _say("container %s: %s" % (container.name, answer.problem))
        return EXIT_NOTHING
    try:
        _say("in a container with the files of %s, whose command has ended" % container.name)
        words = render(shell_run(_call_of(container.name, paths), image))
        return _run([client.runtime, *words], client.env)
    finally:
        client.ask("rmi", "--", image)


def shell_run(call: Optional[DockerRun], image: str) -> DockerRun:
    """CI's `docker run` with bash for its command and `image` for its image. Pure."""
    kept = tuple(item for item in call.options if item.name not in _DROPPED) if call else ()
    kept = tuple(item for item in kept if item.name != "rm")
    flags = [option("rm"), option("entrypoint", "bash")]
    flags += [option({"-i": "interactive", "-t": "tty"}[word]) for word in _terminal()]
    made = call or parse_run(["run", image])
    return dataclasses.replace(made, options=kept + tuple(flags), image=image, command=())


def _call_of(name: str, paths: layout.RunDir) -> Optional[DockerRun]:
    for entry in read_entries(paths.docker):
        if isinstance(entry, dict) and entry.get("name") == name and is_run(entry["here"]):
            return parse_run(entry["here"])
    return None


def _beside(paths: layout.RunDir, plan: Dict[str, Any]) -> int:
    """Without a container: the job's variables, its directory, its venv."""
    env, directory = bare_environment(paths, plan)
    _say("in %s" % directory)
    rc = "".join(". %s\n" % shlex.quote(path) for path in _setups(paths, plan) if os.path.exists(path))
    read, write = os.pipe()
    os.write(write, rc.encode("utf-8", "surrogateescape"))
    os.close(write)
    os.set_inheritable(read, True)
    words = ["bash", "--rcfile", "/dev/fd/%d" % read] if sys.stdin.isatty() else ["bash"]
    env = env if sys.stdin.isatty() else {**env, "BASH_ENV": "/dev/fd/%d" % read}
    return subprocess.call(words, cwd=directory, env=env, pass_fds=[read])


def bare_environment(paths: layout.RunDir, plan: Dict[str, Any]) -> "tuple[Dict[str, str], str]":
    """The variables and the directory of the job's last `docker run`, or of its steps where there was none."""
    env = {**job_environment(plan, paths.path), "TERM": os.environ.get("TERM", "dumb"), **(plan.get("env") or {})}
    env["GITHUB_WORKSPACE"] = directory = str(plan["workspace"])
    calls = [entry["ci"] for entry in read_entries(paths.docker) if isinstance(entry, dict) and is_run(entry["ci"])]
    if calls:
        try:
            run = parse_run(calls[-1])
            env = {**env, **inner_environment(run, Rules(runtime="none"), env, lambda _: [])}
            directory = run.last("workdir") or directory
        except DockerArgvError:
            pass
    shown = {name: value for name, value in env.items() if value != MASK}
    return shown, directory if os.path.isdir(directory) else str(plan["workspace"])


def _setups(paths: layout.RunDir, plan: Dict[str, Any]) -> List[str]:
    shared = [os.path.join(str(plan["setup"]), "ready")] if plan.get("setup") else []
    return [*shared, os.path.join(paths.path, "tmp", "venv", "bin", "activate")]


def _terminal() -> List[str]:
    return ["-i", "-t"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]


def _run(words: List[str], env: Dict[str, str]) -> int:
    try:
        return subprocess.call(words, env=env)
    except OSError as error:
        _say("%s: %s" % (words[0], error.strerror))
        return EXIT_NOTHING


def _say(text: str) -> None:
    print("ci-tasks: " + text, file=sys.stderr, flush=True)
