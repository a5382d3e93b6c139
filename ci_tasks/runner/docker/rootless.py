"""What pyxis and apptainer have in common: containers without a daemon, in which a user only looks like root. Pure.

There is no network of their own, no named volume, no privilege and no limit beyond the host's. What of CI's
`docker run` is lost thereby is decided here flag by flag; a flag that nobody decided about is named as lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from ..words import Deviation, deviation
from .bare import named_command
from .container import rewrite
from .docker_argv import BOOLEANS, DockerArgvError, DockerRun, Option
from .mounts import csv_fields, key_value, mounted
from .rules import DOCKER, Rules

# Flags that each runtime has words for, and those that say nothing about what the test sees.
_MAPPED = frozenset(
    ("env", "env-file", "entrypoint", "workdir", "volume", "mount", "tmpfs", "read-only", "user", "gpus")
)
_NO_LOSS = frozenset(
    ("name", "label", "label-file", "rm", "interactive", "quiet", "sig-proxy", "detach-keys", "help", "annotation")
    + ("init", "attach", "log-driver", "log-opt", "disable-content-trust", "runtime", "pull", "cgroupns")
    + ("health-cmd", "health-interval", "health-retries", "health-start-interval", "health-start-period")
    + ("health-timeout", "no-healthcheck", "expose", "restart", "stop-signal", "stop-timeout")
)
_BY_VALUE = frozenset(("network", "ipc", "pid", "uts", "userns", "shm-size"))
_DECIDED = _MAPPED | _NO_LOSS | _BY_VALUE
_WHY = {
    "privileged": ("no privileges", "root in a user namespace: it can do what you can do on the host"),
    "ulimit": ("the host's own limits", "a user cannot raise them; `ulimit -a` there shows them"),
    "cap-add": ("no capabilities", "root in a user namespace has none on the host"),
    "security-opt": ("no effect", "nothing is confined beyond what the host does"),
    "device": ("the host's own devices", "those that you may use there"),
    "tty": ("no terminal", "the output goes to the log"),
}
_LIMITS = (
    "memory",
    "memory-swap",
    "memory-reservation",
    "cpus",
    "cpuset-cpus",
    "cpuset-mems",
    "cpu-shares",
    "pids-limit",
)
_ROOTS = ("", "0", "root", "0:0", "root:root", "0:root", "root:0")
_NAMESPACE_HOST = ("host", "name=host")


@dataclasses.dataclass(frozen=True)
class Call:
    """What runs in the place of `docker run`: a program's words, its whole environment, and what differs from CI."""

    argv: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(repr=False)  # values may be secrets
    deviations: Sequence[Deviation]


@dataclasses.dataclass(frozen=True)
class Mount:
    """A bind mount; `source` is None for an empty directory in memory."""

    source: str | None
    destination: str
    readonly: bool = False


def adapted(run: DockerRun, rules: Rules) -> tuple[DockerRun, list[Deviation]]:
    """The run under the rules for mounts, image, volumes and variables. There is no name, label or init here."""
    plain = dataclasses.replace(rules, runtime=DOCKER, name=None, labels={}, network=None)
    here, said = rewrite(run, plain)
    return here, [one for one in said if one["what"] != "init"]


def check(run: DockerRun, runtime: str) -> None:
    """Raises DockerArgvError for what nothing can be done about."""
    if run.is_on("detach"):
        raise DockerArgvError(f"docker run --detach needs a daemon, and this host's runtime is {runtime}")
    for name in ("volumes-from", "link"):
        if run.has(name):
            raise DockerArgvError(f"docker run --{name} needs docker's other containers; here the runtime is {runtime}")


def command(run: DockerRun, runtime: str) -> list[str]:
    """The words to run inside. Raises DockerArgvError where only the image knows them."""
    words = named_command(run)
    if not words:
        raise DockerArgvError(
            f"docker run names no command and {run.image}'s own is not known to {runtime}, this host's runtime"
        )
    return words


def looks_like_root(run: DockerRun) -> bool:
    """Whether CI's container runs as root, as docker's do unless the run (or, unseen, the image) says otherwise."""
    return (run.last("user") or "") in _ROOTS


def shares(run: DockerRun, space: str) -> bool:
    """Whether CI's container has the host's own `ipc`, `pid` or `network`."""
    return run.last(space) in _NAMESPACE_HOST


def is_file(image: str) -> bool:
    """Whether the image is a file of the host (a squashfs, a SIF) and not a name for a registry."""
    return image.startswith(("/", "./", "../"))


