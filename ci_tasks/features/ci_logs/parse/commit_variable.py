"""The commit and the pull request, from variables that the workflow makes of them.

`gh run view --log-failed` leaves the checkout out, but the step's own group shows the environment. Where the workflow
says `COMMIT: ${{ github.sha }}_${{ github.event.pull_request.number || 'non-pr' }}`, the value gives both back.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ci_tasks.features.ci_logs.parse.recovered_job import RecoveredJob
from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import ExpressionError, split
from ci_tasks.workflow.model import Job, Workflow

_SHA = "github.sha"
_NUMBER = "github.event.pull_request.number"


def commit_from_variables(recovered: RecoveredJob, workflow: Workflow, job: Job) -> RecoveredJob:
    """`recovered` with the commit and the number of the pull request, where only the job's variables tell them."""
    if recovered.commit or not recovered.scripts:
        return recovered
    env = recovered.scripts[0].env
    for name, raw in {**workflow.env, **job.env}.items():
        pattern = _pattern(raw)
        match = pattern.fullmatch(env.get(name, "")) if pattern else None
        if match:
            number = match.groupdict().get("number")
            return replace(
                recovered,
                commit=match["sha"],
                pull_request=int(number) if number else recovered.pull_request,
                missing=tuple(text for text in recovered.missing if not text.startswith("the commit:")),
            )
    return recovered


def _pattern(raw: Any) -> re.Pattern[str] | None:
    """What a variable's values look like, of one that is made of the commit, the number and plain text alone."""
    if not isinstance(raw, str) or _SHA not in raw:
        return None
    groups: dict[str, str] = {}
    pieces = []
    try:
        for part in split(raw):
            pieces.append(_piece(part.text, groups) if part.is_expression else re.escape(part.text))
    except ExpressionError:
        return None
    return re.compile("".join(pieces)) if "sha" in groups and all(pieces) else None


def _piece(expression: str, groups: dict[str, str]) -> str:
    """An expression's values as a regex; "" for one that says something else."""
    references = expressions.references(f"${{{{ {expression} }}}}")
    if expression == _SHA and "sha" not in groups:
        groups["sha"] = expression
        return r"(?P<sha>[0-9a-f]{40})"
    if references == [_NUMBER] and "number" not in groups:
        groups["number"] = expression
        fallback = re.fullmatch(re.escape(_NUMBER) + r"\s*\|\|\s*'([^']*)'", expression)
        other = re.escape(fallback[1]) if fallback else ""
        return rf"(?:(?P<number>\d{{1,9}})|{other})"
    return ""
