"""Whether a host can run a row, and if not, which resources are missing, the Python that the checkout needs among them.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.workflow.model import Row

# `requires-python` of pyproject.toml, `python_requires` of setup.cfg and setup.py
_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_REQUIREMENT = re.compile(r"""^\s*(?:requires-python|python_requires)\s*=\s*["']?([^"'#\n]+)""", re.MULTILINE)


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
    if facts.scheduler_problem:
        return [f"Slurm ({facts.scheduler_problem})"]
    if host.simulate and row.needed_gpus and not facts.simulates:
        why = "simulated GPUs would touch the real locks"
        return [f"a lock script in the checkout that knows CI_TASKS_GPU_LOCK_DIR: {why}"]
    missing = [facts.container_problem if row.image else "", facts.python_problem]
    if row.needed_gpus > facts.gpus:
        found = f"found {facts.gpus}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        missing.insert(0, f"{row.needed_gpus} GPUs{' on one node' if host.kind == 'slurm' else ''} ({found})")
    return [each for each in missing if each]


def other_hosts(row: Row, hosts: Mapping[str, HostSpec], here: str, simulates: bool) -> list[str]:
    """The hosts of hosts.yaml that could run `row`, each with its resources."""
    others = [(name, host) for name, host in hosts.items() if name != here]
    return [f"{name} ({_resources_of(host)})" for name, host in others if _has_resources(row, host, simulates)]


def _has_resources(row: Row, host: HostSpec, simulates: bool) -> bool:
    if host.simulate:
        return simulates and (host.gpus or 0) >= row.needed_gpus
    return host.kind != "local" and (host.gpus is None or host.gpus >= row.needed_gpus)


def _resources_of(host: HostSpec) -> str:
    if host.simulate:
        return f"{host.gpus} simulated GPUs"
    if host.gpus is None:
        return f"{host.kind} {host.address}, GPUs unknown"
    return f"{host.kind} {host.address}, {host.gpus} GPUs{' a node' if host.kind == 'slurm' else ''}"


def requires_python(read_file: Callable[[str], str | None]) -> str:
    """The checkout's own version specifier, such as `>=3.10`; empty where it names none."""
    texts = (read_file(name) or "" for name in _FILES)
    return next((found[1].strip() for text in texts if (found := _REQUIREMENT.search(text))), "")


def python_problem(requirement: str, version: str) -> str:
    """What is wrong with a Python of `version`; empty where nothing is, or where that is not known."""
    if not requirement or not version:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(requirement).contains(version, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return ""
    return "" if fits else f"Python {requirement}, as the checkout requires (found {version})"
