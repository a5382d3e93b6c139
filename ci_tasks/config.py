"""hosts.yaml: layers of text → hosts, pools and overrides as records.

A later layer adds to the hosts of the earlier ones and changes their keys; it hides none. An unknown key is an error
with its line and the nearest valid key, since an ignored setting would run the wrong thing.
No message repeats what is under `secrets`: someone may have written a value there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.agent.containers.rules import BRIDGE, PULLS, RUNTIMES
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import ConfigError, UnknownName, UsageError, did_you_mean
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues, merged
from ci_tasks.yaml_lines import Map

KINDS = ("local", "ssh", "slurm")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no comma, so that one may stand between several names
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z0-9_.-]+(:(?![0-9]+$)[A-Za-z0-9_.-]+)?")  # a type that is a number would be a count
_SBATCH_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=[^\n\0]*)?")
_LOGIN = re.compile(r"://[^/\s]*@")
BUILT_IN_HOSTS = """\
hosts:
  local: {kind: local}
  sim: {kind: local, runtime: none, gpus: 8, simulate: true}
"""
BUILT_IN = "built in"
PIP_DEFAULT = "default"  # as `pip_index`: the index of pip's own configuration


@dataclass(frozen=True)
class Override:
    """An entry of hosts.yaml's `overrides`: a step replaced (`run`, `with_`), skipped, or changed in parts: `pip_index`
    is the index of its pip commands, `replace` maps parts of its text to others. `source` is file and line."""

    job: str
    step: str
    run: str | None = None
    skip: bool = False
    with_: Mapping[str, Any] | None = None
    pip_index: str | None = None
    replace: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="hosts.yaml", compare=False)


@dataclass(frozen=True)
class HostSpec:
    """A host of hosts.yaml. `gpus` is None where it has to be counted on the host itself.

    `workspace` is the directory there for everything of ours; `persist` says that the connection is kept for the next
    command; `network` replaces CI's `--network host`; `artifacts` are further paths that are brought back after a run.
    What follows `partition` is Slurm's: `gres` without its count, and `sbatch`, further options of it as words.
    `give_up_minutes` is no key of the file: it is how long rows wait for the host, see --give-up.
    """

    name: str
    kind: str = "local"
    address: str | None = None
    runtime: str = "docker"
    gpus: int | None = None
    simulate: bool = False
    pull: str | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_minutes: float = 24 * 60
    stall_minutes: float = 10
    workspace: str = "~/.ci-tasks"
    network: str | None = None
    artifacts: tuple[str, ...] = ()
    partition: str | None = None
    gres: str | None = None
    account: str | None = None
    qos: str | None = None
    sbatch: tuple[str, ...] = ()
    persist: bool = True
    give_up_minutes: float = 60


@dataclass(frozen=True)
class Config:
    """All layers as records. `file` names them for messages. `sources` has file and line of each key of a host;
    `notices` say what does not count. Of two overrides of one step, the first counts."""

    hosts: Mapping[str, HostSpec]
    pools: Mapping[str, tuple[str, ...]]
    overrides: tuple[Override, ...]
    file: str = "hosts.yaml"
    given: GivenValues = NOTHING_GIVEN
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)
    notices: tuple[str, ...] = field(default=(), compare=False)

    def with_hosts(self, **changes: Any) -> Config:
        """The same hosts with changes that all of them get."""
        return replace(self, hosts={name: replace(spec, **changes) for name, spec in self.hosts.items()})

    def host(self, name: str) -> HostSpec:
        """Raises UnknownName, which lists the hosts."""
        if name not in self.hosts:
            raise UnknownName("host", name, self.hosts, where=self.file)
        return self.hosts[name]

    def select_hosts(self, text: str) -> tuple[HostSpec, ...]:
        """The hosts of `text`, which is names of hosts and pools separated by commas; each host once.

        Raises UnknownName, which lists both; UsageError for a text without a name.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in self.hosts and name not in self.pools:
                raise UnknownName("host", name, [*self.hosts, *self.pools], where=self.file)
        if not names:
            raise UsageError(
                "--host needs the name of a host or a pool", hint=f"valid: {', '.join([*self.hosts, *self.pools])}"
            )
        members = [member for name in names for member in self.pools.get(name, (name,))]
        return tuple(self.hosts[member] for member in dict.fromkeys(members))


