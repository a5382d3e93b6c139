"""The summary of verl's levels in the guide's format, in at most 30 lines: as text, as markdown for a pull request,
and, with the criteria of each training, as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ci_tasks.errors import printable
from ci_tasks.features.verl.levels.summary import Summary
from ci_tasks.report.table import code

_MARKUP = re.compile(r"[\\`*<>\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def text(summary: Summary) -> list[str]:
    return [printable(line) for line in _lines(summary, str, str, str)]


def markdown(summary: Summary) -> str:
    """The same, fit to be pasted into a pull request: what a log or a shell said stands in code, so that nothing of it
    is taken for markup or a mention."""
    lines = [printable(line) for line in _lines(summary, lambda word: f"**{word}**", _escaped, code)]
    return "\n".join(_spaced(lines)) + "\n"


def public(summary: Summary) -> dict[str, Any]:
    """The content of `--json`."""
    return summary.public()


def _lines(
    summary: Summary, strong: Callable[[str], str], prose: Callable[[str], str], quoted: Callable[[str], str]
) -> Iterator[str]:
    yield f"{strong('Result:')} {strong(summary.result)} - {prose(summary.sentence)}"
    yield f"{strong('Requested coverage:')} {prose(summary.requested)}"
    yield f"{strong('Checkpoint/config:')} {prose(summary.checkpoint)}"
    yield strong("Deliverables:")
    yield from (f"- {one.name}: {strong(one.status)} - {prose(one.text)}" for one in summary.deliverables)
    yield strong("Evidence:")
    yield from (f"- {item.name}: {quoted('; '.join(item.lines))}" for item in summary.evidence)
    yield strong("Limitations:")
    yield from (f"- {prose(line)}" for line in summary.limitations or ("none",))
    yield strong("Follow-ups:")
    yield from (f"- {prose(line)}" for line in summary.follow_ups or ("none",))


def _spaced(lines: list[str]) -> Iterator[str]:
    """Breaks after the first lines, and what markdown needs around a list."""
    for line in lines:
        if line.startswith("- "):
            yield line
        elif line.endswith(":**"):
            yield from ("", line, "")
        else:
            yield f"{line}  "


def _escaped(line: str) -> str:
    """As prose: no markup, no mention of a person, no reference to an issue. Paths and settings keep their underscores,
    which are markup only around a whole word."""
    escaped = _MARKUP.sub(lambda match: f"\\{match[0]}", line)
    return re.sub(r"(?<!\w)([@#])(?=\w)", "\\1\u200b", escaped)
