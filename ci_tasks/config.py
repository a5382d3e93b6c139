"""hosts.yaml text → hosts, pools and overrides. The border where raw mappings stop.

An unknown key is an error with its line and the nearest valid one: a setting that is silently ignored runs the wrong thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import ConfigError, UnknownName, nearest
from ci_tasks.model import HostSpec, Override
from ci_tasks.yaml_lines import Map

KINDS = ("local", "ssh", "slurm")
RUNTIMES = ("docker", "podman", "apptainer", "pyxis", "none")
PULLS = ("always", "missing", "never")


@dataclass(frozen=True)
class Config:
    """hosts.yaml as records. `file` is where it was read, for messages."""

    hosts: Mapping[str, HostSpec]
    pools: Mapping[str, tuple[str, ...]]
    overrides: tuple[Override, ...]
    file: str = "hosts.yaml"

    def host(self, name: str) -> HostSpec:
        """Raises UnknownName, which lists the hosts."""
        if name not in self.hosts:
            raise UnknownName("host", name, self.hosts, where=self.file)
        return self.hosts[name]


def read(text: str, file: str = "hosts.yaml") -> Config:
    """Raises ConfigError with the line of what has no meaning."""
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise ConfigError(f"not YAML: {error.message}", file=file, line=error.line, hint=error.text) from None
    reader = _Reader(file)
    top = reader.mapping(tree if tree is not None else Map(1), "the file", 1)
    reader.known(top, ("hosts", "pools", "overrides"), "the file")
    hosts = reader.mapping(top.get("hosts") or Map(1), "hosts", top.lines.get("hosts", 1))
    specs = {name: reader.host(name, hosts[name], hosts.lines[name]) for name in hosts}
    pools = reader.mapping(top.get("pools") or Map(1), "pools", top.lines.get("pools", 1))
    return Config(
        hosts=specs,
        pools={name: reader.pool(pools[name], specs, pools.lines[name]) for name in pools},
        overrides=tuple(reader.override(item) for item in reader.items(top, "overrides")),
        file=file,
    )


# key of a host → the type its value has
_HOST_KEYS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "address": (str,),
    "runtime": (str,),
    "gpus": (int,),
    "simulate": (bool,),
    "pull": (str,),
    "mounts": (Map,),
    "secrets": (list,),
    "env": (Map,),
    "timeout_minutes": (int, float),
    "stall_minutes": (int, float),
    "partition": (str,),
    "gres": (str,),
}
_CHOICES = {"kind": KINDS, "runtime": RUNTIMES, "pull": PULLS}


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file

    def host(self, name: str, body: Any, line: int) -> HostSpec:
        found = self.mapping(body if body is not None else Map(line), f"host {name}", line)
        self.known(found, tuple(_HOST_KEYS), f"host {name}")
        for key, value in found.items():
            self._typed(name, key, value, found.lines[key])
        if found.get("kind", "local") != "local" and not found.get("address"):
            raise self.error(f"host {name} has no address", line)
        return HostSpec(
            name=name,
            kind=found.get("kind", "local"),
            address=found.get("address"),
            runtime=found.get("runtime", "docker"),
            gpus=found.get("gpus"),
            simulate=found.get("simulate", False),
            pull=found.get("pull"),
            mounts={str(source): str(here) for source, here in (found.get("mounts") or {}).items()},
            secrets=tuple(str(secret) for secret in found.get("secrets") or ()),
            env={str(key): _scalar(value) for key, value in (found.get("env") or {}).items()},
            timeout_minutes=float(found.get("timeout_minutes", HostSpec.timeout_minutes)),
            stall_minutes=float(found.get("stall_minutes", HostSpec.stall_minutes)),
        )

    def _typed(self, host: str, key: str, value: Any, line: int) -> None:
        types = _HOST_KEYS[key]
        right = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        if not right:
            names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
            wanted = names.get(types[-1], "a mapping")
            raise self.error(f"host {host}: {key} is {wanted}, not {value!r}", line)
        if key in _CHOICES and value not in _CHOICES[key]:
            near = nearest(value, _CHOICES[key])
            valid = f"valid: {', '.join(_CHOICES[key])}"
            guess = f"; did you mean {near!r}?" if near else ""
            raise self.error(f"host {host}: no {key} {value!r}{guess}", line, hint=valid)
        if key in ("gpus", "timeout_minutes", "stall_minutes") and value < 0:
            raise self.error(f"host {host}: {key} is not negative", line)

    def pool(self, body: Any, hosts: Mapping[str, HostSpec], line: int) -> tuple[str, ...]:
        names = body if isinstance(body, list) else [body]
        for name in names:
            if name not in hosts:
                raise self.error(f"a pool names the host {name!r}, which is not there", line, hint=_valid(hosts))
        return tuple(str(name) for name in names)

    def override(self, body: Any) -> Override:
        found = self.mapping(body, "an override", 1)
        self.known(found, ("job", "step", "run", "skip", "with"), "an override")
        for key in ("job", "step"):
            if not found.get(key):
                raise self.error(f"an override names its {key}", found.line)
        if sum(bool(found.get(key)) for key in ("run", "skip", "with")) != 1:
            raise self.error("an override has one of `run`, `with` and `skip: true`", found.line)
        return Override(
            job=str(found["job"]),
            step=str(found["step"]),
            run=str(found["run"]) if found.get("run") else None,
            skip=bool(found.get("skip")),
            with_=dict(found["with"]) if found.get("with") else None,
        )

    def items(self, body: Map, key: str) -> list[Any]:
        found = body.get(key)
        if found is not None and not isinstance(found, list):
            raise self.error(f"{key} is a list", body.lines[key])
        return found or []

    def mapping(self, body: Any, what: str, line: int) -> Map:
        if not isinstance(body, Map):
            raise self.error(f"{what} is a mapping, not {body!r}", line)
        return body

    def known(self, body: Map, valid: tuple[str, ...], what: str) -> None:
        for key in body:
            if key not in valid:
                near = nearest(key, valid)
                guess = f"; did you mean {near!r}?" if near else ""
                raise self.error(
                    f"{what} has no key {key!r}{guess}", body.lines[key], hint=f"valid: {', '.join(valid)}"
                )

    def error(self, message: str, line: int, *, hint: str = "") -> ConfigError:
        return ConfigError(message, file=self.file, line=line, hint=hint)


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _valid(names: Mapping[str, Any]) -> str:
    return f"valid: {', '.join(sorted(names))}"
