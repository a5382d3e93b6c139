"""The command line of `docker run`: its options, mounts, image and command. Pure.

The grammar is that of pflag, Docker's option parser, as Docker CLI 28 uses it: options end at the image (or at `--`), a
boolean takes its value only after `=`, short options may be clustered, and the last of a cluster may take a value. An
option keeps the words that CI wrote; those of a cluster are written one by one.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping, Sequence

from ..quick_dataclass import dataclass


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEANS = names(
    "detach disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged publish-all quiet "
    "read-only rm sig-proxy tty use-api-socket"
)
VALUED = names(
    "add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile "
    "cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems "
    "detach-keys device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops dns "
    "dns-option dns-search domainname entrypoint env env-file expose gpus group-add health-cmd health-interval "
    "health-retries health-start-interval health-start-period health-timeout hostname io-maxbandwidth io-maxiops ip "
    "ip6 ipc isolation kernel-memory label label-file link link-local-ip log-driver log-opt mac-address memory "
    "memory-reservation memory-swap memory-swappiness mount name network network-alias oom-score-adj pid pids-limit "
    "platform publish pull restart runtime security-opt shm-size stop-signal stop-timeout storage-opt sysctl tmpfs "
    "ulimit user userns uts volume volume-driver volumes-from workdir"
)
_LETTERS = names(
    "a=attach c=cpu-shares d=detach e=env h=hostname i=interactive l=label m=memory p=publish P=publish-all q=quiet "
    "t=tty u=user v=volume w=workdir"
)
SHORT = {pair[0]: pair[2:] for pair in sorted(_LETTERS)}
# Older spellings, which `docker run --help` no longer shows and the CLI still accepts.
HIDDEN = {"dns-opt": "dns-option", "net": "network", "net-alias": "network-alias"}
# What we give to podman, and a shell in a kept container reads again.
_BOOLEANS, _VALUED = BOOLEANS | {"http-proxy"}, VALUED | {"init-path"}

_TRUE = (None, "1", "t", "T", "true", "TRUE", "True")


class DockerArgvError(ValueError):
    """A command line that Docker's CLI would not accept either, or that this host's runtime cannot express."""


@dataclass(frozen=True)
class DockerOption:
    """One option: its long name, its value if it has one, and the words that it is written with."""

    name: str
    value: str | None
    argv: tuple[str, ...]

    def is_on(self) -> bool:
        """The value of a boolean; true where it has none."""
        return self.value in _TRUE


@dataclass(frozen=True)
class DockerRun:
    """A `docker run`: the words up to `run`, the options in order, the image, and the command after it."""

    prefix: tuple[str, ...]
    options: tuple[DockerOption, ...]
    image: str
    command: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        return [option.value or "" for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        """The last value, which is the one that counts."""
        values = self.values(name)
        return values[-1] if values else None

    def has(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def is_on(self, name: str) -> bool:
        values = [option.is_on() for option in self.options if option.name == name]
        return bool(values) and values[-1]


def is_run(argv: Sequence[str]) -> bool:
    """Whether the words after `docker` are a `run`. Raises DockerArgvError for options before the command."""
    if len(argv) > 1 and argv[0].startswith("-"):
        raise DockerArgvError(f"docker {argv[0]}: no options before the command; use DOCKER_HOST, DOCKER_CONFIG, …")
    return [*argv[:2]] == ["container", "run"] or [*argv[:1]] == ["run"]


def parse_run(argv: Sequence[str]) -> DockerRun:
    """Parse the words after `docker`. Raises DockerArgvError."""
    if not is_run(argv):
        raise DockerArgvError(f"not a docker run: {' '.join(argv[:2])!r}")
    first = 1 if argv[0] == "run" else 2
    options, rest = _options(argv[first:])
    if not rest:
        raise DockerArgvError("docker run has no image")
    return DockerRun(tuple(argv[:first]), tuple(options), rest[0], tuple(rest[1:]))


def render(run: DockerRun) -> list[str]:
    """The words after `docker` again."""
    return [*run.prefix, *(word for option in run.options for word in option.argv), run.image, *run.command]


def option(name: str, value: str | None = None) -> DockerOption:
    """A new option: `--name value`, and `-e NAME` and `-v A:B` in their usual short form."""
    flag = {"env": "-e", "volume": "-v"}.get(name, "--" + name)
    return DockerOption(name, value, (flag,) if value is None else (flag, value))


def _options(args: Sequence[str]) -> tuple[list[DockerOption], Sequence[str]]:
    """The options, and the words after them."""
    options: list[DockerOption] = []
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] != "-":
        if args[at] == "--":
            return options, args[at + 1 :]
        new = _long(*args[at : at + 2]) if args[at].startswith("--") else _cluster(*args[at : at + 2])
        options += new
        at += len(new[-1].argv)
    return options, args[at:]


def _long(word: str, following: str | None = None) -> list[DockerOption]:
    flag, equals, value = word[2:].partition("=")
    name = HIDDEN.get(flag, flag)
    if name in _BOOLEANS:
        return [DockerOption(name, value if equals else None, (word,))]
    if name not in _VALUED:
        raise DockerArgvError(f"docker run has no option --{flag}")
    return [DockerOption(name, value, (word,)) if equals else _with_next_word(name, word, following)]


def _cluster(word: str, following: str | None = None) -> list[DockerOption]:
    options: list[DockerOption] = []
    letters = word[1:]
    while letters:
        flag, rest = "-" + letters[0], letters[1:]
        name = SHORT.get(letters[0], "")
        # `-e=X` means X, while the lone `=` of `-e=` is the value: that is pflag's rule.
        value = rest[1:] if rest[:1] == "=" and len(rest) > 1 else rest
        if not name:
            raise DockerArgvError(f"docker run has no option {flag} (in {word!r})")
        if name in VALUED:
            last = DockerOption(name, value, (flag + rest,)) if rest else _with_next_word(name, flag, following)
            return [*options, last]
        if value != rest:
            return [*options, DockerOption(name, value, (flag + rest,))]
        options.append(DockerOption(name, None, (flag,)))
        letters = rest
    return options


def _with_next_word(name: str, flag: str, following: str | None) -> DockerOption:
    if following is None:
        raise DockerArgvError(f"docker run {flag} needs a value")
    return DockerOption(name, following, (flag, following))


# -- mounts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mount:
    """`kind` is bind, volume or tmpfs; `source` a path of the host, the name of a volume, or empty."""

    kind: str
    source: str
    destination: str
    readonly: bool = False


def mount_of(item: DockerOption) -> Mount | None:
    """The mount that an option asks for; None of another option. Raises DockerArgvError."""
    value = item.value or ""
    if item.name == "tmpfs":
        return Mount("tmpfs", "", value.partition(":")[0])
    if item.name == "volume":
        source, destination, flags, *_ = [*value.split(":"), "", ""] if ":" in value else ["", value, ""]
        kind = "bind" if source.startswith(("/", ".")) else "volume"
        return Mount(kind, source, destination, "ro" in flags.split(","))
    if item.name != "mount":
        return None
    fields = {key.lower(): text for key, _, text in (field.partition("=") for field in csv_fields(value))}
    source = fields.get("source", fields.get("src", ""))
    destination = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
    readonly = any(fields.get(key) in ("", "1", "true") for key in ("readonly", "ro"))
    return Mount(fields.get("type", "volume").lower(), source, destination, readonly)


def bind_mount(item: DockerOption) -> tuple[str, str]:
    """Source and destination of a mount; two empty strings where the option mounts nothing that has a source."""
    mount = mount_of(item)
    return (mount.source, mount.destination) if mount is not None and mount.source else ("", "")


def with_source(item: DockerOption, source: str) -> DockerOption:
    """The same mount of another directory."""
    if item.name == "volume":
        return option("volume", source + ":" + (item.value or "").partition(":")[2])
    out = io.StringIO()
    keys = [(field.partition("=")[0], field) for field in csv_fields(item.value or "")]
    fields = [f"{key}={source}" if key.lower() in ("source", "src") else field for key, field in keys]
    csv.writer(out, lineterminator="\r\n").writerow(fields)  # quotes what holds any character of the terminator
    return option("mount", out.getvalue()[:-2])


def csv_fields(text: str) -> list[str]:
    """`--mount` and `--gpus` are one record of CSV, so that a path may contain a comma."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
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
