"""CI's docker commands in the words of this host's docker or podman, with a named deviation for every difference.

A secret never appears in an argv: `rewrite` writes `-e NAME`, and `client_environment` has its value.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import shutil
from collections.abc import Callable, Mapping, Sequence

from ..argv_masking import MASK, is_secret_name
from ..mask import mask_text
from ..records import Deviation, DockerInvocation
from .docker_argv import DockerArgvError, DockerOption, DockerRun, bind_mount, gpu_ids, is_run, moved, option, parse_run
from .rules import DOCKER, ENGINES, PODMAN, ContainerRules

_REMOVED = "removed by ci-tasks once its logs are copied"
# Could start a container that ci-tasks would not find again.
_REFUSED = ("create", "run", "compose", "stack", "service", "swarm")
# Where podman itself looks for its init; it does not come with podman.
OWN_INIT = "/usr/libexec/podman/catatonit"
INIT_PROGRAMS = ("catatonit", "tini", "tini-static", "docker-init", "dumb-init")
INIT = (option("init"),)
# Docker has the host's proxies in no container, podman in each. Docker's default is no limit to the number of
# processes; podman's is 2048, fewer than the threads of a training.
_NO_PROXY, _NO_LIMIT = DockerOption("http-proxy", "false", ("--http-proxy=false",)), option("pids-limit", "-1")


def rewrite(
    run: DockerRun, rules: ContainerRules, number: int = 1, init: Sequence[DockerOption] = INIT
) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, and the deviations. It is the `number`th run of its script, counted from 1."""
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
        note("image", run.image, image, "named by the plan, or made of the container that a retry goes on with")
    if name is not None and run.last("name") != name:
        put("name", name, run.last("name") or "(none)", "so that ci-tasks can find and remove the container")
    if run.is_on("rm") and (name or run.has("name")):  # one without a name could not be found again
        note("rm", "--rm", _REMOVED, "so that logs can be copied out after the end")
        options = [item for item in options if item.name != "rm"]
    taken = {posixpath.normpath(bind_mount(item)[1]) for item in options}  # docker rejects duplicates
    volumes = (path for path in rules.volumes if posixpath.normpath(path) not in taken)
    labels = [f"{key}={value}" for key, value in rules.labels.items()]
    add("labels", {label: option("label", label) for label in labels}, "so that leftovers of a run are recognised")
    if rules.runtime == DOCKER and not run.has("init"):
        add("init", {"--init": option("init")}, "so that SIGTERM stops the container")
    add("env", {name: option("env", name) for name in rules.env}, "what ci-tasks hands to the run")
    add("volumes", {path: option("volume", f"{path}:{path}") for path in volumes}, "directories of the run")
    if rules.runtime == PODMAN:
        options = _for_podman(run, options, init, note)
    return dataclasses.replace(run, options=tuple(options), image=image), deviations


def client_environment(run: DockerRun, rules: ContainerRules) -> dict[str, str]:
    """The values of the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_variable(item) for item in run.options if _is_secret(item, rules.secrets)), **rules.env}


def rewrite_other(argv: Sequence[str], invocations: Sequence[DockerInvocation]) -> tuple[list[str], list[Deviation]]:
    """A command other than `run`, with the names that the script's containers have here. `docker rm` stops them.

    Raises DockerArgvError for a command that starts containers in another way.
    """
    at = 2 if argv[:1] == ["container"] else 1
    verb, rest = " ".join(argv[at - 1 : at]), list(argv[at:])
    if verb in _REFUSED:
        raise DockerArgvError(f"docker {verb}: ci-tasks could not find the containers that it starts; use docker run")
    runs = [(parse_run(call.ci).last("name"), call.name) for call in invocations if is_run(call.ci)]
    names = {name: here for name, here in runs if name and here}
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
        note(f"env {name}", f"-e {name}={MASK}", f"-e {name}", "a secret never appears in an argv")
        return option("env", name)
    here = moved(item, rules.mounts)
    if here is not item:
        note(f"mount {bind_mount(item)[0]}", bind_mount(item)[0], bind_mount(here)[0], "hosts.yaml mounts")
        return here
    if rules.network is not None and item.name == "network" and item.value in ("host", "name=host"):
        note("network", "--network host", f"--network {rules.network}", f"hosts.yaml network: {rules.network}")
        return option("network", rules.network)
    return item


def _is_secret(item: DockerOption, values: Sequence[str]) -> bool:
    """By the variable's name, or since its value has that of a secret in it."""
    name, value = _variable(item)
    return item.name == "env" and bool(value) and (is_secret_name(name) or mask_text(values, value) != value)


def _variable(item: DockerOption) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value


# -- podman ----------------------------------------------------------------------------------------------------------


def podman_init() -> Sequence[DockerOption]:
    """`--init`, with the path of a program where podman would not find one itself; nothing where this host has none."""
    program = next(filter(None, map(shutil.which, INIT_PROGRAMS)), None)
    if os.path.exists(OWN_INIT):
        return INIT
    return [*INIT, option("init-path", program)] if program else []


def _for_podman(
    run: DockerRun, options: Sequence[DockerOption], init: Sequence[DockerOption], note: Callable[..., None]
) -> list[DockerOption]:
    """A rewritten run's options in podman's words, with docker's defaults."""
    note("runtime", DOCKER, PODMAN, "hosts.yaml runtime: podman")
    ipc = run.last("ipc")
    here: list[DockerOption] = []
    for item in options:
        if item.name == "gpus":
            devices = [option("device", f"nvidia.com/gpu={gpu}") for gpu in gpu_ids(item.value or "")]
            words = " ".join(f"--device {device.value}" for device in devices)
            note("gpus", f"--gpus {item.value}", words, "podman takes GPUs by CDI")
            here += devices
        elif (item.name, ipc) == ("shm-size", "host") or (item.name, item.value) == ("memory-swap", "0"):
            note(item.name, " ".join(item.argv), "(none)", "podman rejects it; in docker it has no effect")
        elif item.name != "init":
            here.append(item)
    if not init:
        why = "the host has none for podman (catatonit, tini); a container that ignores SIGTERM is killed"
        note("init", "an init process", "(none)", why)
    if not run.is_on("privileged"):
        why = "docker's default has some more (AUDIT_WRITE, MKNOD, NET_RAW)"
        note("capabilities", "docker's default", "podman's default", why)
    return [*here, *init, _NO_PROXY, *([] if run.has("pids-limit") else [_NO_LIMIT])]


# -- names of images -------------------------------------------------------------------------------------------------


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