@dataclass(frozen=True)
class ConfigLayer:
    """A hosts.yaml. `overrides_only`: it comes from a checkout, so its hosts and pools do not count."""

    text: str
    file: str = "hosts.yaml"
    overrides_only: bool = False


BUILT_IN_LAYER = ConfigLayer(BUILT_IN_HOSTS, BUILT_IN)


def read(text: str, file: str = "hosts.yaml") -> Config:
    """The records of one hosts.yaml. Raises ConfigError, which names the line."""
    return read_layers([ConfigLayer(text, file)])


def suite_overrides(name: str, text: str) -> tuple[Override, ...]:
    """The overrides that a suite ships, whose text is a hosts.yaml."""
    return read_layers((BUILT_IN_LAYER, ConfigLayer(text, f"the suite {name}"))).overrides if text else ()


def read_layers(layers: Sequence[ConfigLayer]) -> Config:
    """The records of several, the later ones over the earlier. Raises ConfigError, which names file and line."""
    hosts, pools = Map(), Map()
    overrides: list[tuple[_HostsFileReader, Any, int]] = []
    notices: list[str] = []
    names = [layer.file for layer in layers if layer.file != BUILT_IN]
    for layer in layers:
        reader = _HostsFileReader(layer.file)
        top = reader.top(layer.text)
        # The later ones first: of two overrides of one step, the first counts.
        of_layer = [(reader, entry, top.lines.get("overrides", top.line)) for entry in reader.entries(top, "overrides")]
        overrides = of_layer + overrides
        if layer.overrides_only:
            if ignored := " and ".join(key for key in ("hosts", "pools") if top.get(key)):
                notices.append(f"{layer.file}: its {ignored} do not count, since a checkout gives overrides alone")
            continue
        reader.merge_hosts(hosts, reader.section(top, "hosts"))
        _update(pools, reader.section(top, "pools"))
    reader = _HostsFileReader(" and ".join(names) or BUILT_IN)
    specs = {name: reader.host(name, hosts[name], hosts.lines[name]) for name in hosts}
    values = [reader.given(entry) for reader, entry, _ in reversed(overrides) if reader.gives_values(entry)]
    changes = [each for each in overrides if not each[0].gives_values(each[1])]
    return Config(
        hosts=specs,
        pools={name: reader.pool(name, pools[name], specs, pools.lines[name]) for name in pools},
        overrides=tuple(of_file.override(entry, line) for of_file, entry, line in changes),
        file=reader.file,
        given=reduce(GivenValues.under, values, NOTHING_GIVEN),
        sources={name: {key: _place(line) for key, line in hosts[name].lines.items()} for name in hosts},
        notices=tuple(notices),
    )


class _Line(int):
    """A line of `file`: one of several files that are read as one."""

    file: str = "hosts.yaml"


def _place(line: int) -> str:
    file = getattr(line, "file", "hosts.yaml")
    return str(file) if file == BUILT_IN else f"{file}:{int(line)}"


def _update(below: Map, above: Map) -> None:
    below.update(above)
    below.lines.update(above.lines)


# key of a host → the type of its value
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
    "persist": (bool,),
}
_OVERRIDE_KEYS = ("job", "step", "run", "skip", "with", "pip_index", "replace")
_GIVEN_KEYS = ("vars", "inputs", "outputs", "event")  # of an override that changes no step
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    Map: "a mapping",
}
_SLURM_KEYS = ("partition", "gres", "account", "qos", "sbatch")
_REMOTE_KEYS = (
    "address",
    "workspace",
    "persist",
    *_SLURM_KEYS,
)  # a forgotten `kind` must not run another host's jobs here
# Options of sbatch that ci-tasks sets itself → the key of hosts.yaml or the option to use instead, "" for none.
_RESERVED_OPTIONS = {
    **dict.fromkeys(("array", "chdir", "container", "dependency", "error", "export", "export-file", "input"), ""),
    **dict.fromkeys(("job-name", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable"), ""),
    **dict.fromkeys(("requeue", "signal", "test-only", "wait", "wrap"), ""),
    **{name: name for name in ("partition", "account", "qos", "gres")},
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), "gres"),
    "time": "timeout_minutes",
    "nodes": "--nodes of `ci-tasks remote`",
}
_SECRETS_HINT = "names only; the values come from the caller's environment"
_CHOICES = {"kind": KINDS, "runtime": RUNTIMES, "pull": PULLS, "network": (BRIDGE,)}


