"""A training whose lines are being read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.features.verl.judge import log_patterns as lines
from ci_tasks.features.verl.judge.log_records import LoggedFailure, QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import PrintedSettings, Settings, overrides_of_trace
from ci_tasks.results.log_lines import visible

_MOST_STEPS, _MOST_NOISE, _MOST_PATHS, _MOST_FAILURES, _MOST_FRAMES = 1000, 5, 20, 100, 200
_TRACED = "main_ppo"


class TrainingLogParser:
    """Feed it the training's lines. It needs lines without a telling word too while settings or a traceback are
    printed, and where a line of any words may be a proof."""

    def __init__(self, name: str, line_no: int, proofs: Mapping[str, Any]) -> None:
        self.name, self.line_no = name, line_no
        self.command = ""
        self.exit_code: int | None = None
        self._proofs = dict(proofs)
        self._block: PrintedSettings | None = None
        self._resolved: Mapping[str, Any] = {}
        self._resolved_line = 0
        self._requested: Mapping[str, Any] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self._progress: tuple[int, int] | None = None
        self._resumed_from: int | None = None
        self._trainable: int | None = None
        self._seen_lines: dict[str, QuotedLine] = {}
        self._construction: dict[str, QuotedLine] = {}
        self._shown_proofs: dict[str, QuotedLine] = {}
        self._paths: dict[str, QuotedLine] = {}
        self._noise: list[QuotedLine] = []
        self._settings_line = 0
        self._starts = 0
        self._failures: list[LoggedFailure] = []
        self._tracebacks: dict[str, _Traceback] = {}  # by who prints it
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.last_line: int | None = None
        self.files: dict[str, str] = {}

    @property
    def needs_next_line(self) -> bool:
        return self._block is not None or bool(self._proofs) or bool(self._tracebacks)

    def feed(self, number: int, text: str, has_pattern: bool = True) -> None:
        """`has_pattern` says that the line has one of the words of what we look for."""
        origin, text = lines.split(text)
        if lines.TRACE.match(text):  # what the shell was told is no evidence of what happened
            if _TRACED in text and not self._requested:
                self._requested = overrides_of_trace(lines.TRACE.sub("", text))
            return
        if self._in_settings(origin, text):  # they repeat what was asked, and prove nothing
            return
        if self._block is None and has_pattern and lines.SETTINGS.match(text):
            self._block, self._settings_line = PrintedSettings(origin), number
            self._in_settings(origin, text)
            return
        self._prove(number, text)
        self._fail(number, origin, text)
        if not has_pattern:
            return
        self._step(number, text)
        self._start(number, text)
        self._end(number, text)

    def facts(self) -> TrainingFacts:
        """What is known by now."""
        settings = Settings(self._requested)
        if self._resolved:
            settings = Settings(self._resolved, True, f"line {self._resolved_line}")
        return TrainingFacts(
            name=self.name,
            line_no=self.line_no,
            exit_code=self.exit_code,
            command=self.command,
            settings=settings,
            progress=self._progress,
            progress_seen=self._seen_lines.get("progress"),
            metrics=self._metrics,
            metrics_seen=self._seen_lines.get("metrics"),
            resumed_from=self._resumed_from,
            resumed_seen=self._seen_lines.get("resumed"),
            scratch=self._seen_lines.get("scratch"),
            construction=self._construction,
            frame=self._seen_lines.get("frame"),
            trainable=self._trainable,
            trainable_seen=self._seen_lines.get("trainable"),
            noise=tuple(self._noise),
            proofs=self._shown_proofs,
            bridge_paths=self._paths,
            failures=tuple(self._failures),
            files=self.files,
            starts=self._starts,
            began_at=self.began_at,
            ended_at=self.ended_at,
        )

    def _prove(self, number: int, text: str) -> None:
        for pattern in [pattern for pattern, compiled in self._proofs.items() if compiled.search(text)]:
            self._shown_proofs[pattern] = _log_line(number, text)
            del self._proofs[pattern]

    def _in_settings(self, origin: str, text: str) -> bool:
        if self._block is None or not self._block.feed(origin, text):
            return False
        if not self._block.open:
            value = self._block.value()
            if value is not None:
                self._starts += 1
                if not self._resolved:
                    self._resolved, self._resolved_line = value, self._settings_line
            self._block = None
        return True

    def _fail(self, number: int, origin: str, text: str) -> None:
        traceback = self._tracebacks.get(origin)
        if lines.TRACEBACK.search(text):
            self._tracebacks[origin] = _Traceback()
        elif traceback is not None and traceback.feed(text):
            del self._tracebacks[origin]
            self._failure(number, text, tuple(traceback.frames), traceback.construction)
        elif traceback is None and lines.DEATH.search(text):
            self._failure(number, text)

    def _failure(self, number: int, text: str, frames: tuple[str, ...] = (), construction: bool = False) -> None:
        """A line that says the same again, as Ray does for every worker, adds nothing."""
        shown = visible(text.strip().encode())
        known = any((failure.text, failure.frames) == (shown, frames) for failure in self._failures)
        if not known and len(self._failures) < _MOST_FAILURES:
            self._failures.append(LoggedFailure(number, shown, frames, construction, self._finished))

    @property
    def _finished(self) -> bool:
        return self._progress is not None and 0 < self._progress[1] <= self._progress[0]

    def _step(self, number: int, text: str) -> None:
        if "Training Progress" in text:
            for bar in lines.PROGRESS.finditer(text):
                self._progress = (int(bar[1]), int(bar[2]))
                self._seen_lines["progress"] = _log_line(number, bar[0])
        if "step:" in text and (match := lines.STEP.search(text)):
            step = int(match[1])
            if step in self._metrics or len(self._metrics) < _MOST_STEPS:
                self._metrics.setdefault(step, {}).update(lines.metrics(match[2]))
            self._seen_lines["metrics"] = _log_line(number, match[0])

    def _start(self, number: int, text: str) -> None:
        if match := lines.RESUMED.search(text):
            self._resumed_from = int(match[1] or match[2])
            self._seen_lines.setdefault("resumed", _log_line(number, text))
        if lines.SCRATCH.search(text):
            self._seen_lines.setdefault("scratch", _log_line(number, text))
        for what, pattern in lines.CONSTRUCTION.items():
            if what not in self._construction and pattern.search(text):
                self._construction[what] = _log_line(number, text)
        if match := lines.TRAINABLE.search(text):
            self._trainable = max(self._trainable or 0, lines.number(match[1]))
            self._seen_lines.setdefault("trainable", _log_line(number, text))
        if lines.FRAME.search(text):
            self._seen_lines.setdefault("frame", _log_line(number, text))
        if "/megatron/bridge/" in text and (match := lines.BRIDGE.search(text)) and len(self._paths) < _MOST_PATHS:
            self._paths.setdefault(match[1], _log_line(number, text))

    def _end(self, number: int, text: str) -> None:
        if self._finished and len(self._noise) < _MOST_NOISE and lines.NOISE.search(text):
            self._noise.append(_log_line(number, text))


class _Traceback:
    """One that is being printed."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.construction = False
        self._lines = 0

    def feed(self, text: str) -> bool:
        """Whether this line ends it."""
        self._lines += 1
        if match := lines.CODE_FRAME.match(text):
            self.frames = [*self.frames[-_MOST_FRAMES:], f"{match['file'].rpartition('/')[2]}:{match['function']}"]
            self.construction = self.construction or bool(lines.FRAME.search(text))
        ended = bool(self.frames) and bool(lines.EXCEPTION.match(text))
        return ended or self._lines > 10 * _MOST_FRAMES


def _log_line(number: int, text: str) -> QuotedLine:
    return QuotedLine(number, visible(text.strip().encode()))
