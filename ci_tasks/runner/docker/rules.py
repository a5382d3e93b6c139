"""How a host wants its containers: the `container` object of plan.json as a frozen record, checked. Pure."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

DOCKER = "docker"
PODMAN = "podman"
APPTAINER = "apptainer"
PYXIS = "pyxis"
NONE = "none"
RUNTIMES = (DOCKER, PODMAN, APPTAINER, PYXIS, NONE)
PULLS = ("always", "missing", "never")
BRIDGE = "bridge"


class RulesError(ValueError):
    """plan.json's `container` object says something that cannot be."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How this host wants its containers; see `from_plan` for where each comes from."""

    runtime: str = DOCKER
    pull: str | None = None
    image: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # values may be secrets
    volumes: tuple[str, ...] = ()
    network: str | None = None

    @classmethod
    def from_plan(cls, value: Any) -> Rules:
        """The rules in plan.json's `container`; what is absent or null keeps its default."""
        if not isinstance(value, dict):
            raise RulesError(f"container: an object is needed, not {value!r}")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in value:
            if key not in known:
                nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
                raise RulesError(f"container: unknown key {key!r}; the nearest is {nearest!r}")
        given = {key: item for key, item in value.items() if item is not None}
        for key in ("image", "mounts", "labels", "env"):
            _check_mapping(key, given.get(key, {}))
        volumes = given.pop("volumes", [])
        _check_volumes(volumes)
        rules = cls(volumes=tuple(volumes), **given)
        _check_choice("runtime", rules.runtime, RUNTIMES)
        _check_choice("pull", rules.pull, (None, *PULLS))
        _check_choice("network", rules.network, (None, BRIDGE))
        if rules.name is not None and not isinstance(rules.name, str):
            raise RulesError(f"container: name: text is needed, not {rules.name!r}")
        _check_mounts(rules.mounts)
        return rules

    def name_of(self, nth: int) -> str | None:
        """The name of the run's `nth` container, counted from 1."""
        return self.name if self.name is None or nth == 1 else f"{self.name}-{nth}"


def _check_mapping(key: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise RulesError(f"container: {key}: an object of texts is needed")  # its values may be secrets


def _check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        valid = ", ".join("null" if choice is None else choice for choice in choices)
        raise RulesError(f"container: {key}: {value!r} is not one of {valid}")


def _check_volumes(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise RulesError(f"container: volumes: a list of directories is needed, not {value!r}")
    for path in value:
        _check_path("volumes", path)


def _check_mounts(mounts: Mapping[str, str]) -> None:
    for ci, here in mounts.items():
        if not ci.startswith("/"):
            raise RulesError(f"container: mounts: {ci!r} is not an absolute path")
        _check_path("mounts", here)


def _check_path(key: str, path: str) -> None:
    if not path.startswith("/"):
        raise RulesError(f"container: {key}: {path!r} is not an absolute path")
    if ":" in path:
        raise RulesError(f"container: {key}: {path!r} holds a colon, which docker's -v cannot express")
