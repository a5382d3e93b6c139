"""CI's `docker run` under apptainer: a container without a daemon, isolated as docker's are. Pure.

Needs apptainer 1.1. Variables reach the container as `APPTAINERENV_NAME` in apptainer's own environment, so no value
stands in an argv. `--contain` and `--no-home` keep the host's /tmp, /dev and home out; the image's /root stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..words import Deviation, deviation
from .docker_argv import DockerRun
from .rootless import Call, Mount, check, command, is_file, looks_like_root, losses, mounts, reference, shares
from .rules import APPTAINER

# What apptainer needs itself: where its cache and its credentials lie, the way to a registry.
_CLIENT = frozenset(("PATH", "HOME", "USER", "LOGNAME", "TMPDIR"))
_CLIENT_PREFIXES = ("APPTAINER_", "SINGULARITY_", "XDG_", "SSL_CERT_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_INSIDE = "APPTAINERENV_"
_HOME = "HOME"  # apptainer refuses APPTAINERENV_HOME

# As docker: no environment of the host's, its umask, words taken literally (apptainer would expand a `$` in them).
_ISOLATED = ("--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval")


def call(run: DockerRun, given: Mapping[str, str], environ: Mapping[str, str], scratch: str | None) -> Call:
    """What runs `run`, with the variables `given` in it. `scratch` is a directory of the run, for the container's /tmp;
    None gives it the host's.

    Raises DockerArgvError for what cannot be done without a daemon.
    """
    check(run, APPTAINER)
    said = losses(run, APPTAINER, own_processes=True, mapped=("hostname",))
    bound = mounts(run, said)
    said += _told(run)
    words = [APPTAINER, "exec" if run.has("entrypoint") else "run", *_ISOLATED, *_spaces(run)]
    words += [
        *_mounted(run, bound, scratch),
        "--pwd",
        run.last("workdir") or "/",
        image_name(run.image),
        *_command(run, given),
    ]
    client = {name: value for name, value in environ.items() if _is_clients(name)}
    return Call(words, {**client, **{_INSIDE + name: value for name, value in given.items() if name != _HOME}}, said)


def image_name(image: str) -> str:
    """The image as apptainer names it. It refuses a tag beside a digest; the digest says more. A file is a path."""
    if is_file(image):
        return image
    registry, name, tag, digest = reference(image)
    version = f"@{digest}" if digest else f":{tag}" if tag else ""
    return "docker://" + (f"{registry}/" if registry else "") + name + version


def _is_clients(name: str) -> bool:
    return name in _CLIENT or name.startswith(_CLIENT_PREFIXES) or name.lower() in _PROXIES


def _spaces(run: DockerRun) -> list[str]:
    words = [] if shares(run, "pid") else ["--pid"]
    words += ["--bind", "/dev/shm:/dev/shm"] if shares(run, "ipc") else ["--ipc"]
    words += ["--fakeroot"] if looks_like_root(run) else []
    words += ["--nv"] if run.has("gpus") else []
    hostname = run.last("hostname")
    return [*words, *(["--hostname", hostname] if hostname else [])]


def _mounted(run: DockerRun, bound: Sequence[Mount], scratch: str | None) -> list[str]:
    words = [] if run.is_on("read-only") else ["--writable-tmpfs"]
    words += ["--workdir", scratch] if scratch else ["--bind", "/tmp:/tmp"]
    for one in bound:
        if one.source is None:
            words += ["--scratch", one.destination]
        else:
            words += ["--bind", f"{one.source}:{one.destination}" + (":ro" if one.readonly else "")]
    return words


def _command(run: DockerRun, given: Mapping[str, str]) -> list[str]:
    """`run` knows the image's entrypoint and command, as docker does; `exec` is told."""
    words = command(run, APPTAINER) if run.has("entrypoint") else list(run.command)
    return ["env", f"{_HOME}={given[_HOME]}", *words] if _HOME in given and words else words


def _told(run: DockerRun) -> list[Deviation]:
    said = [deviation("/tmp", "in the container", "a directory of the run", "so that logs outlive the container")]
    if not run.is_on("read-only"):
        why = "beside mounts and /tmp `sessiondir max size` of apptainer.conf, 64 MB unless somebody raised it"
        said.append(deviation("room to write", "the host's disk", "in memory, and little", why))
    if looks_like_root(run):
        why = "--fakeroot: by /etc/subuid, or a user namespace of you alone; on the host it is you"
        said.append(deviation("user", "root", "you, looking like root", why))
    if run.has("gpus"):
        why = "apptainer shows all GPUs of the host; CUDA_VISIBLE_DEVICES says which are the row's"
        said.append(deviation("gpus", f"--gpus {run.last('gpus')}", "--nv", why))
    if not run.has("workdir"):
        said.append(deviation("workdir", "the image's", "/", "apptainer does not read it from the image"))
    return said
