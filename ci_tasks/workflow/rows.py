"""A job → the rows that CI would run: matrix expanded, environment, image and runner evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ci_tasks.errors import WorkflowError
from ci_tasks.model import Job, Row, Workflow
from ci_tasks.workflow import expressions, matrix, secrets, shell
from ci_tasks.workflow.context import Situation, contexts
from ci_tasks.workflow.resolve import Resolver

_PREFIX = "e2e-test-"
_HOSTED = re.compile(r"(ubuntu|windows|macos)-")


class Described(NamedTuple):
    """What a suite's convention reads from a matrix entry."""

    test: str | None
    args: str
    gpus: int | None


Describe = Callable[[Mapping[str, Any]], Described]


def label_of(job: str) -> str:
    """A job's name less its prefix: what a person types."""
    return job.removeprefix(_PREFIX)


def trigger_of(workflow: Workflow, job: Job) -> str | None:
    """The pull request label that starts the job: its own `if`, or that of a job it needs. None: it always runs."""
    if job.condition:
        try:
            labels = expressions.label_tests(job.condition)
        except expressions.ExpressionError as error:
            raise Resolver(workflow.path, job.id, job.line, {}).error(error, job.condition, None) from None
        if labels:
            return labels[0]
    needed = (workflow.jobs[name] for name in job.needs if name in workflow.jobs)
    return next((found for found in (trigger_of(workflow, other) for other in needed) if found), None)


def missing_outputs(job: Job, situation: Situation) -> list[str]:
    """The jobs whose outputs the matrix needs and that have not been run for them."""
    if not isinstance(job.matrix, str | Mapping):
        return []
    wanted = (name.split(".") for text in _scalars(job.matrix) for name in _references(text))
    needed = [parts[1] for parts in wanted if parts[0] == "needs" and len(parts) > 1]
    return [name for name in dict.fromkeys(needed) if name not in situation.outputs]


def rows(workflow: Workflow, job: Job, situation: Situation, describe: Describe) -> list[Row]:
    """The job's rows in CI's order, with unique names. A matrix that waits for another job's output is one row with
    `dynamic` set. Raises WorkflowError."""
    trigger = trigger_of(workflow, job)
    _check(workflow, job)
    if missing_outputs(job, situation):
        return [_dynamic(workflow, job, trigger, situation)]
    combinations = _combinations(workflow, job, situation)
    found = [
        _row(workflow, job, trigger, situation, describe, combination, index, len(combinations))
        for index, combination in enumerate(combinations)
    ]
    unique = _apart([row.row for row in found])
    return [replace(row, row=name) for row, name in zip(found, unique, strict=True)]


def names(workflow: Workflow, job: Job, situation: Situation, describe: Describe) -> list[str]:
    """The names of the job's rows, at the price of the matrix alone; none for a matrix that is not known yet."""
    if missing_outputs(job, situation):
        return []
    return _apart([_name(label_of(job.id), one, describe(one)) for one in _combinations(workflow, job, situation)])


def resolver(workflow: Workflow, job: Job, row: Row, situation: Situation) -> Resolver:
    """Evaluates the job's values as CI would for `row`, with the row's environment as the env context."""
    known = contexts(situation, workflow.name, job, row.trigger, row.matrix, row.index, row.total)
    return Resolver(workflow.path, job.id, job.line, {**known, "env": dict(row.env)})


def environment(workflow: Workflow, job: Job, row: Row, situation: Situation) -> dict[str, str]:
    """The row's environment under `situation`: the workflow's `env`, then the job's."""
    known = contexts(situation, workflow.name, job, row.trigger, row.matrix, row.index, row.total)
    resolve = Resolver(workflow.path, job.id, job.line, known)
    return {**resolve.strings(workflow.env), **resolve.strings(job.env)}


