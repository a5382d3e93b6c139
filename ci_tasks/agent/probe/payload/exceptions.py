"""An exception as JSON's own types."""

import os

from .limits import MAX_FRAMES, MAX_LINKED, MAX_SOURCE, MAX_TEXT
from .process import read_bytes

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def linked_exceptions(value: "Any") -> "list[dict[str, Any]]":
    """The exception, those that it was caused by, and the members of groups; `of` is the number of the one that each
    belongs to. It keeps nothing of the program alive but its code."""
    found: "list[dict[str, Any]]" = []
    todo: "list[tuple[Any, int, str]]" = [(value, -1, "")]
    known: "set[int]" = set()
    while todo and len(found) < MAX_LINKED:
        current, of, link = todo.pop(0)
        if id(current) in known:
            continue
        known.add(id(current))
        here, cause = len(found), getattr(current, "__cause__", None)
        kind = type(current)
        values: "dict[str, Any]" = {"of": of, "link": link, "type": "%s.%s" % (kind.__module__, kind.__qualname__)}
        values["message"] = _message(current)
        values["frames"] = _frames(getattr(current, "__traceback__", None))
        found.append(values)
        if cause is not None:
            todo.append((cause, here, "cause"))
        elif getattr(current, "__context__", None) is not None and not getattr(current, "__suppress_context__", False):
            todo.append((getattr(current, "__context__", None), here, "context"))
        members = getattr(current, "exceptions", None)
        if isinstance(members, tuple) and any(base.__name__ == "BaseExceptionGroup" for base in kind.__mro__):
            todo += [(member, here, "member") for member in members]
    return found


def with_sources(linked: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """The same with the text of each frame's line, for which its file is read."""
    sources: "dict[str, list[str]]" = {}
    return [dict(values, frames=[_frame(code, line, sources) for code, line in values["frames"]]) for values in linked]


def _message(value: "Any") -> str:
    try:
        text = str(value)
    except BaseException:
        return "<its text cannot be had>"
    # Of a long one both ends: of Ray's the last line is the worker's own.
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT // 2] + "\n...\n" + text[-MAX_TEXT // 2 :]


def _frames(trace: "Any") -> "list[tuple[Any, int]]":
    """Code and line of each, the outermost first."""
    found: "list[tuple[Any, int]]" = []
    while trace is not None and len(found) < 10000:
        found.append((trace.tb_frame.f_code, trace.tb_lineno or 0))
        trace = trace.tb_next
    return found if len(found) <= MAX_FRAMES else found[:10] + found[-(MAX_FRAMES - 10) :]


def _frame(code: "Any", line: int, sources: "dict[str, list[str]]") -> "dict[str, Any]":
    values: "dict[str, Any]" = {"file": code.co_filename[:1000], "line": line, "function": code.co_name[:200]}
    values["source"] = _source(code.co_filename, line, sources)
    return values


def _source(path: str, line: int, sources: "dict[str, list[str]]") -> str:
    if path not in sources:
        sources[path] = []
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_SOURCE:
                sources[path] = read_bytes(path, MAX_SOURCE).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            pass
    lines = sources[path]
    return lines[line - 1].strip()[:300] if 0 < line <= len(lines) else ""
