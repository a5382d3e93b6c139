"""What becomes of CI's `docker run` on this host: the same run under its rules, and a name for every difference. Pure.

`rewrite` serves docker and podman. A secret never stands in an argv: `rewrite` leaves `-e NAME`, and
`client_environment` says what NAME is.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Mapping, Sequence

from ..words import MASK, Deviation, deviation, is_secret_name
from .docker_argv import DockerArgvError, DockerRun, Option, option
from .mounts import csv_fields, key_value, mounted, moved, with_source
from .rules import DOCKER, PODMAN, Rules


def rewrite(run: DockerRun, rules: Rules, nth: int = 1) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, the `nth` of its script, and what differs."""
    said: list[Deviation] = []
    run = _keep_secrets_off(run, said)
    run = _remap(run, rules.mounts, said)
    run = _use_pull(run, rules.pull, said)
    run = _use_image(run, rules.image, said)
    run = _use_network(run, rules.network, said)
    run = _use_name(run, rules.name_of(nth), said)
    run = _stay_after_end(run, said)
    run = _add_labels(run, rules.labels, said)
    run = _add_init(run, said)
    run = _add_env(run, rules.env, said)
    run = _add_volumes(run, rules.volumes, said)
    if rules.runtime == PODMAN:
        run = _for_podman(run, said)
    return run, said


def client_environment(run: DockerRun, rules: Rules) -> dict[str, str]:
    """The values behind the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_secret(item) for item in run.options if _is_secret(item)), **rules.env}


# -- the parts of rewrite, in its order ------------------------------------------------------------------------------


def _keep_secrets_off(run: DockerRun, said: list[Deviation]) -> DockerRun:
    """Any user of the machine can read an argv, so a secret's value goes through the environment instead."""
    secrets = [_secret(item)[0] for item in run.options if _is_secret(item)]
    for name in secrets:
        said.append(deviation(f"env {name}", f"-e {name}={MASK}", f"-e {name}", "a secret never stands in an argv"))
    return _each(run, lambda item: item.with_value(_secret(item)[0]) if _is_secret(item) else item)


