"""CI's `docker run` on a host without a daemon: the one command that runs instead.

pyxis (0.15, over enroot) makes a step of the row's Slurm job, apptainer (1.1) a container; `none` runs the inner
command on the host. Values of variables are in the command's environment, never in its argv. Each option of CI's that
is lost is a named deviation.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..records import Deviation
from .docker_argv import DockerArgvError, DockerRun, Mount, map_path, mount_of, names
from .rewrite import image_parts, is_file, rewrite
from .rules import APPTAINER, DOCKER, ENGINES, NONE, PYXIS, ContainerRules

Env = Mapping[str, str]
Built = Tuple[List[str], Env]  # an argv and its whole environment
Command = Tuple[List[str], Env, List[Deviation]]  # the same with the deviations from CI

# What of the job's environment srun and enroot need, and, without a container, the inner command.
_NEEDED = {
    PYXIS: names("PATH HOME USER LOGNAME CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH LD_PRELOAD"),
    NONE: names("PATH HOME USER LOGNAME SHELL LANG TERM TZ TMPDIR VIRTUAL_ENV PYTHONNOUSERSITE BASH_ENV"),
}
_PREFIXES = {PYXIS: ("SLURM", "ENROOT_", "XDG_", "SSL_CERT_"), NONE: ("LC_", "CI_TASKS_", "PIP_", "SSL_CERT_")}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
# Options that each of the three can express, or that say nothing about what the test sees.
_EXPRESSED = names(
    "env entrypoint workdir volume mount interactive annotation attach cidfile detach-keys disable-content-trust "
    "expose init label label-file log-driver log-opt name no-healthcheck pull quiet restart rm sig-proxy stop-signal "
    "stop-timeout tty"
)
_EXPRESSED_IN_CONTAINER = names("tmpfs read-only user gpus hostname ipc network pid")
# One task on this node, beside the script that waits for it, with all that the job has. A step would take its export
# rule from an sbatch --export=NONE, bind its one task to one core where the cluster binds tasks, and load MPI's plugin.
STEP = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none", "--mpi=none")
# As docker: none of the host's environment, /tmp, /dev and home, docker's umask, arguments taken literally (apptainer
# would expand a `$`). The image's /root stays.
_ISOLATED = ("--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval")


def container_deviations(run: Optional[DockerRun], rules: ContainerRules) -> Sequence[Deviation]:
    """How a row's container will differ from CI's, as far as its command tells without the host. None for a row without
    a container, and for a command that is blocked."""
    if run is None:
        return ()
    try:
        if rules.runtime in ENGINES:
            return rewrite(run, rules)[1]
        found = command(run, rules, {}, {}, None)[2]
    except DockerArgvError:  # the run is blocked, and says why
        return ()
    # Without a container the plan has `container` already, and which directories the host has is known there.
    return [deviation for deviation in found if rules.runtime != NONE or deviation.what == "container flags"]


def command(run: DockerRun, rules: ContainerRules, variables: Env, environ: Env, scratch: Optional[str]) -> Command:
    """What runs in place of `docker run`, with `variables` inside. `scratch` is a directory of the run for the
    container's /tmp; None leaves it in the container. Raises DockerArgvError for what only a daemon can do."""
    for name in ("detach", "volumes-from", "link", "env-file"):
        if run.is_on(name) if name == "detach" else run.has(name):
            raise DockerArgvError(f"docker run --{name} needs docker, and this host's runtime is {rules.runtime}")
    if rules.runtime == NONE:
        return _inner(run, NONE), {**_needed(environ, NONE), **variables}, _bare_deviations(run, rules)
    here, deviations = rewrite(run, rules)
    mounts = [mount for mount in map(mount_of, here.options) if mount is not None and mount.kind != "volume"]
    if any(letter in mount.source + mount.destination for mount in mounts for letter in ",:"):
        raise DockerArgvError("a mount has a comma or a colon, which this runtime does not support")
    build = _pyxis if rules.runtime == PYXIS else _apptainer
    argv, environment = build(here, mounts, variables, environ, scratch)
    return argv, environment, [*deviations, *_lost(here, rules.runtime)]


def container_environment(run: DockerRun, rules: ContainerRules, environ: Env) -> Dict[str, str]:
    """The variables from `-e` and the rules, on top of the image's own."""
    entries = [entry.partition("=") for entry in run.values("env")]
    given = {name: value if equals else environ[name] for name, equals, value in entries if equals or name in environ}
    return {**given, **rules.env}


