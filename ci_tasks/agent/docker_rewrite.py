"""CI's docker commands on this host: in the words of its docker or podman, or as the one command that runs instead
where there is no daemon. Every difference is a named deviation.

pyxis (0.15, over enroot) makes a step of the row's Slurm job, apptainer (1.1) a container; `none` runs the inner
command on the host. A secret never appears in an argv: `rewrite` writes `-e NAME`, and `client_environment` has its
value.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .docker_argv import ENGINES, ContainerRules, DockerArgvError, DockerOption, DockerRun, map_path, names, option
from .mask import MASKED, is_secret_name, mask_text
from .records import Deviation

CATATONIT = "/usr/libexec/podman/catatonit"  # podman's init, which does not come with podman
_REMOVED = "removed by ci-tasks once its logs are copied"
# Could start a container that ci-tasks would not find again.
_REFUSED = ("create", "run", "compose", "stack", "service", "swarm")
# Docker has the host's proxies in no container, podman in each. Docker's default is no limit to the number of
# processes; podman's is 2048, fewer than the threads of a training.
_NO_PROXY, _NO_LIMIT = DockerOption("http-proxy", "false", ("--http-proxy=false",)), option("pids-limit", "-1")


def rewrite(
    run: DockerRun, rules: ContainerRules, number: int = 1, has_init: bool = True
) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, and the deviations. It is the `number`th run of its script, counted from 1.
    `has_init`: podman has its init here. Without one, a container that ignores SIGTERM ends after a grace period."""
    deviations: list[Deviation] = []

    def note(*texts: str) -> None:
        deviations.append(Deviation(*texts))

    def put(what: str, value: str, ci: str, why: str) -> None:
        note(what, ci, value, why)
        options[:] = [*(item for item in options if item.name != what), option(what, value)]

    def add(what: str, added: Mapping[str, DockerOption], why: str) -> None:
        if added:
            note(what, "(none)", " ".join(added), why)
            options.extend(added.values())

    if rules.runtime not in ENGINES:  # a command of the host: nothing to find and to remove, no network of its own
        rules = dataclasses.replace(rules, name=None, labels={}, network=None)
    options = [_here(item, rules, note) for item in run.options]
    pull, image = run.last("pull"), rules.image.get(run.image, run.image)
    name = rules.name if rules.name is None or number == 1 else f"{rules.name}-{number}"
    if rules.pull is not None and pull != rules.pull:
        why = "hosts.yaml pull, or the image is here already"
        put("pull", rules.pull, pull or "missing (docker's default)", why)
    if image != run.image:
        note("image", run.image, image, "named by the plan")
    if name is not None and run.last("name") != name:
        put("name", name, run.last("name") or "(none)", "lets ci-tasks find and remove the container")
    if run.is_on("rm") and (name or run.has("name")):  # one without a name could not be found again
        note("rm", "--rm", _REMOVED, "lets logs be copied after the end")
        options = [item for item in options if item.name != "rm"]
    taken = {posixpath.normpath(mount.destination) for mount in run.mounts}  # docker rejects duplicates
    volumes = (path for path in rules.volumes if posixpath.normpath(path) not in taken)
    labels = [f"{key}={value}" for key, value in rules.labels.items()]
    add("labels", {label: option("label", label) for label in labels}, "to recognise leftovers of a run")
    if not run.has("init") and (rules.runtime == "docker" or (rules.runtime == "podman" and has_init)):
        add("init", {"--init": option("init")}, "lets SIGTERM stop the container")
    add("env", {name: option("env", name) for name in rules.env}, "what ci-tasks passes to the run")
    add("volumes", {path: option("volume", f"{path}:{path}") for path in volumes}, "directories of the run")
    if rules.runtime == "podman":
        options = _for_podman(run, options, has_init, note)
    return dataclasses.replace(run, options=tuple(options), image=image), deviations