def _remap(run: DockerRun, mounts: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    def remapped(item: Option) -> Option:
        source, _ = mounted(item)
        here = moved(source, mounts)
        if here is None or here == source:
            return item
        said.append(deviation(f"mount {source}", source, here, "hosts.yaml mounts"))
        return with_source(item, here)

    return _each(run, remapped)


def _use_pull(run: DockerRun, pull: str | None, said: list[Deviation]) -> DockerRun:
    given = run.last("pull")
    if pull is None or given == pull:
        return run
    said.append(deviation("pull", given or "missing (docker's default)", pull, "hosts.yaml pull"))
    return _replaced(run, "pull", pull)


def _use_image(run: DockerRun, images: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    here = images.get(run.image, run.image)
    if here == run.image:
        return run
    said.append(deviation("image", run.image, here, "the plan names the image to run"))
    return dataclasses.replace(run, image=here)


def _use_name(run: DockerRun, name: str | None, said: list[Deviation]) -> DockerRun:
    given = run.last("name")
    if name is None or given == name:
        return run
    said.append(deviation("name", given or "(none)", name, "so that ci-tasks can find and remove the container"))
    return _replaced(run, "name", name)


def _use_network(run: DockerRun, network: str | None, said: list[Deviation]) -> DockerRun:
    """In place of the host's own network, where two runs that start Ray would meet at the same ports."""
    if network is None or not any(_is_host_network(item) for item in run.options):
        return run
    said.append(deviation("network", "--network host", f"--network {network}", f"hosts.yaml network: {network}"))
    return _each(run, lambda item: item.with_value(network) if _is_host_network(item) else item)


def _stay_after_end(run: DockerRun, said: list[Deviation]) -> DockerRun:
    """Logs are copied out of a container that has ended. One without a name could not be found again."""
    if not (run.is_on("rm") and run.last("name")):
        return run
    here = "removed by ci-tasks once its logs are copied"
    said.append(deviation("rm", "--rm", here, "so that logs can be copied out after the end"))
    return _without(run, "rm")


def _add_labels(run: DockerRun, labels: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    if not labels:
        return run
    words = [f"{key}={value}" for key, value in labels.items()]
    said.append(deviation("labels", "(none)", " ".join(words), "so that leftovers of a run can be recognised"))
    return _added(run, *(option("label", word) for word in words))


def _add_init(run: DockerRun, said: list[Deviation]) -> DockerRun:
    if run.has("init"):
        return run
    said.append(deviation("init", "(none)", "--init", "so that SIGTERM stops the container"))
    return _added(run, option("init"))


def _add_env(run: DockerRun, env: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    if not env:
        return run
    said.append(deviation("env", "(none)", " ".join(env), "what ci-tasks hands to the run; values are not shown"))
    return _added(run, *(option("env", name) for name in env))


def _add_volumes(run: DockerRun, volumes: Sequence[str], said: list[Deviation]) -> DockerRun:
    taken = {posixpath.normpath(mounted(item)[1]) for item in run.options}
    new = [path for path in volumes if posixpath.normpath(path) not in taken]  # twice the same is an error to docker
    if not new:
        return run
    said.append(deviation("volumes", "(none)", " ".join(new), "directories of the run that the job needs"))
    return _added(run, *(option("volume", f"{path}:{path}") for path in new))


def _for_podman(run: DockerRun, said: list[Deviation]) -> DockerRun:
    said.append(deviation("runtime", DOCKER, PODMAN, "hosts.yaml runtime: podman"))
    if run.last("ipc") == "host" and run.has("shm-size"):
        size = f"--shm-size={run.last('shm-size')}"
        said.append(deviation("shm-size", size, "(none)", "podman refuses it with --ipc=host, where it has no effect"))
        run = _without(run, "shm-size")
    if run.last("memory-swap") == "0":
        said.append(
            deviation("memory-swap", "--memory-swap=0", "(none)", "podman refuses it; to docker it means unset")
        )
        run = _without(run, "memory-swap")
    gpus = run.last("gpus")
    if gpus is None:
        return run
    devices = [f"nvidia.com/gpu={gpu}" for gpu in _gpu_ids(gpus)]
    said.append(
        deviation("gpus", f"--gpus {gpus}", " ".join(f"--device {d}" for d in devices), "podman takes GPUs by CDI")
    )
    return _added(_without(run, "gpus"), *(option("device", device) for device in devices))


# -- options ---------------------------------------------------------------------------------------------------------


def _each(run: DockerRun, change: Callable[[Option], Option]) -> DockerRun:
    return dataclasses.replace(run, options=tuple(change(item) for item in run.options))


def _added(run: DockerRun, *new: Option) -> DockerRun:
    return dataclasses.replace(run, options=run.options + new)


def _without(run: DockerRun, name: str) -> DockerRun:
    return dataclasses.replace(run, options=tuple(item for item in run.options if item.name != name))


def _replaced(run: DockerRun, name: str, value: str) -> DockerRun:
    """Every such option with the new value, so that it does not matter which counts; one more where there is none."""
    if not run.has(name):
        return _added(run, option(name, value))
    return _each(run, lambda item: item.with_value(value) if item.name == name else item)


def _is_secret(item: Option) -> bool:
    name, equals, value = (item.value or "").partition("=")
    return item.name == "env" and bool(equals and value) and is_secret_name(name)


def _is_host_network(item: Option) -> bool:
    return item.name == "network" and item.value in ("host", "name=host")


def _secret(item: Option) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value


def _gpu_ids(text: str) -> list[str]:
    """The GPUs that a `--gpus` value asks for, as the names after `nvidia.com/gpu=`."""
    ids: list[str] = []
    for field in csv_fields(text):
        key, value = key_value(field) if "=" in field else ("count", field)
        if key == "device":
            ids += value.split(",")
        elif key == "count":
            ids += ["all"] if value in ("all", "-1") else [str(gpu) for gpu in range(_whole(value, text))]
    return ids or ["all"]


def _whole(value: str, text: str) -> int:
    if not value.isdigit():
        raise DockerArgvError(f"--gpus {text!r}: {value!r} is neither a number nor all")
    return int(value)