def _needed(environ: Env, runtime: str) -> Env:
    names, prefixes = _NEEDED[runtime], _PREFIXES[runtime]
    needed = (name for name in environ if name in names or name.startswith(prefixes) or name.lower() in _PROXIES)
    return {name: environ[name] for name in needed}


def _inner(run: DockerRun, runtime: str) -> List[str]:
    """The entrypoint and command that the run gives. Raises DockerArgvError where both are the image's own."""
    inner = [*filter(None, [run.last("entrypoint")]), *run.command]
    if not inner:
        why = f"the default command of {run.image} is unknown without docker; this host's runtime is {runtime}"
        raise DockerArgvError(f"docker run has no command, and {why}")
    return inner


def _pyxis(run: DockerRun, mounts: Sequence[Mount], variables: Env, environ: Env, scratch: Optional[str]) -> Built:
    # Variables come through srun's environment, and --container-env names those that win over the image's. Where srun
    # needs a value of its own, `env` sets the container's.
    needed = _needed(environ, PYXIS)
    variables = {"NVIDIA_VISIBLE_DEVICES": "all" if run.has("gpus") else "void", **variables}
    inside = [name for name in variables if name in _NEEDED[PYXIS] and needed.get(name) != variables[name]]
    outside = {name: value for name, value in variables.items() if name not in inside}
    registry, name, tag, digest = image_parts(run.image)
    # enroot reads `NAME@sha256:…` as a user's name; what stands in the tag's place goes to the registry as it is.
    image = (f"{registry}#" if registry else "") + name + (f":{digest or tag}" if digest or tag else "")
    binds = [f"{mount.source or 'tmpfs'}:{mount.destination}" + ":ro" * mount.readonly for mount in mounts]
    binds += [f"{scratch}/ray:/tmp/ray"] if scratch else []
    node = needed.get("SLURMD_NODENAME")  # srun would take the first node of the job
    argv = [
        *(*STEP, *([f"--nodelist={node}"] if node else [])),
        *(f"--container-image={image}", "--no-container-mount-home"),
        "--container-remap-root" if _is_root(run) else "--no-container-remap-root",
        "--container-readonly" if run.is_on("read-only") else "--container-writable",
        "--no-container-entrypoint" if run.has("entrypoint") else "--container-entrypoint",
        *([f"--container-workdir={run.last('workdir')}"] if run.has("workdir") else []),
        *(["--container-mounts=" + ",".join(binds)] if binds else []),
        *(["--container-env=" + ",".join(outside)] if outside else []),
        *(["env", *(f"{name}={variables[name]}" for name in inside)] if inside else []),
        *_inner(run, PYXIS),
    ]
    return argv, {**needed, **outside}


def _apptainer(run: DockerRun, mounts: Sequence[Mount], variables: Env, environ: Env, scratch: Optional[str]) -> Built:
    registry, name, tag, digest = image_parts(run.image)
    # It refuses a tag beside a digest; the digest says more.
    image = (f"{registry}/" if registry else "") + name + (f"@{digest}" if digest else f":{tag}" if tag else "")
    # `run` knows the image's entrypoint and command, as docker does; `exec` needs the command.
    inner = _inner(run, APPTAINER) if run.has("entrypoint") else list(run.command)
    if inner and "HOME" in variables:  # apptainer refuses APPTAINERENV_HOME
        inner = ["env", f"HOME={variables['HOME']}", *inner]
    argv = [
        *(APPTAINER, "exec" if run.has("entrypoint") else "run", *_ISOLATED),
        *([] if _shares(run, "pid") else ["--pid"]),
        *(["--bind", "/dev/shm:/dev/shm"] if _shares(run, "ipc") else ["--ipc"]),
        *(["--fakeroot"] if _is_root(run) else []),
        *(["--nv"] if run.has("gpus") else []),
        *(["--hostname", run.last("hostname") or ""] if run.has("hostname") else []),
        *([] if run.is_on("read-only") else ["--writable-tmpfs"]),
        *(["--workdir", scratch] if scratch else ["--bind", "/tmp:/tmp"]),
    ]
    for mount in mounts:
        bind = f"{mount.source}:{mount.destination}" + ":ro" * mount.readonly
        argv += ["--bind", bind] if mount.source else ["--scratch", mount.destination]
    argv += ["--pwd", run.last("workdir") or "/", image if is_file(image) else f"docker://{image}", *inner]
    client = {name: environ[name] for name in environ if not name.startswith(("APPTAINERENV_", "SINGULARITYENV_"))}
    return argv, {**client, **{"APPTAINERENV_" + name: variables[name] for name in variables if name != "HOME"}}


