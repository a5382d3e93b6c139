"""What tests ask of a container engine, docker or podman."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Protocol


class Engine(Protocol):
    @property
    def runtime(self) -> str: ...

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that lead its client to it."""

    def call(self, *args: str, stdin: bytes | None = None) -> str:
        """The output of its real client; anything but success is an error that shows its message."""


def containers(engine: Engine) -> str:
    """The ids of all that belong to a run."""
    return engine.call("ps", "--all", "--quiet", "--filter", "label=ci-tasks.run")


def output_of(argv: list[str], stdin: bytes | None = None, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, env=environ)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()
