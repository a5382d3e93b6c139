"""Whether a host can run a row, and if not, what it lacks. Text and numbers in, sentences out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci_tasks.model import HostSpec, Row


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. `gpus` are those of one node, where it is a cluster. `container_problem` says why its
    runtime cannot start one; empty when it can."""

    gpus: int = 0
    gpu_problem: str = ""
    container_problem: str = ""
    simulates: bool = True


def missing(row: Row, host: HostSpec, facts: HostFacts) -> list[str]:
    """What `host` lacks to run `row`; empty when it can."""
    lacks = []
    if host.simulate and row.gpus and not facts.simulates:
        return [
            "a lock script in the checkout that knows CI_TASKS_GPU_LOCK_DIR: pretend GPUs would touch the real locks"
        ]
    if (row.gpus or 0) > facts.gpus:
        found = f"found {facts.gpus}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        lacks.append(f"{row.gpus} GPUs{' on one node' if host.kind == 'slurm' else ''} ({found})")
    if row.image and facts.container_problem:
        lacks.append(facts.container_problem)
    return lacks


def other_hosts(row: Row, hosts: Mapping[str, HostSpec], here: str, simulates: bool) -> list[str]:
    """The hosts of hosts.yaml that could run `row`, each with what speaks for it."""
    return [f"{name} ({_why(host)})" for name, host in hosts.items() if name != here and _could(row, host, simulates)]


def _could(row: Row, host: HostSpec, simulates: bool) -> bool:
    if host.simulate:
        return simulates and (host.gpus or 0) >= (row.gpus or 0)
    return host.kind != "local" and (host.gpus is None or host.gpus >= (row.gpus or 0))


def _why(host: HostSpec) -> str:
    if host.simulate:
        return f"{host.gpus} pretend GPUs"
    gpus = f"{host.gpus} GPUs" if host.gpus is not None else "GPUs unknown"
    gpus += " a node" if host.kind == "slurm" and host.gpus is not None else ""
    return f"{host.kind} {host.address}, {gpus}"
