"""The log of a run, read once, as a stream and in bounded memory: what the preflight found, what each training said.

Nothing here judges. Exceptions and deaths are triage's candidates, with the causes that its rules give them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.verl.judge.records import Deliverable
from ci_tasks.features.verl.judge.settings import PrintedSettings
from ci_tasks.features.verl.metric_lines import LONGEST, STEP, of_actor, values
from ci_tasks.logs.lines import LineReader, read, segments, visible
from ci_tasks.logs.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, LAST, Candidate, CandidateReader
from ci_tasks.logs.triage.ranking import CandidateList, cause_of, rank, shipped_weights
from ci_tasks.logs.triage.rules import ROOT, WRAPPER, shipped

Log = Callable[[], Iterable[bytes]]
Metrics = Mapping[int, Mapping[str, float]]  # global step → metric → value
DDP, FSDP = "DDP", "Megatron-FSDP"
BRIDGE_CHECKS, DRIVER, WORKER, LEVEL_0 = "bridge-checks", "import-driver", "import-worker", "level-0"
# What the guide wants finite: loss, reward, KL, entropy, gradient norm and logprob metrics.
WATCHED = re.compile(r"(?i)loss|reward|score|(?:^|[/_])kl|entrop|grad_norm|log_?prob|advantages|returns")
_MOST_STEPS, _MOST_NOTES = 1000, 20
# A progress bar that had no newline yet may stand before the mark.
_MARK = re.compile(r"(?:^|\])ci-tasks-verl: ([a-z0-9-]+): (.*)$")
_PROGRESS = re.compile(r"Training Progress:\s*\d+%\|(?:[^|]*\|)?\s*(\d+)/(\d+)")
# Bridge-managed construction, in the order in which verl goes through it.
_CONSTRUCTION = {
    # Printed where a model is built past Megatron-Bridge; with it, verl has no such configuration yet.
    "vanilla": re.compile(r"^TF config: "),
    "provider": re.compile(r"(?i:\bprovider\b.*\b(?:finaliz|configur|built))|apply_overrides_and_finalize"),
    "HF import": re.compile(r"(?i)(?:load|import)\w* (?:HF|Hugging ?Face) (?:weights|model|check)|load_hf_weights"),
    "LoRA": re.compile(r"Enabling \w+ with rank=\d+|Adding lora to: |PEFT Adapter Information"),
    # Megatron-FSDP's adapter uses DDP's words too; the printed configuration says which it is.
    DDP: re.compile(r"Setting up DistributedDataParallel(?!.*use_(?:megatron|custom)_fsdp=True)"),
    FSDP: re.compile(r"Setting up (?:\w*FullyShard|Megatron-?FSDP|Distr.*use_(?:megatron|custom)_fsdp=True)"),
    "model": re.compile(r"contains [\d.]+[KMB]? parameters|> number of parameters on \(tensor|^module: \d+$"),
}
# Where each was said first, with what the group has.
_SAID = {
    **_CONSTRUCTION,
    "trainable": re.compile(r"(?i)(?:adapter|trainable) param\w*: *([\d,]+)"),
    "frozen": re.compile(r"(?i)(?:adapter|trainable) param\w*: *0(?![\d,])"),
    "resumed": re.compile(r"Resuming from +(\S*global_step_\d+)"),
    "scratch": re.compile(r"Training from scratch"),
    "served": re.compile(r"LLM engine.*\btensor_parallel_size=(\d+)"),
}
_BRIDGE = re.compile(r"(/[^\s\"'=:()]*)/megatron/bridge/[\w/.-]*\.py\b")
# Acceptable once the requested steps are done, as the guide has it.
_NOISE = re.compile(
    r"resource_tracker|leaked (?:semaphore|shared_memory|folder)|DataLoader worker \(pid|"
    r"A worker died or was killed|\(raylet\)|(?i:ray\b.*\bshut(?:ting)? ?down)|Shutdown hook|"
    r"destroy_process_group\(\) was not called"
)
# What makes a line worth a look, for RE2, beside triage's words: of a large log these are few.
_WORDS = (
    rb"ci-tasks-verl: |Training Progress:|step:\d+ - |\{'\w+':|Resuming from|from scratch|checkpoint folder|"
    rb"local_global_step|Saving checkpoint|(?i:param\w*:)|parameters|Enabling \w+ with|dding \w*lora|Adapter Info|"
    rb"Setting up|module: \d|(?i:provider|hf.weights|hf model|hf check|hugging ?face)|/megatron/bridge/|TF config|"
    rb"LLM engine|resource_tracker|leaked |DataLoader worker|raylet|(?i:shut ?down|shutting)|destroy_process_group"
)
_CONSTRUCTS = re.compile(
    r"/megatron/(?:bridge|core)/|/verl/workers/engine/megatron/|/verl/utils/megatron|/megatron_peft\w*\.py|"
    r"/verl/models/mcore/|megatron_checkpoint_manager\.py"
)
# Around imports that Bridge can do without and only logs.
_OPTIONAL = re.compile(r"(?m):safe_import|^Import of .* failed with: Traceback")


@dataclass(frozen=True)
class QuotedLine:
    """A line of the log: its 1-based number, its text as a terminal may have it, and what of it was looked for."""

    line_no: int
    text: str
    value: str = ""

    @property
    def place(self) -> str:
        return f"line {self.line_no}"


@dataclass(frozen=True)
class TrainingFailure:
    """An exception, or what says that a process died: `frames` are `path:function`, outermost first, `cause` is
    triage's. `sure`: it is a failure even if the job went on; `finished`: all steps were done by then; `process` names
    who noted it, "" if the log has it."""

    text: str
    line_no: int = 0
    frames: tuple[str, ...] = ()
    cause: str = ""
    sure: bool = True
    finished: bool = False
    process: str = ""

    @classmethod
    def said(cls, text: str, frames: tuple[str, ...] = (), process: str = "") -> TrainingFailure:
        """One that stands in no log that triage has read: the cause is that of a rule for its text."""
        rule = shipped().of(text, "\n".join(frames))
        return cls(text[:500], 0, frames, rule.cause if rule.rank == ROOT else "", process=process)

    @property
    def place(self) -> str:
        return self.process or f"line {self.line_no}"

    @property
    def constructs(self) -> bool:
        """Whether a frame lies in Bridge, in Megatron-core, or in verl's code around them."""
        return any(constructs(frame) and not frame.endswith(":<module>") for frame in self.frames)


