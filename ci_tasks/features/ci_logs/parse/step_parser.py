"""One step of a job while its lines come in."""

from __future__ import annotations

from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.ci_logs.parse.checkout_parser import CheckoutParser
from ci_tasks.features.ci_logs.parse.image_pulls import ImagePullParser
from ci_tasks.features.ci_logs.parse.log_text import printable_text
from ci_tasks.features.ci_logs.parse.recovered_job import RecoveredStep
from ci_tasks.features.ci_logs.parse.split_lines import LogLine
from ci_tasks.features.ci_logs.parse.step_header import StepHeader
from ci_tasks.workflow import shell

_MASK = "***"
_SILENT = ("set", "export", "cd")  # commands that print nothing before docker does


@dataclass
class StepParser:
    """`early` says that no script ran before it, so nothing but the runner can have announced it."""

    header: StepHeader
    title: LogLine
    early: bool
    error: str = ""
    outcome: str = ""
    exit_code: int | None = None
    minutes: int | None = None
    has_later_output: bool = False  # after the message that says how the step ended
    name: str = ""
    checkout: CheckoutParser | None = field(init=False, default=None)
    pulls: ImagePullParser | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.header.uses.startswith("actions/checkout@"):
            self.checkout = CheckoutParser(self.header.inputs)
        elif "docker" in self.header.script:
            self.pulls = ImagePullParser(strict=_begins_with_docker(self.header.script))

    @property
    def column(self) -> str:
        return self.title.step

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without a word of the parsers of steps."""
        ended = bool(self.outcome) and not self.has_later_output
        within = self.checkout or self.pulls
        return ended or (within is not None and within.needs_next_line)

    def feed(self, text: bytes) -> None:
        if self.outcome and text and not text.startswith(b"##["):
            self.has_later_output = True
        if self.checkout:
            self.checkout.feed(text)
        elif self.pulls:
            self.pulls.feed(text)

    def fail(
        self,
        outcome: str,
        message: bytes,
        *,
        exit_code: int | None = None,
        minutes: int | None = None,
        name: str = "",
    ) -> None:
        """The runner's message about the step's end; the last such message is the runner's own."""
        self.outcome, self.exit_code, self.minutes, self.has_later_output = outcome, exit_code, minutes, False
        self.error, self.name = printable_text(message, 300), name

    @property
    def failed(self) -> bool:
        return bool(self.outcome) and not self.has_later_output and self.exit_code != 0

    def record(self) -> RecoveredStep:
        return RecoveredStep(
            name=self.column or self.name or self.header.name,
            line=self.title.number,
            uses=self.header.uses,
            script=self.header.script,
            env=self.header.env,
            masked=tuple(name for name, value in self.header.env.items() if _MASK in value),
            outcome=self.outcome if self.failed else "",
            exit_code=self.exit_code if self.failed else None,
            minutes=self.minutes if self.failed else None,
            error=self.error,
        )


def _begins_with_docker(script: str) -> bool:
    for argv in shell.commands(script):
        if argv[0] not in _SILENT or any("x" in word for word in argv if argv[0] == "set"):
            return argv[0].rsplit("/", 1)[-1] == "docker"
    return False
