"""A job's log → RecoveredJob, in one pass and with memory that does not grow with the log.

The runner sets the job up, then announces each step in a group (`step_header`), then the step's program
writes until the next group, then the runner cleans up. What a program prints is never taken for the runner's messages
about the setup or the checkout: those come first, and the first message counts. A program can end its own step early in
a log without gh's step column, by printing a step's whole group; so exit codes are taken from the last such line, which
is the runner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ci_tasks.features.ci_logs.parse import checkout_parser, image_pulls, machine_parser, setup_parser, step_header
from ci_tasks.features.ci_logs.parse.checkout_parser import head_in
from ci_tasks.features.ci_logs.parse.log_text import printable_text
from ci_tasks.features.ci_logs.parse.recover_job import JobState, recover_job
from ci_tasks.features.ci_logs.parse.recovered_job import CANCELLED, FAILURE, LOST, TIMED_OUT, RecoveredJob
from ci_tasks.features.ci_logs.parse.split_lines import LogLine
from ci_tasks.features.ci_logs.parse.step_parser import StepParser

AFTER_STEPS = (
    b"Post job cleanup.",
    b"Evaluate and set job outputs",
    b"Cleaning up orphan processes",
    b"Stop and remove container: ",
    b"Print service container logs: ",
    b"A job completed hook has been configured",
)
WORDS = (
    *(re.escape(beginning) for beginning in AFTER_STEPS),
    rb"##\[error\]",
    *setup_parser.WORDS,
    *checkout_parser.WORDS,
    *image_pulls.WORDS,
    *machine_parser.WORDS,
)
_LAST_MESSAGE = b"Cleaning up orphan processes"
_ERROR = b"##[error]"
_EXIT = re.compile(rb"Process completed with exit code (-?\d{1,10})\.\s*")
_TIMEOUT = re.compile(rb"The action '(.{0,300})' has timed out after (\d{1,6}) minutes\.\s*")
_CANCELLED = b"The operation was canceled."
_LOST = b"The runner has received a shutdown signal"
_MAX_STEPS = 300
_MAX_HEADS = 50
_MAX_HEADER_BYTES = 8 << 20  # bytes of steps' groups; a log that has more of them is not a job's


def parse_job(lines: Iterable[LogLine]) -> RecoveredJob:
    """What the log of one job tells. Lines of another job, and what stands around gh's output, are left out."""
    reader = JobReader()
    for line in lines:
        reader.feed(line)
    return reader.finish()


class JobReader:
    """`parse_job` for lines that come one by one: of all lines those are enough that have one of WORDS, those after a
    line with which `needs_next_line` became true, the first and last with a timestamp, and where columns change."""

    def __init__(self) -> None:
        self._parser = JobParser()

    def feed(self, line: LogLine) -> None:
        if line.job and not self._parser.state.job:
            self._parser = JobParser(line.job)
        if line.job == self._parser.state.job:
            self._parser.feed(line)

    def needs_next_line(self) -> bool:
        return self._parser.needs_next_line()

    def finish(self) -> RecoveredJob:
        return self._parser.finish()


class JobParser:
    """The state between two lines. `_column` is gh's step, "" where there is none."""

    def __init__(self, job: str = "") -> None:
        self.state = JobState(job)
        self._column = ""
        self._stamped = False
        self._cleanup = False
        self._title: LogLine | None = None
        self._body: list[tuple[bytes, bool]] | None = None
        self._capacity = _MAX_HEADER_BYTES

    def feed(self, line: LogLine) -> None:
        if line.seconds is not None:
            self._stamped = True
            self.state.started = line.seconds if self.state.started is None else self.state.started
            self.state.ended = line.seconds
        if line.step != self._column:
            self._next_column(line)
        is_own = line.seconds is not None or not self._stamped  # only such a line can be the runner's message
        if self._title is not None and self._in_group(line, is_own, self._title):
            return
        if is_own and line.text.startswith(step_header.TITLE) and self._step_may_begin():
            self._title, self._body = line, None
        else:
            self._feed_line(line, is_own)

    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        if self._title is not None:
            return True
        if not self.state.steps:
            return self.state.setup.needs_next_line
        is_in_step = not self._cleanup and self._in_last_step()
        return is_in_step and (self.state.steps[-1].needs_next_line or self.state.machine.needs_next_line)

    def finish(self) -> RecoveredJob:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        return recover_job(self.state)

    def _next_column(self, line: LogLine) -> None:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        self._column = line.step
        self._cleanup = False

    def _step_may_begin(self) -> bool:
        """Where gh names the step, a step has one group of its own; what comes later is a program's."""
        return not self._column or not self._in_last_step()

    def _in_last_step(self) -> bool:
        return bool(self.state.steps) and self.state.steps[-1].column == self._column

    def _in_group(self, line: LogLine, is_own: bool, title: LogLine) -> bool:
        """Whether the line belongs to a step's group. A group that turns out to be none is a program's output."""
        if self._body is None:
            if not step_header.begins(title.text, line.text, stamped=self._stamped):
                self._title = None
                self._feed_line(title, is_own=True)
                return False
            self._body = []
        if is_own and line.text.startswith(step_header.END):
            self._begin_step(title, self._body)
            return True
        self._capacity -= len(line.text) + 64  # a line of a list costs that even where it is empty
        if self._capacity > 0:
            self._body.append((line.text, is_own))
        else:
            self._title = None
        return True

    def _begin_step(self, title: LogLine, body: list[tuple[bytes, bool]]) -> None:
        self._title, self._cleanup = None, False
        steps = self.state.steps
        if len(steps) < _MAX_STEPS:
            early = not any(step.header.script for step in steps)
            steps.append(StepParser(step_header.parse_header(title.text, body), title, early=early))

    def _feed_line(self, line: LogLine, is_own: bool) -> None:
        """A line outside of a step's group: the runner's or, once steps have begun, mostly the program's."""
        text, steps = line.text, self.state.steps
        if text.startswith(b"HEAD is now at ") and len(self.state.heads) < _MAX_HEADS and (head := head_in(text)):
            self.state.heads.setdefault(head.commit, head)
        if is_own and text.startswith(AFTER_STEPS):
            self.state.is_whole = self.state.is_whole or text.startswith(_LAST_MESSAGE)
            self._cleanup = bool(steps)
        elif is_own and text.startswith(_ERROR):
            self._error(text.removeprefix(_ERROR), line)
        elif not steps:
            self.state.setup.feed(text)
        elif not self._cleanup and self._in_last_step():
            steps[-1].feed(text)
            self.state.machine.feed(text)

    def _error(self, text: bytes, line: LogLine) -> None:
        if not self.state.steps:
            self.state.setup_error = self.state.setup_error or printable_text(text, 300)
            self.state.setup_column = self.state.setup_column or line.step
        elif self._in_last_step():
            _record_error(self.state.steps[-1], text)


def _record_error(step: StepParser, text: bytes) -> None:
    """An error of a step: how it ended, or one on the way."""
    if match := _EXIT.fullmatch(text):
        step.fail(FAILURE, text, exit_code=int(match[1]))
    elif match := _TIMEOUT.fullmatch(text):
        step.fail(TIMED_OUT, text, minutes=int(match[2]), name=printable_text(match[1]))
    elif text.startswith(_LOST):
        step.fail(LOST, text)
    elif text.startswith(_CANCELLED) and step.outcome != LOST:  # a runner that goes away cancels as well
        step.fail(CANCELLED, text)
    elif not step.outcome:
        step.error = printable_text(text, 300)