def client_environment(run: DockerRun, rules: ContainerRules) -> dict[str, str]:
    """The values of the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_variable(item) for item in run.options if _is_secret(item, rules.secrets)), **rules.env}


def rewrite_other(argv: Sequence[str], names: Mapping[str, str]) -> tuple[list[str], list[Deviation]]:
    """A command other than `run`, with the `names` that the script's containers have here. `docker rm` stops them.

    Raises DockerArgvError for a command that starts containers in another way.
    """
    at = 2 if argv[:1] == ["container"] else 1
    verb, rest = " ".join(argv[at - 1 : at]), list(argv[at:])
    if verb in _REFUSED:
        raise DockerArgvError(f"docker {verb}: ci-tasks could not find the containers that it starts; use docker run")
    known = [number for number, word in enumerate(rest) if word.partition(":")[0] in names]
    for number in known[:1] if verb == "exec" else known:  # what follows the container of `exec` is its command
        name, colon, path = rest[number].partition(":")  # `docker cp NAME:PATH`
        rest[number] = names[name] + colon + path
    if verb == "rm" and known and all(number in known or word[:1] == "-" for number, word in enumerate(rest)):
        deviation = Deviation("docker rm", " ".join(argv[at:]), "stopped", _REMOVED)
        return ["stop", "-t", "0", *(rest[number] for number in known)], [deviation]
    return [*argv[:at], *rest], []


def _here(item: DockerOption, rules: ContainerRules, note: Callable[..., None]) -> DockerOption:
    """An option of CI's on this host: without a secret's value, which any user of the machine could read in an argv,
    with the host's directory, and in a network of its own, where two runs that start Ray would use the same ports."""
    if _is_secret(item, rules.secrets):
        name = _variable(item)[0]
        note(f"env {name}", f"-e {name}={MASKED}", f"-e {name}", "a secret never appears in an argv")
        return option("env", name)
    mount = item.mount
    source = map_path(mount.source, rules.mounts)
    if source not in (None, mount.source):
        note(f"mount {mount.source}", mount.source, source, "hosts.yaml mounts")
        behind = (item.value or "").partition(":")[2] if item.name == "volume" else ""
        return option("volume", f"{source}:{behind or mount.destination + ':ro' * mount.readonly}")
    if rules.network is not None and item.name == "network" and item.value in ("host", "name=host"):
        note("network", "--network host", f"--network {rules.network}", f"hosts.yaml network: {rules.network}")
        return option("network", rules.network)
    return item


def _is_secret(item: DockerOption, values: Sequence[str]) -> bool:
    """By the variable's name, or because its value contains a secret's value."""
    name, value = _variable(item)
    return item.name == "env" and bool(value) and (is_secret_name(name) or mask_text(values, value) != value)


def _variable(item: DockerOption) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value


# -- podman ------------------------------------------------------------------------------------------------------------


def _for_podman(
    run: DockerRun, options: Sequence[DockerOption], has_init: bool, note: Callable[..., None]
) -> list[DockerOption]:
    """A rewritten run's options in podman's words, with docker's defaults."""
    note("runtime", "docker", "podman", "hosts.yaml runtime: podman")
    ipc = run.last("ipc")
    here: list[DockerOption] = []
    for item in options:
        if item.name == "gpus":
            devices = [option("device", f"nvidia.com/gpu={gpu}") for gpu in item.gpu_ids]
            words = " ".join(f"--device {device.value}" for device in devices)
            note("gpus", f"--gpus {item.value}", words, "podman takes GPUs by CDI")
            here += devices
        elif (item.name, ipc) == ("shm-size", "host") or (item.name, item.value) == ("memory-swap", "0"):
            note(item.name, " ".join(item.argv), "(none)", "podman rejects it; in docker it has no effect")
        elif item.name == "init" and not has_init:
            note("init", "--init", "(none)", f"podman needs {CATATONIT}, which is not here")
        else:
            here.append(item)
    if not run.is_on("privileged"):
        why = "docker's default has more (AUDIT_WRITE, MKNOD, NET_RAW)"
        note("capabilities", "docker's default", "podman's default", why)
    return [*here, _NO_PROXY, *([] if run.has("pids-limit") else [_NO_LIMIT])]


# -- names of images ---------------------------------------------------------------------------------------------------


def image_parts(image: str) -> tuple[str, str, str, str]:
    """Registry ("" for Docker Hub), name, tag and digest of an image, as docker reads its name. A file of the host
    (a squashfs, a SIF) is a name."""
    if is_file(image):
        return "", image, "", ""
    rest, _, digest = image.partition("@")
    first, slash, behind = rest.partition("/")
    registry = first if slash and (first == "localhost" or "." in first or ":" in first) else ""
    name, _, tag = (behind if registry else rest).partition(":")
    return registry, name, tag, digest


