"""Reading a run's log once, as a stream, for what shows that something ran."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import field
from heapq import merge

from ci_tasks.agent.quick_dataclass import dataclass

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# The last line of a pytest session; `-q` leaves the bars out.
_PYTEST = re.compile(
    rb"^(?:=+ )?(?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)\b.*|no tests ran)"
    rb" in \d[\d.]*s\b"
)
_COUNT = re.compile(rb"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_UNITTEST = re.compile(rb"^Ran (\d+) tests? in [\d.]+s")
_UNITTEST_END = re.compile(rb"^(?:OK|FAILED) \(((?:[a-z ]+=\d+(?:, )?)+)\)$")
# slime's trainers log `step 3: {'train/loss': …}` and `rollout 3: {…}`, behind a logger's and an actor's prefix.
SLIME_LINE = re.compile(rb"(?:^|[ \]])(?:step|rollout|eval) (\d+): ?\{")
SLIME_VALUE = re.compile(rb"'([^'\n]{1,100})': (?:np\.float\d+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))")
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
# One of these, or of those in `_may_be_evidence`, is in each line that says any of the above. Nearly all lines have
# none, and eight searches of each line took longer than to bring a large log here.
_BEGINNINGS = re.compile(
    rb"(?:=+ )?(?:\d+ |no tests ran)|Ran \d|(?:OK|FAILED) \(|ci-tasks: |docker: |podman: |Error: |srun: "
)
# The same for RE2, which finds them in whole blocks: of a large log nothing else is looked at line by line. Colours are
# between words, and a line that is written over, or has other sequences of a terminal, may say anything.
_COLOUR = rb"(?:\x1b\[[0-9;?]*[ -/]*[@-\x7e])*"  # `~` in the words below
_TELLING = b"(?m)(?:%b)[^\n]*" % b"|".join(
    [
        rb"^~(?:=+~ ~)?(?:\d+~ |no~ ~tests~ ~ran)",
        rb"^~(?:Ran~ ~\d|(?:OK|FAILED)~ ~\(|(?:ci-tasks|docker|podman|Error|srun)~:~ )",
        rb"(?:step|rollout|eval)~ ~\d+~:~ ?~\{",
        rb"Acquired~ ~GPUs~:~ |Cannot~ ~connect~ ~to~ ~the~ ~Docker~ ~daemon|error~ ~waiting~ ~for~ ~container~:~ ",
        rb"\r[^\n]|\x1b[^\[\n]",
    ]
).replace(b"~", _COLOUR)
_LONGEST = 4000


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


def read_log(lines: Iterable[bytes]) -> LogFacts:
    """The facts of a log, in one pass and with constant memory as long as lines are of bounded length."""
    return _read(enumerate(lines, 1))


def read_large_log(pieces: Iterable[bytes]) -> LogFacts:
    """The same of a log that comes in pieces of any size, many times faster."""
    return _read(_telling_lines(pieces))


def _read(numbered: Iterable[tuple[int, bytes]]) -> LogFacts:
    facts = LogFacts()
    last: tuple[int, bytes] | None = None  # made fit for a terminal at the end, not line by line: most of the work
    for number, raw in numbered:
        line = _clean(raw)
        if not _is_visible(line):
            continue
        last = number, line
        if _may_be_evidence(line):
            _evidence(facts, line)
    facts.last_line = (last[0], shown(last[1])) if last else None
    return facts


def _telling_lines(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(1-based number, line) of each line that may say something, and of the last of each block that a person sees."""
    from ci_tasks.results.log_scanner import blocks, next_line, words_expression
    from ci_tasks.results.word_search import search

    number = 1
    with closing(search(blocks(pieces), words_expression(_TELLING))) as searched:
        for text, words, _ in searched:
            begins = merge(words, _last_visible(text))
            counted = at = 0
            while (start := next_line(text, begins, at)) >= 0:
                at = text.find(b"\n", start) + 1 or len(text)
                number += text.count(b"\n", counted, start)
                counted = start
                yield number, text[start:at]
            number += text.count(b"\n", counted)


def _last_visible(text: bytes) -> Iterator[int]:
    """Where the last line begins that a person sees."""
    end = len(text)
    while end > 0:
        start = text.rfind(b"\n", 0, end - 1) + 1
        if _is_visible(_clean(text[start:end])):
            yield start
            return
        end = start


def _is_visible(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(b"##[")


def shown(line: bytes) -> str:
    """A log line as text that is safe for a terminal: no escape sequence or control character survives."""
    text = _clean(line).decode("utf-8", "replace")
    return "".join(char if char.isprintable() or char == "\t" else "�" for char in text)[:300].rstrip()


def _may_be_evidence(line: bytes) -> bool:
    find = line.find  # `in` takes twice as long for bytes
    return (
        find(b"{") >= 0
        or find(b"Acquired GPUs: ") >= 0
        or find(b"Cannot connect to the Docker daemon") >= 0
        or find(b"error waiting for container: ") >= 0
        or _BEGINNINGS.match(line) is not None
    )


def _evidence(facts: LogFacts, line: bytes) -> None:
    if b"{" in line and SLIME_LINE.search(line):  # few lines have one, and the search is slow
        facts.metrics += 1
        for name, value in SLIME_VALUE.findall(line):
            if len(facts.values) < _KEPT_METRICS or name.decode("utf-8", "replace") in facts.values:
                facts.values[name.decode("utf-8", "replace")] = float(value)
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


def _clean(raw: bytes) -> bytes:
    line = raw.rstrip(b"\r\n")
    if line.find(b"\r") >= 0:  # a progress bar: what a person saw last
        line = line.rsplit(b"\r", 1)[-1]
    line = line[:_LONGEST]
    return _ANSI.sub(b"", line) if line.find(b"\x1b") >= 0 else line
