"""The commands of `--build`: each is a step in its overlay's tree, where the row's Python is. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ci_tasks.agent.records import OVERLAYS, Checkout
from ci_tasks.planning.pip_commands import uses_pip
from ci_tasks.planning.steps import PlannedStep

# Its processes are none of the test's: what they import shows nothing of it.
_NO_PROBE = "CI_TASKS_NO_PROBE"
# Options that the container of a build has like the job's: it must not be of an older image.
_LIKE = {
    "--pull=always": re.compile(r"--pull[= ]always|docker pull\b"),
    "--network host": re.compile(r"--net(work)?[= ]host"),
}


def build_steps(
    checkout: Checkout, workspace: str, image: str | None = None, secrets: Iterable[str] = (), like: str = ""
) -> tuple[PlannedStep, ...]:
    """With an `image` each runs in a container of it, which gets the tree and the variables of `secrets`, and the
    network and the image's state of the container that the step `like` starts."""
    steps = []
    for overlay in checkout.overlays:
        if overlay.build:
            directory = f"{workspace}/{OVERLAYS}/{overlay.name}"
            name, text, words = f"Build overlay {overlay.name}", f"{overlay.build}\n", ("bash", "-e", "{0}")
            step = PlannedStep(name, text, words, directory, {_NO_PROBE: "1"}, builds=overlay.name)
            steps.append(_in_container(step, image, secrets, like) if image else step)
    return tuple(steps)


def position(steps: Sequence[PlannedStep], installing: int, *, in_image: bool) -> int:
    """Before the first step that starts a container, which may need a login before. In a venv behind the steps whose
    packages runs share, as these must not hold a build; else behind those that call pip, but before the last one."""
    if in_image:
        return next((at for at, step in enumerate(steps) if "docker run" in step.text), 0)
    return installing or max((at for at, step in enumerate(steps[:-1], 1) if uses_pip(step.text)), default=0)


def _in_container(step: PlannedStep, image: str, secrets: Iterable[str], like: str) -> PlannedStep:
    place = f'"$GITHUB_WORKSPACE"/{OVERLAYS}/{step.builds}'
    variables = "".join(f" -e {name}" for name in (_NO_PROBE, *secrets))
    options = "".join(f" {option}" for option, pattern in _LIKE.items() if pattern.search(like))
    start = f"docker run --rm{options} -v {place}:{place} -w {place}{variables} --entrypoint bash"
    text = f"{start} {shlex.quote(image)} -ec {shlex.quote(step.text)}\n"
    return PlannedStep(step.name, text, step.words, "", step.env, builds=step.builds)
