"""The container adapter: what the `docker` of a run directory does. The one seam where CI's scripts meet this host.

It gets the exact words CI would have given to docker, notes them and what becomes of them in docker.json, and then *is*
the real docker or podman (exec), or the inner command where there are no containers. What cannot be done here is
blocked (exit 125), not failed: nothing of the test has run. Messages go to stderr; those of a blocked run begin with
BLOCKED.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Dict

from ..gpu.claim import visible_devices
from ..layout import RunDir, read_json, write_json
from ..words import Deviation, masked
from .bare import bare_deviations, inner_command, inner_environment
from .container import client_environment, rewrite
from .docker_argv import DockerArgvError, DockerRun, is_run, parse_run, render, split_global
from .mounts import bind_sources
from .rules import NONE, Rules, RulesError

BLOCKED = "ci-tasks: blocked: "
EXIT_BLOCKED = 125
# As docker says it, so that a script cannot tell the difference.
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

# Without containers there is nothing to pull; a script that begins with these goes on.
_IDLE = (["pull"], ["image", "pull"], ["login"], ["logout"])

Entry = Dict[str, Any]


class Blocked(Exception):
    """The run cannot be done here; the message says why and what to do about it."""


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
    return _run_in_container(run, rules, run_dir)


def _read_rules(run_dir: RunDir) -> Rules:
    try:
        plan = read_json(run_dir.plan)
    except ValueError as error:
        raise Blocked(f"{run_dir.plan} is not JSON: {error}") from None
    if "container" not in plan:
        raise Blocked(f"{run_dir.plan} has no `container` rules, so docker cannot be adapted to this host")
    rules = Rules.from_plan(plan["container"])
    return dataclasses.replace(rules, env={**rules.env, **visible_devices()})


# -- docker and podman -----------------------------------------------------------------------------------------------


def _run_in_container(run: DockerRun, rules: Rules, run_dir: RunDir) -> int:
    program = _real_program(rules.runtime, run_dir)
    with _journal(run_dir) as entries:
        nth = 1 + sum(is_run(entry["ci"]) for entry in entries)
        here, deviations = rewrite(run, rules, nth)
        _check_sources(run, here)
        entries.append(_entry(render(run), render(here), deviations, rules.runtime, here.last("name")))
    if here.last("pull") == "always":
        _event(run_dir, "pull", image=here.image)
    _event(run_dir, "container", name=here.last("name"))
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
    if rules.runtime == NONE:
        return _idle(argv, run_dir)
    program = _real_program(rules.runtime, run_dir)
    with _journal(run_dir) as entries:
        entries.append(_entry(argv, argv, [], rules.runtime, None))
    words = split_global(argv)[1]
    if words[:1] == ["pull"] or words[:2] == ["image", "pull"]:
        _event(run_dir, "pull", image=words[-1])
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
    with _journal(run_dir) as entries:
        entries.append(_entry(render(run), command, deviations, NONE, None))
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


def _idle(argv: list[str], run_dir: RunDir) -> int:
    words = split_global(argv)[1]
    asked = next((idle for idle in _IDLE if words[: len(idle)] == idle), None)
    if asked is None:
        raise Blocked(
            f"docker {' '.join(words[:1]) or '(no subcommand)'} needs docker, and this host's runtime is none"
        )
    what = "docker " + " ".join(asked)
    if "--password-stdin" in words:
        sys.stdin.buffer.read()  # else the writer of the pipe might die of it
    why = "hosts.yaml runtime: none"
    with _journal(run_dir) as entries:
        deviation = {"what": what, "ci": " ".join(masked(argv)), "here": "nothing done", "why": why}
        entries.append(_entry(argv, [], [deviation], NONE, None))
    _say(f"ci-tasks: {what}: nothing to do, this host's runtime is none")
    return 0


# -- docker.json and exec --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _journal(run_dir: RunDir) -> Iterator[list[Entry]]:
    """docker.json's entries, held by us alone; what was appended is written when the block ends well.

    A container that is not on record would be left behind, so without a record there is none.
    """
    try:
        with open(run_dir.docker + ".lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = _read_entries(run_dir.docker)
            yield entries
            write_json(run_dir.docker, entries)
    except OSError as error:
        raise Blocked(f"{run_dir.docker} cannot be written: {error.strerror}") from None


def _event(run_dir: RunDir, event: str, **more: str | None) -> None:
    """One line beside the runner's own. It is for people who watch; a full disk is no reason to stop here."""
    shown = {key: value and _showable([value])[0] for key, value in more.items()}
    line = json.dumps({"t": round(time.time(), 3), "event": event, **shown}) + "\n"
    try:
        with open(run_dir.events, "a", encoding="utf-8") as out:
            out.write(line)
    except OSError:
        pass


def _read_entries(path: str) -> list[Entry]:
    try:
        with open(path, encoding="utf-8") as source:
            entries = json.load(source)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise Blocked(f"{path} is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise Blocked(f"{path} is not a list of docker calls")
    return entries


def _entry(
    ci: Sequence[str], here: Sequence[str], deviations: Sequence[Deviation], runtime: str, name: str | None
) -> Entry:
    return {
        "ci": _showable(ci),
        "here": _showable(here),
        "deviations": [{key: _showable([text])[0] for key, text in one.items()} for one in deviations],
        "name": name,
        "runtime": runtime,
    }


def _showable(words: Sequence[str]) -> list[str]:
    """Secrets masked, and bytes that are no UTF-8 as `\\xNN`, since JSON cannot hold them."""
    return [word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in masked(words)]


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
