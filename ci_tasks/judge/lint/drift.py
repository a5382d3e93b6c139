"""Whether a workflow is what its template gives: compared as data, job by job, so that a comment is no difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError
from ci_tasks.judge.lint.finding import Finding
from ci_tasks.judge.lint.subject import Subject
from ci_tasks.workflow.template import render

_SHOWN = 3
_LONGEST = 100
_BEFORE = 30  # characters that two long values have in common and that are shown


def drift(subject: Subject) -> Iterator[Finding]:
    """A finding for each job that differs, and for each other part of the file."""
    if subject.text is None or subject.template is None:
        return
    source = f"{subject.path}.j2"
    try:
        wanted = yaml_lines.load(_ended(render(subject.template, source)))
    except (WorkflowError, yaml_lines.YamlError) as problem:
        line = getattr(problem, "line", None) or 1
        yield _finding(source, int(line), f"the template gives no workflow: {problem.message}", "the template")
        return
    try:
        there = yaml_lines.load(_ended(subject.text))
    except yaml_lines.YamlError as problem:
        yield _finding(subject.path, problem.line, f"not YAML: {problem.message}", "the file")
        return
    if not isinstance(there, yaml_lines.Map) or not isinstance(wanted, yaml_lines.Map):
        return
    for key in dict.fromkeys([*there, *wanted]):
        if key != "jobs" and there.get(key) != wanted.get(key):
            line = there.lines.get(key, 1)
            yield _finding(subject.path, line, f"{key}: {_compared(there.get(key), wanted.get(key))}", str(key))
    yield from _jobs(subject, there.get("jobs"), wanted.get("jobs"))


def _ended(text: str) -> str:
    """With one line end at its end: jinja drops it, and a last block scalar would differ by it."""
    return text.rstrip("\n") + "\n"


def _jobs(subject: Subject, there: Any, wanted: Any) -> Iterator[Finding]:
    if not isinstance(there, yaml_lines.Map) or not isinstance(wanted, yaml_lines.Map):
        return
    for job in dict.fromkeys([*there, *wanted]):
        if there.get(job) == wanted.get(job):
            continue
        line = there.lines.get(job, 1)
        if job not in wanted:
            said = f"job {job} is only in the .yml"
        elif job not in there:
            said = f"job {job} is only in the .j2"
        else:
            said = f"job {job}: {_differing(there[job], wanted[job])}"
        yield _finding(subject.path, line, said, f"job {job}")


def _differing(there: Any, wanted: Any) -> str:
    """Rows that only one has, else the keys whose values differ."""
    ours, theirs = _entries(there), _entries(wanted)
    only_here, only_there = list((ours - theirs).elements()), list((theirs - ours).elements())
    parts = [f"only in the .{end}: {_several(rows)}" for end, rows in (("yml", only_here), ("j2", only_there)) if rows]
    if parts:
        return "; ".join(parts)
    return _first(there, wanted, "")


def _entries(job: Any) -> Counter[str]:
    """The entries of the job's matrix, as text."""
    matrix = (job.get("strategy") or {}).get("matrix") if isinstance(job, dict) else None
    lists = [value for value in matrix.values() if isinstance(value, list)] if isinstance(matrix, dict) else []
    return Counter(_text(entry) for found in lists for entry in found)


def _first(there: Any, wanted: Any, path: str) -> str:
    """Where two values differ first, and how."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        key = next(key for key in dict.fromkeys([*there, *wanted]) if there.get(key) != wanted.get(key))
        return _first(there.get(key), wanted.get(key), f"{path}.{key}" if path else str(key))
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        at = next(at for at, pair in enumerate(zip(there, wanted, strict=True)) if pair[0] != pair[1])
        return _first(there[at], wanted[at], f"{path}[{at}]")
    if isinstance(there, str) and isinstance(wanted, str) and "\n" in there + wanted:
        lines = zip_longest(there.splitlines(), wanted.splitlines())
        number, (here, template) = next(
            ((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]), (1, (there, wanted))
        )
        return f"{path}, its line {number}: {_compared(here, template)}"
    return f"{path}: {_compared(there, wanted)}"


def _compared(there: Any, wanted: Any) -> str:
    here, template = _text(there), _text(wanted)
    pairs = enumerate(zip(here, template, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), 0)
    skip = max(0, same - _BEFORE) if len(here) > _LONGEST or len(template) > _LONGEST else 0
    return f"the .yml has {_short(here, skip)}, the .j2 gives {_short(template, skip)}"


def _several(rows: list[str]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(rows[:_SHOWN]) + more


def _text(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _short(text: str, skip: int) -> str:
    """A part of a long text, from where it is worth reading."""
    part = text[skip : skip + _LONGEST]
    return f"{'…' if skip else ''}{part}{'…' if skip + _LONGEST < len(text) else ''}"


def _finding(file: str, line: int, message: str, about: str) -> Finding:
    return Finding(file, line, "template-drift", message, "change the .j2, then generate the .yml anew from it", about)
