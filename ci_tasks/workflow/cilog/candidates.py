"""The rows that a log may be of, each with what CI calls its job and what its scripts say. Values for `identify`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ci_tasks.errors import WorkflowError
from ci_tasks.model import Job, Row, Workflow
from ci_tasks.workflow import rows as expanded
from ci_tasks.workflow import secrets
from ci_tasks.workflow.cilog.recovered import Recovered
from ci_tasks.workflow.context import Situation
from ci_tasks.workflow.expressions import loose_equal, to_string
from ci_tasks.workflow.naming import leaves
from ci_tasks.workflow.resolve import Resolver

_LONGEST = 100  # UTF-16 units in a job's name; GitHub cuts what is longer and puts three dots there
_MASK = "***"


@dataclass(frozen=True)
class Candidate:
    """A row, the names that GitHub may show for its job, its evaluated `run:` texts with secrets as `***`, and its
    environment. `scripts` has one entry for each step with a script, "" for one that only CI can evaluate."""

    row: Row
    names: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def situation_of(recovered: Recovered, known: Situation) -> Situation:
    """The situation that the log's job was in, as far as it is known: commit, repository, workspace."""
    return replace(
        known,
        sha=recovered.commit or known.sha,
        repository=recovered.repository or known.repository,
        workspace=recovered.workspace or known.workspace,
    )


def candidates(workflow: Workflow, job: Job, rows: Iterable[Row], situation: Situation) -> list[Candidate]:
    """The rows of one job as candidates. What cannot be evaluated here is left out; raises nothing."""
    return [_candidate(workflow, job, row, situation) for row in rows]


def cut(name: str) -> str:
    """A job's name as GitHub shows it where it is long."""
    units = name.encode("utf-16-le", "surrogatepass")
    if len(units) <= 2 * _LONGEST:
        return name
    return units[: 2 * (_LONGEST - 3)].decode("utf-16-le", "ignore") + "..."


def _candidate(workflow: Workflow, job: Job, row: Row, situation: Situation) -> Candidate:
    try:
        env = expanded.environment(workflow, job, row, situation)
    except WorkflowError:
        env = dict(row.env)
    resolve = expanded.resolver(workflow, job, replace(row, env=env), situation)
    scripts = tuple(_script(resolve, step.run, step.env, env) for step in job.steps if step.run is not None)
    masked = {name: _masked(value) for name, value in env.items()}
    return Candidate(row, _names(job, row, resolve), scripts, masked)


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
    values = ", ".join(text for text in map(to_string, leaves(_named(job, row, resolve))) if text)
    name = job.name or job.id
    return (f"{name} ({values})" if values else name,)


def _named(job: Job, row: Row, resolve: Resolver) -> dict[str, Any]:
    """The part of a row's matrix that stands in its name: what `include` adds to a combination does not."""
    try:
        matrix = resolve.value(job.matrix)
    except WorkflowError:
        matrix = job.matrix
    if not isinstance(matrix, Mapping):
        return dict(row.matrix)
    axes = {key: values for key, values in matrix.items() if key not in ("include", "exclude")}
    of_product = bool(axes) and all(key in row.matrix and _among(row.matrix[key], axes[key]) for key in axes)
    return {key: row.matrix[key] for key in axes} if of_product else dict(row.matrix)


def _among(value: Any, values: Any) -> bool:
    return not isinstance(values, list) or any(
        value == one if isinstance(value, (dict, list)) else loose_equal(value, one) for one in values
    )


def _masked(text: str) -> str:
    return _MASK.join(literal for literal, _ in secrets.split(text))
