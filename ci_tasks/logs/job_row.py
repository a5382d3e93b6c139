"""Which row of a workflow a log is of: by its job's name, by the scripts that the runner echoed, by the environment.

Evidence only narrows. Of several rows that fit equally well none is chosen, and evidence that fits none of those left
is passed over: the first steps of a log are the runner's own, later ones may be a program's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import product
from typing import Any

import re2

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import WorkflowError, printable
from ci_tasks.given_values import GivenValues, by_job
from ci_tasks.logs.job_facts import RecoveredJob, RecoveredStep
from ci_tasks.workflow import expressions, secrets
from ci_tasks.workflow import rows as expanded
from ci_tasks.workflow.context import EventContext, Resolver
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.suite import Describe
from ci_tasks.workflow.values import leaves, shown, to_string

_MASK = "***"
_MAX_NEAREST = 10
_SHORTEST_STEM = 40  # of a cut name; less says too little
_WHOLE_SCRIPT = "the script"


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


def _candidate(workflow: Workflow, job: Job, row: Row, context: EventContext) -> RowCandidate:
    env = dict(row.env)
    with suppress(WorkflowError):
        env = expanded.environment(workflow, job, row, context)
    resolve = expanded.row_resolver(workflow, job, replace(row, env=env), context)
    scripts = tuple(_script(resolve, step.run, step.env, env) for step in job.steps if step.run is not None)
    return RowCandidate(row, _names(job, row, resolve), scripts, {name: _masked(value) for name, value in env.items()})


def _script(resolve: Resolver, run: str, step_env: Mapping[str, Any], env: Mapping[str, str]) -> str:
    with suppress(WorkflowError):
        inner = resolve.with_env({**env, **resolve.strings(step_env)})
        return _masked(inner.text(run)).rstrip("\n")
    return ""


def _masked(text: str) -> str:
    return _MASK.join(literal for literal, _ in secrets.split(text))


def _names(job: Job, row: Row, resolve: Resolver) -> tuple[str, ...]:
    """GitHub's name of a matrix job: the job's name and the values that make up the row, unless the name has an
    expression of its own. It does not show what `include` adds to a combination."""
    if job.name and "${{" in job.name:
        with suppress(WorkflowError):
            return (resolve.text(job.name),)
        return ()
    matrix = job.matrix
    with suppress(WorkflowError):
        matrix = resolve.value(job.matrix)
    axes = dict(matrix) if isinstance(matrix, Mapping) else {}
    axes = {key: of for key, of in axes.items() if key not in ("include", "exclude")}
    fits = (key in row.matrix and (not isinstance(of, list) or row.matrix[key] in of) for key, of in axes.items())
    is_combination = bool(axes) and all(fits)
    shown = leaves({key: row.matrix[key] for key in axes} if is_combination else dict(row.matrix))
    values = ", ".join(filter(None, map(to_string, shown)))
    name = job.name or job.id
    return (f"{name} ({values})" if values else name,)


@dataclass(frozen=True)
class RowIdentity:
    """`row` is None if no row, or more than one, fits; `why` says what was compared; `nearest` are the closest rows, in
    the workflow's order."""

    row: Row | None
    why: str
    nearest: tuple[Row, ...] = ()


def identify_row(recovered: RecoveredJob, candidates: Sequence[RowCandidate]) -> RowIdentity:
    name = recovered.job_name
    named = [candidate for candidate in candidates if any(same_name(name, own) for own in candidate.names)]
    of_same_job = named or _of_same_job(name, candidates)
    left, reasons, is_decisive = _narrow(recovered, of_same_job or list(candidates))
    name_reasons = [f"its job is called {name!r}" if named else f"no row's job is called {name!r}"] if name else []
    why = "; ".join([*name_reasons, *reasons]) or "the log has no job name, and no script of a row"
    is_decisive = is_decisive or bool(named)
    # Scripts of two jobs may be the same, so one that has a name and another job's script is not that job.
    if len(left) == 1 and is_decisive and (of_same_job or not name):
        return RowIdentity(left[0].row, why)
    nearest = left if is_decisive or of_same_job else []
    several = f"; {len(left)} rows fit" if is_decisive and len(left) > 1 else ""
    return RowIdentity(None, why + several, tuple(candidate.row for candidate in nearest[:_MAX_NEAREST]))


def _narrow(recovered: RecoveredJob, pool: list[RowCandidate]) -> tuple[list[RowCandidate], list[str], bool]:
    """The rows left, what scripts and environment show, and whether that is decisive: something in them belongs to the
    rows left and to no others, or is word for word what they run."""
    reasons: list[str] = []
    unlike: list[str] = []
    is_decisive = False
    for step in recovered.scripts:
        rows, what = _fitting(step, pool)
        if not rows:
            unlike.append(step.name)
            continue
        if len(rows) < len(pool) or what == _WHOLE_SCRIPT:
            is_decisive = True
            reasons.append(f"{what} of step {step.name!r}")
        pool = rows
    env = recovered.scripts[0].env if recovered.scripts else {}
    for key in sorted({key for candidate in pool for key in candidate.env if key in env}):
        rows = [row for row in pool if key in row.env and _agrees(env[key], printable(row.env[key]))]
        if rows and len(rows) < len(pool):
            is_decisive, pool = True, rows
            reasons.append(f"its {key} is {env[key]!r}")
    if unlike:
        reasons.append(f"the script of step {unlike[0]!r} belongs to no row, so the workflow may be another revision")
    return pool, reasons, is_decisive


