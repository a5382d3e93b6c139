"""The command line of `docker run`: its options, mounts, image and command; and the rules of a host for
containers, whose values come from hosts.yaml. Pure.

The grammar is pflag's, Docker's option parser, as Docker CLI 28 uses it: options end at the image (or at `--`), a
boolean takes its value only after `=`, short options may be clustered, and the last of a cluster may take a value. An
option keeps the words that CI wrote; those of a cluster are written one by one.
"""

from __future__ import annotations

import csv
import dataclasses
import posixpath
from typing import Mapping, Optional, Sequence, Tuple

from .codec import NOT_STORED
from .quick_dataclass import dataclass


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Every other option takes a value. The last are podman's, which a shell in a kept container reads again.
BOOLEANS = names(
    "detach disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged publish-all quiet "
    "read-only rm sig-proxy tty use-api-socket http-proxy"
)
_LETTERS = (
    "a=attach c=cpu-shares d=detach e=env h=hostname i=interactive l=label m=memory p=publish P=publish-all q=quiet "
    "t=tty u=user v=volume w=workdir"
)
SHORT = {pair[0]: pair[2:] for pair in _LETTERS.split()}
# Older spellings, which `docker run --help` no longer shows and the CLI still accepts.
HIDDEN = {"dns-opt": "dns-option", "net": "network", "net-alias": "network-alias"}


class DockerArgvError(ValueError):
    """A command line that Docker's CLI would not accept either, or that this host's runtime cannot express."""


@dataclass(frozen=True)
class Mount:
    """`kind` is bind, volume or tmpfs; `source` a path of the host, the name of a volume, or empty."""

    kind: str = ""
    source: str = ""
    destination: str = ""
    readonly: bool = False


@dataclass(frozen=True)
class DockerOption:
    """One option: its long name, its value if it has one, and the words that it is written with."""

    name: str
    value: str | None
    argv: tuple[str, ...]

    def is_on(self) -> bool:
        """The value of a boolean; true where it has none."""
        return self.value in (None, "1", "t", "T", "true", "TRUE", "True")

    @property
    def gpu_ids(self) -> list[str]:
        """The GPUs that `--gpus` asks for: all, a number, or `device=0,1`. Raises DockerArgvError."""
        text = self.value or ""
        first = _csv_fields(text)[0] if text else ""
        if first.startswith("device="):
            return first[len("device=") :].split(",")
        if first not in ("all", "-1") and not first.isdigit():
            raise DockerArgvError(f"--gpus {text!r}: give `all`, a number, or `device=0,1`")
        return [str(gpu) for gpu in range(int(first))] if first.isdigit() else ["all"]

    @property
    def mount(self) -> Mount:
        """The mount that it asks for; without a kind if it asks for none. Raises DockerArgvError."""
        value = self.value or ""
        if self.name == "tmpfs":
            return Mount("tmpfs", "", value.partition(":")[0])
        if self.name == "volume":
            source, destination, flags, *_ = [*value.split(":"), "", ""] if ":" in value else ["", value, ""]
            kind = "bind" if source.startswith(("/", ".")) else "volume"
            return Mount(kind, source, destination, "ro" in flags.split(","))
        if self.name != "mount":
            return Mount()
        fields = {key.lower(): text for key, _, text in (field.partition("=") for field in _csv_fields(value))}
        source = fields.get("source", fields.get("src", ""))
        destination = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
        readonly = any(fields.get(key) in ("", "1", "true") for key in ("readonly", "ro"))
        return Mount(fields.get("type", "volume").lower(), source, destination, readonly)


