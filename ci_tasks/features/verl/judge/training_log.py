"""A training whose lines are being read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.features.verl.judge import log_patterns as lines
from ci_tasks.features.verl.judge.log_records import LoggedFailure, QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import PrintedSettings, Settings, overrides_of_trace
from ci_tasks.logs.lines import visible

_MOST_STEPS, _MOST_NOISE, _MOST_PATHS, _MOST_FAILURES, _MOST_FRAMES = 1000, 5, 20, 100, 200
_TRACED = "main_ppo"


class TrainingLogParser:
    """Feed it the training's lines. It needs lines without a telling word too while settings or a traceback are
    printed, and where a line of any words may be a proof."""

    def __init__(self, name: str, line_no: int, proofs: Mapping[str, Any]) -> None:
        self._metrics: dict[int, dict[str, float]] = {}
        self._construction: dict[str, QuotedLine] = {}
        self._shown_proofs: dict[str, QuotedLine] = {}
        self._paths: dict[str, QuotedLine] = {}
        self.files: dict[str, str] = {}
        self.facts = TrainingFacts(
            name,
            line_no,
            metrics=self._metrics,
            construction=self._construction,
            proofs=self._shown_proofs,
            bridge_paths=self._paths,
            files=self.files,
        )
        self.last_line: int | None = None
        self._proofs = dict(proofs)
        self._block: PrintedSettings | None = None
        self._settings_line = 0
        self._tracebacks: dict[str, _Traceback] = {}  # by who prints it

    @property
    def needs_next_line(self) -> bool:
        return self._block is not None or bool(self._proofs) or bool(self._tracebacks)

    def feed(self, number: int, text: str, has_pattern: bool = True) -> None:
        """`has_pattern` says that the line has one of the words of what we look for."""
        origin, text = lines.split(text)
        if lines.TRACE.match(text):  # what the shell was told is no evidence of what happened
            if _TRACED in text and not self.facts.settings:
                self.facts.settings = Settings(overrides_of_trace(lines.TRACE.sub("", text)))
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
                self.facts.starts += 1
                if not self.facts.settings.resolved:
                    self.facts.settings = Settings(value, True, f"line {self._settings_line}")
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
        shown, failures = visible(text.strip().encode()), self.facts.failures
        known = any((failure.text, failure.frames) == (shown, frames) for failure in failures)
        if not known and len(failures) < _MOST_FAILURES:
            failure = LoggedFailure(number, shown, frames, construction, self.facts.finished)
            self.facts.failures = (*failures, failure)

    def _step(self, number: int, text: str) -> None:
        if "Training Progress" in text:
            for bar in lines.PROGRESS.finditer(text):
                self.facts.progress = (int(bar[1]), int(bar[2]))
                self.facts.progress_seen = _log_line(number, bar[0])
        if "step:" in text and (match := lines.STEP.search(text)):
            step = int(match[1])
            if step in self._metrics or len(self._metrics) < _MOST_STEPS:
                self._metrics.setdefault(step, {}).update(lines.metrics(match[2]))
            self.facts.metrics_seen = _log_line(number, match[0])

    def _start(self, number: int, text: str) -> None:
        facts = self.facts
        if match := lines.RESUMED.search(text):
            facts.resumed_from = int(match[1] or match[2])
            facts.resumed_seen = facts.resumed_seen or _log_line(number, text)
        if lines.SCRATCH.search(text):
            facts.scratch = facts.scratch or _log_line(number, text)
        for what, pattern in lines.CONSTRUCTION.items():
            if what not in self._construction and pattern.search(text):
                self._construction[what] = _log_line(number, text)
        if match := lines.TRAINABLE.search(text):
            facts.trainable = max(facts.trainable or 0, lines.number(match[1]))
            facts.trainable_seen = facts.trainable_seen or _log_line(number, text)
        if lines.FRAME.search(text):
            facts.frame = facts.frame or _log_line(number, text)
        if "/megatron/bridge/" in text and (match := lines.BRIDGE.search(text)) and len(self._paths) < _MOST_PATHS:
            self._paths.setdefault(match[1], _log_line(number, text))

    def _end(self, number: int, text: str) -> None:
        if self.facts.finished and len(self.facts.noise) < _MOST_NOISE and lines.NOISE.search(text):
            self.facts.noise = (*self.facts.noise, _log_line(number, text))


class _Traceback:
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