def _row(
    workflow: Workflow,
    job: Job,
    trigger: str | None,
    situation: Situation,
    describe: Describe,
    combination: dict[str, Any],
    index: int,
    total: int,
) -> Row:
    known = contexts(situation, workflow.name, job, trigger, combination, index, total)
    resolve = Resolver(workflow.path, job.id, job.line, known)
    described = describe(combination)
    env = {**resolve.strings(workflow.env), **resolve.strings(job.env)}
    return Row(
        label=label_of(job.id),
        job=job.id,
        trigger=trigger,
        row=_name(label_of(job.id), combination, described),
        test=described.test,
        args=described.args,
        gpus=described.gpus,
        image=_image(job, resolve.with_env(env)),
        env=env,
        runner=_runner(resolve.value(job.runs_on)),
        timeout_minutes=resolve.number(job.timeout_minutes, "timeout-minutes"),
        matrix=combination,
        index=index,
        total=total,
    )


def _dynamic(workflow: Workflow, job: Job, trigger: str | None, situation: Situation) -> Row:
    text = job.matrix if isinstance(job.matrix, str) else next(iter(_scalars(job.matrix)))
    return Row(
        label=label_of(job.id),
        job=job.id,
        trigger=trigger,
        row=label_of(job.id),
        test=None,
        args="",
        gpus=None,
        image=None,
        env={},
        runner="self-hosted" if not _HOSTED.match(str(job.runs_on)) else "github-hosted",
        timeout_minutes=None,
        dynamic=text.strip(),
    )


def _check(workflow: Workflow, job: Job) -> None:
    """Every expression of every step is understood, also in the steps that are not evaluated yet."""
    for step in job.steps:
        for text in (step.run, step.name, *map(str, step.env.values()), *map(str, step.with_.values())):
            try:
                expressions.references(text or "")
            except expressions.ExpressionError as error:
                raise Resolver(workflow.path, job.id, job.line, {}).error(error, text or "", step) from None


def _image(job: Job, resolve: Resolver) -> str | None:
    if job.container:
        return secrets.shown(resolve.text(job.container.image))
    for step in job.steps:
        if step.run and "docker" in step.run and not _uses_steps(step.run):
            found = shell.docker_run(resolve.text(step.run, step=step))
            if found:
                return found.image
    return None


def _uses_steps(text: str) -> bool:
    return any(name.startswith("steps.") for name in expressions.references(text))


def _runner(runs_on: Any) -> str:
    if isinstance(runs_on, Mapping):
        runs_on = runs_on.get("labels") or runs_on.get("group")
    names = runs_on if isinstance(runs_on, list) else [runs_on]
    return "github-hosted" if any(_HOSTED.match(str(name)) for name in names) else "self-hosted"


def _name(label: str, combination: Mapping[str, Any], described: Described) -> str:
    if described.test:
        stem = described.test.rsplit("/", 1)[-1].removesuffix(".py").removeprefix("test_")
        return f"{stem}[{_slug(described.args)}]" if described.args else stem
    values = [str(value) for value in combination.values() if not isinstance(value, Mapping | list)]
    return f"{label}[{'-'.join(values)}]" if values else label


def _slug(args: str) -> str:
    words = (word.lstrip("-").replace("=", "-") for word in args.split())
    return "-".join(re.sub(r"[^A-Za-z0-9_.+-]", "_", word) for word in words if word)


def _combinations(workflow: Workflow, job: Job, situation: Situation) -> list[dict[str, Any]]:
    known = contexts(situation, workflow.name, job, None, {}, 0, 1)
    try:
        return matrix.expand(Resolver(workflow.path, job.id, job.line, known).value(job.matrix))
    except matrix.MatrixError as error:
        raise WorkflowError(str(error), file=workflow.path, job=job.id, line=job.line) from None


def _apart(found: list[str]) -> list[str]:
    """The second of one name becomes `name#2`, so that a name picks one row."""
    seen: dict[str, int] = {}
    apart = []
    for name in found:
        seen[name] = seen.get(name, 0) + 1
        apart.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return apart


def _scalars(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _scalars(item)]
    if isinstance(value, list):
        return [text for item in value for text in _scalars(item)]
    return []


def _references(text: str) -> list[str]:
    try:
        return expressions.references(text)
    except expressions.ExpressionError:
        return []
