"""Containers that a failed run has kept. Their commands have ended, and starting one would run its command again: what
goes on with its files runs in a container of an image made of it.
"""

from __future__ import annotations

import re
import time
from typing import List, Mapping, Optional, Sequence

from ..records import DockerInvocation
from ..run_directory import RunDir
from .docker_argv import DockerArgvError, is_run, parse_run
from .journal import ContainerBlocked
from .run_containers import DockerResult, RunContainer, RunContainers, read_invocations

COMMIT_SECONDS = 600.0  # the container's own files are copied
_REPOSITORY = "ci-tasks-kept"
_NO_IMAGE = re.compile("no such image|image not known", re.IGNORECASE)


def image_of(container: RunContainer) -> str:
    return "%s:%s" % (_REPOSITORY, container.id[:12])


def commit(container: RunContainer) -> DockerResult:
    """Make the image, unless it is there: an ended container does not change."""
    client, image = container.client, image_of(container)
    client.deadline = time.monotonic() + COMMIT_SECONDS
    there = client.run("image", "inspect", "--format", "{{.Id}}", image)
    return there if there.code == 0 else client.run("commit", "--", container.id, image, timeout=COMMIT_SECONDS)


def kept_container(ci: Sequence[str], directories: Sequence[str], environ: Mapping[str, str]) -> Optional[RunContainer]:
    """The container of an earlier run in `directories`, the oldest first, that CI's `docker run` goes on in. None where
    none of them came to it. Raises ContainerBlocked where it is gone."""
    for directory in reversed(directories):
        invocation = _invocation(ci, read_invocations(RunDir(directory)) or ())
        if invocation is None:
            continue
        containers = RunContainers(directory, thorough=True, environ=environ)
        container = next((each for each in containers.find() if each.name == invocation.name), None)
        if container is None:
            why = "; ".join(containers.problems) or "it was removed"
            raise ContainerBlocked(f"the kept container {invocation.name} is gone ({why}); run the row anew")
        return container
    return None


def _invocation(ci: Sequence[str], invocations: Sequence[DockerInvocation]) -> Optional[DockerInvocation]:
    """The last one of these words, or else of this image: a word may name the commit."""
    runs = [each for each in reversed(invocations) if each.name and is_run(each.ci)]
    same = [each for each in runs if tuple(each.ci) == tuple(ci)]
    return next(iter(same or [each for each in runs if _image(each.ci) == _image(ci)]), None)


def _image(argv: Sequence[str]) -> Optional[str]:
    try:
        return parse_run(argv).image
    except DockerArgvError:
        return None


def remove_images(containers: Sequence[RunContainer]) -> List[str]:
    """Remove the images that were made of containers, and for them. Returns a line for each that stays."""
    left = []
    for container in containers:
        own = {container.image} if container.image.partition(":")[0].endswith(_REPOSITORY) else set()
        for image in sorted({image_of(container), *own}):
            answer = container.client.run("rmi", "--", image)
            if answer.code != 0 and not _NO_IMAGE.search(answer.problem):
                remedy = "`%s rmi %s` removes it when nothing uses it" % (container.client.runtime, image)
                left.append("image %s: %s; %s" % (image, answer.problem, remedy))
    return left
