"""A line of a log without what loggers, ranks, actors and CI put before its text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(
    r"_?bk;t=\d+\x07|\x1b_[^\x07\x1b]{0,200}(?:\x07|\x1b\\)?"  # Buildkite's timestamps
    r"|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]|\^\[\[[0-9;]*m"
)
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_ACTOR = r"[\w.:@/-]{1,80}"
_TYPE = r"[\w.]*(?:Error|Exception)\b"
_LEVEL = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION"
# Each takes one thing off the beginning, tried in turn until none fits: what is special stands before what is general.
# Named groups say who spoke, and how loud.
_PREFIXES = [
    re.compile(pattern)
    for pattern in (
        rf"{_TIME} std(?:err|out) [FP] ",  # Kubernetes
        rf"{_TIME} - [\w.]+ - (?P<level>{_LEVEL}) - ",
        rf"{_TIME}\t(?P<level>{_LEVEL}) [\w./-]+:\d+ -- ",  # Ray
        rf"{_TIME} ",
        rf"(?P<origin>\((?=[A-Za-z_])(?:{_ACTOR},? ?)?(?:rank=\d+ )?(?:pid=\w+)?(?:, ip=[\w.:]+)?\)) ?",
        r"(?P<origin>\(autoscaler[^)]{0,20}\)) ?",
        r"(?P<origin>\[(?:rank|default|local_rank|Rank) ?\d+\]):? ?",
        r"(?P<origin>\[\d+,\d+\])<std(?:err|out)>: ?",
        rf"(?P<level>{_LEVEL}) (?:\d\d-\d\d \d\d:\d\d:\d\d|{_TIME})(?: \[?[\w./-]+:\d+\]?)? ?",
        rf"\[{_TIME}\]\[[^\]\n]{{1,80}}\]\[(?P<level>{_LEVEL})\] ?(?:- )?",  # Hydra
        rf"\[{_TIME}(?P<origin>(?: [A-Z]{{2,3}}\d+)*)\] ?",
        rf"\[{_TIME},? (?P<level>[EWIDF]) [\d ]+\] ?(?:\(raylet\) )?(?:[\w./]+:\d+: )?",
        rf"{_TIME}(?: ?[-|:,] ?| )?",
        r"\[(?P<level>[EWIF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)? [\w/.]+:\d+\] ?",
        r"(?P<level>[EWIF])\d{4} \d\d:\d\d:\d\d(?:\.\d+)? +\d+ [\w/.-]+:\d+\] ?",
        rf"(?:[\w.]{{1,60}} ?[-:|] ?)?\[?(?P<level>{_LEVEL})\b\]? ?[-:|] ?(?:{_TIME}:? ?)?",
        rf"(?P<level>{_LEVEL}) [\w./-]+\.py:\d+[:\]]? ?",
        rf"\| *(?P<level>{_LEVEL}) *\| (?:[\w.:<>-]+ [|-] )?",
        rf"\[(?P<level>{_LEVEL})\] ?",
        r"##\[(?P<level>error|warning)\]",
        r"::(?P<level>error|warning|notice)(?: [^\n]{0,300}?)?::",  # GitHub's commands, where nobody obeyed them
        r"[\w.]+\.py:\d+ - ",
        r"(?P<origin>[\w.-]{2,40}) +\| ",
        r"\[[\w.-]+[-_]py:\d+\] ",
        r" {2,}\| | *\| (?=\[)| +\+ (?=Exception Group)",  # Buildkite; an exception group's frame of lines
    )
]
_RANK = re.compile(rf" {{0,3}}(\d{{1,5}}:) (?=[\[(]| {{2}}|Traceback |{_TYPE}|{_TIME}|(?:{_LEVEL})\b)")  # srun --label
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_TAB = re.compile(r"^[^\t]{1,200}\t[^\t]{1,200}\t(?=\d{4}-\d\d-\d\dT)")
_LONGEST = 4000


@dataclass(frozen=True)
class Line:
    """`shown` is the line as a terminal may have it; `text` is without prefixes; `origin` says which rank or actor
    spoke, `level` how loud, in lower case, both "" where the line does not say."""

    number: int
    shown: str
    text: str
    origin: str
    level: str


def read(number: int, raw: bytes) -> Line:
    """Take a raw line apart."""
    shown = visible(raw)
    text, origin, level = shown, "", ""
    if "\t" in text[:200]:
        text = _TAB.sub("", text)
    if found := _RANK.match(text):
        text, origin = text[found.end() :], found[1]
    for _ in range(6):
        before = text
        for pattern in _PREFIXES:
            found = pattern.match(text)
            if found and found.end():
                text = text[found.end() :]
                groups = found.groupdict()
                origin += (groups.get("origin") or "").strip()
                level = (groups.get("level") or level or "").lower()
                break
        if text == before:
            break
    if text.endswith("]") or "across cluster" in text:
        text = _REPEATED.sub("", text)
    return Line(number, shown, text, origin, level)


def visible(raw: bytes) -> str:
    """The line as text that is safe for a terminal, of bounded length."""
    text = raw.rstrip(b"\r\n")[:_LONGEST].decode("utf-8", "replace")
    if "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\xa0", " ").replace("\ufeff", "")  # GitHub's raw logs begin each step with a byte order mark
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\t" else "�" for char in text)
    return text.rstrip()


def segments(raw: bytes) -> list[bytes]:
    """What a terminal would have shown one after another in the same line: a progress bar, and what is glued onto
    it."""
    if b"\r" not in raw:
        return [raw]
    return [segment for segment in raw.rstrip(b"\r\n").split(b"\r") if segment.strip()][-20:] or [b""]
