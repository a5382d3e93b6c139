"""A job's log → Recovered, in one pass and with memory that does not grow with the log.

Who speaks where: the runner sets the job up, then announces each step in a group (`header`), then the step's program
speaks until the next group, then the runner cleans up. What a program prints is never taken for the runner's words
about the setup or the checkout: those come first, and the first word counts. A program can end its own step early in a
log without gh's step column, by printing a step's whole group; so exit codes are taken from the last such line, which
is the runner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ci_tasks.errors import UsageError
from ci_tasks.workflow.cilog import header
from ci_tasks.workflow.cilog.conclude import Heard, conclude
from ci_tasks.workflow.cilog.lines import LogLine
from ci_tasks.workflow.cilog.recovered import CANCELLED, FAILURE, LOST, TIMED_OUT, Recovered
from ci_tasks.workflow.cilog.step import StepReader
from ci_tasks.workflow.cilog.text import shown

AFTER_STEPS = (
    b"Post job cleanup.",
    b"Evaluate and set job outputs",
    b"Cleaning up orphan processes",
    b"Stop and remove container: ",
    b"Print service container logs: ",
    b"A job completed hook has been configured",
)
_LAST_WORDS = b"Cleaning up orphan processes"
_ERROR = b"##[error]"
_EXIT = re.compile(rb"Process completed with exit code (-?\d{1,10})\.\s*")
_TIMEOUT = re.compile(rb"The action '(.{0,300})' has timed out after (\d{1,6}) minutes\.\s*")
_CANCELLED = b"The operation was canceled."
_LOST = b"The runner has received a shutdown signal"
_MOST_STEPS = 300
_MOST_JOBS = 1000
_KEPT = 8 << 20  # bytes of steps' groups; a log that has more of them is not a job's


def recover(lines: Iterable[LogLine]) -> Recovered:
    """What the log of one job tells. Raises UsageError for a log of several jobs: pick one with `lines.of_job`."""
    reader = Reader()
    others: dict[str, None] = {}
    for line in lines:
        if line.job and line.job != reader.job:
            if reader.job:
                if len(others) < _MOST_JOBS:
                    others[line.job] = None
                continue
            reader = Reader(line.job)  # what stood above was no part of the log
        if line.job or not reader.job:
            reader.feed(line)
    if others:
        names = [reader.job, *others]
        raise UsageError(f"the log is of {len(names)} jobs", hint=f"one has to be picked: {', '.join(names)}")
    return reader.finish()


class Reader:
    """The state between two lines. `_column` is gh's step, "" where there is none."""

    def __init__(self, job: str = "") -> None:
        self.heard = Heard(job)
        self._column = ""
        self._stamped = False
        self._after = False
        self._title: LogLine | None = None
        self._body: list[tuple[bytes, bool]] | None = None
        self._room = _KEPT

    @property
    def job(self) -> str:
        return self.heard.job

    def feed(self, line: LogLine) -> None:
        if line.seconds is not None:
            self._stamped = True
            self.heard.started = line.seconds if self.heard.started is None else self.heard.started
            self.heard.ended = line.seconds
        if line.step != self._column:
            self._next_column(line)
        own = line.seconds is not None or not self._stamped  # only such a line can be the runner's word
        if self._title is not None and self._in_group(line, own, self._title):
            return
        if own and line.text.startswith(header.TITLE) and self._may_begin():
            self._title, self._body = line, None
        else:
            self._said(line, own)

    def finish(self) -> Recovered:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        return conclude(self.heard)

    def _next_column(self, line: LogLine) -> None:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        self._column = line.step
        self._after = False
        if self.heard.steps:
            self.heard.steps[-1].end(line.seconds)

    def _may_begin(self) -> bool:
        """Where gh names the step, a step has one group of its own; what comes later is a program's."""
        return not self._column or not self._of_last_step()

    def _of_last_step(self) -> bool:
        return bool(self.heard.steps) and self.heard.steps[-1].column == self._column

    def _in_group(self, line: LogLine, own: bool, title: LogLine) -> bool:
        """Whether the line belongs to a step's group. A group that turns out to be none is a program's words."""
        if self._body is None:
            if not header.begins(title.text, line.text, stamped=self._stamped):
                self._title = None
                self._said(title, own=True)
                return False
            self._body = []
        if own and line.text.startswith(header.END):
            self._begin_step(title, self._body)
            return True
        self._room -= len(line.text) + 64  # a line of a list costs that even where it is empty
        if self._room > 0:
            self._body.append((line.text, own))
        else:
            self._title = None
        return True

    def _begin_step(self, title: LogLine, body: list[tuple[bytes, bool]]) -> None:
        self._title, self._after = None, False
        steps = self.heard.steps
        if steps:
            steps[-1].end(title.seconds)
        if len(steps) < _MOST_STEPS:
            early = not any(step.head.script for step in steps)
            steps.append(StepReader(header.parse(title.text, body), title, early=early))

    def _said(self, line: LogLine, own: bool) -> None:
        """A line outside of a step's group: the runner's or, once steps have begun, mostly the program's."""
        text, steps = line.text, self.heard.steps
        if own and text.startswith(AFTER_STEPS):
            self.heard.whole = self.heard.whole or text.startswith(_LAST_WORDS)
            if steps:
                self._after = True
                steps[-1].end(line.seconds)
        elif own and text.startswith(_ERROR):
            self._error(text.removeprefix(_ERROR), line)
        elif not steps:
            self.heard.setup.feed(text)
        elif not self._after and self._of_last_step():
            steps[-1].feed(text)
            self.heard.machine.feed(text)

    def _error(self, text: bytes, line: LogLine) -> None:
        if not self.heard.steps:
            self.heard.setup_error = self.heard.setup_error or shown(text, 300)
            self.heard.setup_column = self.heard.setup_column or line.step
        elif self._of_last_step():
            _end(self.heard.steps[-1], text, line.seconds)


def _end(step: StepReader, text: bytes, seconds: float | None) -> None:
    """An error of a step: how it ended, or one on the way."""
    if found := _EXIT.fullmatch(text):
        step.fail(FAILURE, text, seconds, exit_code=int(found[1]))
    elif found := _TIMEOUT.fullmatch(text):
        step.fail(TIMED_OUT, text, seconds, minutes=int(found[2]), name=shown(found[1]))
    elif text.startswith(_LOST):
        step.fail(LOST, text, seconds)
    elif text.startswith(_CANCELLED) and step.outcome != LOST:  # a runner that goes away cancels as well
        step.fail(CANCELLED, text, seconds)
    elif not step.outcome:
        step.error = shown(text, 300)
