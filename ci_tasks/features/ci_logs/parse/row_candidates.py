"""The rows that a log may be of, each with what CI calls its job and its scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import WorkflowError
from ci_tasks.features.ci_logs.parse.recovered_job import RecoveredJob
from ci_tasks.workflow import rows as expanded
from ci_tasks.workflow import secrets
from ci_tasks.workflow.context import EventContext, Resolver
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.values import leaves, loose_equal, to_string

_MAX_NAME_UNITS = 100  # UTF-16 units in a job's name; GitHub cuts what is longer and puts three dots there
_MASK = "***"


@dataclass(frozen=True)
class RowCandidate:
    """A row, the names that GitHub may show for its job, its evaluated `run:` texts with secrets as `***`, and its
    environment. `scripts` has one entry for each step with a script, "" for one that only CI can evaluate."""

    row: Row
    names: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def context_of_log(recovered: RecoveredJob, context: EventContext) -> EventContext:
    """The event context of the log's job, as far as it is known: commit, repository, workspace."""
    return replace(
        context,
        sha=recovered.commit or context.sha,
        repository=recovered.repository or context.repository,
        workspace=recovered.workspace or context.workspace,
    )


def row_candidates(workflow: Workflow, job: Job, rows: Iterable[Row], context: EventContext) -> list[RowCandidate]:
    """The rows of one job as candidates. What cannot be evaluated here is left out; raises nothing."""
    return [_candidate(workflow, job, row, context) for row in rows]


def shortened_name(name: str) -> str:
    """A job's name as GitHub shows it where it is long."""
    units = name.encode("utf-16-le", "surrogatepass")
    if len(units) <= 2 * _MAX_NAME_UNITS:
        return name
    return units[: 2 * (_MAX_NAME_UNITS - 3)].decode("utf-16-le", "ignore") + "..."


def _candidate(workflow: Workflow, job: Job, row: Row, context: EventContext) -> RowCandidate:
    try:
        env = expanded.environment(workflow, job, row, context)
    except WorkflowError:
        env = dict(row.env)
    resolve = expanded.row_resolver(workflow, job, replace(row, env=env), context)
    scripts = tuple(_script(resolve, step.run, step.env, env) for step in job.steps if step.run is not None)
    masked = {name: _masked(value) for name, value in env.items()}
    return RowCandidate(row, _names(job, row, resolve), scripts, masked)


def _script(resolve: Resolver, run: str, step_env: Mapping[str, Any], env: Mapping[str, str]) -> str:
    try:
        inner = resolve.with_env({**env, **resolve.strings(step_env)})
        return _masked(inner.text(run)).rstrip("\n")
    except WorkflowError:
        return ""


def _names(job: Job, row: Row, resolve: Resolver) -> tuple[str, ...]:
    """GitHub's name of a matrix job: the job's name and the values that make up the row, unless the name has an
    expression of its own."""
    if job.name and "${{" in job.name:
        try:
            return (resolve.text(job.name),)
        except WorkflowError:
            return ()
    values = ", ".join(text for text in map(to_string, leaves(_name_matrix(job, row, resolve))) if text)
    name = job.name or job.id
    return (f"{name} ({values})" if values else name,)


def _name_matrix(job: Job, row: Row, resolve: Resolver) -> dict[str, Any]:
    """The part of a row's matrix that stands in its name: what `include` adds to a combination does not."""
    try:
        matrix = resolve.value(job.matrix)
    except WorkflowError:
        matrix = job.matrix
    if not isinstance(matrix, Mapping):
        return dict(row.matrix)
    axes = {key: values for key, values in matrix.items() if key not in ("include", "exclude")}
    of_product = bool(axes) and all(key in row.matrix and _is_value_of(row.matrix[key], axes[key]) for key in axes)
    return {key: row.matrix[key] for key in axes} if of_product else dict(row.matrix)


def _is_value_of(value: Any, values: Any) -> bool:
    return not isinstance(values, list) or any(
        value == listed if isinstance(value, (dict, list)) else loose_equal(value, listed) for listed in values
    )


def _masked(text: str) -> str:
    return _MASK.join(literal for literal, _ in secrets.split(text))
