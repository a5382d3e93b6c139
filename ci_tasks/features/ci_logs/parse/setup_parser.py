"""What the runner prints before the first step: its name, the job's name, and the job's container."""

from __future__ import annotations

import re
import shlex

from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run
from ci_tasks.features.ci_logs.parse.image_pulls import ImagePullParser
from ci_tasks.features.ci_logs.parse.log_text import printable_text

_MESSAGES = {
    b"Runner name: ": "runner_name",
    b"Complete job name: ": "job_name",
    b"Job defined at: ": "defined_at",
    b"Job is about to start running on the runner: ": "hosted_on",
}
_BEGINNINGS = tuple(_MESSAGES)
_CREATE = re.compile(rb"##\[command\]\S*docker create ")
_PULL = re.compile(rb"##\[command\]\S*docker (?:--config \S+ )?pull (\S+)\s*\Z")
_CONTAINER = b"Starting job container"
WORDS = (rb"##\[(?:end)?group\]", *(re.escape(beginning) for beginning in _BEGINNINGS))
_CONTAINERS = (b"Checking docker version", _CONTAINER)
_DEFINED = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^@]+)@(\S+)")


class SetupParser:
    """Fed with every line before the first step. The first message of a kind counts."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.pulls = ImagePullParser()
        self.image = ""
        self.containers = False  # whether the runner has come to the job's containers
        self._group = b""

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        return self._group == _CONTAINER

    def feed(self, text: bytes) -> None:
        if text.startswith(b"##[group]"):
            self._group = text[9:].strip()
            self.containers = self.containers or self._group in _CONTAINERS
        elif text.startswith(b"##[endgroup]"):
            self._group = b""
        elif self._group == _CONTAINER:
            self._in_container(text)
        elif text.startswith(_BEGINNINGS):  # a log that has no steps is read here to its end
            for start, name in _MESSAGES.items():
                if text.startswith(start):
                    self.values.setdefault(name, printable_text(text[len(start) :]).strip())

    def _in_container(self, text: bytes) -> None:
        self.pulls.feed(text)
        if pull := _PULL.match(text):
            self.image = printable_text(pull[1])  # all there is of a container that never came to be
        if not _CREATE.match(text):
            return
        try:
            argv = shlex.split(printable_text(text.removeprefix(b"##[command]"), 1 << 20))
            self.image = parse_run(["run", *argv[2:]]).image
        except (ValueError, DockerArgvError):
            pass

    @property
    def runner_name(self) -> str:
        return self.values.get("runner_name", "").strip("'") or self.values.get("hosted_on", "").partition(" (")[0]

    @property
    def defined_at(self) -> tuple[str, str, str]:
        """Repository, workflow file and ref of the workflow."""
        match = _DEFINED.fullmatch(self.values.get("defined_at", ""))
        return (match[1], match[2], match[3]) if match else ("", "", "")
