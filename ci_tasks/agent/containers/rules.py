"""The rules of a host for containers: the `container` object of plan.json as a frozen record. Its values come from
hosts.yaml, whose reader checks them. Pure."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Optional, Tuple

from ..codec import NOT_STORED
from ..quick_dataclass import dataclass

DOCKER = "docker"
PODMAN = "podman"
APPTAINER = "apptainer"
PYXIS = "pyxis"
NONE = "none"
RUNTIMES = (DOCKER, PODMAN, APPTAINER, PYXIS, NONE)
ENGINES = (DOCKER, PODMAN)  # that keep containers, which are found by label and removed
PULLS = ("always", "missing", "never")
BRIDGE = "bridge"


@dataclass(frozen=True)
class ContainerRules:
    """The rules of a host for containers. `image` maps CI's images to those to run, `mounts` CI's directories to this
    host's, `name` and `labels` are the containers', `volumes` further directories. `secrets` are values that must
    not be in an argv."""

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
