"""CI's `docker run` rewritten for this host by its rules, with a named deviation for every difference. Pure.

`rewrite` serves docker and podman; what podman needs beyond that is in `podman`. A secret never appears in an argv:
`rewrite` writes `-e NAME`, and `client_environment` has its value.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Mapping, Sequence

from ..argv_masking import MASK, is_secret_name
from ..mask import mask_text
from ..records import Deviation
from .docker_argv import DockerOption, DockerRun, option
from .mounts import bind_mount, map_path, with_source
from .rules import ContainerRules


def rewrite(run: DockerRun, rules: ContainerRules, number: int = 1) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, and the deviations. It is the `number`th run of its script, counted from 1."""
    here = _Rewriter(run)
    here.hide_secrets(rules.secrets)
    here.map_mounts(rules.mounts)
    here.set_pull(rules.pull)
    here.set_image(rules.image)
    here.set_network(rules.network)
    here.set_name(rules.name_of(number))
    here.keep_after_end()
    here.add_labels(rules.labels)
    here.add_init()
    here.add_env(rules.env)
    here.add_volumes(rules.volumes)
    return here.run, here.deviations


def client_environment(run: DockerRun, rules: ContainerRules) -> dict[str, str]:
    """The values of the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_variable(item) for item in run.options if _is_secret(item, rules.secrets)), **rules.env}


class _Rewriter:
    """A run on its way through the steps of `rewrite`, and the deviations so far."""

    def __init__(self, run: DockerRun) -> None:
        self.run = run
        self.deviations: list[Deviation] = []

    # -- steps -------------------------------------------------------------------------------------------------------

    def hide_secrets(self, values: Sequence[str]) -> None:
        """Any user of the machine can read an argv, so a secret's value goes through the environment instead."""
        for name, _ in [_variable(item) for item in self.run.options if _is_secret(item, values)]:
            self._note(f"env {name}", f"-e {name}={MASK}", f"-e {name}", "a secret never appears in an argv")
        self._change(lambda item: item.with_value(_variable(item)[0]) if _is_secret(item, values) else item)

    def map_mounts(self, mounts: Mapping[str, str]) -> None:
        def mapped(item: DockerOption) -> DockerOption:
            source, _ = bind_mount(item)
            here = map_path(source, mounts)
            if here is None or here == source:
                return item
            self._note(f"mount {source}", source, here, "hosts.yaml mounts")
            return with_source(item, here)

        self._change(mapped)

    def set_pull(self, pull: str | None) -> None:
        current = self.run.last("pull")
        if pull is not None and current != pull:
            self._note("pull", current or "missing (docker's default)", pull, "hosts.yaml pull")
            self._set("pull", pull)

    def set_image(self, images: Mapping[str, str]) -> None:
        image = images.get(self.run.image, self.run.image)
        if image != self.run.image:
            self._note("image", self.run.image, image, "the plan names the image to run")
            self.run = dataclasses.replace(self.run, image=image)

    def set_name(self, name: str | None) -> None:
        current = self.run.last("name")
        if name is not None and current != name:
            self._note("name", current or "(none)", name, "so that ci-tasks can find and remove the container")
            self._set("name", name)

    def set_network(self, network: str | None) -> None:
        """In place of the host's own network, where two runs that start Ray would use the same ports."""
        if network is not None and any(_is_host_network(item) for item in self.run.options):
            self._note("network", "--network host", f"--network {network}", f"hosts.yaml network: {network}")
            self._change(lambda item: item.with_value(network) if _is_host_network(item) else item)

    def keep_after_end(self) -> None:
        """Logs are copied out of a container that has ended. One without a name could not be found again."""
        if self.run.is_on("rm") and self.run.last("name"):
            here = "removed by ci-tasks once its logs are copied"
            self._note("rm", "--rm", here, "so that logs can be copied out after the end")
            self._remove("rm")

    def add_labels(self, labels: Mapping[str, str]) -> None:
        pairs = [f"{key}={value}" for key, value in labels.items()]
        if pairs:
            self._note("labels", "(none)", " ".join(pairs), "so that leftovers of a run can be recognised")
            self._add(*(option("label", word) for word in pairs))

    def add_init(self) -> None:
        if not self.run.has("init"):
            self._note("init", "(none)", "--init", "so that SIGTERM stops the container")
            self._add(option("init"))

    def add_env(self, env: Mapping[str, str]) -> None:
        if env:
            self._note("env", "(none)", " ".join(env), "what ci-tasks hands to the run; values are not shown")
            self._add(*(option("env", name) for name in env))

    def add_volumes(self, volumes: Sequence[str]) -> None:
        taken = {posixpath.normpath(bind_mount(item)[1]) for item in self.run.options}
        new = [path for path in volumes if posixpath.normpath(path) not in taken]  # docker rejects duplicates
        if new:
            self._note("volumes", "(none)", " ".join(new), "directories of the run that the job needs")
            self._add(*(option("volume", f"{path}:{path}") for path in new))

    # -- options -----------------------------------------------------------------------------------------------------

    def _note(self, what: str, ci: str, here: str, why: str) -> None:
        self.deviations.append(Deviation(what, ci, here, why))

    def _change(self, change: Callable[[DockerOption], DockerOption]) -> None:
        self.run = dataclasses.replace(self.run, options=tuple(change(item) for item in self.run.options))

    def _add(self, *new: DockerOption) -> None:
        self.run = dataclasses.replace(self.run, options=self.run.options + new)

    def _remove(self, name: str) -> None:
        kept = tuple(item for item in self.run.options if item.name != name)
        self.run = dataclasses.replace(self.run, options=kept)

    def _set(self, name: str, value: str) -> None:
        """Every such option gets the value, so that it does not matter which counts; a new one where there is none."""
        if self.run.has(name):
            self._change(lambda item: item.with_value(value) if item.name == name else item)
        else:
            self._add(option(name, value))


def _is_secret(item: DockerOption, values: Sequence[str]) -> bool:
    """By the variable's name, or since its value has that of a secret in it."""
    name, value = _variable(item)
    return item.name == "env" and bool(value) and (is_secret_name(name) or mask_text(values, value) != value)


def _is_host_network(item: DockerOption) -> bool:
    return item.name == "network" and item.value in ("host", "name=host")


def _variable(item: DockerOption) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value
