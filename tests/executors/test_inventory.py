"""What brings an image that a host lacks."""

from __future__ import annotations

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.executors.inventory import pull_commands

PULLS = [
    (HostSpec("h", runtime="docker"), ["docker", "pull", "--quiet", "slimerl/slime"]),
    (HostSpec("h", runtime="podman"), ["podman", "pull", "--quiet", "docker.io/slimerl/slime"]),
    (HostSpec("h", runtime="docker", pull="never"), None),
    (HostSpec("h", runtime="none"), None),
]


@pytest.mark.parametrize(("host", "command"), PULLS)
def test_an_image_is_pulled_from_where_docker_would(host: HostSpec, command: list[str] | None) -> None:
    assert pull_commands(host, ["slimerl/slime"]).get("slimerl/slime") == command
