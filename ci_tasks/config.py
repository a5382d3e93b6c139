"""hosts.yaml: layers of text → hosts, pools and overrides as records, whose fields are the keys.

A later layer adds to the hosts of the earlier ones and changes their keys; it hides none. An unknown key is an error
with its line and the nearest valid key, since an ignored setting would run the wrong thing.
No message repeats what is under `secrets`: someone may have written a value there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, replace
from typing import Any

from ci_tasks import resources, yaml_lines
from ci_tasks.agent.docker_argv import BRIDGE, PULLS, RUNTIMES
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import ConfigError, UnknownName, UsageError, did_you_mean
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues
from ci_tasks.yaml_lines import Map, Text

KINDS = ("local", "ssh", "slurm")
_SLURM = ("slurm",)
_REMOTE = ("ssh", "slurm")  # a forgotten `kind` must not run another host's jobs here
_BUILT_IN_HOSTS = "hosts: {local: {kind: local}, sim: {kind: local, runtime: none, gpus: 8, simulate: true}}"
BUILT_IN = "built in"
PIP_DEFAULT = "default"  # as `pip_index`: the index of pip's own configuration


def _key(default: Any = None, kinds: Sequence[str] = KINDS, pattern: str = "", hint: str = "") -> Any:
    """A field that is a key of hosts.yaml for hosts of these kinds. Its annotation says the type. Its text, or each
    item of its list, matches `pattern`, which `hint` says in words."""
    rule = {"kinds": kinds, "pattern": pattern, "hint": hint}
    return field(default_factory=dict, metadata=rule) if default == {} else field(default=default, metadata=rule)


def _one_of(*names: str) -> tuple[str, str]:
    return "|".join(names), f"valid: {', '.join(names)}"


_WORD = (r"\S+", "a name without spaces")
_SBATCH_OPTION = (r"--([a-z][a-z0-9-]*)(=[^\n\0]*)?", "one word for each option, such as --exclude=node3")
_VARIABLES = (r"[A-Za-z_][A-Za-z0-9_]*", "names only; the values come from the caller's environment")
# A type that is a number would be a count.
_GRES = (
    r"[A-Za-z0-9_.-]+(:(?![0-9]+$)[A-Za-z0-9_.-]+)?",
    "a name and perhaps a type, such as gpu or gpu:h100; the count comes from each row",
)


@dataclass(frozen=True)
class Override:
    """An entry of hosts.yaml's `overrides`: a step replaced (`run`, `with_`), skipped, or changed in parts: `pip_index`
    is the index of its pip commands, `replace` maps parts of its text to others. `source` is file and line."""

    job: str = _key(MISSING)
    step: str = _key(MISSING)
    run: str | None = _key()
    skip: bool = _key(False)
    with_: Mapping[str, Any] | None = _key()
    pip_index: str | None = _key()
    replace: Mapping[str, str] = _key({})
    source: str = field(default="hosts.yaml", compare=False)


@dataclass(frozen=True)
class HostSpec:
    """A host of hosts.yaml. `gpus` is None if it has to be counted on the host itself.

    `workspace` is the directory there for everything of ours; `persist` says that the connection is kept for the next
    command; `network` replaces CI's `--network host`; `artifacts` are further paths that are brought back after a run.
    What follows `partition` is Slurm's: `gres` without its count, and `sbatch`, further options of it as words.
    `give_up_minutes` is no key of the file: it is how long rows wait for the host, see --give-up.
    """

    name: str
    kind: str = _key("local", KINDS, *_one_of(*KINDS))
    address: str | None = _key(None, _REMOTE)
    runtime: str = _key("docker", KINDS, *_one_of(*RUNTIMES))
    gpus: int | None = _key()
    simulate: bool = _key(False)
    pull: str | None = _key(None, KINDS, *_one_of(*PULLS))
    mounts: Mapping[str, str] = _key({}, KINDS, "/[^:]*", "absolute paths without a colon")
    secrets: tuple[str, ...] = _key((), KINDS, *_VARIABLES)
    env: Mapping[str, str] = _key({})
    timeout_minutes: float = _key(24 * 60)
    stall_minutes: float = _key(10)
    workspace: str = _key("~/.ci-tasks", _REMOTE, "(/|~/).*", "a path that begins with / or ~/")
    network: str | None = _key(None, KINDS, *_one_of(BRIDGE))
    artifacts: tuple[str, ...] = _key((), KINDS, "/.*", "absolute paths, as the job sees them")
    partition: str | None = _key(None, _SLURM, *_WORD)
    gres: str | None = _key(None, _SLURM, *_GRES)
    account: str | None = _key(None, _SLURM, *_WORD)
    qos: str | None = _key(None, _SLURM, *_WORD)
    sbatch: tuple[str, ...] = _key((), _SLURM, *_SBATCH_OPTION)
    persist: bool = _key(True, _REMOTE)
    give_up_minutes: float = 60


def keys_of(record: type[Any]) -> dict[str, Field[Any]]:
    """The keys of a host or of an override, each with its field."""
    return {each.name.rstrip("_"): each for each in fields(record) if each.metadata}


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
        """Raises UnknownName, which lists the hosts; UsageError for a pool."""
        if members := self.pools.get(name):
            raise UsageError(f"{name} is a pool, and this command takes one host", hint=f"one of: {', '.join(members)}")
        if name not in self.hosts:
            raise self._unknown(name, list(self.hosts))
        return self.hosts[name]

    @property
    def has_gpu_hosts(self) -> bool:
        """Whether any host is not this machine."""
        return any(spec.kind != "local" for spec in self.hosts.values())

    def _unknown(self, name: str, valid: Sequence[str]) -> UnknownName:
        error = UnknownName("host", name, valid, where="" if self.file == BUILT_IN else self.file)
        error.hint += "" if self.has_gpu_hosts else f"\n{how_to_add(name)}"
        return error

    def select_hosts(self, text: str) -> tuple[HostSpec, ...]:
        """The hosts of `text`, which is names of hosts and pools separated by commas; each host once.

        Raises UnknownName, which lists both; UsageError for a text without a name.
        """
        names, valid = [name.strip() for name in text.split(",") if name.strip()], [*self.hosts, *self.pools]
        if not names:
            raise UsageError("--host needs the name of a host or a pool", hint=f"valid: {', '.join(valid)}")
        if unknown := [name for name in names if name not in valid]:
            raise self._unknown(unknown[0], valid)
        members = [member for name in names for member in self.pools.get(name, (name,))]
        return tuple(self.hosts[member] for member in dict.fromkeys(members))


def how_to_add(host: str = "h100a") -> str:
    """What to write for a host that hosts.yaml does not have."""
    name = host if _NAME.fullmatch(host) else "h100a"
    keys = f"{{kind: ssh, address: {name}.example.com, runtime: docker}}"
    return f"Add a host to {resources.shown(resources.users_hosts())}:\nhosts:\n  {name}: {keys}"


@dataclass(frozen=True)
class ConfigLayer:
    """A hosts.yaml. `overrides_only`: it comes from a checkout, so its hosts and pools do not count."""

    text: str
    file: str = "hosts.yaml"
    overrides_only: bool = False


BUILT_IN_LAYER = ConfigLayer(_BUILT_IN_HOSTS, BUILT_IN)


def read(text: str, file: str = "hosts.yaml") -> Config:
    """The records of one hosts.yaml. Raises ConfigError, which names the line."""
    return read_layers([ConfigLayer(text, file)])


def suite_overrides(name: str, text: str) -> tuple[Override, ...]:
    """The overrides that a suite ships, whose text is a hosts.yaml."""
    return read_layers((BUILT_IN_LAYER, ConfigLayer(text, f"the suite {name}"))).overrides if text else ()


def includes(layer: ConfigLayer) -> list[str]:
    """What the file includes: paths and addresses of git repositories. Raises ConfigError."""
    top = _top(layer)
    names = top.get("include") or []
    names = names if isinstance(names, list) else [names]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError("include must be a path or the address of a git repository", file=top.lines["include"])
    return list(map(str, names))


def read_layers(layers: Sequence[ConfigLayer]) -> Config:
    """The records of several, the later ones over the earlier. Raises ConfigError, which names file and line."""
    hosts, pools = Map(), Map()
    overrides, notices = list[Map](), list[str]()
    for layer in layers:
        top = _top(layer)
        entries = top.get("overrides") or []
        if not isinstance(entries, list):
            raise ConfigError("overrides must be a list", file=top.lines["overrides"])
        # The later ones first: of two overrides of one step, the first counts.
        overrides = [_mapping(entry, "an override", top.lines["overrides"]) for entry in entries] + overrides
        if layer.overrides_only:
            if ignored := " and ".join(key for key in ("hosts", "pools") if top.get(key)):
                notices.append(f"{layer.file}: its {ignored} are ignored: a checkout may only set overrides")
            continue
        for name, line in (above := _section(top, "hosts")).lines.items():
            body = Map() if above[name] is None else _mapping(above[name], f"host {name}", line)
            hosts[name], hosts.lines[name] = _over(hosts.get(name, Map()), body), line
        pools = _over(pools, _section(top, "pools"))
    specs = {name: _host(name, hosts[name], hosts.lines[name]) for name in hosts}
    return Config(
        hosts=specs,
        pools={name: _pool(name, pools[name], specs, pools.lines[name]) for name in pools},
        overrides=tuple(map(_override, overrides)),
        file=" and ".join(layer.file for layer in layers if layer.file != BUILT_IN) or BUILT_IN,
        sources={name: hosts[name].lines for name in hosts},
        notices=tuple(notices),
    )


# -- reading the keys: lines are texts here, which name the file too ---------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no comma, so that one may stand between several names
_LOGIN = re.compile(r"://[^/\s]*@")
# The annotation of a field, without what is in brackets → its type in words, and the types of YAML's values.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("text", (Text,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "tuple": ("a list", (list,)),
    "Mapping": ("a mapping", (Map,)),
}
_OF_SSH = "put them into address: user@host:port, or into ~/.ssh/config"
# sbatch accepts any unambiguous beginning of an option's name.
_SET_BY_US = (
    "account array chdir container dependency error export export-file gpus gpus-per-node gpus-per-socket "
    "gpus-per-task gres input job-name no-requeue nodes ntasks ntasks-per-node open-mode output parsable partition qos "
    "requeue signal test-only time wait wrap"
)


def _top(layer: ConfigLayer) -> Map:
    """The whole file."""

    def place(line: int) -> str:
        return layer.file if layer.file == BUILT_IN else f"{layer.file}:{line}"

    try:
        tree = yaml_lines.load(layer.text, place)
    except yaml_lines.YamlError as error:
        raise ConfigError(f"invalid YAML: {error.message}", file=place(error.line), hint=error.text) from None
    top = Map(place(1)) if tree is None else _mapping(tree, "the file", place(1))
    _check_keys(top, ("include", "hosts", "pools", "overrides"), "")
    return top


def _over(below: Map, above: Map) -> Map:
    """The keys of both; of two the one `above`."""
    both = Map(above.line)
    for each in (below, above):
        both.update(each)
        both.lines.update(each.lines)
    return both


def _host(name: str, body: Map, line: str) -> HostSpec:
    _check_name("host", name, line)
    where, keys = f"host {name}: ", keys_of(HostSpec)
    gpus = {"gpus": 8} if body.get("simulate") is True else {}
    host = HostSpec(name, **{**gpus, **_fields(keys, body, where)})
    for key in body:
        if host.kind not in (kinds := keys[key].metadata["kinds"]):
            hint = "use kind: ssh or kind: slurm for another machine" if host.kind == "local" else ""
            message = f"host {name}: {key} is only valid with kind {' or '.join(kinds)}"
            raise ConfigError(message, file=body.lines[key], hint=hint)
    if host.kind != "local" and not host.address:
        raise ConfigError(f"host {name}: kind {host.kind} requires an address", file=line)
    if host.runtime == "pyxis" and host.kind != "slurm":
        raise ConfigError(f"{where}runtime pyxis is only valid with kind slurm", file=body.lines["runtime"])
    if host.runtime in ("apptainer", "pyxis") and host.network:
        message = f"{where}containers of {host.runtime} use the host's network"
        raise ConfigError(message, file=body.lines["network"])
    return host


def _fields(keys: Mapping[str, Field[Any]], body: Map, where: str) -> dict[str, Any]:
    """The keys of a host or an override as the fields of its record. No message repeats a value: an alias may
    bring what is under `secrets` anywhere."""
    _check_keys(body, keys, where)
    found = {}
    for key, value in body.items():
        line, rule, annotation = body.lines[key], keys[key].metadata, str(keys[key].type).removesuffix(" | None")
        in_words, types = _TYPES[annotation.partition("[")[0]]
        if type(value) not in types:
            raise ConfigError(f"{where}{key} must be {in_words}", file=line, hint=rule["hint"])
        if annotation in ("int", "float") and not (value > 0 or (annotation == "int" and value == 0)):
            raise ConfigError(f"{where}{key} must be more than 0", file=line)
        items = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, Map) else [value]
        for item in items if rule["hint"] else ():
            if not (isinstance(item, str) and re.fullmatch(rule["pattern"], item)):
                raise ConfigError(f"{where}invalid {key}", file=getattr(item, "line", line), hint=rule["hint"])
        if key == "sbatch":
            _check_sbatch(value, where)
        if annotation == "Mapping[str, str]":
            value = _texts(f"{where}{key}", value)
        elif isinstance(value, list):
            value = tuple(map(str, value))
        found[keys[key].name] = float(value) if annotation == "float" else value
    return found


def _check_sbatch(options: Iterable[Text], where: str) -> None:
    for option in options:
        name = option[2:].partition("=")[0]
        if reserved := next((each for each in _SET_BY_US.split() if each.startswith(name)), None):
            hint = "keys of the host: partition, account, qos, gres, timeout_minutes"
            raise ConfigError(f"{where}sbatch option --{reserved} is set by ci-tasks", file=option.line, hint=hint)


def _pool(name: str, value: Any, hosts: Mapping[str, HostSpec], line: str) -> tuple[str, ...]:
    _check_name("pool", name, line)
    if name in hosts:
        raise ConfigError(f"pool {name} has the same name as a host", file=line)
    members = value if isinstance(value, list) else [value]
    if not members or not all(isinstance(member, str) for member in members):
        raise ConfigError(f"pool {name} must be a list of hosts", file=line)
    for member in members:
        if member not in hosts:
            message = f"pool {name}: unknown host {str(member)!r}{did_you_mean(member, hosts)}"
            raise ConfigError(message, file=member.line, hint=f"valid: {', '.join(sorted(hosts))}")
    return tuple(map(str, members))


def _override(body: Map) -> Override:
    found = _fields(keys_of(Override), body, "override: ")
    if missing := [key for key in ("job", "step") if not found.get(key)]:
        raise ConfigError(f"override: missing {missing[0]}", file=body.line)
    override = Override(**found, source=body.line)
    changes = bool(override.pip_index or override.replace)
    if sum(map(bool, (override.run, override.skip, override.with_, changes))) != 1:
        ways = "`run`, `with`, `skip: true`, and `pip_index` or `replace`"
        raise ConfigError(f"override: exactly one of {ways} is required", file=body.line)
    if _LOGIN.search(override.pip_index or ""):
        hint = f"put it in pip's own configuration (pip.conf), and use `pip_index: {PIP_DEFAULT}`"
        raise ConfigError("override: pip_index must not contain a login", file=body.lines["pip_index"], hint=hint)
    return override


def _texts(where: str, values: Map) -> dict[str, str]:
    for name, value in values.items():
        if isinstance(value, list | Map):
            raise ConfigError(f"{where}: {name} must be text", file=values.lines[name])
    texts = {name: "" if value is None else str(value) for name, value in values.items()}
    return {name: text.lower() if isinstance(values[name], bool) else text for name, text in texts.items()}


def _check_name(kind: str, name: str, line: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"invalid {kind} name {name!r}", file=line, hint="letters, digits, `.`, `_` and `-`")


def _section(top: Map, key: str) -> Map:
    value = top.get(key)
    return Map(top.line) if value is None else _mapping(value, key, top.lines[key])


def _mapping(value: Any, name: str, line: str) -> Map:
    if not isinstance(value, Map):
        raise ConfigError(f"{name} must be a mapping", file=line)
    return value


def _check_keys(body: Map, valid: Iterable[str], where: str) -> None:
    for key in body:
        if key not in valid:
            is_of_ssh = key in ("user", "port")
            message = f"{where}unknown key {key!r}{'' if is_of_ssh else did_you_mean(key, valid)}"
            hint = _OF_SSH if is_of_ssh else f"valid: {', '.join(valid)}"
            raise ConfigError(message, file=body.lines[key], hint=hint)
