"""CI's `docker run` for podman: its init program, full image names, its own words for some options, and docker's
defaults where its own differ. What it refuses is left out, as a named deviation."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence

from ..records import Deviation
from .docker_argv import DockerArgvError, DockerOption, DockerRun, option
from .mounts import csv_fields, key_value
from .rules import DOCKER, PODMAN

# Where podman itself looks for its init; it does not come with podman.
OWN_INIT = "/usr/libexec/podman/catatonit"
INIT_PROGRAMS = ("catatonit", "tini", "tini-static", "docker-init", "dumb-init")
# Docker's default is no limit; podman's is 2048, fewer than the threads of a training.
_DOCKER_DEFAULTS = {"pids-limit": "-1"}
# Docker has the host's proxies in no container, podman in each.
_NO_PROXY = DockerOption("http-proxy", "false", ("--http-proxy=false",))
# Docker's own, which podman does not know, or (runtime, storage-opt) knows with another meaning.
UNKNOWN = frozenset(
    {
        *("cpu-count", "cpu-percent", "domainname", "health-start-interval", "io-maxbandwidth", "io-maxiops"),
        *("isolation", "kernel-memory", "link", "link-local-ip", "runtime", "storage-opt", "use-api-socket"),
        "volume-driver",
    }
)
NO_INIT = "no init for podman on this host (catatonit, tini); a container that ignores SIGTERM is killed after a moment"


def init_options(
    exists: Callable[[str], bool] = os.path.exists, which: Callable[[str], "str | None"] = shutil.which
) -> list[DockerOption]:
    """`--init`, with the path of a program where podman would not find one itself; nothing where this host has none."""
    if exists(OWN_INIT):
        return [option("init")]
    program = next(filter(None, map(which, INIT_PROGRAMS)), None)
    return [option("init"), option("init-path", program)] if program else []


def qualified_image(image: str) -> str:
    """The image that docker means: a name without a registry is Docker Hub's. podman would ask, or refuse."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"


def adapt(run: DockerRun, init: Sequence[DockerOption], image: str) -> tuple[DockerRun, list[Deviation]]:
    """A rewritten run in podman's words, and how it differs from docker's. `init` are init_options()."""
    deviations = [Deviation("runtime", DOCKER, PODMAN, "hosts.yaml runtime: podman")]
    options: list[DockerOption] = []
    for item in run.options:
        why = _why_left_out(item, run)
        if why:
            deviations.append(Deviation(item.name, " ".join(item.argv), "(none)", why))
        elif item.name == "gpus":
            devices = _gpu_devices(item.value or "")
            here = " ".join(f"--device {device.value}" for device in devices)
            deviations.append(Deviation("gpus", f"--gpus {item.value}", here, "podman takes GPUs by CDI"))
            options += devices
        elif item.name != "init":
            options.append(item)
    if run.is_on("init"):
        options += init
    options += [_NO_PROXY, *(option(name, value) for name, value in _DOCKER_DEFAULTS.items() if not run.has(name))]
    if not run.is_on("privileged"):
        why = "docker's default has some more (AUDIT_WRITE, MKNOD, NET_RAW)"
        deviations.append(Deviation("capabilities", "docker's default", "podman's default", why))
    return dataclasses.replace(run, options=tuple(options), image=image), deviations


def _why_left_out(item: DockerOption, run: DockerRun) -> str:
    """Why podman does not get an option; empty where it does."""
    if item.name == "shm-size" and run.last("ipc") == "host":
        return "podman rejects it with --ipc=host, where it has no effect"
    if item.name == "memory-swap" and item.value == "0":
        return "podman rejects it; to docker it means unset"
    if item.name == "mac-address" and run.last("network") == "host":
        return "podman rejects it with --network host, where it has no effect"
    return "podman has no such option" if item.name in UNKNOWN else ""


def _gpu_devices(text: str) -> list[DockerOption]:
    return [option("device", f"nvidia.com/gpu={gpu}") for gpu in _gpu_ids(text)]


def _gpu_ids(text: str) -> list[str]:
    ids: list[str] = []
    for field in csv_fields(text):
        key, value = key_value(field) if "=" in field else ("count", field)
        if key == "device":
            ids += value.split(",")
        elif key == "count" and value in ("all", "-1"):
            ids.append("all")
        elif key == "count" and value.isdigit():
            ids += [str(gpu) for gpu in range(int(value))]
        elif key == "count":
            raise DockerArgvError(f"--gpus {text!r}: {value!r} is neither a number nor all")
    return ids or ["all"]
