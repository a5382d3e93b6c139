"""The log of a run, read once, as a stream and in bounded memory: what the preflight found, what each training said.

Nothing here judges. Exceptions and deaths are triage's candidates, with the causes that its rules give them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.records import Deliverable
from ci_tasks.features.verl.suite import LONGEST, STEP, of_actor, values
from ci_tasks.logs.lines import LineReader, read, segments, visible
from ci_tasks.logs.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, LAST, Candidate, CandidateReader
from ci_tasks.logs.triage.ranking import CandidateList, cause_of, rank
from ci_tasks.logs.triage.rules import ROOT, WRAPPER, shipped

Metrics = Mapping[int, Mapping[str, float]]  # global step → metric → value
DDP, FSDP = "DDP", "Megatron-FSDP"
BRIDGE_CHECKS, DRIVER, WORKER = "bridge-checks", "import-driver", "import-worker"
# What the guide wants finite: loss, reward, KL, entropy, gradient norm and logprob metrics.
WATCHED = re.compile(r"(?i)loss|reward|score|(?:^|[/_])kl|entrop|grad_norm|log_?prob|advantages|returns")
_MOST_STEPS, _MOST_PATHS, _LONGEST_QUOTED = 1000, 20, 4000
# A progress bar that had no newline yet may stand before the mark.
_MARK = re.compile(r"(?:^|\])ci-tasks-verl: ([a-z0-9-]+): (.*)$")
_CLOCK, _FILE = re.compile(r"\d+(?:\.\d+)?$"), re.compile(r"(.+): (\w+) (.+)$")
_PROGRESS = re.compile(r"Training Progress:\s*\d+%\|(?:[^|]*\|)?\s*(\d{1,18})/(\d{1,18})")
# What a line may say, with what the group has. The first four are of Bridge-managed construction.
_SAID = {
    # Printed where a model is built past Megatron-Bridge; with it, verl has no such configuration yet.
    "vanilla": re.compile(r"^TF config: "),
    "model": re.compile(
        r"(?i:\bprovider\b.*\b(?:finaliz|configur|built))|apply_overrides_and_finalize|load_hf_weights"
        r"|(?i:(?:load|import)\w* (?:HF|Hugging ?Face) (?:weights|model|check))"
        r"|Enabling \w+ with rank=\d+|Adding lora to: |PEFT Adapter Information"
        r"|contains [\d.]+[KMB]? parameters|> number of parameters on \(tensor|^module: \d+$"
    ),
    # Megatron-FSDP's adapter uses DDP's words too; the printed configuration says which it is.
    DDP: re.compile(r"Setting up DistributedDataParallel(?!.*use_(?:megatron|custom)_fsdp=True)"),
    FSDP: re.compile(r"Setting up (?:\w*FullyShard|Megatron-?FSDP|Distr.*use_(?:megatron|custom)_fsdp=True)"),
    "trainable": re.compile(r"(?i)(?:adapter|trainable) param\w*: *([\d,]+)"),
    "frozen": re.compile(r"(?i)(?:adapter|trainable) param\w*: *0(?![\d,])"),
    "resumed": re.compile(r"Resuming from +(\S*global_step_\d+)"),
    "scratch": re.compile(r"Training from scratch"),
    "served": re.compile(r"LLM engine.*\btensor_parallel_size=(\d+)"),
}
_OF_CONSTRUCTION = ("vanilla", "model", DDP, FSDP, "progress", "step")
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
# Of verl's settings, which it prints with pprint when it starts: about 1,000 lines.
_MOST_CHARS = 2_000_000
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INFINITE = re.compile(r"(?<=: )(-?)(?:inf|nan)(?=[,}\]])")
_CONTINUED = re.compile(r" +(?:['\"{}\[\]()\d-]|True\b|False\b|None\b|inf\b|nan\b).*[,}\])'\"]$")
# Around imports that Bridge can do without and only logs.
_OPTIONAL = re.compile(r"(?m):safe_import|^Import of .* failed with: Traceback")


class QuotedLine(NamedTuple):
    """A line of the log: its 1-based number, its text as a terminal may have it, and what of it was looked for."""

    line_no: int
    text: str
    value: str = ""

    @property
    def place(self) -> str:
        return f"line {self.line_no}"


class TrainingFailure(NamedTuple):
    """An exception, or what says that a process died: `frames` are `path:function`, outermost first, `cause` is
    triage's. `sure`: it is a failure even if the job continued; `finished`: all steps were done by then; `process`
    names who noted it, "" if the log has it."""

    text: str
    line_no: int = 0
    frames: tuple[str, ...] = ()
    cause: str = ""
    sure: bool = True
    finished: bool = False
    process: str = ""

    @classmethod
    def said(cls, text: str, frames: tuple[str, ...] = (), process: str = "") -> TrainingFailure:
        """One that is in no log that triage has read: the cause comes from a rule for its text."""
        rule = shipped().of(text, "\n".join(frames))
        return cls(text[:500], 0, frames, rule.cause if rule.rank == ROOT else "", process=process)

    @property
    def place(self) -> str:
        return self.process or f"line {self.line_no}"

    @property
    def constructs(self) -> bool:
        """Whether a function in Bridge, in Megatron-core, or in verl's code around them was running."""
        return any(constructs(frame) and not frame.endswith((":<module>", ":")) for frame in self.frames)


