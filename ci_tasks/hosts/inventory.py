"""How a host stands for rows that look for a place: GPUs that are locked there, and images that are there.

Only a hint for the placement: the locks on the host decide, when the row is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.hosts import gpu_locks

QUERY_TIMEOUT_S = 20.0  # seconds
_CONTAINERS = ("docker", "podman")
_IMAGE = "image "


@dataclass(frozen=True)
class HostInventory:
    """`locked` are the GPUs that somebody holds, our own rows included."""

    locked: frozenset[int] = frozenset()
    images: frozenset[str] = frozenset()


def inventory_queries(spec: HostSpec, images: Sequence[str]) -> dict[str, Sequence[str]]:
    """What to ask of a host; simulated GPUs are not asked about, since nobody else is to be looked at there."""
    queries: dict[str, Sequence[str]] = {}
    if not spec.simulate:
        queries[gpu_locks.LOCKS_QUERY_NAME] = gpu_locks.LOCKS_QUERY
    if spec.runtime in _CONTAINERS:
        for image in images:
            queries[_IMAGE + image] = [spec.runtime, "image", "inspect", "--format", "{{.Id}}", image]
    return queries


def parse_inventory(answers: Mapping[str, QueryAnswer]) -> HostInventory:
    """What the answers say; nothing where they say nothing."""
    return HostInventory(
        locked=frozenset(gpu_locks.lock_holders(answers)) if gpu_locks.LOCKS_QUERY_NAME in answers else frozenset(),
        images=frozenset(
            name[len(_IMAGE) :] for name, answer in answers.items() if name.startswith(_IMAGE) and answer.code == 0
        ),
    )
