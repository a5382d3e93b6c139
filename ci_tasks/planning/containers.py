"""A row's containers: the agent's rules for them and for GPU locks, what the row must not share on its host, and which
host path a path of a test means there, by the mounts of CI's container and hosts.yaml's `mounts`."""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ci_tasks.agent.docker_argv import ContainerRules, DockerRun, map_path, parse_run
from ci_tasks.agent.records import AGENT, JOB, PATTERN, GpuRequest
from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.planning.steps import PlannedSteps
from ci_tasks.workflow.context import Resolver
from ci_tasks.workflow.model import Container, Job, Row
from ci_tasks.workflow.runner import LOCK_SCRIPT
from ci_tasks.workflow.shell import docker_run

LOCK_DIR_ENV = "CI_TASKS_GPU_LOCK_DIR"
# The number of GPUs that slime's tests/ci/gpu_lock_exec.py believes in.
LOCKED_GPUS = 8
# Ray's head and slime's fixed 8265 are ports of the host under `--network host`, whichever GPUs the rows have.
RAY_ON_HOST = "ray-host-network"
_HOST_NETWORK = re.compile(r"--net(?:work)?[= ]host\b")


def container_rules(host: HostSpec, id: str, run_dir: str, lock_dir: str, images: Mapping[str, str]) -> ContainerRules:
    """What the container adapter does with CI's `docker run`: see agent.docker_adapter. `images`: CI's → ours."""
    rules = ContainerRules(
        runtime=host.runtime, pull=host.pull, image=images, mounts=host.mounts, network=host.network,
        env={LOCK_DIR_ENV: lock_dir} if host.simulate else {},
    )  # fmt: skip
    return rules_of_run(rules, id, run_dir)


def rules_of_run(rules: ContainerRules, id: str, run_dir: str) -> ContainerRules:
    """The same rules for the run `id`."""
    junit = shlex.quote(f"{run_dir}/artifacts/junit.xml")
    # Two people may have a run of one id on one host: the directory is what tells them apart.
    where = hashlib.sha256(run_dir.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return replace(
        rules,
        name=f"ci-tasks-{id}-{where}",
        labels={"ci-tasks.run": id, "ci-tasks.dir": run_dir},
        env={**rules.env, "CI_TASKS_RUN_DIR": run_dir, "PYTEST_ADDOPTS": f"--junitxml={junit}"},
        volumes=(f"{run_dir}/artifacts",),
    )


def gpu_locks(row: Row, host: HostSpec, lock_dir: str, texts: Iterable[str]) -> GpuRequest | None:
    """Who takes the locks of the row's GPUs: the checkout's script if the row's steps call it, else the agent."""
    if not row.needed_gpus:
        return None
    return GpuRequest(
        count=row.needed_gpus,
        by=JOB if any(LOCK_SCRIPT in text for text in texts) else AGENT,
        pattern=f"{lock_dir}/{PATTERN.rpartition('/')[2]}" if host.simulate else PATTERN,
        total=LOCKED_GPUS,
        simulated=host.gpus if host.simulate else None,
        declared=host.gpus,
    )


def exclusive(host: HostSpec, texts: Iterable[str], *, starts_ray: bool) -> tuple[str, ...]:
    """What the row cannot share with another on its host. `texts` are the words of its steps and its container."""
    if not starts_ray:
        return ()
    own_network = host.runtime in ("docker", "podman")  # the others' containers have the host's
    on_host = not own_network or (host.network is None and any(_HOST_NETWORK.search(text) for text in texts))
    return (RAY_ON_HOST,) if on_host else ()


# -- where paths lie ---------------------------------------------------------------------------------------------------

HOME = "/root"  # of a container's user, as images for training have it
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


class HostPath(NamedTuple):
    """`path` on the host, None if nothing there outlives the run; then `why` says so."""

    path: str | None
    why: str = ""


def container_words(container: Container, resolve: Resolver) -> list[str]:
    """Options for `docker run`, and the image last. Raises WorkflowError for options that are no words."""
    volumes, options = [word for each in container.volumes for word in ("-v", resolve.text(each))], container.options
    try:
        return [*shlex.split(resolve.text(options)), *volumes, resolve.text(container.image)]
    except ValueError as error:
        message, text = f"container options: {error}", resolve.text(options)
        raise WorkflowError(message, file=resolve.file, job=resolve.job, line=container.line, text=text) from None


def container_of(job: Job, resolve: Resolver, steps: PlannedSteps) -> DockerRun | None:
    """The container that a row's test runs in: the job's own, or the first that one of its steps starts."""
    if job.container:
        words = container_words(job.container, resolve)
        try:
            return parse_run(["run", *words])
        except ValueError:  # nothing that docker would run either
            return None
    return next((run for step in steps.steps if (run := docker_run(step.text, resolve.contexts["env"]))), None)


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
        return HostPath(None, "in the run's own checkout: it is removed with the checkout")
    if not inside or run is None:
        return HostPath(path)
    path = _normal(path)
    mounts = [mount for mount in run.mounts if mount.source and mount.destination]
    binds = [(filled(mount.source, env), _normal(filled(mount.destination, env))) for mount in mounts]
    for source, destination in sorted(binds, key=lambda bind: -len(bind[1])):
        if path == destination or path.startswith(destination.rstrip("/") + "/"):
            if "$" in source:
                return HostPath(None, f"the container mounts {source} there, known only during a run")
            if not source.startswith("/"):
                return HostPath(None, f"the container's volume {source} is there, which only the runtime can read")
            here, below = map_path(source, host.mounts) or source, path[len(destination.rstrip("/")) + 1 :]
            return HostPath(posixpath.join(here, below) if below else here)
    return HostPath(None, "in no mount of the container: it would be removed with the container")


def filled(text: str, env: Mapping[str, str]) -> str:
    """`$NAME` as `env` has it; a name that is unknown stays."""
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[2], match[0]), text)


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")