def _is_root(run: DockerRun) -> bool:
    """Whether CI's container runs as root, as docker's do unless the run (or, unseen, the image) says otherwise."""
    return (run.last("user") or "root").partition(":")[0] in ("root", "0")


def _shares(run: DockerRun, namespace: str) -> bool:
    """Whether CI's container shares the host's `ipc`, `pid` or `network`."""
    return run.last(namespace) in ("host", "name=host")


def _lost(run: DockerRun, runtime: str) -> List[Deviation]:
    """What of the run is otherwise than with docker. A row says whether it applies; the rest is its deviation."""
    pyxis, apptainer, root = runtime == PYXIS, runtime == APPTAINER, _is_root(run)
    own_ipc, own_pid, own_network = (not _shares(run, namespace) for namespace in ("ipc", "pid", "network"))
    runs_entrypoint, writes = not run.has("entrypoint"), not run.is_on("read-only")
    flags = _flags(run, _EXPRESSED | _EXPRESSED_IN_CONTAINER)
    gpus, user = f"--gpus {run.last('gpus')}", f"--user {run.last('user')}"
    yours = f"{runtime} runs as you, with the privileges, limits and devices that the host, or Slurm's job, gives you"
    rows = [
        (True, "runtime", DOCKER, runtime, f"hosts.yaml runtime: {runtime}"),
        (own_network, "network", "its own", "the host's", "a port that is taken on the host is taken here"),
        (pyxis and own_ipc, "ipc", "its own", "the host's", "/dev/shm is shared with all that runs on the host"),
        (pyxis and own_pid, "processes", "its own", "the host's", "a pkill reaches all your processes on the host"),
        (not root, "user", user, "your own user", f"{runtime} has no other"),
        (apptainer and root, "user", "root", "you, looking like root", "--fakeroot: on the host it is you"),
        (bool(flags), "container flags", flags, "no effect", yours),
        (pyxis and run.has("gpus"), "gpus", gpus, "those of the job", "Slurm has chosen them"),
        (apptainer and run.has("gpus"), "gpus", gpus, "--nv", "all are visible; CUDA_VISIBLE_DEVICES names the row's"),
        (pyxis, "environment", "the image's and -e", "and Slurm's, proxies, XDG_*", "srun and enroot need them"),
        (pyxis and runs_entrypoint, "entrypoint", "around the command", "before it", "it has to end in `exec`"),
        (True, "/tmp", "in the container", "a directory of the run", "so that logs outlive the container"),
        (apptainer and writes, "room to write", "the host's disk", "in memory", "limited by `sessiondir max size`"),
        (apptainer and not run.has("workdir"), "workdir", "the image's", "/", "apptainer does not read it there"),
    ]
    volumes = [mount for mount in map(mount_of, run.options) if mount is not None and mount.kind == "volume"]
    gone = ("docker's volume", "the image's own directory", "volumes are docker's")
    rows += [(True, f"mount {mount.destination}", *gone) for mount in volumes]
    return [Deviation(what, ci, here, why) for applies, what, ci, here, why in rows if applies]


def _bare_deviations(run: DockerRun, rules: ContainerRules) -> List[Deviation]:
    """The same without a container."""
    why, lost = "hosts.yaml runtime: none; files, user and packages are this machine's own", _flags(run, _EXPRESSED)
    deviations = [Deviation("container", run.image, NONE, why)]
    for mount in filter(None, map(mount_of, run.options)):
        if mount.source and not os.path.exists(mount.destination):
            why = f"{map_path(mount.source, rules.mounts) or mount.source} is not mounted"
            mounted = f"{mount.source} at {mount.destination}"
            deviations.append(Deviation(f"mount {mount.destination}", mounted, "absent", why))
    return deviations + ([Deviation("container flags", lost, "no effect", "there is no container")] if lost else [])


def _flags(run: DockerRun, decided: "frozenset[str]") -> str:
    """CI's options that are not among those `decided`, each once."""
    flags = [item for item in run.options if item.name not in decided and (item.value is not None or item.is_on())]
    return " ".join(dict.fromkeys(f"--{item.name} {item.value or ''}".strip() for item in flags))
