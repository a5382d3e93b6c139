"""Where a path that a test names lies on the host: through what CI's container mounts, and hosts.yaml's `mounts`."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from ci_tasks.agent.containers.docker_argv import DockerRun, bind_mount, map_path, parse_run
from ci_tasks.config import HostSpec
from ci_tasks.planning.steps import PlannedSteps
from ci_tasks.workflow.model import Container, Job
from ci_tasks.workflow.resolve import Resolver
from ci_tasks.workflow.shell import docker_run

HOME = "/root"  # of whoever a container's job is, as images for training have it
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


class HostPath(NamedTuple):
    """`path` on the host, None where nothing there outlives the run; then `why` says so."""

    path: str | None
    why: str = ""


def container_words(container: Container, resolve: Resolver) -> list[str]:
    """Options for `docker run`, and the image last. Raises ValueError for options that are no words."""
    volumes = [word for volume in container.volumes for word in ("-v", resolve.text(volume))]
    return [*shlex.split(resolve.text(container.options)), *volumes, resolve.text(container.image)]


def container_of(job: Job, resolve: Resolver, steps: PlannedSteps) -> DockerRun | None:
    """The container that a row's test runs in: the job's own, or the first that one of its steps starts."""
    if job.container:
        try:
            return parse_run(["run", *container_words(job.container, resolve)])
        except ValueError:  # nothing that docker would run either
            return None
    env = resolve.contexts["env"]
    return next((run for step in steps.steps if (run := docker_run(step.text, env))), None)


def environment_of(run: DockerRun | None, host: HostSpec, env: Mapping[str, str]) -> dict[str, str]:
    """What the test's environment says of itself: the row's, and what the container or the host adds."""
    if not is_inside(run, host):
        return {**env, **host.env}
    options = [value.partition("=") for value in (run.values("env") if run else [])]
    return {**env, **{name: filled(value, env) for name, equals, value in options if equals and "$(" not in value}}


def is_inside(run: DockerRun | None, host: HostSpec) -> bool:
    """Whether the test runs in a container."""
    return run is not None and host.runtime != "none"


def place(path: str, run: DockerRun | None, host: HostSpec, env: Mapping[str, str]) -> HostPath:
    """Where `path` lies. It is the test's own: `~` is its home, and a relative one is below its checkout."""
    inside = is_inside(run, host)
    if inside and path.split("/")[0] == "~":
        path = HOME + path[1:]
    if not path.startswith(("/", "~/")):
        return HostPath(None, "it is in the run's own checkout, and goes with it")
    if not inside or run is None:
        return HostPath(path)
    path = _normal(path)
    mounts = [bind_mount(option) for option in run.options if option.name in ("volume", "mount")]
    binds = [(filled(source, env), _normal(filled(target, env))) for source, target in mounts if target]
    for source, destination in sorted(binds, key=lambda bind: -len(bind[1])):
        if path == destination or path.startswith(destination.rstrip("/") + "/"):
            return _on_host(source, path[len(destination.rstrip("/")) + 1 :], host)
    return HostPath(None, "no mount of the container holds it: it would go with the container")


def _on_host(source: str, below: str, host: HostSpec) -> HostPath:
    if "$" in source:
        return HostPath(None, f"the container mounts {source} there, which only a run knows")
    if not source.startswith("/"):
        return HostPath(None, f"the container's volume {source} is there, which the runtime keeps to itself")
    here = map_path(source, host.mounts) or source
    return HostPath(posixpath.join(here, below) if below else here)


def filled(text: str, env: Mapping[str, str]) -> str:
    """`$NAME` as `env` has it; a name that is unknown stays."""
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[2], match[0]), text)


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")
