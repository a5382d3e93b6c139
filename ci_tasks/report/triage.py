"""A triage in a terminal, or in a pasted comment: what failed, why, and the lines around it."""

from __future__ import annotations

import re

from ci_tasks.errors import printable
from ci_tasks.records import Triage
from ci_tasks.report.layout import columns, without_middle

VERDICTS = {
    "fail": "failed: the code under test, or its configuration",
    "blocked": "blocked: the environment, not the code",
    "pass": "nothing failed in this log",
    "unknown": "unknown: nothing failed in what was read of this log, and its end was not read",
}
_WIDE = 200
_NARROWEST = 24  # columns of a log's line
# What GitHub puts before each line, alone or behind gh's columns: it would fill a terminal's width.
_CI_PREFIX = re.compile(r"^(?:[^\t]{1,300}\t[^\t]{0,500}\t)?\ufeff?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z(?: |$)")


def describe(triage: Triage, width: int | None = None) -> list[str]:
    """The lines of `triage`. In a terminal its words wrap, and lines of the log lose their middle."""
    if triage.verdict in ("pass", "unknown"):
        return [VERDICTS[triage.verdict]]
    where = f"line {triage.line_no}" if triage.line_no else "no line"
    facts = [
        ("cause:", _cause(triage)),
        ("line:", _cut(triage.text or triage.line or "(the log says nothing)")),
        ("where:", f"{where}{_frames(triage)}, confidence {triage.confidence:.2f}"),
        *([("signature:", _cut(triage.signature))] if triage.signature else []),
    ]
    if second := triage.second:
        facts.append(("or:", f"{_cut(second.line)} (line {second.line_no}, {second.cause})"))
    body = columns([(f"{name:<10}", text) for name, text in facts], width)
    return [VERDICTS[triage.verdict], *body, *(printable(line) for line in _context(triage, width))]


def numbered_context(triage: Triage) -> list[tuple[int, str]]:
    """The lines around the blamed one with their numbers, without what CI puts before each; none where it is not
    among them."""
    if triage.line not in triage.context or not triage.line_no:
        return []
    first = triage.line_no - triage.context.index(triage.line)
    return list(enumerate((_CI_PREFIX.sub("", line, count=1) for line in triage.context), first))


def _cause(triage: Triage) -> str:
    return f"{triage.cause}{f' ({reason})' if (reason := triage.reason) else ''}"


def _frames(triage: Triage) -> str:
    return f" in {' > '.join(triage.frames)}" if triage.frames else ""


def _context(triage: Triage, width: int | None) -> list[str]:
    lines = numbered_context(triage)
    if len(lines) < 2:
        return []
    return ["", *(_numbered(number, line, triage.line_no, width) for number, line in lines)]


def _numbered(number: int, line: str, failing_line: int | None, width: int | None) -> str:
    left = f"{'>' if number == failing_line else ' '} {number:>6} | "
    return left + (_cut(line) if width is None else without_middle(line, max(width - len(left), _NARROWEST)))


def _cut(text: str) -> str:
    if len(text) <= _WIDE:
        return text
    end = text.rfind(" ", _WIDE - _NARROWEST, _WIDE - 1) + 1  # behind a word, if one ends there
    return text[: end or _WIDE - 1] + "…"