@dataclass(frozen=True)
class DockerRun:
    """A `docker run`: the options in order, the image, and the command after it."""

    options: tuple[DockerOption, ...]
    image: str
    command: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        return [option.value or "" for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        """The last value, which is the one that counts."""
        return next(reversed(self.values(name)), None)

    def has(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def is_on(self, name: str) -> bool:
        return next((option.is_on() for option in reversed(self.options) if option.name == name), False)

    @property
    def mounts(self) -> list[Mount]:
        """Raises DockerArgvError."""
        return [option.mount for option in self.options if option.mount.kind]

    @property
    def binds(self) -> list[Mount]:
        """The mounts that need no daemon. Raises DockerArgvError."""
        return [mount for mount in self.mounts if mount.kind != "volume"]


def is_run(argv: Sequence[str]) -> bool:
    """Whether the words after `docker` are a `run`. Raises DockerArgvError for options before the command."""
    if len(argv) > 1 and argv[0].startswith("-"):
        raise DockerArgvError(f"docker {argv[0]}: no options before the command; use DOCKER_HOST, DOCKER_CONFIG, …")
    return [*argv[:2]] == ["container", "run"] or [*argv[:1]] == ["run"]


def parse_run(argv: Sequence[str]) -> DockerRun:
    """Parse the words after `docker`. Raises DockerArgvError."""
    if not is_run(argv):
        raise DockerArgvError(f"not a docker run: {' '.join(argv[:2])!r}")
    options, rest = _options(argv[1 if argv[0] == "run" else 2 :])
    if not rest:
        raise DockerArgvError("docker run has no image")
    return DockerRun(tuple(options), rest[0], tuple(rest[1:]))


def render(run: DockerRun) -> list[str]:
    """The words after `docker` again."""
    return ["run", *(word for option in run.options for word in option.argv), run.image, *run.command]


def option(name: str, value: str | None = None) -> DockerOption:
    """A new option: `--name value`, and `-e NAME` and `-v A:B` in their usual short form."""
    flag = {"env": "-e", "volume": "-v"}.get(name, "--" + name)
    return DockerOption(name, value, (flag,) if value is None else (flag, value))


def _options(args: Sequence[str]) -> tuple[list[DockerOption], list[str]]:
    """The options, and the words after them."""
    options: list[DockerOption] = []
    rest = list(args)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = HIDDEN.get(flag[2:], flag[2:])
        else:
            flag, value = word[:2], word[2:]
            name = SHORT.get(flag[1:], "")
            if name in BOOLEANS and value and (value == "=" or value[0] != "="):  # a cluster: its letters are options
                rest.insert(0, "-" + value)
                word, value = flag, ""
            # `-e=X` means X, while the lone `=` of `-e=` is the value: that is pflag's rule.
            equals, value = value, value[1:] if value[:1] == "=" and len(value) > 1 else value
        if not name.strip("-"):
            raise DockerArgvError(f"docker run has no option {flag}")
        if name not in BOOLEANS and not equals:
            if not rest:
                raise DockerArgvError(f"docker run {flag} needs a value")
            value = rest.pop(0)
            options.append(DockerOption(name, value, (word, value)))
        else:
            options.append(DockerOption(name, value if equals else None, (word,)))
    return options, rest


def _csv_fields(text: str) -> list[str]:
    """The fields of `--mount` and `--gpus`, one record of CSV: a path may contain a comma."""
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise DockerArgvError(f"{text!r} is not the comma-separated text that docker needs: {error}") from None


def map_path(source: str, mounts: Mapping[str, str]) -> str | None:
    """Where CI's `source` is on this host: by the rule of the longest path that contains it; `/mnt/x` does not contain
    `/mnt/x2`. None without such a rule."""
    path = _normal(source) + "/"
    rules = [(ci, here) for ci, here in mounts.items() if path.startswith(_normal(ci).rstrip("/") + "/")]
    if not source.startswith("/") or not rules:
        return None
    ci, here = max(rules, key=lambda rule: len(_normal(rule[0])))
    below = posixpath.relpath(path, _normal(ci))
    return here if below == "." else posixpath.join(here, below)


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # normpath keeps a leading `//`


ENGINES = ("docker", "podman")  # that keep containers, which are found by label and removed
RUNTIMES = (*ENGINES, "apptainer", "pyxis", "none")
PULLS = ("always", "missing", "never")
BRIDGE = "bridge"


@dataclass(frozen=True)
class ContainerRules:
    """The rules of a host for containers. `image` maps CI's images to those to run, `mounts` CI's directories to this
    host's, `name` and `labels` are the containers', `volumes` further directories. `secrets` are values that must
    not be in an argv."""

    runtime: str = "docker"
    pull: Optional[str] = None
    image: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: Optional[str] = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # values may be secrets
    volumes: Tuple[str, ...] = ()
    network: Optional[str] = None
    secrets: Tuple[str, ...] = dataclasses.field(default=(), repr=False, metadata=NOT_STORED)
