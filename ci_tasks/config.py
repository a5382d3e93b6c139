"""hosts.yaml text → hosts, pools and overrides. The border where raw mappings stop.

An unknown key is an error with its line and the nearest valid one: a setting that is silently ignored runs the wrong
thing. No message repeats what stands under `secrets`: someone may have written a value there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import ConfigError, UnknownName, UsageError, did_you_mean
from ci_tasks.model import HostSpec, Override
from ci_tasks.yaml_lines import Map

KINDS = ("local", "ssh", "slurm")
RUNTIMES = ("docker", "podman", "apptainer", "pyxis", "none")
PULLS = ("always", "missing", "never")
NETWORKS = ("bridge",)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no comma, so that one may stand between several names
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z0-9_.-]+(:(?![0-9]+$)[A-Za-z0-9_.-]+)?")  # a type that is a number would be a count
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=[^\n\0]*)?")


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

    def chosen(self, text: str) -> tuple[HostSpec, ...]:
        """The hosts that `text` means: names of hosts and pools with commas between them, each host once.

        Raises UnknownName, which lists both; UsageError for a text without a name.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in self.hosts and name not in self.pools:
                raise UnknownName("host", name, [*self.hosts, *self.pools], where=self.file)
        if not names:
            raise UsageError("--host names no host", hint=f"valid: {', '.join([*self.hosts, *self.pools])}")
        members = [member for name in names for member in self.pools.get(name, (name,))]
        return tuple(self.hosts[member] for member in dict.fromkeys(members))


