"""How a row's container will differ from CI's, as far as its command tells without the host. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Deviation
from . import apptainer, podman, pyxis
from .bare import bare_deviations
from .docker_argv import DockerArgvError, DockerRun, option
from .rewrite import rewrite
from .rootless import apply_rules
from .rules import APPTAINER, NONE, PODMAN, PYXIS, ContainerRules


def container_deviations(run: DockerRun | None, rules: ContainerRules) -> Sequence[Deviation]:
    """None for a row without a container, and for a command that is blocked."""
    if run is None:
        return ()
    try:
        if rules.runtime == NONE:
            found = bare_deviations(run, rules, lambda path: True)
            return [deviation for deviation in found if deviation.what != "container"]  # which the plan has already
        if rules.runtime in (PYXIS, APPTAINER):
            here, deviations = apply_rules(run, rules)
            command = pyxis.rootless_command if rules.runtime == PYXIS else apptainer.rootless_command
            return [*deviations, *command(here, {}, {}, None).deviations]
        here, deviations = rewrite(run, rules)
        if rules.runtime == PODMAN:  # which init it has is known there
            more = podman.adapt(here, [option("init")], here.image)[1]
            deviations = [deviation for deviation in deviations if deviation.what != "init"] + more
    except DockerArgvError:  # the run is blocked, and says why
        return ()
    return deviations
