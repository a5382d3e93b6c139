"""What pyxis and apptainer have in common: containers without a daemon, in which a user only looks like root. Pure.

They have no network of their own, no named volumes, no privileges and no limits beyond the host's. For each option of
CI's `docker run` it is decided here what is lost; an option that is not listed is named as lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from ..quick_dataclass import dataclass
from ..records import Deviation
from .docker_argv import BOOLEANS, DockerArgvError, DockerOption, DockerRun
from .mounts import bind_mount, mount_destination, mount_fields, mount_source
from .rewrite import rewrite
from .rules import DOCKER, ContainerRules

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
# Options that each runtime can express, and those that say nothing about what the test sees.
_MAPPED = frozenset(
    ("env", "env-file", "entrypoint", "workdir", "volume", "mount", "tmpfs", "read-only", "user", "gpus")
)
_NO_EFFECT_ON_TESTS = frozenset(
    ("name", "label", "label-file", "rm", "interactive", "quiet", "sig-proxy", "detach-keys", "help", "annotation")
    + ("init", "attach", "log-driver", "log-opt", "disable-content-trust", "runtime", "pull", "cgroupns")
    + ("health-cmd", "health-interval", "health-retries", "health-start-interval", "health-start-period")
    + ("health-timeout", "no-healthcheck", "expose", "restart", "stop-signal", "stop-timeout")
)
_BY_VALUE = frozenset(("network", "ipc", "pid", "uts", "userns", "shm-size"))
_DECIDED = _MAPPED | _NO_EFFECT_ON_TESTS | _BY_VALUE
_ROOT_USERS = ("", "0", "root", "0:0", "root:root", "0:root", "root:0")


@dataclass(frozen=True)
class RootlessCommand:
    """What runs in place of `docker run`: a program's argv, its whole environment, and the deviations from CI."""

    argv: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(repr=False)  # values may be secrets
    deviations: Sequence[Deviation]


@dataclass(frozen=True)
class RootlessMount:
    """A bind mount; `source` is None for an empty directory in memory."""

    source: str | None
    destination: str
    readonly: bool = False


def apply_rules(run: DockerRun, rules: ContainerRules) -> tuple[DockerRun, list[Deviation]]:
    """The run under the rules for mounts, image, volumes and variables. There is no name, label or init here."""
    plain = dataclasses.replace(rules, runtime=DOCKER, name=None, labels={}, network=None)
    here, deviations = rewrite(run, plain)
    return here, [deviation for deviation in deviations if deviation.what != "init"]


def check_supported(run: DockerRun, runtime: str) -> None:
    """Raises DockerArgvError for what only a daemon can do."""
    if run.is_on("detach"):
        raise DockerArgvError(f"docker run --detach needs a daemon, and this host's runtime is {runtime}")
    for name in ("volumes-from", "link"):
        if run.has(name):
            raise DockerArgvError(f"docker run --{name} needs docker's other containers; here the runtime is {runtime}")


def runs_as_root(run: DockerRun) -> bool:
    """Whether CI's container runs as root, as docker's do unless the run (or, unseen, the image) says otherwise."""
    return (run.last("user") or "") in _ROOT_USERS


def uses_host_namespace(run: DockerRun, namespace: str) -> bool:
    """Whether CI's container shares the host's `ipc`, `pid` or `network`."""
    return run.last(namespace) in ("host", "name=host")


def is_file(image: str) -> bool:
    """Whether the image is a file of the host (a squashfs, a SIF) and not a name in a registry."""
    return image.startswith(("/", "./", "../"))


def split_image_name(image: str) -> tuple[str, str, str, str]:
    """Registry ("" for Docker Hub), name, tag and digest of an image, as docker reads its name."""
    rest, _, digest = image.partition("@")
    first, slash, behind = rest.partition("/")
    registry = first if slash and (first == "localhost" or "." in first or ":" in first) else ""
    name, _, tag = (behind if registry else rest).partition(":")
    return registry, name, tag, digest