def read(text: str, file: str = "hosts.yaml") -> Config:
    """Raises ConfigError with the line of what has no meaning."""
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise ConfigError(f"not YAML: {error.message}", file=file, line=error.line, hint=error.text) from None
    reader = _Reader(file)
    top = reader.mapping(tree if tree is not None else Map(1), "the file", 1)
    reader.known(top, ("hosts", "pools", "overrides"), "the file")
    hosts = reader.part(top, "hosts")
    specs = {name: reader.host(name, hosts[name], hosts.lines[name]) for name in hosts}
    pools = reader.part(top, "pools")
    return Config(
        hosts=specs,
        pools={name: reader.pool(name, pools[name], specs, pools.lines[name]) for name in pools},
        overrides=tuple(reader.override(item, top.lines["overrides"]) for item in reader.items(top, "overrides")),
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
    "workspace": (str,),
    "network": (str,),
    "artifacts": (list,),
    "partition": (str,),
    "gres": (str,),
    "account": (str,),
    "qos": (str,),
    "sbatch": (list,),
}
_OF_SLURM = ("partition", "gres", "account", "qos", "sbatch")
_OF_ANOTHER_MACHINE = ("address", "workspace", *_OF_SLURM)  # forgetting `kind` must not run a box's jobs here
# Options of sbatch that a job of ours has already, with what says them in its place, if anything does.
_OURS = dict.fromkeys(("array", "chdir", "container", "dependency", "error", "export", "export-file", "input"), "")
_OURS |= dict.fromkeys(("job-name", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable"), "")
_OURS |= dict.fromkeys(("requeue", "signal", "test-only", "wait", "wrap"), "")
_OURS |= {name: name for name in ("partition", "account", "qos", "gres")}
_OURS |= dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), "gres")
_OURS |= {"time": "timeout_minutes", "nodes": "`invoke plan --nodes`"}
_SECRETS_HINT = "names only; the values come from the caller's environment"
_CHOICES = {"kind": KINDS, "runtime": RUNTIMES, "pull": PULLS, "network": NETWORKS}


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file

    def host(self, name: str, body: Any, line: int) -> HostSpec:
        self._named("host", name, line)
        found = self.mapping(body if body is not None else Map(line), f"host {name}", line)
        self.known(found, tuple(_HOST_KEYS), f"host {name}")
        for key, value in found.items():
            self._typed(name, key, value, found.lines[key])
        if found.get("kind", "local") != "local":
            if not found.get("address"):
                raise self.error(f"host {name} has no address", line)
        elif elsewhere := next((key for key in _OF_ANOTHER_MACHINE if key in found), None):
            message = f"host {name} is this machine (kind local), which has no {elsewhere}"
            raise self.error(message, found.lines[elsewhere], hint="another machine has kind: ssh or kind: slurm")
        self._sense(name, found)
        return HostSpec(
            name=name,
            kind=found.get("kind", "local"),
            address=found.get("address"),
            runtime=found.get("runtime", "docker"),
            gpus=found.get("gpus"),
            simulate=found.get("simulate", False),
            pull=found.get("pull"),
            mounts=self._texts(name, found, "mounts"),
            secrets=self._secrets(name, found),
            env=self._texts(name, found, "env"),
            timeout_minutes=float(found.get("timeout_minutes", HostSpec.timeout_minutes)),
            stall_minutes=float(found.get("stall_minutes", HostSpec.stall_minutes)),
            workspace=self._workspace(name, found),
            network=found.get("network"),
            artifacts=self._artifacts(name, found),
            partition=found.get("partition"),
            gres=found.get("gres"),
            account=found.get("account"),
            qos=found.get("qos"),
            sbatch=self._sbatch(name, found),
        )

    def _sense(self, host: str, body: Map) -> None:
        """What one key says must have a meaning beside the others."""
        runtime, lines = body.get("runtime"), body.lines
        if body.get("kind") != "slurm":
            if key := next((key for key in _OF_SLURM if key in body), None):
                raise self.error(f"host {host} has no Slurm, so no {key}", lines[key], hint="kind: slurm has")
            if runtime == "pyxis":
                raise self.error(f"host {host}: pyxis is a part of Slurm", lines["runtime"], hint="kind: slurm has it")
        if runtime in ("apptainer", "pyxis") and "network" in body:
            raise self.error(f"host {host}: containers of {runtime} have the host's network", lines["network"])
        for key in ("partition", "account", "qos"):
            if key in body and not re.fullmatch(r"\S+", body[key]):
                raise self.error(f"host {host}: {key} is a name, not {body[key]!r}", lines[key])
        if "gres" in body and not _GRES.fullmatch(body["gres"]):
            hint = "such as gpu or gpu:h100; the count is each row's own"
            raise self.error(f"host {host}: gres is a name and a type, not {body['gres']!r}", lines["gres"], hint=hint)

    def _sbatch(self, host: str, body: Map) -> tuple[str, ...]:
        words = body.get("sbatch") or []
        for word in words:
            option = _OPTION.fullmatch(word) if isinstance(word, str) else None
            line = getattr(word, "line", 0) or body.lines["sbatch"]
            if not option:
                hint = "one word each, such as --exclude=node3"
                raise self.error(f"host {host}: sbatch lists options of sbatch, not {word!r}", line, hint=hint)
            # sbatch takes any beginning of an option's name that is clear
            if name := next((name for name in _OURS if name == option[1] or name.startswith(option[1])), None):
                hint = f"say it by {_OURS[name]}" if _OURS[name] else ""
                raise self.error(f"host {host}: sbatch: --{name} is set by ci-tasks", line, hint=hint)
        return tuple(str(word) for word in words)

    def _typed(self, host: str, key: str, value: Any, line: int) -> None:
        types = _HOST_KEYS[key]
        right = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        if not right:
            if key == "secrets":
                raise self.error(f"host {host}: secrets is a list of names", line, hint=_SECRETS_HINT)
            names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
            raise self.error(f"host {host}: {key} is {names.get(types[-1], 'a mapping')}, not {value!r}", line)
        if key in _CHOICES and value not in _CHOICES[key]:
            valid = f"valid: {', '.join(_CHOICES[key])}"
            guess = did_you_mean(value, _CHOICES[key])
            raise self.error(f"host {host}: no {key} {str(value)!r}{guess}", line, hint=valid)
        if key in ("gpus", "timeout_minutes", "stall_minutes") and (value < 0 or math.isnan(value)):
            raise self.error(f"host {host}: {key} is not negative", line)
        if key == "timeout_minutes" and not value:
            raise self.error(f"host {host}: timeout_minutes is more than 0, which would end every job at once", line)

    def _texts(self, host: str, body: Map, key: str) -> dict[str, str]:
        found: Map = body.get(key) or Map(body.line)
        for name, value in found.items():
            if isinstance(value, list | Map):
                raise self.error(f"host {host}: {key}: {name} is text, not {value!r}", found.lines[name])
        return {name: _scalar(value) for name, value in found.items()}

    def _workspace(self, host: str, body: Map) -> str:
        found = str(body.get("workspace", HostSpec.workspace))
        if not found.startswith(("/", "~/")):
            message = f"host {host}: workspace is a directory on the host, from / or ~/, not {found!r}"
            raise self.error(message, body.lines["workspace"])
        return found

    def _artifacts(self, host: str, body: Map) -> tuple[str, ...]:
        paths = body.get("artifacts") or []
        if not all(isinstance(path, str) and path.startswith("/") for path in paths):
            message = f"host {host}: artifacts lists paths from /, as the job sees them"
            raise self.error(message, body.lines["artifacts"])
        return tuple(str(path) for path in paths)

    def _secrets(self, host: str, body: Map) -> tuple[str, ...]:
        names = body.get("secrets") or []
        if not all(isinstance(name, str) and _VARIABLE.fullmatch(name) for name in names):
            message = f"host {host}: secrets lists names of environment variables"
            raise self.error(message, body.lines["secrets"], hint=_SECRETS_HINT)
        return tuple(str(name) for name in names)

    def pool(self, name: str, body: Any, hosts: Mapping[str, HostSpec], line: int) -> tuple[str, ...]:
        self._named("pool", name, line)
        if name in hosts:
            raise self.error(f"{name} is a host; a pool has a name of its own", line)
        members = body if isinstance(body, list) else [body]
        if not members or not all(isinstance(member, str) for member in members):
            raise self.error(f"pool {name} is a list of hosts", line, hint=_valid(hosts))
        for member in members:
            if member not in hosts:
                place = getattr(member, "line", 0) or line
                message = f"pool {name}: no host {str(member)!r}{did_you_mean(member, hosts)}"
                raise self.error(message, place, hint=_valid(hosts))
        return tuple(str(member) for member in members)

    def override(self, body: Any, line: int) -> Override:
        found = self.mapping(body, "an override", line)
        self.known(found, ("job", "step", "run", "skip", "with"), "an override")
        for key in ("job", "step"):
            if not isinstance(found.get(key), str) or not found[key]:
                raise self.error(f"an override names its {key}", found.line)
        for key, kind, wanted in (("run", str, "text"), ("skip", bool, "true"), ("with", Map, "a mapping")):
            if found.get(key) is not None and not isinstance(found[key], kind):
                raise self.error(f"an override's {key} is {wanted}, not {found[key]!r}", found.lines[key])
        if sum(bool(found.get(key)) for key in ("run", "skip", "with")) != 1:
            raise self.error("an override has one of `run`, `with` and `skip: true`", found.line)
        return Override(
            job=str(found["job"]),
            step=str(found["step"]),
            run=str(found["run"]) if found.get("run") else None,
            skip=bool(found.get("skip")),
            with_=dict(found["with"]) if found.get("with") else None,
        )

    def _named(self, kind: str, name: str, line: int) -> None:
        if not _NAME.fullmatch(name):
            raise self.error(f"the {kind} {name!r}: a name is letters, digits, `.`, `_` and `-`", line)

    def part(self, top: Map, key: str) -> Map:
        found = top.get(key)
        return Map(top.line) if found is None else self.mapping(found, key, top.lines[key])

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
                hint = f"valid: {', '.join(valid)}"
                raise self.error(f"{what} has no key {key!r}{did_you_mean(key, valid)}", body.lines[key], hint=hint)

    def error(self, message: str, line: int, *, hint: str = "") -> ConfigError:
        return ConfigError(message, file=self.file, line=line, hint=hint)


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _valid(names: Mapping[str, Any]) -> str:
    return f"valid: {', '.join(sorted(names))}"