def constructs(path: str) -> bool:
    return bool(_CONSTRUCTS.search(path))


@dataclass
class TrainingFacts:
    """One training, from its begin to its end or to the end of the log; only its reader changes it.

    `exit_code` is None if no end was seen. `settings` are verl's resolved ones by dotted name, empty if they were not
    seen; `starts` counts how often the trainer printed them. `progress` is (done, total) when the progress bar was seen
    last. `said` has the first line of each thing that is looked for, of a watched metric whose value is no number
    ("unreadable") and of what is known to be harmless after the last step ("noise"), and the last of progress and
    steps. `proofs` has a line for each expression, None for one that matches none; `bridge_paths` the directories from
    which megatron.bridge was loaded; `files` the SHA-256 of its last checkpoint's files. `failures` are in triage's
    order, the likeliest reason first. `began_at` and `ended_at` are seconds since 1970."""

    exit_code: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_place: str = ""
    starts: int = 0
    progress: tuple[int, int] | None = None
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    said: dict[str, QuotedLine] = field(default_factory=dict)
    proofs: dict[str, QuotedLine | None] = field(default_factory=dict)
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
        """The likeliest reason, if it did not end well. If no rule knows it, and verl continued after it, it was
        handled."""
        if self.ended_well:
            return None
        last = self.said["step"].line_no if "step" in self.said else 0
        reasons = (one for one in self.failures if one.sure or self.exit_code != 0)
        return next((one for one in reasons if one.cause or one.constructs or one.line_no > last), None)

    def constructed(self, before: int) -> bool:
        """Whether Bridge-managed construction had started, before a line if one is given."""
        lines = [line.line_no for name, line in self.said.items() if name in _OF_CONSTRUCTION]
        lines += [failure.line_no for failure in self.failures if failure.constructs]
        return any(not before or line_no < before for line_no in lines)


class RunFacts(NamedTuple):
    preflight: dict[str, Deliverable]
    trainings: Mapping[str, TrainingFacts]


def read_run(log: Iterable[bytes], proofs: Sequence[str] = (), names: Sequence[str] = ()) -> RunFacts:
    """The facts of a run. `log` are the log's bytes, cut anywhere. `proofs` are regular expressions of lines to look
    for. `names` are the trainings' names in a log that no step script of ours divides: each begins where the trainer
    prints its settings."""
    reader = _RunReader(proofs, names)
    read(log, reader)
    return RunFacts(reader.preflight, reader.trainings)


class _RunReader(LineReader):
    """Sorts the telling lines to the training in which they stand, or outside of all."""

    def __init__(self, proofs: Sequence[str], names: Sequence[str]) -> None:
        self._proofs, self._names = proofs, list(names)
        self.words = _WORDS + b"|" + CandidateReader(shipped()).words
        self.preflight: dict[str, Deliverable] = {}
        self.trainings: dict[str, TrainingFacts] = {}
        self._outside = self._current = _TrainingReader(())
        if self._names:
            self._begin(self._names.pop(0))
        self._is_divided = not names

    def needs_next_line(self) -> bool:
        return self._current.needs_next_line()

    def known_passage(self, text: bytes, start: int, number: int) -> int:
        return self._current.candidates.known_passage(text, start, number)

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        parts = segments(line) if b"ci-tasks-verl: " in line else ()
        for mark in [mark for part in parts if (mark := _MARK.search(visible(part, LONGEST)))][-1:]:
            self._mark(mark[1], mark[2])
            return True
        if self._names and self._current.begins_again(line):
            self._begin(self._names.pop(0))
        self._current.feed(number, line, before)
        return True  # no line is boring: the same metrics with other numbers are what we want

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        self._close()

    def _begin(self, name: str) -> None:
        self._close()
        self._current = _TrainingReader(self._proofs)
        self.trainings[name] = self._current.facts

    def _close(self) -> None:
        self._current.close()
        self._current = self._outside

    def _mark(self, key: str, rest: str) -> None:
        facts, (status, _, text) = self._current.facts, rest.partition(": ")
        if key == "begin":
            if not self._is_divided:  # a step script of ours divides this log after all
                self._is_divided = True
                self._names.clear()
                self.trainings.clear()
            self._begin(rest)
        elif key == "clock":
            facts.ended_at = float(rest) if _CLOCK.match(rest) else None
            facts.began_at = facts.began_at or facts.ended_at
        elif match := _FILE.match(rest) if key == "file" else None:
            if match[1] in self.trainings:
                self.trainings[match[1]].files[match[3]] = match[2]
        elif key == "end":
            code = rest.rpartition(": ")[2]
            facts.exit_code = int(code) if code.isdecimal() and len(code) < 10 else None
            self._close()
        elif key not in ("command", "file"):
            self.preflight[key] = Deliverable(key, status.strip(), visible(text.encode()))