def rootless_mounts(run: DockerRun, deviations: list[Deviation]) -> list[RootlessMount]:
    """The directories that the run mounts. A named volume is lost: it is docker's own directory."""
    mounts: list[RootlessMount] = []
    for item in run.options:
        source, destination = bind_mount(item)
        fields = mount_fields(item)
        if item.name == "tmpfs":
            mounts.append(RootlessMount(None, (item.value or "").partition(":")[0]))
        elif fields.get("type") == "tmpfs":
            mounts.append(RootlessMount(None, mount_destination(fields)))
        elif destination and source.startswith(("/", ".")):
            mounts.append(RootlessMount(source, destination, _is_readonly(item)))
        elif destination or fields:
            volume = f"docker's volume {source or mount_source(fields) or '(new)'}"
            what = f"mount {destination or mount_destination(fields)}"
            deviations.append(Deviation(what, volume, "the image's own directory", "named volumes belong to docker"))
    for mount in mounts:
        for path in filter(None, (mount.source, mount.destination)):
            if "," in path or ":" in path:
                raise DockerArgvError(f"the mount {path!r} has a comma or a colon, which this runtime does not support")
    return mounts


def lost_options(run: DockerRun, runtime: str, own_processes: bool, mapped: Sequence[str] = ()) -> list[Deviation]:
    """What of the run has no effect here, each by name. `own_processes`: whether the container has PIDs and IPC of its
    own; `mapped`: further options that the runtime can express."""
    deviations = [Deviation("runtime", DOCKER, runtime, f"hosts.yaml runtime: {runtime}")]
    deviations += _lost_namespaces(run, own_processes)
    if not runs_as_root(run):
        user = f"--user {run.last('user')}"
        deviations.append(Deviation("user", user, "your own user", f"{runtime} has no other"))
    pull = run.last("pull") or "missing (docker's default)"
    if pull != "always" and not is_file(run.image):
        why = f"{runtime} asks the registry; layers are cached"
        deviations.append(Deviation("pull", pull, "asked for at every run", why))
    return deviations + _lost_flags(run, runtime, _DECIDED.union(mapped))


def _lost_flags(run: DockerRun, runtime: str, decided: Set[str]) -> list[Deviation]:
    flags = [" ".join([f"--{item.name}", item.value or ""]).strip() for item in run.options if _is_on(item)]
    lost = [flag for flag in dict.fromkeys(flags) if flag.split(" ")[0][2:] not in decided]
    why = f"{runtime} runs as you, with the privileges, limits and devices that the host, or Slurm's job, gives you"
    return [Deviation("container flags", " ".join(lost), "no effect", why)] if lost else []


def _is_on(item: DockerOption) -> bool:
    return item.name not in BOOLEANS or item.is_on()


def _lost_namespaces(run: DockerRun, own_processes: bool) -> list[Deviation]:
    deviations = []
    if not uses_host_namespace(run, "network"):
        network = f"--network {run.last('network')}" if run.has("network") else "docker's own network"
        why = "a port that is taken on the host is taken here"
        deviations.append(Deviation("network", network, "the host's", why))
    if not uses_host_namespace(run, "ipc") and not own_processes:
        why = "/dev/shm is shared with all that runs on the host"
        deviations.append(Deviation("ipc", "its own", "the host's", why))
    if not uses_host_namespace(run, "ipc") and run.has("shm-size"):  # beside --ipc=host docker ignores the size too
        size = f"--shm-size {run.last('shm-size')}"
        why = "/dev/shm may grow to what the host allows"
        deviations.append(Deviation("shm-size", size, "no size of its own", why))
    if not own_processes and not uses_host_namespace(run, "pid"):
        why = "a pkill of the row reaches all your processes on the host"
        deviations.append(Deviation("processes", "its own", "the host's", why))
    return deviations


def _is_readonly(item: DockerOption) -> bool:
    if item.name == "volume":
        parts = (item.value or "").split(":")
        return len(parts) > 2 and "ro" in parts[2].split(",")
    fields = mount_fields(item)
    return any(fields.get(key) in ("", "1", "true") for key in ("readonly", "ro"))