def constructs(path: str) -> bool:
    return bool(_CONSTRUCTS.search(path))


@dataclass
class TrainingFacts:
    """One training, from its begin to its end or to the end of the log; only its reader changes it.

    `exit_code` is None if no end was seen. `settings` are verl's resolved ones by dotted name, empty if they were not
    seen; `starts` counts how often the trainer printed them. `progress` is (done, total) when the progress bar was seen
    last. `unreadable` are watched metrics whose value was no number. `said` has the first line of each thing that is
    looked for, and the last of progress and steps; `noise` what was said after the last step and is known to be
    harmless; `bridge_paths` the directories from which megatron.bridge was loaded; `files` the SHA-256 of its last
    checkpoint's files. `failures` are in triage's order, the likeliest reason first. `began_at` and `ended_at` are
    seconds since 1970."""

    name: str
    exit_code: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_place: str = ""
    starts: int = 0
    progress: tuple[int, int] | None = None
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    said: dict[str, QuotedLine] = field(default_factory=dict)
    noise: list[QuotedLine] = field(default_factory=list)
    proofs: dict[str, QuotedLine] = field(default_factory=dict)
    bridge_paths: dict[str, QuotedLine] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    failures: tuple[TrainingFailure, ...] = ()
    began_at: float | None = None
    ended_at: float | None = None

    @property
    def finished(self) -> bool:
        return self.progress is not None and 0 < self.progress[1] <= self.progress[0]

    @property
    def ended_well(self) -> bool:
        return self.exit_code == 0 and self.finished

    @property
    def error(self) -> TrainingFailure | None:
        """The likeliest reason, if it did not end well. What no rule knows, and verl went on after, was handled."""
        if self.ended_well:
            return None
        last = self.said["step"].line_no if "step" in self.said else 0
        reasons = (one for one in self.failures if one.sure or self.exit_code != 0)
        return next((one for one in reasons if one.cause or one.constructs or one.line_no > last), None)

    def constructed(self, before: int = 0) -> bool:
        """Whether Bridge-managed construction had begun, before a line if one is given."""
        lines = [line.line_no for name, line in self.said.items() if name in (*_CONSTRUCTION, "progress", "step")]
        lines += [failure.line_no for failure in self.failures if failure.constructs]
        return any(not before or line_no < before for line_no in lines)


