"""A job → the rows that CI would run: matrix expanded, environment, image and runner evaluated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow import expressions, gpus, matrix, runner, secrets
from ci_tasks.workflow.context import EventContext, contexts
from ci_tasks.workflow.model import Job, Row, Step, Workflow
from ci_tasks.workflow.naming import Describe, MatrixTest, label_of, leaves, make_unique, name_of
from ci_tasks.workflow.resolve import Resolver, is_unset
from ci_tasks.workflow.syntax import ExpressionError
from ci_tasks.workflow.values import shown, unknowns

if TYPE_CHECKING:
    from ci_tasks.agent.containers.docker_argv import DockerRun

_IMAGE = re.compile(r"[A-Za-z0-9<]([A-Za-z0-9_./:@<> -]*[A-Za-z0-9_>])?")  # with secrets shown as <secret NAME>


def trigger_of(workflow: Workflow, job: Job) -> str | None:
    """The pull request label that starts the job: its own `if`, or that of a job it needs. None: it always runs."""
    try:
        labels = expressions.label_tests(job.condition or "")
    except ExpressionError as error:
        raise _resolver(workflow, job, {}).error(error, job.condition or "", None) from None
    needed = (workflow.jobs[name] for name in job.needs if name in workflow.jobs)
    of_needed = (trigger for trigger in (trigger_of(workflow, other) for other in needed) if trigger)
    return labels[0] if labels else next(of_needed, None)


def missing_outputs(job: Job, event: EventContext) -> list[str]:
    """The jobs whose outputs the matrix needs, which have not been run for them, and for which nobody gave them."""
    references = (name.split(".") for name in _reads(job.matrix))
    needed = [(parts[1], parts[3:4]) for parts in references if parts[0] == "needs" and len(parts) > 1]
    given = event.given.outputs
    jobs = [name for name, output in needed if not (output and output[0] in given.get(name, {}))]
    return [name for name in dict.fromkeys(jobs) if name not in event.outputs]


def rows(workflow: Workflow, job: Job, event: EventContext, describe: Describe) -> list[Row]:
    """The job's rows in CI's order, with unique names. A matrix that waits for another job's output, or for what only
    GitHub knows, is one row with `dynamic` set. Raises WorkflowError."""
    _check(workflow, job)
    blank = _blank(job, trigger_of(workflow, job))
    combinations = _combinations(workflow, job, event)
    if combinations is None:
        resolve = row_resolver(workflow, job, blank, event)
        texts = [text for text in _scalars(job.matrix) if list(unknowns(resolve.value(text)))]
        refused = runner.refusal(runner.labels_with_fallbacks(job, resolve))
        return [replace(blank, runner=_runner(job, resolve), dynamic=texts[0].strip(), refused=refused)]
    entries = [
        replace(blank, matrix=combination, index=index, total=len(combinations))
        for index, combination in enumerate(combinations)
    ]
    listed = [_row(workflow, job, entry, event, describe(entry.matrix)) for entry in entries]
    return [replace(row, row=name) for row, name in zip(listed, make_unique([row.row for row in listed]), strict=True)]


def names(workflow: Workflow, job: Job, event: EventContext, describe: Describe) -> list[str]:
    """The names of the job's rows, at the price of the matrix alone; none for a matrix that is not known yet."""
    combinations = _combinations(workflow, job, event) or []
    return make_unique([name_of(label_of(job.id), combination, describe(combination)) for combination in combinations])


def row_resolver(workflow: Workflow, job: Job, row: Row, event: EventContext) -> Resolver:
    """Evaluates the job's values as CI would for `row`, with the row's environment as the env context."""
    resolve = _without_env(workflow, job, row, event)
    return resolve.with_env({**row.env, **resolve.values(workflow.env), **resolve.values(job.env)})


def environment(workflow: Workflow, job: Job, row: Row, event: EventContext) -> dict[str, str]:
    """The row's environment under `event`: the workflow's `env`, then the job's. Raises UnknownValueError."""
    resolve = _without_env(workflow, job, row, event)
    return {**resolve.strings(workflow.env), **resolve.strings(job.env)}


def _without_env(workflow: Workflow, job: Job, row: Row, event: EventContext) -> Resolver:
    return _resolver(workflow, job, contexts(event, workflow, job, row))


def _resolver(workflow: Workflow, job: Job, values: Mapping[str, Any]) -> Resolver:
    return Resolver(workflow.place, job.id, job.line, values)


def _blank(job: Job, trigger: str | None) -> Row:
    label = label_of(job.id)
    return Row(label, job.id, trigger, label, None, "", None, None, {}, "", None)


def _row(workflow: Workflow, job: Job, entry: Row, event: EventContext, matrix_test: MatrixTest) -> Row:
    resolve = _without_env(workflow, job, entry, event)
    env = {**resolve.values(workflow.env), **resolve.values(job.env)}
    with_env = resolve.with_env(env)
    docker_run = _docker_run(job, with_env)
    labels = runner.labels_with_fallbacks(job, resolve)
    refused = runner.refusal(labels)
    told = None if refused else _gpus(job, with_env, matrix_test.gpus, docker_run, labels)
    given = event.given.gpus if told is None and not refused else None
    return replace(
        entry,
        row=name_of(entry.label, entry.matrix, matrix_test),
        test=matrix_test.test,
        args=matrix_test.args,
        gpus=told if given is None else given,
        image=_image(job, with_env, docker_run),
        env={name: "" if is_unset(value) else shown(value) for name, value in env.items()},
        runner=_runner(job, resolve),
        timeout_minutes=_timeout(job, resolve),
        refused=refused,
        gpus_given=given is not None,
    )