def is_file(image: str) -> bool:
    return image.startswith(("/", "./", "../"))


def qualified_image(image: str) -> str:
    """The image that docker means: a name without a registry is Docker Hub's. podman would ask, or refuse."""
    registry, name, _, _ = image_parts(image)
    return image if registry else f"docker.io/{image}" if "/" in name else f"docker.io/library/{image}"


Env = Mapping[str, str]
Built = Tuple[List[str], Env]  # an argv and its whole environment
Command = Tuple[List[str], Env, List[Deviation]]  # the same with the deviations from CI

# What of the job's environment srun and enroot need, and, without a container, the inner command.
_NEEDED = {
    "pyxis": names("PATH HOME USER LOGNAME CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH LD_PRELOAD"),
    "none": names("PATH HOME USER LOGNAME SHELL LANG TERM TZ TMPDIR VIRTUAL_ENV PYTHONNOUSERSITE BASH_ENV"),
}
_PREFIXES = {"pyxis": ("SLURM", "ENROOT_", "XDG_", "SSL_CERT_"), "none": ("LC_", "CI_TASKS_", "PIP_", "SSL_CERT_")}
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


# -- without a daemon --------------------------------------------------------------------------------------------------


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
    return [deviation for deviation in found if rules.runtime != "none" or deviation.what == "container flags"]


def command(run: DockerRun, rules: ContainerRules, variables: Env, environ: Env, scratch: Optional[str]) -> Command:
    """What runs in place of `docker run`, with `variables` inside. `scratch` is a directory of the run for the
    container's /tmp; None leaves it in the container. Raises DockerArgvError for what only a daemon can do."""
    for name in ("detach", "volumes-from", "link", "env-file"):
        if run.is_on(name) if name == "detach" else run.has(name):
            raise DockerArgvError(f"docker run --{name} needs docker, and this host's runtime is {rules.runtime}")
    if rules.runtime == "none":
        return _inner(run, "none"), {**_needed(environ, "none"), **variables}, _bare_deviations(run, rules)
    here, deviations = rewrite(run, rules)
    if any(letter in mount.source + mount.destination for mount in here.binds for letter in ",:"):
        raise DockerArgvError("a mount has a comma or a colon, which this runtime does not support")
    build = _pyxis if rules.runtime == "pyxis" else _apptainer
    argv, environment = build(here, variables, environ, scratch)
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
    entrypoint = run.last("entrypoint")
    if not entrypoint and not run.command:
        why = f"the default command of {run.image} is unknown without docker; this host's runtime is {runtime}"
        raise DockerArgvError(f"docker run has no command, and {why}")
    return [*([entrypoint] if entrypoint else []), *run.command]


def _pyxis(run: DockerRun, variables: Env, environ: Env, scratch: Optional[str]) -> Built:
    # Variables come through srun's environment, and --container-env names the ones that beat the image's. Where srun
    # needs a value of its own, `env` sets the container's.
    needed = _needed(environ, "pyxis")
    variables = {"NVIDIA_VISIBLE_DEVICES": "all" if run.has("gpus") else "void", **variables}
    inside = [name for name in variables if name in _NEEDED["pyxis"] and needed.get(name) != variables[name]]
    outside = {name: value for name, value in variables.items() if name not in inside}
    registry, name, tag, digest = image_parts(run.image)
    # enroot reads `NAME@sha256:…` as a user's name; what stands in the tag's place goes to the registry as it is.
    image = (f"{registry}#" if registry else "") + name + (f":{digest or tag}" if digest or tag else "")
    binds = [f"{mount.source or 'tmpfs'}:{mount.destination}" + ":ro" * mount.readonly for mount in run.binds]
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
        *_inner(run, "pyxis"),
    ]
    return argv, {**needed, **outside}


