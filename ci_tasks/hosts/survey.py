"""How a host stands for rows that look for a place: GPUs that are locked there, and images that are there.

Only a hint for the placement: the locks on the host decide, when the row is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts import holders
from ci_tasks.model import HostSpec

PATIENCE = 20.0  # seconds
_CONTAINERS = ("docker", "podman")
_IMAGE = "image "


@dataclass(frozen=True)
class Survey:
    """`locked` are the GPUs that somebody holds, our own rows included."""

    locked: frozenset[int] = frozenset()
    images: frozenset[str] = frozenset()


def questions(spec: HostSpec, images: Sequence[str]) -> dict[str, Sequence[str]]:
    """What to ask of a host; pretend GPUs are not asked about, since nobody else is to be looked at there."""
    asked: dict[str, Sequence[str]] = {}
    if not spec.simulate:
        asked[holders.LOCKS_QUESTION] = holders.FIRST[holders.LOCKS_QUESTION]
    if spec.runtime in _CONTAINERS:
        given = ["env", *(f"{name}={value}" for name, value in spec.env.items())] if spec.env else []
        for image in images:
            asked[_IMAGE + image] = [*given, spec.runtime, "image", "inspect", "--format", "{{.Id}}", image]
    return asked


def parse(answers: Mapping[str, Answer]) -> Survey:
    """What the answers say; nothing where they say nothing."""
    return Survey(
        locked=frozenset(holders.held(answers)) if holders.LOCKS_QUESTION in answers else frozenset(),
        images=frozenset(
            name[len(_IMAGE) :] for name, answer in answers.items() if name.startswith(_IMAGE) and answer.code == 0
        ),
    )
