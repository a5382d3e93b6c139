"""Whether a host can run a row, and if not, which resources are missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.workflow.model import Row


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. `gpus` are those of one node, where it is a cluster. `container_problem` says why its
    runtime cannot start one, `python_problem` why the Python that rows would get there is none for the checkout,
    `scheduler_problem` why Slurm takes no job; empty when it can, and is."""

    gpus: int = 0
    gpu_problem: str = ""
    container_problem: str = ""
    simulates: bool = True
    python_problem: str = ""
    scheduler_problem: str = ""


def missing_resources(row: Row, host: HostSpec, facts: HostFacts) -> list[str]:
    """What `row` needs and `host` does not have; empty when it can run there."""
    missing = []
    if facts.scheduler_problem:
        return [f"Slurm ({facts.scheduler_problem})"]
    if host.simulate and row.needed_gpus and not facts.simulates:
        return [
            "a lock script in the checkout that knows CI_TASKS_GPU_LOCK_DIR: simulated GPUs would touch the real locks"
        ]
    if row.needed_gpus > facts.gpus:
        gpus_on_host = f"found {facts.gpus}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        missing.append(f"{row.needed_gpus} GPUs{' on one node' if host.kind == 'slurm' else ''} ({gpus_on_host})")
    if row.image and facts.container_problem:
        missing.append(facts.container_problem)
    if facts.python_problem:
        missing.append(facts.python_problem)
    return missing


def other_hosts(row: Row, hosts: Mapping[str, HostSpec], here: str, simulates: bool) -> list[str]:
    """The hosts of hosts.yaml that could run `row`, each with its resources."""
    return [
        f"{name} ({_resources_of(host)})"
        for name, host in hosts.items()
        if name != here and _has_resources(row, host, simulates)
    ]


def _has_resources(row: Row, host: HostSpec, simulates: bool) -> bool:
    if host.simulate:
        return simulates and (host.gpus or 0) >= row.needed_gpus
    return host.kind != "local" and (host.gpus is None or host.gpus >= row.needed_gpus)


def _resources_of(host: HostSpec) -> str:
    if host.simulate:
        return f"{host.gpus} simulated GPUs"
    gpus = f"{host.gpus} GPUs" if host.gpus is not None else "GPUs unknown"
    gpus += " a node" if host.kind == "slurm" and host.gpus is not None else ""
    return f"{host.kind} {host.address}, {gpus}"