def _apptainer(run: DockerRun, variables: Env, environ: Env, scratch: Optional[str]) -> Built:
    registry, name, tag, digest = image_parts(run.image)
    # It refuses a tag beside a digest; the digest says more.
    image = (f"{registry}/" if registry else "") + name + (f"@{digest}" if digest else f":{tag}" if tag else "")
    # `run` knows the image's entrypoint and command, as docker does; `exec` needs the command.
    inner = _inner(run, "apptainer") if run.has("entrypoint") else list(run.command)
    if inner and "HOME" in variables:  # apptainer refuses APPTAINERENV_HOME
        inner = ["env", f"HOME={variables['HOME']}", *inner]
    argv = [
        *("apptainer", "exec" if run.has("entrypoint") else "run", *_ISOLATED),
        *([] if _shares(run, "pid") else ["--pid"]),
        *(["--bind", "/dev/shm:/dev/shm"] if _shares(run, "ipc") else ["--ipc"]),
        *(["--fakeroot"] if _is_root(run) else []),
        *(["--nv"] if run.has("gpus") else []),
        *(["--hostname", run.last("hostname") or ""] if run.has("hostname") else []),
        *([] if run.is_on("read-only") else ["--writable-tmpfs"]),
        *(["--workdir", scratch] if scratch else ["--bind", "/tmp:/tmp"]),
    ]
    for mount in run.binds:
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
    pyxis, apptainer, root = runtime == "pyxis", runtime == "apptainer", _is_root(run)
    own_ipc, own_pid, own_network = (not _shares(run, namespace) for namespace in ("ipc", "pid", "network"))
    runs_entrypoint, writes = not run.has("entrypoint"), not run.is_on("read-only")
    flags = _flags(run, _EXPRESSED | _EXPRESSED_IN_CONTAINER)
    gpus, user = f"--gpus {run.last('gpus')}", f"--user {run.last('user')}"
    yours = f"{runtime} runs as you, with the privileges, limits and devices that the host, or Slurm's job, gives you"
    rows = [
        (True, "runtime", "docker", runtime, f"hosts.yaml runtime: {runtime}"),
        (own_network, "network", "its own", "the host's", "a port in use on the host is in use here"),
        (pyxis and own_ipc, "ipc", "its own", "the host's", "/dev/shm is shared with all processes on the host"),
        (pyxis and own_pid, "processes", "its own", "the host's", "pkill reaches all your processes on the host"),
        (not root, "user", user, "your own user", f"{runtime} has no other"),
        (apptainer and root, "user", "root", "your user, shown as root", "--fakeroot: your own user on the host"),
        (bool(flags), "container flags", flags, "no effect", yours),
        (pyxis and run.has("gpus"), "gpus", gpus, "those of the job", "Slurm has chosen them"),
        (apptainer and run.has("gpus"), "gpus", gpus, "--nv", "all are visible; CUDA_VISIBLE_DEVICES names the row's"),
        (pyxis, "environment", "the image's and -e", "and Slurm's, proxies, XDG_*", "srun and enroot need them"),
        (pyxis and runs_entrypoint, "entrypoint", "around the command", "before it", "it has to end in `exec`"),
        (True, "/tmp", "in the container", "a directory of the run", "keeps logs after the container is removed"),
        (apptainer and writes, "room to write", "the host's disk", "in memory", "limited by `sessiondir max size`"),
        (apptainer and not run.has("workdir"), "workdir", "the image's", "/", "apptainer does not read it there"),
    ]
    gone = ("docker's volume", "the image's own directory", "volumes are docker's")
    rows += [(mount.kind == "volume", f"mount {mount.destination}", *gone) for mount in run.mounts]
    return [Deviation(what, ci, here, why) for applies, what, ci, here, why in rows if applies]


def _bare_deviations(run: DockerRun, rules: ContainerRules) -> List[Deviation]:
    """The same without a container."""
    why, lost = "hosts.yaml runtime: none; files, user and packages are this machine's own", _flags(run, _EXPRESSED)
    deviations = [Deviation("container", run.image, "none", why)]
    for mount in run.mounts:
        if mount.source and not os.path.exists(mount.destination):
            why = f"{map_path(mount.source, rules.mounts) or mount.source} is not mounted"
            mounted = f"{mount.source} at {mount.destination}"
            deviations.append(Deviation(f"mount {mount.destination}", mounted, "absent", why))
    return deviations + ([Deviation("container flags", lost, "no effect", "no container")] if lost else [])


def _flags(run: DockerRun, decided: "frozenset[str]") -> str:
    """CI's options that are not among those `decided`, each once."""
    flags = [item for item in run.options if item.name not in decided and (item.value is not None or item.is_on())]
    return " ".join(dict.fromkeys(f"--{item.name} {item.value or ''}".strip() for item in flags))
