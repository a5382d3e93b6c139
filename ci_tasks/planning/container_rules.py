"""The agent's rules for containers and GPU locks, and what a row must not share on its host."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ci_tasks.agent.containers.docker_argv import ContainerRules
from ci_tasks.agent.records import AGENT, JOB, PATTERN, GpuRequest
from ci_tasks.config import HostSpec
from ci_tasks.workflow.gpus import LOCK_SCRIPT
from ci_tasks.workflow.model import Row

LOCK_DIR_ENV = "CI_TASKS_GPU_LOCK_DIR"
# The number of GPUs that slime's tests/ci/gpu_lock_exec.py believes in.
LOCKED_GPUS = 8
# Ray's head and slime's fixed 8265 are ports of the host under `--network host`, whichever GPUs the rows have.
RAY_ON_HOST = "ray-host-network"
_HOST_NETWORK = re.compile(r"--net(?:work)?[= ]host\b")


def container_rules(host: HostSpec, id: str, run_dir: str, lock_dir: str, images: Mapping[str, str]) -> ContainerRules:
    """What the container adapter does with CI's `docker run`: see ci_tasks.agent.containers. `images`: CI's → ours."""
    rules = ContainerRules(
        runtime=host.runtime,
        pull=host.pull,
        image=images,
        mounts=host.mounts,
        network=host.network,
        env={LOCK_DIR_ENV: lock_dir} if host.simulate else {},
    )
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
    """Who takes the locks of the row's GPUs: the checkout's script where the row's steps call it, else the agent."""
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
