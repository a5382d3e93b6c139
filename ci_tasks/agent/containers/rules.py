"""The rules of a host for containers: the `container` object of plan.json as a frozen record, checked. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Tuple

from ..codec import NOT_STORED

DOCKER = "docker"
PODMAN = "podman"
APPTAINER = "apptainer"
PYXIS = "pyxis"
NONE = "none"
RUNTIMES = (DOCKER, PODMAN, APPTAINER, PYXIS, NONE)
PULLS = ("always", "missing", "never")
BRIDGE = "bridge"


class RulesError(ValueError):
    """A rule has an invalid value."""


@dataclasses.dataclass(frozen=True)
class ContainerRules:
    """The rules of a host for containers. `image` maps CI's images to those to run, `mounts` CI's directories to this
    host's, `name` and `labels` are the containers', `volumes` further directories. `secrets` are values that must
    not be in an argv. Raises RulesError."""

    runtime: str = DOCKER
    pull: Optional[str] = None
    image: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: Optional[str] = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # values may be secrets
    volumes: Tuple[str, ...] = ()
    network: Optional[str] = None
    secrets: Tuple[str, ...] = dataclasses.field(default=(), repr=False, metadata=NOT_STORED)

    def __post_init__(self) -> None:
        _check_choice("runtime", self.runtime, RUNTIMES)
        _check_choice("pull", self.pull, (None, *PULLS))
        _check_choice("network", self.network, (None, BRIDGE))
        for path in self.volumes:
            _check_path("volumes", path)
        for ci, here in self.mounts.items():
            if not ci.startswith("/"):
                raise RulesError(f"mounts: {ci!r} is not an absolute path")
            _check_path("mounts", here)

    def name_of(self, number: int) -> Optional[str]:
        """The name of the run's `number` container, counted from 1."""
        return self.name if self.name is None or number == 1 else f"{self.name}-{number}"


def _check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        valid = ", ".join("null" if choice is None else choice for choice in choices)
        raise RulesError(f"{key}: {value!r} is not one of {valid}")


def _check_path(key: str, path: str) -> None:
    if not path.startswith("/"):
        raise RulesError(f"{key}: {path!r} is not an absolute path")
    if ":" in path:
        raise RulesError(f"{key}: {path!r} has a colon, which docker's -v does not support")