class _HostsFileReader:
    """Reads the parts of one file, or of several as one. All methods raise ConfigError."""

    def __init__(self, file: str) -> None:
        self.file = file

    def top(self, text: str) -> Map:
        """The whole file, whose lines know it."""
        try:
            tree = yaml_lines.load(text)
        except yaml_lines.YamlError as error:
            raise ConfigError(
                f"invalid YAML: {error.message}", file=self.file, line=error.line, hint=error.text
            ) from None
        for node in _nodes(tree):
            node.line = self._line(node.line)
            if isinstance(node, Map):
                node.lines = {key: self._line(line) for key, line in node.lines.items()}
        top = self.mapping(tree if tree is not None else Map(1), "the file", 1)
        self.check_keys(top, ("hosts", "pools", "overrides"), "")
        return top

    def _line(self, number: int) -> _Line:
        line = _Line(number)
        line.file = self.file
        return line

    def merge_hosts(self, below: Map, above: Map) -> None:
        """Add the keys of each host of `above` to those `below`, or change them."""
        for name, value in above.items():
            line = above.lines[name]
            body = self.mapping(value if value is not None else Map(line), f"host {name}", line)
            merged = Map(line)
            _update(merged, below.get(name, Map()))
            _update(merged, body)
            below[name], below.lines[name] = merged, line

    def host(self, name: str, value: Any, line: int) -> HostSpec:
        self._check_name("host", name, line)
        body = self.mapping(value, f"host {name}", line)
        self.check_keys(body, tuple(_HOST_KEYS), f"host {name}: ")
        self._check_secrets(name, body)  # first: no other message may repeat them
        for key in body:
            self._check_type(name, body, key)
            self._check_value(name, body, key)
        self._check_kind(name, body, line)
        for check in (self._check_runtime, self._check_slurm_names, self._check_sbatch, self._check_paths):
            check(name, body)
        return HostSpec(name, **{key: self._value(name, key, body) for key in body})

    def _value(self, host: str, key: str, body: Map) -> Any:
        """As HostSpec has it, of a key whose type is right."""
        value = body[key]
        if isinstance(value, Map):
            return self._texts(f"host {host}", key, value)
        if isinstance(value, list):
            return tuple(str(item) for item in value)
        return float(value) if float in _HOST_KEYS[key] else value

    def _check_type(self, host: str, body: Map, key: str) -> None:
        types, value, line = _HOST_KEYS[key], body[key], body.lines[key]
        if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
            return
        raise self.error(f"host {host}: {key} must be {_TYPE_NAMES[types[-1]]}, not {value!r}", line)

    def _check_value(self, host: str, body: Map, key: str) -> None:
        value, line = body[key], body.lines[key]
        if key in _CHOICES and value not in _CHOICES[key]:
            guess = did_you_mean(value, _CHOICES[key])
            message = f"host {host}: unknown {key} {str(value)!r}{guess}"
            raise self.error(message, line, hint=f"valid: {', '.join(_CHOICES[key])}")
        if key in ("gpus", "timeout_minutes", "stall_minutes") and (value < 0 or math.isnan(value)):
            raise self.error(f"host {host}: {key} must not be negative", line)
        if key == "timeout_minutes" and not value:
            raise self.error(f"host {host}: timeout_minutes must be more than 0", line)

    def _check_kind(self, host: str, body: Map, line: int) -> None:
        """The address, and the keys that only some kinds have."""
        kind = body.get("kind", "local")
        if kind == "local":
            if key := next((key for key in _REMOTE_KEYS if key in body), None):
                message = f"host {host}: {key} is not valid with kind local, which is this machine"
                raise self.error(message, body.lines[key], hint="use kind: ssh or kind: slurm for another machine")
        elif not body.get("address"):
            raise self.error(f"host {host}: kind {kind} requires an address", line)
        if kind != "slurm" and (key := next((key for key in _SLURM_KEYS if key in body), None)):
            raise self.error(f"host {host}: {key} is only valid with kind slurm", body.lines[key])

    def _check_runtime(self, host: str, body: Map) -> None:
        runtime = body.get("runtime")
        if runtime == "pyxis" and body.get("kind") != "slurm":
            raise self.error(f"host {host}: runtime pyxis is only valid with kind slurm", body.lines["runtime"])
        if runtime in ("apptainer", "pyxis") and "network" in body:
            message = f"host {host}: network is not valid with runtime {runtime}"
            raise self.error(message, body.lines["network"], hint=f"containers of {runtime} use the host's network")

    def _check_slurm_names(self, host: str, body: Map) -> None:
        for key in ("partition", "account", "qos"):
            if key in body and not re.fullmatch(r"\S+", body[key]):
                message = f"host {host}: invalid {key} {body[key]!r}"
                raise self.error(message, body.lines[key], hint="a name without spaces")
        if "gres" in body and not _GRES.fullmatch(body["gres"]):
            hint = "a name and perhaps a type, such as gpu or gpu:h100; the count comes from each row"
            raise self.error(f"host {host}: invalid gres {body['gres']!r}", body.lines["gres"], hint=hint)

    def _check_sbatch(self, host: str, body: Map) -> None:
        for word in body.get("sbatch", ()):
            option = _SBATCH_OPTION.fullmatch(word) if isinstance(word, str) else None
            line = getattr(word, "line", 0) or body.lines["sbatch"]
            if not option:
                hint = "one word for each option, such as --exclude=node3"
                raise self.error(f"host {host}: invalid sbatch option {word!r}", line, hint=hint)
            # sbatch accepts any unambiguous beginning of an option's name
            reserved = (name for name in _RESERVED_OPTIONS if name == option[1] or name.startswith(option[1]))
            if name := next(reserved, None):
                hint = f"use {_RESERVED_OPTIONS[name]} instead" if _RESERVED_OPTIONS[name] else ""
                raise self.error(f"host {host}: sbatch option --{name} is set by ci-tasks", line, hint=hint)

    def _check_paths(self, host: str, body: Map) -> None:
        path = body.get("workspace", HostSpec.workspace)
        if not path.startswith(("/", "~/")):
            message = f"host {host}: workspace must begin with / or ~/, not {path!r}"
            raise self.error(message, body.lines["workspace"])
        if not all(isinstance(path, str) and path.startswith("/") for path in body.get("artifacts", ())):
            message = f"host {host}: artifacts must be a list of absolute paths, as the job sees them"
            raise self.error(message, body.lines["artifacts"])

        for ci, here in body.get("mounts", {}).items():
            for path in (ci, here):
                if not isinstance(path, str) or not path.startswith("/") or ":" in path:
                    message = f"host {host}: mounts: {path!r} is not an absolute path without a colon"
                    raise self.error(message, body["mounts"].lines[ci])

    def _check_secrets(self, host: str, body: Map) -> None:
        names = body.get("secrets", [])
        if not isinstance(names, list) or not all(
            isinstance(name, str) and _VARIABLE.fullmatch(name) for name in names
        ):
            message = f"host {host}: secrets must be a list of names of environment variables"
            raise self.error(message, body.lines["secrets"], hint=_SECRETS_HINT)

    def pool(self, name: str, value: Any, hosts: Mapping[str, HostSpec], line: int) -> tuple[str, ...]:
        self._check_name("pool", name, line)
        if name in hosts:
            raise self.error(f"pool {name} has the same name as a host", line)
        members = value if isinstance(value, list) else [value]
        valid = f"valid: {', '.join(sorted(hosts))}"
        if not members or not all(isinstance(member, str) for member in members):
            raise self.error(f"pool {name} must be a list of hosts", line, hint=valid)
        for member in members:
            if member not in hosts:
                message = f"pool {name}: unknown host {str(member)!r}{did_you_mean(member, hosts)}"
                raise self.error(message, getattr(member, "line", 0) or line, hint=valid)
        return tuple(str(member) for member in members)

    def override(self, value: Any, line: int) -> Override:
        body = self.mapping(value, "an override", line)
        self.check_keys(body, (*_OVERRIDE_KEYS, *_GIVEN_KEYS), "override: ")
        for key in ("job", "step"):
            if not isinstance(body.get(key), str) or not body[key]:
                raise self.error(f"override: missing {key}", body.line)
        types: dict[str, tuple[type, str]] = {
            "run": (str, "text"),
            "skip": (bool, "true"),
            "with": (Map, "a mapping"),
            "pip_index": (str, "text"),
            "replace": (Map, "a mapping"),
        }
        for key, (kind, expected) in types.items():
            if body.get(key) is not None and not isinstance(body[key], kind):
                raise self.error(f"override: {key} must be {expected}, not {body[key]!r}", body.lines[key])
        changes = bool(body.get("pip_index") or body.get("replace"))
        if sum(bool(body.get(key)) for key in ("run", "skip", "with")) + changes != 1:
            ways = "`run`, `with`, `skip: true`, and `pip_index` or `replace`"
            raise self.error(f"override: exactly one of {ways} is required", body.line)
        if _LOGIN.search(body.get("pip_index") or ""):
            hint = f"put it in pip's own configuration (pip.conf), and use `pip_index: {PIP_DEFAULT}`"
            raise self.error("override: pip_index must not contain a login", body.lines["pip_index"], hint=hint)
        return Override(
            job=str(body["job"]),
            step=str(body["step"]),
            run=str(body["run"]) if body.get("run") else None,
            skip=bool(body.get("skip")),
            with_=dict(body["with"]) if body.get("with") else None,
            pip_index=str(body["pip_index"]) if body.get("pip_index") else None,
            replace=self._texts("override", "replace", self.section(body, "replace")),
            source=_place(body.line),
        )

    def gives_values(self, entry: Any) -> bool:
        """Whether an override gives what only GitHub knows, instead of changing a step."""
        return isinstance(entry, Map) and any(key in entry for key in _GIVEN_KEYS)

    def given(self, body: Map) -> GivenValues:
        self.check_keys(body, _GIVEN_KEYS, "override: ")
        sections = {key: self.section(body, key) for key in _GIVEN_KEYS}
        outputs = {
            job: self._texts("override", job, self.section(sections["outputs"], job)) for job in sections["outputs"]
        }
        variables, inputs = (self._texts("override", key, sections[key]) for key in ("vars", "inputs"))
        names = [f"vars.{name}" for name in variables] + [f"inputs.{name}" for name in inputs]
        names += [f"needs.{job}.outputs.{name}" for job, values in outputs.items() for name in values]
        names += ["github.event"] if sections["event"] else []
        event = merged({}, sections["event"])
        return GivenValues(variables, inputs, outputs, event, dict.fromkeys(names, f"override in {_place(body.line)}"))

    def _texts(self, where: str, key: str, values: Map) -> dict[str, str]:
        for name, value in values.items():
            if isinstance(value, list | Map):
                raise self.error(f"{where}: {key}: {name} must be text, not {value!r}", values.lines[name])
        return {name: _scalar(value) for name, value in values.items()}

    def _check_name(self, kind: str, name: str, line: int) -> None:
        if not _NAME.fullmatch(name):
            raise self.error(f"invalid {kind} name {name!r}", line, hint="letters, digits, `.`, `_` and `-`")

    def section(self, top: Map, key: str) -> Map:
        value = top.get(key)
        return Map(top.line) if value is None else self.mapping(value, key, top.lines[key])

    def entries(self, top: Map, key: str) -> list[Any]:
        value = top.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key} must be a list", top.lines[key])
        return value or []

    def mapping(self, value: Any, name: str, line: int) -> Map:
        if not isinstance(value, Map):
            raise self.error(f"{name} must be a mapping, not {value!r}", line)
        return value

    def check_keys(self, body: Map, valid: tuple[str, ...], where: str) -> None:
        for key in body:
            if key not in valid:
                message = f"{where}unknown key {key!r}{did_you_mean(key, valid)}"
                raise self.error(message, body.lines[key], hint=f"valid: {', '.join(valid)}")

    def error(self, message: str, line: int, *, hint: str = "") -> ConfigError:
        return ConfigError(message, file=getattr(line, "file", self.file), line=int(line), hint=hint)


def _nodes(value: Any) -> Iterator[Any]:
    """Everything of a document that has a line."""
    if isinstance(value, Map | yaml_lines.Text):
        yield value
    for child in value.values() if isinstance(value, Map) else value if isinstance(value, list) else ():
        yield from _nodes(child)


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
