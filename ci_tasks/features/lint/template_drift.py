"""Whether a workflow is what its template gives: compared as data, job by job, so that a comment is no difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from posixpath import commonprefix
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError, some
from ci_tasks.features.lint.checkout_files import ERROR, CheckoutFiles, LintFinding, LintRule
from ci_tasks.workflow.reader import render_template

RULE = LintRule("template-drift", ERROR, "CI runs the .yml; the next edit of the .j2 undoes what is only there")
_FIX = "change the .j2, then generate the .yml from it"
_LONGEST = 100  # characters of a value that are shown, a third of them before the first difference


def template_drift(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A finding for each job that differs, and for each other part of the file."""
    if checkout.text is None or checkout.template is None:
        return
    path = checkout.path
    try:
        ours = _parts(checkout.text)
        path = checkout.edited
        theirs = _parts(render_template(checkout.template, path))
    except (WorkflowError, yaml_lines.YamlError) as problem:
        yield RULE.finding(path, getattr(problem, "line", None) or 1, f"no workflow: {problem.message}", _FIX)
        return
    for name in dict.fromkeys([*ours, *theirs]):
        line, here = ours.get(name, (1, None))
        template = theirs.get(name, (1, None))[1]
        if here != template:
            yield RULE.finding(checkout.path, line, f"{name}: {_difference(here, template)}", _FIX)


def _parts(text: str) -> dict[str, tuple[int, Any]]:
    """The jobs and the other keys of a workflow with their lines. Jinja drops the last line end, with which a block
    scalar there would differ."""
    tree = yaml_lines.load(text.rstrip("\n") + "\n")
    parts: dict[str, tuple[int, Any]] = {}
    for key, value in tree.items() if isinstance(tree, yaml_lines.Map) else ():
        if key == "jobs" and isinstance(value, yaml_lines.Map):
            parts |= {f"job {job}": (value.lines[job], value[job]) for job in value}
        else:
            parts[str(key)] = (tree.lines[key], value)
    return parts


def _difference(here: Any, template: Any) -> str:
    """A part that only one has, rows that only one has, or else the first value that differs."""
    if here is None or template is None:
        return f"only in the .{'j2' if here is None else 'yml'}"
    ours, theirs = _matrix_entries(here), _matrix_entries(template)
    only_in = {"yml": list((ours - theirs).elements()), "j2": list((theirs - ours).elements())}
    if rows := [f"only in the .{suffix}: {some(entries, 3)}" for suffix, entries in only_in.items() if entries]:
        return "; ".join(rows)
    values, others = dict(_leaves(here)), dict(_leaves(template))
    place = next(key for key in dict.fromkeys([*values, *others]) if values.get(key) != others.get(key))
    value, other = values.get(place, "nothing"), others.get(place, "nothing")
    skip = max(0, len(commonprefix([value, other])) - _LONGEST // 3) if max(len(value), len(other)) > _LONGEST else 0
    return f"{place} the .yml has {_excerpt(value, skip)}, the .j2 gives {_excerpt(other, skip)}".lstrip()


def _matrix_entries(job: Any) -> Counter[str]:
    matrix = (job.get("strategy") or {}).get("matrix") if isinstance(job, dict) else None
    lists = [value for value in matrix.values() if isinstance(value, list)] if isinstance(matrix, dict) else []
    return Counter(_as_json(entry) for entries in lists for entry in entries)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each value below `value` with its place, such as `steps[0].run, its line 2:`."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            name = key if isinstance(key, str) else f"({key})"
            yield from _leaves(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _leaves(each, f"{place}[{number}]")
    elif isinstance(value, str) and "\n" in value:
        for number, each in enumerate(value.splitlines(keepends=True), 1):
            yield f"{place}, its line {number}:", _as_json(each)
    else:
        yield f"{place}:" if place else "", _as_json(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _excerpt(text: str, skip: int) -> str:
    part = text[skip : skip + _LONGEST]
    return f"{'…' if skip else ''}{part}{'…' if skip + _LONGEST < len(text) else ''}"