class _TrainingReader:
    """Reads one training's lines. It needs lines without a telling word too while settings or a traceback are printed,
    and while a line of any words may be a proof."""

    def __init__(self, proofs: Sequence[str]) -> None:
        self.facts, self.candidates = TrainingFacts(proofs=dict.fromkeys(proofs)), CandidateReader(shipped())
        self._printed: PrintedSettings | None = None
        self._finished_at: int | None = None

    def needs_next_line(self) -> bool:
        is_open = self._printed is not None or None in self.facts.proofs.values()
        return is_open or self.candidates.needs_next_line()

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
        order = rank(CandidateList.of(self.candidates), failed=True).order
        likeliest = [one for _, one in order]
        found = (self._failure(one, likeliest) for one in likeliest if one.kind != LAST)
        self.facts.failures = tuple(filter(None, found))

    def _failure(self, one: Candidate, order: Sequence[Candidate]) -> TrainingFailure | None:
        raised = one.kind in (EXCEPTION_END, EXCEPTION_LINE)
        survived = one.ignored or one.survived or one.outlived
        if survived or not (raised or one.rule.cause) or _OPTIONAL.search("\n".join((one.text, *one.frames))):
            return None
        cause, _ = cause_of(one, order, shipped())
        sure = raised or one.rule.rank in (ROOT, WRAPPER)
        finished = self._finished_at is not None and one.line.number >= self._finished_at
        text, known = visible(one.text.strip().encode()), "" if cause == "unknown" else cause
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
        facts, line = self.facts, QuotedLine(number, text.strip()[:_LONGEST_QUOTED])
        for bar in _PROGRESS.finditer(text):
            facts.progress = (int(bar[1]), int(bar[2]))
            facts.said["progress"] = line._replace(text=bar[0])
            if facts.finished and self._finished_at is None:
                self._finished_at = number
        if match := STEP.search(text):
            facts.said["step"] = line._replace(text=match[0].strip()[:_LONGEST_QUOTED])
            self._step(int(match[1]), match[2], line)
        for what, pattern in _SAID.items():
            if what not in facts.said and (found := pattern.search(text)):
                facts.said[what] = line._replace(value=found[1] if pattern.groups else "")
        if (match := _BRIDGE.search(text)) and len(facts.bridge_paths) < _MOST_PATHS:
            facts.bridge_paths.setdefault(match[1], line)
        if facts.finished and _NOISE.search(text):
            facts.said.setdefault("noise", line)
        for proof in [proof for proof, seen in facts.proofs.items() if seen is None and re.search(proof, text)]:
            facts.proofs[proof] = line

    def _step(self, step: int, pairs: str, line: QuotedLine) -> None:
        for name, value in values(pairs).items():
            if value is not None and (step in self.facts.metrics or len(self.facts.metrics) < _MOST_STEPS):
                self.facts.metrics.setdefault(step, {})[name] = value
            elif value is None and WATCHED.search(name):
                self.facts.said.setdefault("unreadable", line._replace(text=f"{name} is no number at step {step}"))


class PrintedSettings:
    """A nested dict that pprint prints over many lines, while others write between them, its own process too: a warning
    is no line of a dict."""

    BEGIN = re.compile(r"^\{'\w+':")

    def __init__(self, origin: str, line_no: int) -> None:
        self._origin, self.line_no = origin, line_no
        self._lines: list[str] = []
        self._depth, self._left, self.open = 0, _MOST_CHARS, True

    def feed(self, origin: str, text: str) -> bool:
        """Whether the line is a part of it; afterwards `open` says whether more has to come."""
        if origin != self._origin or (self._lines and not _CONTINUED.match(text)):
            return False
        self._lines.append(text)
        bare = _STRING.sub("", text)
        self._left -= len(text)
        self._depth += sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))
        self.open = self._depth > 0 and self._left > 0
        return True

    def value(self) -> dict[str, Any]:
        """The settings by dotted name; empty if it is another dict, or not whole."""
        text = _INFINITE.sub(lambda match: f"{match[1]}1e999", "\n".join(self._lines))
        try:
            settings = ast.literal_eval(text) if self._depth == 0 else {}
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
        return flat(settings) if isinstance(settings, dict) and "actor_rollout_ref" in settings else {}


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return found
