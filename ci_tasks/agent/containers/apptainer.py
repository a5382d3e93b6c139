"""CI's `docker run` under apptainer: a container without a daemon, isolated as docker's are. Pure.

Needs apptainer 1.1. Variables reach the container as `APPTAINERENV_NAME` in apptainer's own environment, so no value
appears in an argv. `--contain` and `--no-home` keep the host's /tmp, /dev and home out; the image's /root stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import Deviation
from . import rootless
from .bare import container_command
from .docker_argv import DockerRun
from .rules import APPTAINER

# What apptainer needs itself: where its cache and its credentials are, the way to a registry.
_CLIENT = frozenset(("PATH", "HOME", "USER", "LOGNAME", "TMPDIR"))
_CLIENT_PREFIXES = ("APPTAINER_", "SINGULARITY_", "XDG_", "SSL_CERT_")
_INSIDE = "APPTAINERENV_"
_HOME = "HOME"  # apptainer refuses APPTAINERENV_HOME

# As docker: none of the host's environment, docker's umask, arguments taken literally (apptainer would expand a `$`).
_ISOLATED = ("--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval")


def rootless_command(
    run: DockerRun, variables: Mapping[str, str], environ: Mapping[str, str], scratch: str | None
) -> rootless.RootlessCommand:
    """The command that runs `run`, with `variables` inside. `scratch` is a directory of the run, for the container's
    /tmp; None gives it the host's.

    Raises DockerArgvError for what cannot be done without a daemon.
    """
    rootless.check_supported(run, APPTAINER)
    deviations = rootless.lost_options(run, APPTAINER, own_processes=True, mapped=("hostname",))
    mounts = rootless.rootless_mounts(run, deviations)
    argv = [
        *(APPTAINER, "exec" if run.has("entrypoint") else "run", *_ISOLATED),
        *_namespaces(run),
        *_mount_options(run, mounts, scratch),
        *("--pwd", run.last("workdir") or "/", image_name(run.image)),
        *_command(run, variables),
    ]
    client = {name: value for name, value in environ.items() if _is_client_variable(name)}
    inside = {_INSIDE + name: value for name, value in variables.items() if name != _HOME}
    return rootless.RootlessCommand(argv, {**client, **inside}, deviations + _runtime_deviations(run))


def image_name(image: str) -> str:
    """The image as apptainer names it. It refuses a tag beside a digest; the digest says more. A file is a path."""
    if rootless.is_file(image):
        return image
    registry, name, tag, digest = rootless.split_image_name(image)
    version = f"@{digest}" if digest else f":{tag}" if tag else ""
    return "docker://" + (f"{registry}/" if registry else "") + name + version


def _is_client_variable(name: str) -> bool:
    return name in _CLIENT or name.startswith(_CLIENT_PREFIXES) or name.lower() in rootless.PROXIES


def _namespaces(run: DockerRun) -> list[str]:
    options = [] if rootless.uses_host_namespace(run, "pid") else ["--pid"]
    options += ["--bind", "/dev/shm:/dev/shm"] if rootless.uses_host_namespace(run, "ipc") else ["--ipc"]
    options += ["--fakeroot"] if rootless.runs_as_root(run) else []
    options += ["--nv"] if run.has("gpus") else []
    hostname = run.last("hostname")
    return [*options, *(["--hostname", hostname] if hostname else [])]


def _mount_options(run: DockerRun, mounts: Sequence[rootless.RootlessMount], scratch: str | None) -> list[str]:
    options = [] if run.is_on("read-only") else ["--writable-tmpfs"]
    options += ["--workdir", scratch] if scratch else ["--bind", "/tmp:/tmp"]
    for mount in mounts:
        if mount.source is None:
            options += ["--scratch", mount.destination]
        else:
            options += ["--bind", f"{mount.source}:{mount.destination}" + (":ro" if mount.readonly else "")]
    return options


def _command(run: DockerRun, variables: Mapping[str, str]) -> list[str]:
    """`apptainer run` knows the image's entrypoint and command, as docker does; `exec` needs the command."""
    command = container_command(run, APPTAINER) if run.has("entrypoint") else list(run.command)
    return ["env", f"{_HOME}={variables[_HOME]}", *command] if _HOME in variables and command else command


def _runtime_deviations(run: DockerRun) -> list[Deviation]:
    deviations = [Deviation("/tmp", "in the container", "a directory of the run", "so that logs outlive the container")]
    if not run.is_on("read-only"):
        why = "beside mounts and /tmp `sessiondir max size` of apptainer.conf, 64 MB unless somebody raised it"
        deviations.append(Deviation("room to write", "the host's disk", "in memory, and little", why))
    if rootless.runs_as_root(run):
        why = "--fakeroot: by /etc/subuid, or a user namespace of your own; on the host it is you"
        deviations.append(Deviation("user", "root", "you, looking like root", why))
    if run.has("gpus"):
        why = "apptainer shows all GPUs of the host; CUDA_VISIBLE_DEVICES says which are the row's"
        deviations.append(Deviation("gpus", f"--gpus {run.last('gpus')}", "--nv", why))
    if not run.has("workdir"):
        deviations.append(Deviation("workdir", "the image's", "/", "apptainer does not read it from the image"))
    return deviations
