"""CI's docker commands rewritten for this host by its rules, with a named deviation for every difference. Pure.

A secret never appears in an argv: `rewrite` writes `-e NAME`, and `client_environment` has its value.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Sequence

from ..argv_masking import MASK, is_secret_name
from ..mask import mask_text
from ..records import Deviation, DockerInvocation
from .docker_argv import (
    DockerArgvError,
    DockerOption,
    DockerRun,
    bind_mount,
    is_run,
    map_path,
    names,
    option,
    parse_run,
    with_source,
)
from .rules import ContainerRules

# The commands beside `run` that reach docker. Another one, such as create or compose, could start a container that
# ci-tasks would not find again.
_PASSED = names(
    "attach build builder buildx commit cp diff events exec export history image images import info inspect kill load "
    "login logout logs manifest network pause port ps pull push restart rm rmi save search start stats stop system "
    "tag top unpause update version volume wait --help --version -v"
)
_REMOVED = "removed by ci-tasks once its logs are copied"


def rewrite(run: DockerRun, rules: ContainerRules, number: int = 1) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, and the deviations. It is the `number`th run of its script, counted from 1."""
    deviations: list[Deviation] = []

    def note(*texts: str) -> None:
        deviations.append(Deviation(*texts))

    options = [_here(item, rules, note) for item in run.options]
    pull, name, image = run.last("pull"), rules.name_of(number), rules.image.get(run.image, run.image)
    if rules.pull is not None and pull != rules.pull:
        note("pull", pull or "missing (docker's default)", rules.pull, "hosts.yaml pull, or the image is here already")
        options = _with_value(options, "pull", rules.pull)
    if image != run.image:
        note("image", run.image, image, "named by the plan, or made of the container that a retry goes on with")
    if name is not None and run.last("name") != name:
        note("name", run.last("name") or "(none)", name, "so that ci-tasks can find and remove the container")
        options = _with_value(options, "name", name)
    if run.is_on("rm") and (name or run.has("name")):  # one without a name could not be found again
        note("rm", "--rm", _REMOVED, "so that logs can be copied out after the end")
        options = [item for item in options if item.name != "rm"]
    taken = {posixpath.normpath(bind_mount(item)[1]) for item in options}  # docker rejects duplicates
    volumes = [path for path in rules.volumes if posixpath.normpath(path) not in taken]
    labels = [f"{key}={value}" for key, value in rules.labels.items()]
    inits = [] if run.has("init") else ["--init"]
    for what, values, added, why in (
        ("labels", labels, [option("label", label) for label in labels], "so that leftovers of a run are recognised"),
        ("init", inits, [option("init") for _ in inits], "so that SIGTERM stops the container"),
        ("env", rules.env, [option("env", each) for each in rules.env], "what ci-tasks hands to the run"),
        ("volumes", volumes, [option("volume", f"{path}:{path}") for path in volumes], "directories of the run"),
    ):
        if added:
            note(what, "(none)", " ".join(values), why)
            options += added
    return dataclasses.replace(run, options=tuple(options), image=image), deviations


def client_environment(run: DockerRun, rules: ContainerRules) -> dict[str, str]:
    """The values of the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_variable(item) for item in run.options if _is_secret(item, rules.secrets)), **rules.env}


def rewrite_other(argv: Sequence[str], invocations: Sequence[DockerInvocation]) -> tuple[list[str], list[Deviation]]:
    """A command other than `run`, with the names that the script's containers have here. `docker rm` stops them.

    Raises DockerArgvError for a command that does not reach docker.
    """
    at = 2 if argv[:1] == ["container"] else 1
    verb, rest = " ".join(argv[at - 1 : at]), list(argv[at:])
    if verb not in _PASSED:
        raise DockerArgvError(f"docker {verb}: ci-tasks does not know this command, or could not find its containers")
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
    source, _ = bind_mount(item)
    here = map_path(source, rules.mounts)
    if here is not None and here != source:
        note(f"mount {source}", source, here, "hosts.yaml mounts")
        return with_source(item, here)
    if rules.network is not None and item.name == "network" and item.value in ("host", "name=host"):
        note("network", "--network host", f"--network {rules.network}", f"hosts.yaml network: {rules.network}")
        return option("network", rules.network)
    return item


def _with_value(options: Sequence[DockerOption], name: str, value: str) -> list[DockerOption]:
    """With one such option, of that value."""
    return [*(item for item in options if item.name != name), option(name, value)]


def _is_secret(item: DockerOption, values: Sequence[str]) -> bool:
    """By the variable's name, or since its value has that of a secret in it."""
    name, value = _variable(item)
    return item.name == "env" and bool(value) and (is_secret_name(name) or mask_text(values, value) != value)


def _variable(item: DockerOption) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value
