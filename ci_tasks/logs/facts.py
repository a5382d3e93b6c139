"""What a run's log says of its tests, GPUs and containers: what shows that something ran."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import LineReader, read, segments, shown, visible

# The last line of a pytest session; `-q` leaves the bars out.
_PYTEST = re.compile(
    rb"^(?:=+ )?(?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)\b.*|no tests ran)"
    rb" in \d[\d.]*s\b"
)
_COUNT = re.compile(rb"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_UNITTEST = re.compile(rb"^Ran (\d+) tests? in [\d.]+s")
_UNITTEST_END = re.compile(rb"^(?:OK|FAILED) \(((?:[a-z ]+=\d+(?:, )?)+)\)$")
# slime's trainers log `step 3: {'train/loss': …}` and `rollout 3: {…}`, behind a logger's and an actor's prefix.
_SLIME_LINE = re.compile(rb"(?:^|[ \]])(?:step|rollout|eval) (\d+): ?\{")
_SLIME_VALUE = re.compile(rb"'([^'\n]{1,100})': (?:np\.float\d+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))")
_KEPT_METRICS = 200  # names; a trainer that makes up new ones has no end of them
_ACQUIRED = re.compile(rb"Acquired GPUs: ([\d,]+)")
_BLOCKED = re.compile(rb"^ci-tasks: blocked: (.*)")
# The last is what docker logs when its daemon dies while a container runs.
_DAEMON = re.compile(
    rb"^(?:docker|podman|Error): .*|^.*Cannot connect to the Docker daemon.*|^.*\berror waiting for container: .*"
)
# What srun says of an option that it, or pyxis, does not know, or not so.
_SRUN = re.compile(
    rb"^srun: (?:unrecognized|invalid|ambiguous) option.*|^srun: option '.*|^srun: option requires an argument.*"
    rb"|^srun: error: (?:spank|pyxis|Invalid argument)\b.*\boption\b.*"
)
# Each line that says any of the above has one of these. Colours are between words, and a line that is written over, or
# has other sequences of a terminal, may say anything.
_COLOUR = rb"(?:\x1b\[[0-9;?]*[ -/]*[@-\x7e])*"  # `~` in the words below
_WORDS = b"(?m:%b)" % b"|".join(
    [
        rb"^~(?:=+~ ~)?(?:\d+~ |no~ ~tests~ ~ran)",
        rb"^~(?:Ran~ ~\d|(?:OK|FAILED)~ ~\(|(?:ci-tasks|docker|podman|Error|srun)~:~ )",
        rb"(?:step|rollout|eval)~ ~\d+~:~ ?~\{",
        rb"Acquired~ ~GPUs~:~ |Cannot~ ~connect~ ~to~ ~the~ ~Docker~ ~daemon|error~ ~waiting~ ~for~ ~container~:~ ",
        rb"\r[^\n]|\x1b[^\[\n]",
    ]
).replace(b"~", _COLOUR)


@dataclass
class LogFacts:
    """What a log says. Line numbers are 1-based; `values` is what each metric was when it was last logged."""

    pytest: dict[str, int] | None = None
    unittest: int | None = None
    unittest_skipped: int = 0
    unittest_failed: int = 0
    metrics: int = 0
    values: dict[str, float] = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    blocked: str = ""
    daemon: str = ""
    srun: str = ""
    last_line: tuple[int, str] | None = None


class FactsReader(LineReader):
    """Reads the facts of a log."""

    words = _WORDS

    def __init__(self) -> None:
        self.facts = LogFacts()

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        _evidence(self.facts, visible(segments(line)[-1]).encode())
        return True  # the same words with other numbers count too

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        said = ((number, text) for number, line in reversed(tail) if (text := shown(line)).strip())
        self.facts.last_line = next((pair for pair in said if not pair[1].startswith("##[")), None)


def read_facts(pieces: Iterable[bytes]) -> LogFacts:
    """The facts of a log, whose bytes may be cut anywhere."""
    reader = FactsReader()
    read(pieces, reader)
    return reader.facts


def _evidence(facts: LogFacts, line: bytes) -> None:
    if parsed := slime_metrics(line):
        facts.metrics += 1
        for name, value in parsed[1].items():
            if len(facts.values) < _KEPT_METRICS or name in facts.values:
                facts.values[name] = value
    if found := _PYTEST.match(line):
        counts = facts.pytest or {}
        for number, word in _COUNT.findall(line):
            key = word.decode().removesuffix("s") if word == b"errors" else word.decode()
            counts[key] = counts.get(key, 0) + int(number)
        facts.pytest = counts
    if found := _UNITTEST.match(line):
        facts.unittest = (facts.unittest or 0) + int(found[1])
    if facts.unittest is not None and (found := _UNITTEST_END.match(line)):
        counted = dict(part.split(b"=") for part in found[1].split(b", "))
        facts.unittest_skipped += int(counted.get(b"skipped", 0))
        facts.unittest_failed += int(counted.get(b"failures", 0)) + int(counted.get(b"errors", 0))
    if found := _ACQUIRED.search(line):
        facts.gpu_ids = tuple(int(number) for number in found[1].split(b",") if number)
    if found := _BLOCKED.match(line):
        facts.blocked = shown(found[1])
    if not facts.srun and _SRUN.match(line):
        facts.srun = shown(line)
    if _DAEMON.match(line):
        facts.daemon = shown(line)


def slime_metrics(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The step and the metrics of a line as slime's trainers log it; None for another line."""
    head = _SLIME_LINE.search(line) if b"{" in line else None
    if head is None:
        return None
    values = _SLIME_VALUE.findall(line, head.end() - 1)
    return int(head[1]), {name.decode("utf-8", "replace"): float(value) for name, value in values}
