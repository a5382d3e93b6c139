"""A triage in a terminal, or in a pasted comment: what failed, why, and the lines around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.errors import printable

_VERDICTS = {
    "fail": "failed: the code under test, or its configuration",
    "blocked": "blocked: the environment, not the code",
    "pass": "nothing failed in this log",
}
_WIDE = 200


def describe(found: Mapping[str, Any]) -> list[str]:
    """The lines of `triage` for a triage as it stands in a record."""
    if found["verdict"] == "pass":
        return [_VERDICTS["pass"]]
    where = f"line {found['line_no']}" if found["line_no"] else "no line"
    lines = [
        _VERDICTS[found["verdict"]],
        f"cause:      {_cause(found)}",
        f"line:       {_cut(found['text'] or found['line'] or '(the log says nothing)')}",
        f"where:      {where}{_frames(found)}, confidence {found['confidence']:.2f}",
    ]
    if found["signature"]:
        lines.append(f"signature:  {_cut(found['signature'])}")
    if second := found["second"]:
        lines.append(f"or:         {_cut(second['line'])} (line {second['line_no']}, {second['cause']})")
    return [printable(line) for line in [*lines, *_context(found)]]


def _cause(found: Mapping[str, Any]) -> str:
    return f"{found['cause']}{f' ({reason})' if (reason := found['reason']) else ''}"


def _frames(found: Mapping[str, Any]) -> str:
    return f" in {' > '.join(found['frames'])}" if found["frames"] else ""


def _context(found: Mapping[str, Any]) -> list[str]:
    context = list(found["context"])
    if len(context) < 2 or found["line"] not in context:
        return []
    first = found["line_no"] - context.index(found["line"])
    return ["", *(_numbered(number, line, found["line_no"]) for number, line in enumerate(context, first))]


def _numbered(number: int, line: str, blamed: int) -> str:
    return f"{'>' if number == blamed else ' '} {number:>6} | {_cut(line)}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