@dataclass(frozen=True)
class RunFacts:
    """`error` is what the log says of a failure before any training began."""

    preflight: dict[str, Deliverable]
    trainings: Mapping[str, TrainingFacts]
    error: TrainingFailure | None = None


def read_run(log: Log, proofs: Sequence[str] = (), names: Sequence[str] = ()) -> RunFacts:
    """The facts of a run. `log` gives the log's bytes, cut anywhere. `proofs` are regular expressions of lines to look
    for. `names` are those of the trainings in a log that no step script of ours divides: each begins where the trainer
    prints its settings. Raises UsageError for a proof that is no expression."""
    reader = _RunReader({text: _compiled(text) for text in proofs}, names)
    read(log(), reader)
    return RunFacts(reader.preflight, reader.trainings, reader.before.error)


class _RunReader(LineReader):
    """Sorts the telling lines to the training in which they stand."""

    def __init__(self, proofs: Mapping[str, Any], names: Sequence[str]) -> None:
        self._proofs, self._names = proofs, list(names)
        self.words = _WORDS + b"|" + CandidateReader(shipped()).words
        self.preflight: dict[str, Deliverable] = {}
        self.trainings: dict[str, TrainingFacts] = {}
        self.before = TrainingFacts("")  # whatever stands outside of trainings
        self._outside = self._current = _TrainingReader(self.before, {})
        if self._names:
            self._begin(self._names.pop(0))
        self._is_divided = not names

    def needs_next_line(self) -> bool:
        return self._current.needs_next_line()

    def known_passage(self, text: bytes, start: int, number: int) -> int:
        return self._current.candidates.known_passage(text, start, number)

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        mark = None
        for segment in segments(line) if b"ci-tasks-verl: " in line else ():
            mark = _MARK.search(visible(segment, LONGEST)) or mark
        if mark:
            self._mark(mark[1], mark[2])
        else:
            if self._names and self._current.begins_again(line):
                self._begin(self._names.pop(0))
            self._current.feed(number, line, before)
        return True  # no line is boring: the same metrics with other numbers are what we want

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        self._close()

    def _begin(self, name: str) -> None:
        self._close()
        facts = self.trainings[name] = TrainingFacts(name)
        self._current = _TrainingReader(facts, self._proofs)

    def _close(self) -> None:
        self._current.close()
        self._current = self._outside

    def _mark(self, key: str, rest: str) -> None:
        facts = self._current.facts
        if key == "begin":
            if not self._is_divided:  # a step script of ours divides this log after all
                self._is_divided = True
                self._names.clear()
                self.trainings.clear()
            self._begin(rest)
        elif key == "clock":
            facts.began_at, facts.ended_at = facts.began_at or _number(rest), _number(rest)
        elif key == "file":
            name, _, text = rest.rpartition(": ")
            digest, _, path = text.partition(" ")
            if name in self.trainings and path:
                self.trainings[name].files[path] = digest
        elif key == "end":
            code = _number(rest.rpartition(": ")[2])
            facts.exit_code = int(code) if code is not None else None
            self._close()
        elif key != "command":
            status, _, text = rest.partition(": ")
            self.preflight[key] = Deliverable(key, status.strip(), visible(text.encode()))