def _check(workflow: Workflow, job: Job) -> None:
    """Every expression of the job and its steps can be read, also those that are not evaluated yet."""
    resolve = _resolver(workflow, job, {})
    container = [job.container.image, job.container.options, job.container.env] if job.container else []
    own = [job.name, job.runs_on, job.matrix, job.env, job.timeout_minutes, job.outputs]
    resolve.check([workflow.env, *own, *container])
    for step in job.steps:
        resolve.check_condition(step.condition, step=step)
        texts = [step.name, step.env, step.with_, step.run, step.shell, step.working_directory]
        resolve.check([*texts, step.continue_on_error, step.timeout_minutes], step=step)


def _gpus(
    job: Job, resolve: Resolver, in_matrix: int | None, docker_run: DockerRun | None, labels: list[str]
) -> int | None:
    """As the workflow says: the matrix, else CI's lock script, else docker's `--gpus`, else the runner."""
    if in_matrix is not None:
        return in_matrix
    scripts = [step.run for step in job.steps if step.run and gpus.LOCK_SCRIPT in step.run and _may_run(step, resolve)]
    locked = [count for text in scripts if (count := gpus.in_script(resolve.shown(text))) is not None]
    flag = docker_run.last("gpus") if docker_run else None
    of_runner = runner.gpu_count(labels)
    if locked or flag is None:
        return max(locked, default=of_runner)
    in_flag = gpus.in_docker_flag(flag)
    return in_flag if in_flag is not None else (of_runner or None)  # `all` of a machine without any is not known


def _image(job: Job, resolve: Resolver, docker_run: DockerRun | None) -> str | None:
    """The image of the job's container, or of its first `docker run`; None where that is known only while it runs."""
    if job.container:
        value = resolve.value(job.container.image)  # `container: ${{ … }}` may give the whole object
        return secrets.shown(shown(value.get("image") if isinstance(value, Mapping) else value)) or None
    image = secrets.shown(docker_run.image) if docker_run else ""
    return image if _IMAGE.fullmatch(image) else None


def _docker_run(job: Job, resolve: Resolver) -> DockerRun | None:
    """The first `docker run` of the job's steps, or that which its container's options would be part of."""
    if job.container:
        return _container_run(job.container.options, resolve)
    for step in job.steps:
        if step.run and "docker" in step.run and not _reads(step.run, "steps") and _may_run(step, resolve):
            from ci_tasks.workflow import shell

            env = {**resolve.contexts["env"], **resolve.values(step.env, step=step)}
            texts = {name: shown(value) for name, value in env.items()}
            run = shell.docker_run(resolve.with_env(env).shown(step.run, step=step), texts)
            if run:
                return run
    return None


def _container_run(options: str, resolve: Resolver) -> DockerRun | None:
    from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run

    try:
        return parse_run(["run", *shlex.split(resolve.shown(options)), "image"])
    except (ValueError, DockerArgvError):
        return None


def _may_run(step: Step, resolve: Resolver) -> bool:
    """Whether a step's `if` holds; one that reads what only a run knows may hold."""
    text = step.condition or ""
    whole = text if "${{" in text else f"${{{{ {text} }}}}"
    return not text.strip() or bool(_reads(whole, "steps")) or bool(resolve.decide(step.condition, step=step))


def _runner(job: Job, resolve: Resolver) -> str:
    return "github-hosted" if runner.is_hosted(runner.labels(job, resolve)) else "self-hosted"


def _timeout(job: Job, resolve: Resolver) -> float | None:
    is_known = not list(unknowns(resolve.value(job.timeout_minutes)))
    return resolve.number(job.timeout_minutes, "timeout-minutes") if is_known else None


def _combinations(workflow: Workflow, job: Job, event: EventContext) -> list[dict[str, Any]] | None:
    """The matrix expanded, or None where it waits for what is known elsewhere."""
    value = _without_env(workflow, job, _blank(job, None), event).value(job.matrix)
    if list(unknowns(value)):
        return None
    try:
        return matrix.expand(value)
    except matrix.MatrixError as error:
        line, text = getattr(job.matrix, "line", 0) or job.line, f"matrix: {job.matrix}"[:200]
        raise WorkflowError(str(error), file=workflow.place, job=job.id, line=line, text=text) from None


def _reads(value: Any, *contexts: str) -> list[str]:
    """What the expressions in a YAML value read, of all contexts or of those named. Unreadable ones read nothing."""
    names = [name for text in _scalars(value) if "${{" in text for name in _references(text)]
    return [name for name in names if not contexts or name.split(".")[0] in contexts]


def _scalars(value: Any) -> list[str]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, str)]


def _references(text: str) -> list[str]:
    try:
        return expressions.references(text)
    except ExpressionError:
        return []
