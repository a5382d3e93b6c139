"""The summary of verl's levels in the guide's format: as text, as markdown for a pull request, and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ci_tasks.errors import printable
from ci_tasks.features.verl.levels.summary import Deliverable, EvidenceItem, Summary, TrainingCriteria
from ci_tasks.report.table import code

_MARKUP = re.compile(r"[\\`*<>\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_INDENT = "    "


def text(summary: Summary) -> list[str]:
    """The guide's format, a line each. What belongs to a line of its but does not fit on it stands below, indented."""
    return [printable(line) for line in _text(summary)]


def markdown(summary: Summary) -> str:
    """The same, fit to be pasted into a pull request: what a log or a shell said stands in code, so that nothing of it
    is taken for markup or a mention."""
    lines = [
        f"**Result:** **{summary.result}** - {_escaped(summary.sentence)}",
        f"**Requested coverage:** {_escaped(summary.requested)}",
        f"**Checkpoint/config:** {_escaped(summary.checkpoint)}",
    ]
    lines = [f"{line}  " for line in lines]  # two spaces: a break, no new paragraph
    lines += ["", "**Deliverables:**", ""]
    lines += [
        f"- {deliverable.name}: **{deliverable.status}** - {_escaped(deliverable.text)}"
        for deliverable in summary.deliverables
    ]
    lines += [line for training in summary.criteria for line in _table(training)]
    lines += ["", "**Evidence:**", ""]
    lines += [line for item in summary.evidence for line in _marked(item)]
    lines += ["", "**Limitations:**", "", *_list(summary.limitations)]
    lines += ["", "**Follow-ups:**", "", *_list(summary.follow_ups)]
    return "\n".join(printable(line) for line in lines) + "\n"


def public(summary: Summary) -> dict[str, Any]:
    """The content of `--json`; a number that JSON does not have is its name."""
    data: dict[str, Any] = _json(summary.public())
    return data


def _text(summary: Summary) -> Iterator[str]:
    yield f"Result: {summary.result} - {summary.sentence}"
    yield f"Requested coverage: {summary.requested}"
    yield f"Checkpoint/config: {summary.checkpoint}"
    yield "Deliverables:"
    yield from (_deliverable(deliverable) for deliverable in summary.deliverables)
    for training in summary.criteria:
        yield f"Criteria of {training.training}: {training.status}"
        yield from (f"- {criterion.outcome}: {criterion}" for criterion in training.criteria)
    yield "Evidence:"
    for item in summary.evidence:
        yield f"- {item.name}: {item.lines[0]}"
        yield from (f"{_INDENT}{line}" for line in item.lines[1:])
    yield "Limitations:"
    yield from (f"- {line}" for line in summary.limitations or ("none",))
    yield "Follow-ups:"
    yield from (f"- {line}" for line in summary.follow_ups or ("none",))


def _deliverable(deliverable: Deliverable) -> str:
    return f"- {deliverable.name}: {deliverable.status} - {deliverable.text}"


def _table(training: TrainingCriteria) -> list[str]:
    head = f"**Criteria of {_escaped(training.training)}:** **{training.status}**"
    rows = [
        f"| {_escaped(found.name)} | {found.outcome} | {_cell(found.evidence)} | {_cell(found.place)} |"
        for found in training.criteria
    ]
    return ["", head, "", "| criterion | outcome | evidence | where |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    """As code in a table, whose columns a bar would end."""
    return code(text.replace("|", "\\|")) if text else ""


def _marked(item: EvidenceItem) -> list[str]:
    return [f"- {item.name}: {code(item.lines[0])}", *(f"  - {code(line)}" for line in item.lines[1:])]


def _list(lines: Sequence[str]) -> list[str]:
    return [f"- {_escaped(line)}" for line in lines or ("none",)]


def _escaped(line: str) -> str:
    """As prose: no markup, no mention of a person, no reference to an issue. Paths and settings keep their underscores,
    which are markup only around a whole word."""
    escaped = _MARKUP.sub(lambda match: f"\\{match[0]}", line)
    return re.sub(r"(?<!\w)([@#])(?=\w)", "\\1\u200b", escaped)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