def reference(image: str) -> tuple[str, str, str, str]:
    """Registry ("" for Docker Hub), name, tag and digest of an image, as docker reads its name."""
    rest, _, digest = image.partition("@")
    first, slash, behind = rest.partition("/")
    registry = first if slash and (first == "localhost" or "." in first or ":" in first) else ""
    name, _, tag = (behind if registry else rest).partition(":")
    return registry, name, tag, digest


def mounts(run: DockerRun, said: list[Deviation]) -> list[Mount]:
    """The directories that the run mounts. A named volume of docker's is lost: it is docker's own directory."""
    found: list[Mount] = []
    for item in run.options:
        source, destination = mounted(item)
        if item.name == "tmpfs":
            found.append(Mount(None, (item.value or "").partition(":")[0]))
        elif item.name == "mount" and not destination:
            found += _other_mount(item, said)
        elif destination and not source.startswith(("/", ".")):
            said.append(_lost_volume(source, destination))
        elif destination:
            found.append(Mount(source, destination, _is_readonly(item)))
    for mount in found:
        for path in filter(None, (mount.source, mount.destination)):
            if "," in path or ":" in path:
                raise DockerArgvError(f"the mount {path!r} holds a comma or a colon, which this runtime cannot express")
    return found


def losses(run: DockerRun, runtime: str, own_processes: bool, mapped: Sequence[str] = ()) -> list[Deviation]:
    """What of the run has no effect here, each by name. `own_processes` says whether the container has PIDs and IPC of
    its own, `mapped` which further flags the runtime has words for."""
    said = [deviation("runtime", DOCKER, runtime, f"hosts.yaml runtime: {runtime}")]
    said += _spaces(run, own_processes)
    if not looks_like_root(run):
        said.append(deviation("user", f"--user {run.last('user')}", "your own user", f"{runtime} knows no other"))
    pull = run.last("pull") or "missing (docker's default)"
    if pull != "always" and not is_file(run.image):
        said.append(deviation("pull", pull, "asked for at every run", f"{runtime} asks the registry; layers are kept"))
    return said + _flags(run, runtime, _DECIDED.union(mapped))


def _flags(run: DockerRun, runtime: str, decided: Set[str]) -> list[Deviation]:
    given = list(dict.fromkeys(item.name for item in run.options if item.name not in BOOLEANS or item.is_on()))
    said = [
        deviation(name, " ".join([f"--{name}", *filter(None, run.values(name))]), *_WHY[name])
        for name in given
        if name in _WHY
    ]
    unknown = [name for name in given if name not in _WHY and name not in decided]
    limits = " ".join(f"--{name}" for name in unknown if name in _LIMITS)
    others = " ".join(f"--{name}" for name in unknown if name not in _LIMITS)
    if limits:
        said.append(deviation("limits", limits, "no effect", "the limits of the host, or of Slurm's job, hold"))
    if others:
        said.append(deviation("container flags", others, "no effect", f"{runtime} has nothing of the kind"))
    return said


def _spaces(run: DockerRun, own_processes: bool) -> list[Deviation]:
    said = []
    if not shares(run, "network"):
        asked = f"--network {run.last('network')}" if run.has("network") else "docker's own network"
        said.append(deviation("network", asked, "the host's", "a port that is taken on the host is taken here"))
    if not shares(run, "ipc") and not own_processes:
        said.append(deviation("ipc", "its own", "the host's", "/dev/shm is shared with all that runs on the host"))
    if not shares(run, "ipc") and run.has("shm-size"):  # beside --ipc=host docker ignores the size as well
        size = f"--shm-size {run.last('shm-size')}"
        said.append(deviation("shm-size", size, "no size of its own", "/dev/shm may grow to what the host allows"))
    if not own_processes and not shares(run, "pid"):
        why = "a pkill of the row reaches all your processes on the host"
        said.append(deviation("processes", "its own", "the host's", why))
    return said


def _other_mount(item: Option, said: list[Deviation]) -> list[Mount]:
    fields = dict(key_value(field) for field in csv_fields(item.value or ""))
    destination = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
    if fields.get("type") == "tmpfs":
        return [Mount(None, destination)]
    said.append(_lost_volume(fields.get("source", fields.get("src", "")), destination))
    return []


def _lost_volume(source: str, destination: str) -> Deviation:
    ci = f"docker's volume {source or '(new)'}"
    return deviation(f"mount {destination}", ci, "the image's own directory", "named volumes belong to docker")


def _is_readonly(item: Option) -> bool:
    value = item.value or ""
    if item.name == "volume":
        parts = value.split(":")
        return len(parts) > 2 and "ro" in parts[2].split(",")
    fields = dict(key_value(field) for field in csv_fields(value))
    return any(fields.get(key) in ("", "1", "true") for key in ("readonly", "ro"))
