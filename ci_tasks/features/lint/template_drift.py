"""Whether a workflow is what its template gives: compared as data, job by job, so that a comment is no difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError, some
from ci_tasks.features.lint.checkout_files import CheckoutFiles
from ci_tasks.features.lint.lint_finding import LintFinding
from ci_tasks.workflow.reader import render_template

_LONGEST = 100
_BEFORE = 30  # characters that two long values have in common and that are shown


def template_drift(checkout: CheckoutFiles) -> Iterator[LintFinding]:
    """A finding for each job that differs, and for each other part of the file."""
    if checkout.text is None or checkout.template is None:
        return
    template_path = f"{checkout.path}.j2"
    try:
        expected = yaml_lines.load(_with_final_newline(render_template(checkout.template, template_path)))
    except (WorkflowError, yaml_lines.YamlError) as problem:
        line = getattr(problem, "line", None) or 1
        yield _finding(template_path, int(line), f"the template gives no workflow: {problem.message}", "the template")
        return
    try:
        actual = yaml_lines.load(_with_final_newline(checkout.text))
    except yaml_lines.YamlError as problem:
        yield _finding(checkout.path, problem.line, f"invalid YAML: {problem.message}", "the file")
        return
    if not isinstance(actual, yaml_lines.Map) or not isinstance(expected, yaml_lines.Map):
        return
    for key in dict.fromkeys([*actual, *expected]):
        if key != "jobs" and actual.get(key) != expected.get(key):
            line = actual.lines.get(key, 1)
            yield _finding(checkout.path, line, f"{key}: {_difference(actual.get(key), expected.get(key))}", str(key))
    yield from _jobs(checkout, actual.get("jobs"), expected.get("jobs"))


def _with_final_newline(text: str) -> str:
    """With one line end at its end: jinja drops it, and a last block scalar would differ by it."""
    return text.rstrip("\n") + "\n"


def _jobs(checkout: CheckoutFiles, actual: Any, expected: Any) -> Iterator[LintFinding]:
    if not isinstance(actual, yaml_lines.Map) or not isinstance(expected, yaml_lines.Map):
        return
    for job in dict.fromkeys([*actual, *expected]):
        if actual.get(job) == expected.get(job):
            continue
        line = actual.lines.get(job, 1)
        if job not in expected:
            difference = f"job {job} is only in the .yml"
        elif job not in actual:
            difference = f"job {job} is only in the .j2"
        else:
            difference = f"job {job}: {_job_difference(actual[job], expected[job])}"
        yield _finding(checkout.path, line, difference, f"job {job}")


def _job_difference(actual: Any, expected: Any) -> str:
    """Rows that only one has, else the keys whose values differ."""
    ours, theirs = _matrix_entries(actual), _matrix_entries(expected)
    only_in = {"yml": list((ours - theirs).elements()), "j2": list((theirs - ours).elements())}
    parts = [f"only in the .{suffix}: {some(rows, 3)}" for suffix, rows in only_in.items() if rows]
    if parts:
        return "; ".join(parts)
    return _first_difference(actual, expected, "")


def _matrix_entries(job: Any) -> Counter[str]:
    """The entries of the job's matrix, as text."""
    matrix = (job.get("strategy") or {}).get("matrix") if isinstance(job, dict) else None
    lists = [value for value in matrix.values() if isinstance(value, list)] if isinstance(matrix, dict) else []
    return Counter(_as_json(entry) for entries in lists for entry in entries)


def _first_difference(actual: Any, expected: Any, path: str) -> str:
    """Where two values differ first, and how."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        key = next(key for key in dict.fromkeys([*actual, *expected]) if actual.get(key) != expected.get(key))
        return _first_difference(actual.get(key), expected.get(key), f"{path}.{key}" if path else str(key))
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        at = next(at for at, pair in enumerate(zip(actual, expected, strict=True)) if pair[0] != pair[1])
        return _first_difference(actual[at], expected[at], f"{path}[{at}]")
    if isinstance(actual, str) and isinstance(expected, str) and "\n" in actual + expected:
        lines = zip_longest(actual.splitlines(), expected.splitlines())
        number, (here, template) = next(
            ((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]), (1, (actual, expected))
        )
        return f"{path}, its line {number}: {_difference(here, template)}"
    return f"{path}: {_difference(actual, expected)}"


def _difference(actual: Any, expected: Any) -> str:
    here, template = _as_json(actual), _as_json(expected)
    pairs = enumerate(zip(here, template, strict=False))
    same = next((at for at, (in_workflow, in_template) in pairs if in_workflow != in_template), 0)
    skip = max(0, same - _BEFORE) if len(here) > _LONGEST or len(template) > _LONGEST else 0
    return f"the .yml has {_excerpt(here, skip)}, the .j2 gives {_excerpt(template, skip)}"


def _as_json(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _excerpt(text: str, skip: int) -> str:
    """A part of a long text, from where it is worth reading."""
    part = text[skip : skip + _LONGEST]
    return f"{'…' if skip else ''}{part}{'…' if skip + _LONGEST < len(text) else ''}"


def _finding(file: str, line: int, message: str, about: str) -> LintFinding:
    return LintFinding(file, line, "template-drift", message, "change the .j2, then generate the .yml from it", about)
