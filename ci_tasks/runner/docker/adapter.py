"""The container adapter: what the `docker` of a run directory does. The one seam where CI's scripts meet this host.

It gets the exact words CI would have given to docker, notes them and what becomes of them in docker.json, and then *is*
the real docker or podman (exec), or the inner command where there are no containers. What cannot be done here is
blocked (exit 125), not failed: nothing of the test has run. Messages go to stderr; those of a blocked run begin with
BLOCKED.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from ..gpu.claim import visible_devices
from ..layout import RunDir, read_json
from ..words import masked
from . import apptainer, nodes, pyxis
from .bare import bare_deviations, given_environment, inner_command, inner_environment
from .container import client_environment, rewrite
from .docker_argv import DockerArgvError, DockerRun, is_run, parse_run, render, split_global
from .journal import Blocked, entry, event, journal
from .mounts import bind_sources
from .rootless import adapted
from .rules import APPTAINER, DOCKER, NONE, PODMAN, PYXIS, Rules, RulesError
from .slurm import VISIBLE, slurm_variables

BLOCKED = "ci-tasks: blocked: "
EXIT_BLOCKED = 125
# As docker says it, so that a script cannot tell the difference.
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

_DAEMONS = (DOCKER, PODMAN)
_ROOTLESS = {PYXIS: pyxis.call, APPTAINER: apptainer.call}
# Without a daemon there is nothing to pull ahead; a script that begins with these goes on.
_IDLE = (["pull"], ["image", "pull"], ["login"], ["logout"])


def main(argv: Sequence[str], run_dir: str) -> int:
    """Do what `docker ARGV` means on this host. Returns only where nothing could be executed, or nothing was to be."""
    try:
        return _main(list(argv), RunDir(run_dir))
    except (Blocked, DockerArgvError, RulesError) as reason:
        _say(BLOCKED + str(reason))
        return EXIT_BLOCKED


def _main(argv: list[str], run_dir: RunDir) -> int:
    rules = _read_rules(run_dir)
    if not is_run(argv):
        return _other(argv, rules, run_dir)
    run = parse_run(argv)
    if rules.runtime == NONE:
        return _run_bare(run, rules, run_dir)
    if rules.runtime in _ROOTLESS:
        return _run_rootless(run, rules, run_dir)
    return _run_in_container(run, rules, run_dir)


def _read_rules(run_dir: RunDir) -> Rules:
    try:
        plan = read_json(run_dir.plan)
    except ValueError as error:
        raise Blocked(f"{run_dir.plan} is not JSON: {error}") from None
    if "container" not in plan:
        raise Blocked(f"{run_dir.plan} has no `container` rules, so docker cannot be adapted to this host")
    rules = Rules.from_plan(plan["container"])
    env = {**rules.env, **slurm_variables(os.environ, rules.runtime in _DAEMONS), **visible_devices()}
    return dataclasses.replace(rules, env=env)


# -- docker and podman -----------------------------------------------------------------------------------------------


def _run_in_container(run: DockerRun, rules: Rules, run_dir: RunDir) -> int:
    if nodes.others(os.environ):
        raise Blocked(f"{rules.runtime} cannot start the job's other nodes; runtime: pyxis, apptainer or none can")
    program = _real_program(rules.runtime, run_dir)
    with journal(run_dir) as entries:
        nth = 1 + sum(is_run(one["ci"]) for one in entries)
        here, deviations = rewrite(run, rules, nth)
        _check_sources(run, here)
        entries.append(entry(render(run), render(here), deviations, rules.runtime, here.last("name")))
    if here.last("pull") == "always":
        event(run_dir, "pull", image=here.image)
    event(run_dir, "container", name=here.last("name"))
    return _execute(program, [rules.runtime, *render(here)], {**os.environ, **client_environment(run, rules)})


def _check_sources(ci: DockerRun, here: DockerRun) -> None:
    """Docker would create a missing source, as an empty directory that root owns, and the test would miss its data."""
    asked = bind_sources(ci)
    for at, source in enumerate(bind_sources(here)):
        if os.path.exists(source):
            continue
        if at >= len(asked):
            raise Blocked(f"the volume {source!r} of plan.json's `container` does not exist on this host")
        if asked[at] != source:
            raise Blocked(
                f"mount source {source!r} (CI's {asked[at]!r}, by hosts.yaml mounts) does not exist on this host: "
                f"create it, or change the host's line in hosts.yaml: mounts: {{{asked[at]}: DIR}}"
            )
        raise Blocked(
            f"mount source {source!r} does not exist on this host; docker would create it empty and owned by root. "
            f"Say where its data is in hosts.yaml: mounts: {{{source}: DIR}}"
        )


def _other(argv: list[str], rules: Rules, run_dir: RunDir) -> int:
    if rules.runtime not in _DAEMONS:
        return _idle(argv, rules.runtime, run_dir)
    program = _real_program(rules.runtime, run_dir)
    with journal(run_dir) as entries:
        entries.append(entry(argv, argv, [], rules.runtime, None))
    words = split_global(argv)[1]
    if words[:1] == ["pull"] or words[:2] == ["image", "pull"]:
        event(run_dir, "pull", image=words[-1])
    return _execute(program, [rules.runtime, *argv], os.environ)


def _real_program(name: str, run_dir: RunDir) -> str:
    """The first `name` on PATH that is not ours."""
    ours = os.path.realpath(run_dir.bin)
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(directory or ".", name)
        if os.path.realpath(directory or ".") == ours or not os.path.isfile(candidate):
            continue
        if os.access(candidate, os.X_OK):
            return candidate
    raise Blocked(f"no {name} on PATH; install it, or give the host another runtime in hosts.yaml (runtime: none)")


# -- pyxis and apptainer ---------------------------------------------------------------------------------------------


def _run_rootless(run: DockerRun, rules: Rules, run_dir: RunDir) -> int:
    here, said = adapted(run, rules)
    given = given_environment(run, rules, os.environ, _lines)
    with journal(run_dir) as entries:
        nth = 1 + sum(is_run(one["ci"]) for one in entries)
        scratch = os.path.join(run_dir.path, "tmp", f"container-{nth}")
        call = _ROOTLESS[rules.runtime](here, given, os.environ, scratch)
        _check_sources(run, here)
        program = _real_program(call.argv[0], run_dir)
        _make_scratch(scratch)
        entries.append(entry(render(run), call.argv, [*said, *call.deviations], rules.runtime, None))
    event(run_dir, "container", name=None)
    if nodes.others(os.environ):
        there = {name: value for name, value in given.items() if name != VISIBLE}  # each node has its own
        # Ray's sockets of several nodes must not meet in one directory, as on a shared disk they would
        beside = _ROOTLESS[rules.runtime](nodes.joining(here), there, os.environ, None)
        _start_others(beside.argv, beside.environment, run_dir)
    if not run.is_on("interactive"):
        _close_stdin()
    return _execute(program, call.argv, call.environment)


def _start_others(words: Sequence[str], environment: Mapping[str, str], run_dir: RunDir) -> None:
    words = nodes.step(words, nodes.others(os.environ))
    job = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    program, log = _real_program(words[0], run_dir), os.path.join(run_dir.artifacts, "other-nodes.log")
    try:
        os.makedirs(run_dir.artifacts, exist_ok=True)
        nodes.start(program, words, {**job, **environment}, log)
    except OSError as error:
        raise Blocked(f"the job's other nodes cannot be started: {error}") from None


def _make_scratch(path: str) -> None:
    """What a container keeps in its own /tmp lies here, so that it can be collected; it goes with the run."""
    for name in ("ray", "tmp"):
        os.makedirs(os.path.join(path, name), exist_ok=True)
        os.chmod(os.path.join(path, name), 0o1777)  # as any /tmp


# -- without containers ----------------------------------------------------------------------------------------------


def _run_bare(run: DockerRun, rules: Rules, run_dir: RunDir) -> int:
    if run.is_on("detach"):
        raise Blocked("docker run --detach needs a container, and this host's runtime is none")
    command = inner_command(run)
    directory = run.last("workdir")
    if directory and not (os.path.isabs(directory) and os.path.isdir(directory)):
        raise Blocked(
            f"working directory {directory!r} (docker run -w) does not exist on this host, whose runtime is none"
        )
    environment = inner_environment(run, rules, os.environ, _lines)
    deviations = bare_deviations(run, rules, os.path.exists)
    with journal(run_dir) as entries:
        entries.append(entry(render(run), command, deviations, NONE, None))
    if nodes.others(os.environ):
        _start_others(inner_command(nodes.joining(run)), environment, run_dir)
    if directory:
        os.chdir(directory)
    if not run.is_on("interactive"):
        _close_stdin()  # as docker does; else the command would eat the rest of a script that bash reads from stdin
    return _execute(command[0], command, environment)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as source:
            return source.read().splitlines()
    except OSError as error:
        raise Blocked(f"docker run --env-file {path!r}: {error.strerror}") from None


def _close_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _idle(argv: list[str], runtime: str, run_dir: RunDir) -> int:
    words = split_global(argv)[1]
    asked = next((idle for idle in _IDLE if words[: len(idle)] == idle), None)
    if asked is None:
        raise Blocked(
            f"docker {' '.join(words[:1]) or '(no subcommand)'} needs docker, and this host's runtime is {runtime}"
        )
    what = "docker " + " ".join(asked)
    if "--password-stdin" in words:
        sys.stdin.buffer.read()  # else the writer of the pipe might die of it
    why = f"hosts.yaml runtime: {runtime}"
    with journal(run_dir) as entries:
        deviation = {"what": what, "ci": " ".join(masked(argv)), "here": "nothing done", "why": why}
        entries.append(entry(argv, [], [deviation], runtime, None))
    _say(f"ci-tasks: {what}: nothing to do, this host's runtime is {runtime}")
    return 0


# -- exec ------------------------------------------------------------------------------------------------------------


def _execute(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become `program`. Comes back only with docker's exit code for a program that cannot be started."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program, list(argv), dict(environment))
    except (FileNotFoundError, NotADirectoryError):
        _say(f"{BLOCKED}{program!r}: no such program on this host")
        return EXIT_NOT_FOUND
    except OSError as error:
        _say(f"{BLOCKED}{program!r} cannot be executed: {error.strerror}")
        return EXIT_NOT_EXECUTABLE


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
