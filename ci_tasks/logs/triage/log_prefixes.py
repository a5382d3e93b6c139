"""A line of a log without what loggers, ranks, actors and CI put before its text."""

from __future__ import annotations

import re

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import visible

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_ACTOR = r"[\w.:@/-]{1,80}"
_TYPE = r"[\w.]*(?:Error|Exception)\b"
_LEVEL = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION"
# Each takes one thing off the beginning, tried in turn until none fits: what is special stands before what is general.
# Named groups say who spoke, and how loud.
_PREFIXES = (
    rf"{_TIME} std(?:err|out) [FP] ",  # Kubernetes
    rf"{_TIME} - (?:[\w.]+ - )?(?P<level>{_LEVEL}) - ",
    rf"\d\d/\d\d/\d{{4}} \d\d:\d\d:\d\d - (?P<level>{_LEVEL}) - [\w.]+ - ",  # transformers' examples
    rf"\[(?P<level>{_LEVEL})\|[\w./-]+:\d+\] {_TIME} >> ",  # transformers
    rf"{_TIME} +(?P<level>TRACE|{_LEVEL}) [\w:]+: ",  # Rust
    rf"{_TIME}: (?P<level>[EWIF]) [\w./-]+:\d+\] ",  # TensorFlow
    r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\] (?P<origin>\[RANK \d+\] )?\[(?P<level>[EWIDFV])\] ",
    rf"\[{_TIME}\] (?P<level>{_LEVEL}) in [\w.]+: ",  # Flask
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
    rf" *\[(?P<level>{_LEVEL}|Error|Warning)\]:? *",
    r"(?P<level>Warning): ",
    r"##\[(?P<level>error|warning)\]",
    r"::(?P<level>error|warning|notice)(?: [^\n]{0,300}?)?::",  # GitHub's commands, if they were not executed
    r"[\w.]+\.py:\d+ - ",
    r"(?P<origin>[\w.-]{2,40}) +\| ",
    r"\[[\w.-]+[-_.]py:\d+(?::\w+)?\] ?",
    # pdsh, and DeepSpeed's launcher of several nodes
    r"(?P<origin>(?:pdsh@[\w.-]+|localhost|\d{1,3}(?:\.\d{1,3}){3}|[\w-]+\d(?=: (?:\[| |Traceback)))): ",
    r" {2,}\| | *\| (?=\[)| +\+ (?=Exception Group)",  # Buildkite; an exception group's frame of lines
)
_NAMES = ("origin", "level")
_MOST_PREFIXES = 6


def _group(pattern: str, at: int) -> str:
    """The prefix as a group of its own, in which each name has its number."""
    named = re.sub(r"\(\?P<(\w+)>", rf"(?P<\g<1>{at}>", pattern)
    return f"(?P<prefix{at}>{named})"


# All of them as one expression, since to try each alone takes most of a line's time. The last group that a match closes
# is the one around its prefix.
_PREFIX = re.compile("|".join(_group(pattern, at) for at, pattern in enumerate(_PREFIXES)))
_GROUPS = {
    f"prefix{at}": tuple(f"{name}{at}" if f"(?P<{name}>" in pattern else "" for name in _NAMES)
    for at, pattern in enumerate(_PREFIXES)
}
_RANK = re.compile(rf" {{0,3}}(\d{{1,5}}:) (?=[\[(]| {{2}}|Traceback |{_TYPE}|{_TIME}|(?:{_LEVEL})\b)")  # srun --label
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_TAB = re.compile(r"^[^\t]{1,200}\t[^\t]{1,200}\t(?=\d{4}-\d\d-\d\dT)")


@dataclass(frozen=True)
class PrefixedLine:
    """`shown` is the line as a terminal may have it; `text` is without prefixes; `origin` says which rank or actor
    spoke, `level` how loud, in lower case, both "" if the line does not say."""

    number: int
    shown: str
    text: str
    origin: str
    level: str


def read(number: int, raw: bytes) -> PrefixedLine:
    """Take a raw line apart."""
    shown = visible(raw)
    text, origin, level = shown, "", ""
    if "\t" in text[:200]:
        text = _TAB.sub("", text)
    if match := _RANK.match(text):
        text, origin = text[match.end() :], match[1]
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
        of_origin, of_level = _GROUPS[match.lastgroup or ""]
        origin += (match[of_origin] or "").strip() if of_origin else ""
        level = ((match[of_level] if of_level else "") or level).lower()
    if text.endswith("]") or "across cluster" in text:
        text = _REPEATED.sub("", text)
    return PrefixedLine(number, shown, text, origin, level)
