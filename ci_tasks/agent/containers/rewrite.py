"""CI's `docker run` rewritten for this host by its rules, with a named deviation for every difference. Pure.

`rewrite` serves docker and podman; what podman needs beyond that is in `podman`. A secret never appears in an argv:
`rewrite` writes `-e NAME`, and `client_environment` has its value.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Sequence

from ..argv_masking import MASK, is_secret_name
from ..mask import mask_text
from ..records import Deviation
from .docker_argv import DockerOption, DockerRun, option
from .mounts import bind_mount, map_path, with_source
from .rules import ContainerRules


def rewrite(run: DockerRun, rules: ContainerRules, number: int = 1) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, and the deviations. It is the `number`th run of its script, counted from 1."""
    deviations: list[Deviation] = []

    def note(*words: str) -> None:
        deviations.append(Deviation(*words))

    options = [_here(item, rules, note) for item in run.options]
    pull, name, image = run.last("pull"), rules.name_of(number), rules.image.get(run.image, run.image)
    if rules.pull is not None and pull != rules.pull:
        note("pull", pull or "missing (docker's default)", rules.pull, "hosts.yaml pull")
        options = _with_value(options, "pull", rules.pull)
    if image != run.image:
        note("image", run.image, image, "the plan names the image to run")
    if name is not None and run.last("name") != name:
        note("name", run.last("name") or "(none)", name, "so that ci-tasks can find and remove the container")
        options = _with_value(options, "name", name)
    if run.is_on("rm") and (name or run.has("name")):  # one without a name could not be found again
        here = "removed by ci-tasks once its logs are copied"
        note("rm", "--rm", here, "so that logs can be copied out after the end")
        options = [item for item in options if item.name != "rm"]
    labels = [f"{key}={value}" for key, value in rules.labels.items()]
    taken = {posixpath.normpath(bind_mount(item)[1]) for item in options}
    volumes = [path for path in rules.volumes if posixpath.normpath(path) not in taken]  # docker rejects duplicates
    if labels:
        note("labels", "(none)", " ".join(labels), "so that leftovers of a run can be recognised")
    if not run.has("init"):
        note("init", "(none)", "--init", "so that SIGTERM stops the container")
    if rules.env:
        note("env", "(none)", " ".join(rules.env), "what ci-tasks hands to the run; values are not shown")
    if volumes:
        note("volumes", "(none)", " ".join(volumes), "directories of the run that the job needs")
    options += [option("label", label) for label in labels]
    options += [] if run.has("init") else [option("init")]
    options += [option("env", variable) for variable in rules.env]
    options += [option("volume", f"{path}:{path}") for path in volumes]
    return dataclasses.replace(run, options=tuple(options), image=image), deviations


def client_environment(run: DockerRun, rules: ContainerRules) -> dict[str, str]:
    """The values of the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_variable(item) for item in run.options if _is_secret(item, rules.secrets)), **rules.env}


def _here(item: DockerOption, rules: ContainerRules, note: Callable[..., None]) -> DockerOption:
    """An option of CI's on this host: without a secret's value, which any user of the machine could read in an argv,
    with the host's directory, and in a network of its own, where two runs that start Ray would use the same ports."""
    if _is_secret(item, rules.secrets):
        name = _variable(item)[0]
        note(f"env {name}", f"-e {name}={MASK}", f"-e {name}", "a secret never appears in an argv")
        return item.with_value(name)
    source, _ = bind_mount(item)
    here = map_path(source, rules.mounts)
    if here is not None and here != source:
        note(f"mount {source}", source, here, "hosts.yaml mounts")
        return with_source(item, here)
    if rules.network is not None and item.name == "network" and item.value in ("host", "name=host"):
        note("network", "--network host", f"--network {rules.network}", f"hosts.yaml network: {rules.network}")
        return item.with_value(rules.network)
    return item


def _with_value(options: Sequence[DockerOption], name: str, value: str) -> list[DockerOption]:
    """Every such option gets the value, so that it does not matter which counts; a new one where there is none."""
    if any(item.name == name for item in options):
        return [item.with_value(value) if item.name == name else item for item in options]
    return [*options, option(name, value)]


def _is_secret(item: DockerOption, values: Sequence[str]) -> bool:
    """By the variable's name, or since its value has that of a secret in it."""
    name, value = _variable(item)
    return item.name == "env" and bool(value) and (is_secret_name(name) or mask_text(values, value) != value)


def _variable(item: DockerOption) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value
