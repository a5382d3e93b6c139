"""From the log of a run to its facts, as a stream and in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.judge import log_patterns as lines
from ci_tasks.features.verl.judge.log_records import KEYS, Metrics, PreflightCheck, RunFacts, TrainingFacts
from ci_tasks.features.verl.judge.training_log import TrainingLogParser
from ci_tasks.logs.causes import UNKNOWN
from ci_tasks.logs.lines import LineReader, blocks, expression, read, segments, visible
from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import PASSED, Triage

_OPTIONAL = b" failed with: Traceback (most recent call last):"
_RAISED = re.compile(rb"(?:^|[)\]] )[A-Za-z_][\w.]*(?:Error|Exception)\b")
_MOST_SKIPPED = 30  # lines of such a traceback, in which others may write
_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
Log = Callable[[], Iterable[bytes]]
N = TypeVar("N", int, float)
_BEGIN, _COMMAND, _END, _CLOCK, _FILE = "begin", "command", "end", "clock", "file"


def read_run(log: Log, proofs: Sequence[str] = ()) -> RunFacts:
    """The facts of a run. `log` gives the log's bytes from its beginning, cut anywhere, each time it is called: once,
    and once more for each training that failed. `proofs` are regular expressions of lines to look for. Raises
    UsageError for one that is none."""
    reader = _RunLogReader(proofs)
    read(log(), reader)
    trainings = {training.name: _with_error(training, last, log) for training, last in reader.finished()}
    error = None
    if not trainings:
        error = _failure_only(triage(log()))
    return RunFacts(reader.preflight, trainings, error)


def metrics_of(log: Log) -> Metrics:
    """The metrics of another run, for comparison: of its last training that has some, or of all lines where our step
    script did not write the log."""
    reader = _RunLogReader((), outside=True)
    read(log(), reader)
    metrics = [training.metrics for training, _ in reader.finished() if training.metrics]
    return metrics[-1] if metrics else {}


class _RunLogReader(LineReader):
    """Sorts the telling lines to the training in which they stand."""

    words = lines.WORDS

    def __init__(self, proofs: Sequence[str], outside: bool = False) -> None:
        self._proofs = {text: _compiled(text) for text in proofs}
        self._current: TrainingLogParser | None = TrainingLogParser("", 0, {}) if outside else None
        self._done: dict[str, tuple[TrainingLogParser, int | None]] = {}
        self.preflight: dict[str, PreflightCheck] = {}

    def needs_next_line(self) -> bool:
        return self._current is not None and self._current.needs_next_line

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        has_pattern = expression(self.words).search(line) is not None
        for segment in segments(line):
            text = lines.plain(segment)
            if "ci-tasks-verl: " in text and (match := lines.MARK.search(text)):
                self._mark(number, match[1], match[2])
            elif self._current is not None:
                self._current.feed(number, text, has_pattern)
        return True  # no line is boring: the same metrics with other numbers are what we want

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        self._close(None, None)

    def finished(self) -> Iterator[tuple[TrainingFacts, int | None]]:
        """Each training and the number of its last line, None for the log's own last."""
        for parser, last in self._done.values():
            yield parser.facts, last

    def _mark(self, number: int, key: str, rest: str) -> None:
        if key == _BEGIN:
            self._close(None, number - 1)
            self._current = TrainingLogParser(rest, number, self._proofs)
        elif key == _COMMAND and self._current is not None:
            self._current.facts.command = rest
        elif key == _CLOCK and self._current is not None:
            at = _number(float, rest)
            if self._current.facts.began_at is None:
                self._current.facts.began_at = at
            else:  # what follows is our step's own
                self._current.facts.ended_at, self._current.last_line = at, number - 1
        elif key == _FILE:
            name, _, text = rest.rpartition(": ")
            digest, _, path = text.partition(" ")
            if name in self._done and path:
                self._done[name][0].files[path] = digest
        elif key == _END:
            self._close(_number(int, rest.rpartition(": ")[2]), number - 1)
        elif key in KEYS:
            status, _, text = rest.partition(": ")
            self.preflight[key] = PreflightCheck(key, status.strip(), visible(text.encode()), number)

    def _close(self, exit_code: int | None, last: int | None) -> None:
        if self._current is not None:
            self._current.facts.exit_code = exit_code
            self._done[self._current.facts.name] = (self._current, self._current.last_line or last)
        self._current = None


def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise UsageError(
            f"--proof {pattern!r} is no regular expression: {error}", hint="the syntax is RE2's: no look-ahead"
        ) from error


def _number(kind: type[N], text: str) -> N | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _with_error(training: TrainingFacts, last: int | None, log: Log) -> TrainingFacts:
    if training.exit_code == 0 and training.finished:
        return training
    lines_of = _without_optional_imports(_between(log(), training.line_no + 1, last))
    triaged = triage(lines_of, training.exit_code or None)
    error = _failure_only(_shifted(triaged, training.line_no))
    last_step = training.metrics_seen
    if error is not None and error.cause == UNKNOWN and last_step is not None and error.line_no:
        error = error if error.line_no > last_step.line_no else None  # verl went on: it was handled
    return replace(training, error=error)


def _failure_only(triaged: Triage) -> Triage | None:
    """None where it says no reason: of a cause that no rule knows, an odd word is none unless an exception says it."""
    odd = triaged.cause == UNKNOWN and not triaged.frames and not _EXCEPTION.search(triaged.text or triaged.line)
    return None if triaged.verdict in (PASSED, UNKNOWN) or odd else triaged


def _without_optional_imports(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, with empty ones for the tracebacks of imports that Bridge can do without, and only logs."""
    left = 0
    for block in pieces:
        if not left and _OPTIONAL not in block:
            yield block
            continue
        kept = block.split(b"\n")
        for at, line in enumerate(kept):
            if left or _OPTIONAL in line:
                kept[at] = b""
                left = 0 if left and _RAISED.search(line) else (left or _MOST_SKIPPED) - 1
        yield b"\n".join(kept)


def _shifted(triaged: Triage, by: int) -> Triage:
    candidates = tuple(replace(candidate, line_no=candidate.line_no + by) for candidate in triaged.candidates)
    line_no = triaged.line_no + by if triaged.line_no is not None else None
    return replace(triaged, line_no=line_no, candidates=candidates)


def _between(pieces: Iterable[bytes], first: int, last: int | None) -> Iterator[bytes]:
    """The lines `first` to `last`, both included; `last` None is the log's own."""
    number = 1
    for block in blocks(pieces):
        here = block.count(b"\n") + (not block.endswith(b"\n"))
        after = number + here
        if last is not None and number > last:
            return
        if number >= first and (last is None or after - 1 <= last):
            yield block
        elif after > first:
            kept = block.split(b"\n")[max(0, first - number) : None if last is None else last - number + 1]
            yield b"\n".join(kept) + b"\n"
        number = after
