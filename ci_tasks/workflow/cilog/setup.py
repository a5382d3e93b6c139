"""What the runner says before the first step: itself, the job's name, and the job's container."""

from __future__ import annotations

import re
import shlex

from ci_tasks.runner.docker.docker_argv import DockerArgvError, parse_run
from ci_tasks.workflow.cilog.images import Pulls
from ci_tasks.workflow.cilog.text import shown

_QUOTED = {
    b"Current runner version: '": "runner_version",
    b"Runner name: '": "runner_name",
}
_PLAIN = {
    b"Complete job name: ": "job_name",
    b"Job defined at: ": "defined_at",
    b"Job is about to start running on the runner: ": "hosted_on",
}
_CREATE = re.compile(rb"##\[command\]\S*docker create ")
_PULL = re.compile(rb"##\[command\]\S*docker (?:--config \S+ )?pull (\S+)\s*\Z")
_CONTAINER = b"Starting job container"
_CONTAINERS = (b"Checking docker version", _CONTAINER)
_IMAGE = (b"Runner Image", b"Virtual Environment")
_DEFINED = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^@]+)@(\S+)")


class SetUp:
    """Fed with every line before the first step. The first word on a matter counts."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.pulls = Pulls()
        self.image = ""
        self.docker_argv: tuple[str, ...] = ()
        self.containers = False  # whether the runner has come to the job's containers
        self._group = b""
        self._runner_image: list[str] = []

    def feed(self, text: bytes) -> None:
        if text.startswith(b"##[group]"):
            self._group = text[9:].strip()
            self.containers = self.containers or self._group in _CONTAINERS
        elif text.startswith(b"##[endgroup]"):
            self._group = b""
        elif self._group in _IMAGE:
            if text.startswith((b"Image: ", b"Environment: ", b"Version: ")) and len(self._runner_image) < 2:
                self._runner_image.append(shown(text.partition(b": ")[2]))
        elif self._group == _CONTAINER:
            self._in_container(text)
        else:
            self._word(text)

    def _word(self, text: bytes) -> None:
        for start, name in _QUOTED.items():
            if text.startswith(start):
                self.said.setdefault(name, shown(text[len(start) :]).rstrip("'"))
        for start, name in _PLAIN.items():
            if text.startswith(start):
                self.said.setdefault(name, shown(text[len(start) :]).strip())

    def _in_container(self, text: bytes) -> None:
        self.pulls.feed(text)
        if pull := _PULL.match(text):
            self.image = shown(pull[1])  # all there is of a container that never came to be
        if not _CREATE.match(text):
            return
        try:
            words = shlex.split(shown(text.removeprefix(b"##[command]"), 1 << 20))
            self.image = parse_run(["run", *words[2:]]).image
        except (ValueError, DockerArgvError):
            return
        self.docker_argv = ("docker", *words[1:])

    @property
    def runner_image(self) -> str:
        return " ".join(self._runner_image)

    @property
    def runner_name(self) -> str:
        return self.said.get("runner_name") or self.said.get("hosted_on", "").partition(" (")[0]

    @property
    def defined_at(self) -> tuple[str, str, str]:
        """Repository, workflow file and ref of the workflow."""
        found = _DEFINED.fullmatch(self.said.get("defined_at", ""))
        return (found[1], found[2], found[3]) if found else ("", "", "")