def _fitting(step: RecoveredStep, pool: list[RowCandidate]) -> tuple[list[RowCandidate], str]:
    """The candidates of `pool` that have the step's script, and which part of it: all, word for word, else the test
    that it names, with most of the arguments."""
    lines = _lines(step.script)
    if not lines:
        return [], ""
    if whole := [row for row in pool if any(_is_script(lines, _lines(script)) for script in row.scripts)]:
        return whole, _WHOLE_SCRIPT
    words = set(re.split(r"[^\w./-]+", step.script))
    named = [one for one in pool if one.row.test and words & {one.row.test, one.row.test.removeprefix("tests/")}]
    named = [one for one in named if one.row.args in step.script]
    most = max((len(one.row.args) for one in named), default=0)
    return [one for one in named if len(one.row.args) == most], "the test in the script"


def _is_script(lines: list[str], script: list[str]) -> bool:
    return len(lines) == len(script) and all(map(_agrees, lines, script))


def _agrees(shown: str, expected: str) -> bool:
    """Whether what CI shows may be `expected`: the runner replaces a secret by ***, wherever it is."""
    if _MASK not in shown:
        return shown == expected
    return re2.fullmatch("(?s)" + ".*".join(map(re2.escape, shown.split(_MASK))), expected) is not None


# -- outputs of other jobs ---------------------------------------------------------------------------------------------

_REFERENCE = re.compile(r"\bneeds\.([\w-]+)\.outputs\.([\w-]+)")
_OUTPUT = re.compile("«(.*?)»")  # stands for an output of a job in what the workflow gives
_LEAST_LITERAL = 8  # characters of a script; one with fewer could be any


def shown_outputs(
    workflow: Workflow, logs: Sequence[RecoveredJob], context: EventContext, describe: Describe
) -> dict[str, str]:
    """Outputs of other jobs as `JOB.NAME`, as logs of jobs that use them show them: in their scripts, and in the
    variables and the image beside these. One that would have two values, or a secret in it, is left out."""
    found: dict[str, set[str]] = {}
    for job, log in product(workflow.jobs.values(), logs):
        needed = _needed(job) if not log.job_name or re.fullmatch(_shown_name(job), log.job_name) else ()
        event = replace(context, given=GivenValues(outputs=by_job({name: f"«{name}»" for name in needed})))
        listed = [expanded.blank_row(job)]  # whose output may be its matrix
        with suppress(WorkflowError):
            listed = expanded.rows(workflow, job, event, describe) if needed else []
        for template, text in (pair for row in listed for pair in _shown(workflow, job, row, event, log)):
            for name, value in zip(_OUTPUT.findall(template), _match(template, text) or (), strict=False):
                found.setdefault(name, set()).add(value)
    return {name: value for name, (value, *others) in found.items() if not others and _MASK not in value}


def _shown_name(job: Job) -> str:
    """What matches GitHub's name of the job, whatever its matrix is."""
    parts = expressions.split(job.name or job.own_id)
    own = "".join(".*" if part.is_expression else re.escape(part.text) for part in parts) + r"( \(.*\))?"
    return f"{_shown_name(job.call.caller)} / {own}" if job.call else own


def _needed(job: Job) -> list[str]:
    """Each output that the job reads, or that those read which call it, as `JOB.NAME`."""
    text = repr([job.env, job.with_, job.container and job.container.image, [(s.run, s.env) for s in job.steps]])
    own = [f"{job.needed_id(name)}.{output}" for name, output in _REFERENCE.findall(text)]
    return [*own, *(_needed(job.call.caller) if job.call else ())]


def _shown(workflow: Workflow, job: Job, row: Row, event: EventContext, log: RecoveredJob) -> Iterator[tuple[str, str]]:
    """Texts of the row as the workflow gives them, each with what the log shows."""
    resolve = expanded.row_resolver(workflow, job, row, event)
    for own in job.steps:
        try:
            env = {**resolve.contexts["env"], **resolve.values(own.env, step=own)}
            script = "\n".join(_lines(_masked(resolve.with_env(env).shown(own.run or ""))))
            image = resolve.shown(job.container.image) if job.container else ""
        except WorkflowError:
            continue
        for step in log.scripts if len(_OUTPUT.sub("", script)) >= _LEAST_LITERAL else ():
            text = "\n".join(_lines(step.script))
            if _match(script, text) is not None:
                yield from ((script, text), (image, log.image))
                yield from ((shown(value), step.env[name]) for name, value in env.items() if name in step.env)


def _match(template: str, text: str) -> tuple[str, ...] | None:
    """The texts in the place of the template's marks; None if it is another text or can be divided in two ways."""
    parts = list(map(re2.escape, _OUTPUT.split(template)[::2]))
    longest, shortest = (re2.fullmatch("(?s)" + each.join(parts), text) for each in ("(.*)", "(.*?)"))
    return longest.groups() if longest and longest.groups() == shortest.groups() else None


def _lines(script: str) -> list[str]:
    return [printable(line.rstrip()) for line in script.rstrip().split("\n")] if script.strip() else []


def same_name(shown: str, own: str) -> bool:
    """Whether CI shows the job's `own` name as `shown`: cut if it is long, behind its caller's in a called workflow."""
    for name in (shown, shown.rpartition(" / ")[2]):
        stem = re.sub(r"(\.\.\.|…)$", "", name)
        if name == own or (stem != name and len(stem) >= _SHORTEST_STEM and own.startswith(stem)):
            return bool(shown)
    return False


def _of_same_job(name: str, candidates: Sequence[RowCandidate]) -> list[RowCandidate]:
    job = name.rpartition(" / ")[2].split(" (")[0]
    return [row for row in candidates if job in (row.row.job, *(own.split(" (")[0] for own in row.names))]