class _TrainingReader:
    """Reads one training's lines. It needs lines without a telling word too while settings or a traceback are printed,
    and while a line of any words may be a proof."""

    def __init__(self, facts: TrainingFacts, proofs: Mapping[str, Any]) -> None:
        self.facts, self.candidates, self._proofs = facts, CandidateReader(shipped()), dict(proofs)
        self._printed: PrintedSettings | None = None
        self._finished_at: int | None = None

    def needs_next_line(self) -> bool:
        return self._printed is not None or bool(self._proofs) or self.candidates.needs_next_line()

    def begins_again(self, line: bytes) -> bool:
        """Whether the trainer starts to print its settings, which it has done before."""
        text = of_actor(visible(line, LONGEST))[1]
        return bool(self.facts.settings and PrintedSettings.BEGIN.match(text))

    def feed(self, number: int, line: bytes, before: bytes) -> None:
        self.candidates.feed(number, line, before)
        for segment in segments(line):
            origin, text = of_actor(visible(segment, LONGEST))
            if not re.match(r"\++ ", text) and not self._in_settings(number, origin, text):
                self._say(number, text)  # what a shell was told, or was asked for, is no evidence of what happened

    def close(self) -> None:
        """Once its last line was read."""
        order = [
            one for _, one in rank(CandidateList.of(self.candidates), shipped_weights().ranking, failed=True).order
        ]
        found = (self._failure(one, order) for one in order if one.kind != LAST)
        self.facts.failures = tuple(failure for failure in found if failure is not None)

    def _failure(self, one: Candidate, order: Sequence[Candidate]) -> TrainingFailure | None:
        raised = one.kind in (EXCEPTION_END, EXCEPTION_LINE)
        told = bool(one.rule.cause)
        survived = one.ignored or one.survived or one.outlived
        if survived or not (raised or told) or _OPTIONAL.search("\n".join((one.text, *one.frames))):
            return None
        cause, _ = cause_of(one, order, shipped())
        sure = raised or one.rule.rank in (ROOT, WRAPPER)
        finished = self._finished_at is not None and one.line.number >= self._finished_at
        text = visible(one.text.strip().encode())
        known = "" if cause == "unknown" else cause
        return TrainingFailure(text, one.line.number, tuple(one.frames), known, sure, finished)

    def _in_settings(self, number: int, origin: str, text: str) -> bool:
        if self._printed is None and PrintedSettings.BEGIN.match(text):
            self._printed = PrintedSettings(origin, number)
        if self._printed is None or not self._printed.feed(origin, text):
            return False
        if not self._printed.open:
            settings = self._printed.value()
            self.facts.starts += bool(settings)
            if not self.facts.settings:
                self.facts.settings, self.facts.settings_place = settings, f"line {self._printed.line_no}"
            self._printed = None
        return True

    def _say(self, number: int, text: str) -> None:
        facts = self.facts
        for bar in _PROGRESS.finditer(text):
            facts.progress = (int(bar[1]), int(bar[2]))
            facts.said["progress"] = _quoted(number, bar[0])
            if facts.finished and self._finished_at is None:
                self._finished_at = number
        if match := STEP.search(text):
            self._step(int(match[1]), match[2])
            facts.said["step"] = _quoted(number, match[0])
        for what, pattern in _SAID.items():
            if what not in facts.said and (found := pattern.search(text)):
                facts.said[what] = _quoted(number, text, found[1] if pattern.groups else "")
        if (match := _BRIDGE.search(text)) and len(facts.bridge_paths) < _MOST_NOTES:
            facts.bridge_paths.setdefault(match[1], _quoted(number, text))
        if facts.finished and len(facts.noise) < _MOST_NOTES and _NOISE.search(text):
            facts.noise.append(_quoted(number, text))
        for proof in [proof for proof, compiled in self._proofs.items() if compiled.search(text)]:
            facts.proofs[proof] = _quoted(number, text)
            del self._proofs[proof]

    def _step(self, step: int, pairs: str) -> None:
        for name, value in values(pairs).items():
            if value is not None and (step in self.facts.metrics or len(self.facts.metrics) < _MOST_STEPS):
                self.facts.metrics.setdefault(step, {})[name] = value
            elif value is None and WATCHED.search(name) and len(self.facts.unreadable) < _MOST_NOTES:
                self.facts.unreadable.setdefault(name, f"step {step}")


def _quoted(number: int, text: str, value: str = "") -> QuotedLine:
    return QuotedLine(number, visible(text.strip().encode()), value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _compiled(pattern: str) -> Any:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--proof {pattern!r} is no regular expression: {error}") from error
