"""One step of a job while its lines come in."""

from __future__ import annotations

from dataclasses import dataclass, field

from ci_tasks.workflow import shell
from ci_tasks.workflow.cilog.checkout import Checkout
from ci_tasks.workflow.cilog.header import Header
from ci_tasks.workflow.cilog.images import Pulls
from ci_tasks.workflow.cilog.lines import LogLine
from ci_tasks.workflow.cilog.recovered import CiStep
from ci_tasks.workflow.cilog.text import shown

_MASK = "***"
_SILENT = ("set", "export", "cd")  # commands that print nothing before docker does


@dataclass
class StepReader:
    """`early` says that no script ran before it, so nothing but the runner can have announced it."""

    head: Header
    title: LogLine
    early: bool
    error: str = ""
    outcome: str = ""
    exit_code: int | None = None
    minutes: int | None = None
    went_on: bool = False  # something was printed after the words that say how the step ended
    ended: float | None = None
    name: str = ""
    checkout: Checkout | None = field(init=False, default=None)
    pulls: Pulls | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.head.uses.startswith("actions/checkout@"):
            self.checkout = Checkout(self.head.inputs)
        elif "docker" in self.head.script:
            self.pulls = Pulls(strict=_begins_with_docker(self.head.script))

    @property
    def column(self) -> str:
        return self.title.step

    def feed(self, text: bytes) -> None:
        if self.outcome and text and not text.startswith(b"##["):
            self.went_on = True
        if self.checkout:
            self.checkout.feed(text)
        elif self.pulls:
            self.pulls.feed(text)

    def fail(
        self,
        outcome: str,
        words: bytes,
        seconds: float | None,
        *,
        exit_code: int | None = None,
        minutes: int | None = None,
        name: str = "",
    ) -> None:
        """What the runner says of the step's end; the last such words are the runner's own."""
        self.outcome, self.exit_code, self.minutes, self.went_on = outcome, exit_code, minutes, False
        self.error, self.ended, self.name = shown(words, 300), seconds, name

    def end(self, seconds: float | None) -> None:
        """The next step began, or the job's cleaning up."""
        self.ended = seconds if self.ended is None else self.ended

    @property
    def failed(self) -> bool:
        return bool(self.outcome) and not self.went_on and self.exit_code != 0

    def record(self) -> CiStep:
        started = self.title.seconds
        return CiStep(
            name=self.column or self.name or self.head.name,
            line=self.title.number,
            uses=self.head.uses,
            inputs=self.head.inputs,
            script=self.head.script,
            shell=self.head.shell,
            env=self.head.env,
            masked=tuple(name for name, value in self.head.env.items() if _MASK in value),
            started=started,
            seconds=None if started is None or self.ended is None else round(max(0.0, self.ended - started), 3),
            outcome=self.outcome if self.failed else "",
            exit_code=self.exit_code if self.failed else None,
            minutes=self.minutes if self.failed else None,
            error=self.error,
        )


def _begins_with_docker(script: str) -> bool:
    for words in shell.commands(script):
        if words[0] not in _SILENT or any("x" in word for word in words if words[0] == "set"):
            return words[0].rsplit("/", 1)[-1] == "docker"
    return False
