"""A job → the rows that CI would run: matrix expanded, environment, image and runner evaluated; and which of them a
person means.

A matrix expands by the rules of GitHub's "Running variations of jobs in a workflow": the product of the lists, first
key slowest; `exclude` takes away combinations that agree with every value it names; each `include` entry is added to
every combination whose original values it does not contradict, and becomes a new combination if there is none. Values
agree as `==` does in expressions, mappings and lists by the values inside that are named (`MatrixFilter` in
actions/runner's C# source).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UnknownName, WorkflowError, some
from ci_tasks.workflow import expressions, runner, secrets
from ci_tasks.workflow.context import EventContext, Resolver, contexts, is_unset
from ci_tasks.workflow.expressions import ExpressionError
from ci_tasks.workflow.model import Job, Row, Step, Workflow
from ci_tasks.workflow.suite import Describe, MatrixTest, label_of, make_unique, matches_job, name_of
from ci_tasks.workflow.values import OpenObject, Unknown, leaves, lookup, loose_equal, shown, unknowns

if TYPE_CHECKING:
    from ci_tasks.agent.docker_argv import DockerRun

_MAX_ENTRIES = 1_000  # of a matrix before `exclude`; GitHub itself runs 256
_Decided = Callable[[str, "str | None"], tuple[str, str]]
_COPIES = "pull-request/"  # branches that NVIDIA's copy-pr-bot pushes: a copy of each pull request, by its number
_IMAGE = re.compile(r"[A-Za-z0-9<]([A-Za-z0-9_./:@<> -]*[A-Za-z0-9_>])?")  # with secrets shown as <secret NAME>


# -- what a person means -----------------------------------------------------------------------------------------------


def job_of(workflow: Workflow, label: str) -> Job:
    """The job of a label, or of a job's full name. Raises UnknownName."""
    jobs = workflow.labelled
    for job in jobs:
        if matches_job(label, job.id):
            return job
    triggers = [trigger for job in jobs if (trigger := trigger_of(workflow, job))]
    names = [job.id for job in jobs]
    raise UnknownName("label", label, map(label_of, names), where=workflow.path, aliases=[*names, *triggers])


def select(rows: list[Row], only: str | None, label: str) -> list[Row]:
    """The row with this very name, or with that of one of the parts that commas divide; of a part that is no row's
    name, the rows whose names contain it. UnknownName for a part of none."""
    names, chosen = [row.row for row in rows], set[str]()
    parts = [only] if only in names else [part.strip() for part in (only or "").split(",") if part.strip()]
    for part in parts:
        found = {part} & {*names} or {name for name in names if part in name}
        if not found:
            raise UnknownName("row", part, names, where=f"label {label}")
        chosen |= found
    return [row for row in rows if row.row in chosen or not parts]


def trigger_of(workflow: Workflow, job: Job) -> str | None:
    """The pull request label that starts the job: its own `if`, or the `if` of a job it needs. None: it always runs."""
    try:
        labels = expressions.label_tests(job.condition or "")
    except ExpressionError as error:
        raise _resolver(workflow, job, {}).error(error, job.condition or "", None) from None
    needed = [workflow.jobs[name] for name in job.needs if name in workflow.jobs]
    needed += [job.call.caller] if job.call else []
    return next(itertools.chain(labels, filter(None, (trigger_of(workflow, other) for other in needed))), None)


# -- rows --------------------------------------------------------------------------------------------------------------


def rows(workflow: Workflow, job: Job, event: EventContext, describe: Describe) -> list[Row]:
    """The job's rows in CI's order, with unique names. A matrix that waits for another job's output, or for what only
    GitHub knows, is one row with `dynamic` set. Raises WorkflowError."""
    _check(workflow, job)
    blank = replace(blank_row(job), trigger=trigger_of(workflow, job))
    entries = _entries(workflow, job, event, blank)
    if isinstance(entries, str):
        resolve = row_resolver(workflow, job, blank, event)
        refused = runner.refusal(runner.labels_with_fallbacks(job, resolve))
        return [replace(blank, runner=_runner(job, resolve), dynamic=entries, refused=refused)]
    listed = [_row(workflow, job, entry, event, describe(_combination(entry))) for entry in entries]
    return [replace(row, row=name) for row, name in zip(listed, make_unique([row.row for row in listed]), strict=True)]


def refused_row(job: Job, why: str) -> Row:
    """What stands for the rows of a job whose values cannot be evaluated."""
    return replace(blank_row(job), runner="self-hosted", refused=why)


def names(workflow: Workflow, job: Job, event: EventContext, describe: Describe) -> list[str]:
    """The names of the job's rows, at the price of the matrix alone; none for a matrix that is not known yet."""
    entries = _entries(workflow, job, event, blank_row(job))
    combinations = [] if isinstance(entries, str) else map(_combination, entries)
    return make_unique([name_of(label_of(job.id), combination, describe(combination)) for combination in combinations])


def _combination(entry: Row) -> dict[str, Any]:
    """What distinguishes the row from others: its entry of the matrix, and the entries of the jobs that call it."""
    return {key: value for matrix in (*entry.callers, entry.matrix) for key, value in matrix.items()}


def missing_outputs(job: Job, event: EventContext) -> dict[str, list[str]]:
    """The outputs that the matrix needs, its own or a calling job's, by job, if it has not been run for them and they
    are not given."""
    missing: dict[str, list[str]] = {}
    for text in (leaf for leaf in leaves(job.matrix) if isinstance(leaf, str) and "${{" in leaf):
        for context, name, _, output, *_ in (f"{each}....".split(".") for each in expressions.references(text)):
            id = job.needed_id(name)
            is_given = output in event.given.outputs.get(id, {})
            if context == "needs" and name and id not in event.outputs and not is_given:
                missing.setdefault(id, []).append(f"needs.{id}.outputs.{output}")
    return {**missing, **(missing_outputs(job.call.caller, event) if job.call else {})}


def needed_outputs(workflow: Workflow, job: Job, event: EventContext) -> dict[str, list[str]]:
    """As `missing_outputs`, of anything in the job that would run: what is unknown in its variables, its container and
    its steps; and the jobs without GPUs that upload what it downloads."""
    resolve = row_resolver(workflow, job, blank_row(job), event)
    resolve = resolve.with_contexts(steps=OpenObject("steps"))
    container = [job.container.image, job.container.options, job.container.env] if job.container else []
    seen = [resolve.value([workflow.file_of(job).env, job.env, *container])]
    for step in job.steps:
        if _may_run(step, resolve):
            seen.append(resolve.decide(step.condition, step=step))
            seen.append(resolve.value([step.run, step.env, step.with_], step=step))
    names = dict.fromkeys(name for value in seen for unknown in unknowns(value) for name in unknown.names)
    needed = missing_outputs(job, event)
    for name in (name for name in names if name.startswith("needs.")):
        needed.setdefault(name.removeprefix("needs.").partition(".outputs")[0], []).append(name)
    uploading = _uploading(workflow, job, event) if "actions/download-artifact" in job.actions else ()
    return {id: needed.get(id, []) for id in (*needed, *uploading)}


def _uploading(workflow: Workflow, job: Job, event: EventContext) -> Iterator[str]:
    """The jobs before it that upload artifacts."""
    for other in (workflow.jobs[name] for name in job.needs if name in workflow.jobs):
        yield from _uploading(workflow, other, event)
        labels = runner.labels_with_fallbacks(other, row_resolver(workflow, other, blank_row(other), event))
        if "actions/upload-artifact" in other.actions and runner.gpu_count(labels) == 0:
            yield other.id


def row_resolver(workflow: Workflow, job: Job, row: Row, event: EventContext) -> Resolver:
    """Evaluates the job's values as CI would for `row`, with the row's environment as the env context."""
    resolve = _resolver(workflow, job, contexts(event, workflow, job, row))
    return resolve.with_env({**resolve.values(workflow.file_of(job).env), **resolve.values(job.env)})


def environment(workflow: Workflow, job: Job, row: Row, event: EventContext) -> dict[str, str]:
    """The row's environment under `event`: the workflow's `env`, then the job's. Raises UnknownValueError."""
    resolve = _resolver(workflow, job, contexts(event, workflow, job, row))
    return {**resolve.strings(workflow.file_of(job).env), **resolve.strings(job.env)}


def _resolver(workflow: Workflow, job: Job, values: Mapping[str, Any]) -> Resolver:
    return Resolver(workflow.file_of(job).place, job.id, job.line, values)


def blank_row(job: Job) -> Row:
    label = label_of(job.id)
    return Row(label, job.id, None, label, None, "", None, None, {}, "", None)


def _row(workflow: Workflow, job: Job, entry: Row, event: EventContext, matrix_test: MatrixTest) -> Row:
    resolve = row_resolver(workflow, job, entry, event).with_contexts(steps=OpenObject("steps"))
    docker_run = _docker_run(job, resolve)
    labels = runner.labels_with_fallbacks(job, resolve)
    refused = runner.refusal(labels)
    own, told = (None if refused else _gpus(job, resolve, matrix_test.gpus, docker_run, of) for of in ([], labels))
    of_runner = bool(told) and own is None  # its tests may need none of them
    given = event.given.gpus if not refused and (told is None or (of_runner and event.given.gpus == 0)) else None
    limit = resolve.value(job.timeout_minutes)
    return replace(
        entry, row=name_of(entry.label, _combination(entry), matrix_test), test=matrix_test.test, args=matrix_test.args,
        gpus=told if given is None else given, image=_image(job, resolve, docker_run),
        env={name: "" if is_unset(value) else shown(value) for name, value in resolve.contexts["env"].items()},
        runner=_runner(job, resolve),
        timeout_minutes=None if list(unknowns(limit)) else resolve.number(job.timeout_minutes, "timeout-minutes"),
        refused=refused, gpus_given=given is not None, gpus_of_runner=of_runner,
    )  # fmt: skip


def _check(workflow: Workflow, job: Job) -> None:
    """Every expression of the job and its steps can be read, also if it is not evaluated yet."""
    resolve = _resolver(workflow, job, {})
    container = [job.container.image, job.container.options, job.container.env] if job.container else []
    own = [job.name, job.runs_on, job.matrix, job.env, job.timeout_minutes, job.outputs]
    resolve.check([workflow.file_of(job).env, *own, *container])
    for step in job.steps:
        texts = [step.name, step.env, step.with_, step.run, step.shell, step.working_directory]
        resolve.check([*texts, step.continue_on_error, step.timeout_minutes], step.condition, step=step)


def _gpus(
    job: Job, resolve: Resolver, in_matrix: int | None, docker_run: DockerRun | None, labels: list[str]
) -> int | None:
    """As the workflow says: the matrix, unless its value is a marker of tests that pytest runs several of at once; else
    CI's lock script, else docker's `--gpus`, else the runner."""
    named = [text for text in leaves(resolve.contexts["matrix"]) if isinstance(text, str) and not text.isdigit()]
    markers = [text for text in named if in_matrix and runner.gpus_in_label(text) == in_matrix]
    scripts = [resolve.shown(step.run) for step in job.steps if markers and step.run and _may_run(step, resolve)]
    if in_matrix is not None and not any(runner.counts_for_each_test(marker, scripts) for marker in markers):
        return in_matrix
    texts = [step.run for step in job.steps if runner.LOCK_SCRIPT in (step.run or "") and _may_run(step, resolve)]
    locked = [count for text in texts if (count := runner.gpus_in_script(resolve.shown(text))) is not None]
    flag = docker_run.last("gpus") if docker_run else None
    of_runner = runner.gpu_count(labels)
    if locked or flag is None:
        return max(locked, default=of_runner)
    in_flag = runner.gpus_in_docker_flag(flag)
    return in_flag if in_flag is not None else (of_runner or None)  # `all` of a machine without any is not known


def _image(job: Job, resolve: Resolver, docker_run: DockerRun | None) -> str | None:
    """The image of the job's container, or of its first `docker run`; None if that is known only while it runs."""
    if job.container:
        value = resolve.value(job.container.image)  # `container: ${{ … }}` may give the whole object
        return secrets.shown(shown(value.get("image") if isinstance(value, Mapping) else value)) or None
    image = secrets.shown(docker_run.image) if docker_run else ""
    return image if _IMAGE.fullmatch(image) else None


def _docker_run(job: Job, resolve: Resolver) -> DockerRun | None:
    """The first `docker run` of the job's steps, or that which its container's options would be part of."""
    if job.container:
        from ci_tasks.agent.docker_argv import DockerArgvError, parse_run

        try:
            return parse_run(["run", *shlex.split(resolve.shown(job.container.options)), "image"])
        except (ValueError, DockerArgvError):
            return None
    for step in job.steps:
        if step.run and "docker" in step.run and _may_run(step, resolve):
            from ci_tasks.workflow import shell

            env = {**resolve.contexts["env"], **resolve.values(step.env, step=step)}
            script = resolve.with_env(env).value(step.run, step=step)
            if any(name.startswith("steps.") for unknown in unknowns(script) for name in unknown.names):
                continue
            if run := shell.docker_run(shown(script), {name: shown(value) for name, value in env.items()}):
                return run
    return None


def _may_run(step: Step, resolve: Resolver) -> bool:
    """Whether a step's `if` holds, or may hold."""
    return resolve.decide(step.condition, step=step) is not False


def _runner(job: Job, resolve: Resolver) -> str:
    return "github-hosted" if runner.is_hosted(runner.labels(job, resolve)) else "self-hosted"


# -- the matrix --------------------------------------------------------------------------------------------------------


def _entries(workflow: Workflow, job: Job, event: EventContext, blank: Row) -> list[Row] | str:
    """The job's entries of its matrix, for each entry of the job that calls it; or the expression of a matrix that
    waits for what is known elsewhere."""
    callers: list[tuple[Mapping[str, Any], ...]] = [()]
    if job.call:
        outer = _entries(workflow, job.call.caller, event, blank_row(job.call.caller))
        if isinstance(outer, str):
            return outer
        callers = [(*entry.callers, entry.matrix) for entry in outer]
    found: list[Row] = []
    for of_callers in callers:
        entry = replace(blank, callers=of_callers)
        combinations = _combinations(workflow, job, event, entry)
        if isinstance(combinations, str):
            return combinations
        total = len(combinations)
        found += [replace(entry, matrix=each, index=index, total=total) for index, each in enumerate(combinations)]
    return found


def _combinations(workflow: Workflow, job: Job, event: EventContext, entry: Row) -> list[dict[str, Any]] | str:
    """The matrix expanded, or the expression that waits."""
    resolve = _resolver(workflow, job, contexts(event, workflow, job, entry))
    value = resolve.value(job.matrix)
    if list(unknowns(value)):
        texts = (leaf for leaf in leaves(job.matrix) if isinstance(leaf, str) and list(unknowns(resolve.value(leaf))))
        return next(texts).strip()
    try:
        return expand(value)
    except ValueError as error:
        line, text = getattr(job.matrix, "line", 0) or job.line, f"matrix: {job.matrix}"[:200]
        raise WorkflowError(str(error), file=resolve.file, job=job.id, line=line, text=text) from None


def expand(matrix: Any) -> list[dict[str, Any]]:
    """The combinations of an evaluated matrix. Raises ValueError for one that GitHub would refuse."""
    if matrix is None:
        return [{}]
    if not isinstance(matrix, Mapping):
        raise ValueError(f"a matrix is a mapping, not {_kind(matrix)}")
    axes = {key: values for key, values in matrix.items() if key not in ("include", "exclude")}
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ValueError(f"matrix.{key} is a list, not {_kind(values)}")
    included, excluded = _listed(matrix, "include"), _listed(matrix, "exclude")
    if max(math.prod(map(len, axes.values())), len(included), len(excluded)) > _MAX_ENTRIES:  # before they are made
        raise ValueError(f"the matrix has more than {_MAX_ENTRIES} entries; GitHub runs at most 256")
    products = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    for key in (key for entry in excluded for key in entry):
        if key not in axes:
            raise ValueError(f"matrix.exclude names {key!r}, which is no key of the matrix")
    original = [each for each in products if not any(_agrees(entry, each) for entry in excluded)]
    combinations = [dict(each) for each in original]
    for entry in included:
        named = {key: value for key, value in entry.items() if key in axes}
        added = {key: value for key, value in entry.items() if key not in axes}
        met = [combinations[at] for at, each in enumerate(original) if _agrees(named, each)]
        for combination in met:
            combination.update(added)
        combinations += [] if met else [{**named, **added}]
    return combinations


def _agrees(expected: Any, value: Any) -> bool:
    if isinstance(expected, Mapping):
        inside = value if isinstance(value, Mapping) else {}
        return all(_agrees(item, next(iter(lookup(inside, key)), None)) for key, item in expected.items())
    if isinstance(expected, list):
        items = value if isinstance(value, list) else []
        return all(_agrees(item, items[at] if at < len(items) else None) for at, item in enumerate(expected))
    return loose_equal(expected, value)


def _listed(matrix: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = [] if matrix.get(key) is None else matrix[key]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) and entry for entry in entries):
        raise ValueError(f"matrix.{key} is a list of mappings, none of them empty")
    return [dict(entry) for entry in entries]


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"


# -- which labels a pull request starts, by the files that it changes, its base and its labels ------------------------
#
# The rules follow GitHub's "Workflow syntax": `on.pull_request` with `types`, `paths`, `paths-ignore`, `branches` and
# `branches-ignore`, and its "Filter pattern cheat sheet". Of several patterns the last that matches counts.

# A wildcard, or one character and how often.
_TOKEN = re.compile(r"(\*\*/|\*\*?)|(\[\w+(?:-\w+)*\]|\\?.)([?+]?)", re.DOTALL)
_MEANS = {"**/": ".", "**": ".", "*": "[^/]"}
_CHANGES = ("opened", "synchronize", "labeled", "reopened", "ready_for_review")  # types that may bring a change


@dataclass(frozen=True)
class LabelStart:
    """Whether a pull request `starts` a label of a workflow: "yes", "no", "with label" (`pr_label`), or "?" if only
    GitHub knows. `why` it does not start, or not without a label."""

    workflow: str
    label: str
    starts: str
    pr_label: str | None
    why: str


def label_starts(workflow: Workflow, event: EventContext, changed: Sequence[str]) -> Iterator[LabelStart]:
    """An entry for each label of the workflow, for a pull request that changes the files `changed`."""
    why = why_not_started(workflow, event.base, changed)
    decided: _Decided = functools.cache(lambda id, of: _runs(workflow, workflow.jobs[id], event, of, decided))
    for job in workflow.labelled:
        trigger = trigger_of(workflow, job)
        outcome = ("no", why) if why else decided(job.id, trigger)
        yield LabelStart(workflow.path, label_of(job.id), outcome[0], trigger, outcome[1])


def why_not_started(workflow: Workflow, base: str, changed: Sequence[str]) -> str:
    """Why a pull request to the branch `base` does not start the workflow; "" if it does. Raises re.error."""
    if not workflow.is_for_pull_requests:
        if not any(pattern.startswith(_COPIES) for pattern in workflow.filters.get("branches", ())):
            return f"starts on {', '.join(workflow.events)} only"
        base = f"{_COPIES}1"
    for kind, names in (("types", _CHANGES), ("branches", [base]), ("paths", changed or ["no changed file"])):
        wanted, ignored = workflow.filters.get(kind, ()), workflow.filters.get(f"{kind}-ignore", ())
        if wanted and not any(_is_selected(name, wanted) for name in names):
            return f"{kind} {', '.join(names[:3])}: none matches {some(wanted, 5)}"
        if ignored and all(_is_selected(name, ignored) for name in names):
            return f"{kind} {', '.join(names[:3])}: ignored by {some(ignored, 5)}"
    return ""


def _runs(workflow: Workflow, job: Job, event: EventContext, trigger: str | None, decided: _Decided) -> tuple[str, str]:
    """Whether the job runs in a workflow that was started, with the PR label `trigger`, and why not. `decided` says it
    of the jobs that it needs."""
    row = replace(refused_row(job, ""), trigger=trigger)
    resolver = row_resolver(workflow, job, row, event)
    holds = resolver.decide(job.condition)
    needed = {name: decided(name, trigger)[0] for name in job.needs if name in workflow.jobs}
    other = next((name for word in ("no", "?") for name, each in needed.items() if each == word), None)
    if holds is True and other and resolver.decide(job.condition, "skipped") is not True:
        why = "it needs {}, which does not start" if needed[other] == "no" else "only GitHub knows: it needs {}"
        return needed[other], why.format(other)
    if holds is not True:
        word, why = ("?", "only GitHub knows:") if isinstance(holds, Unknown) else ("no", "its if is false,")
        return word, " ".join([why, *(job.condition or "").split()])
    return ("with label", f"with the PR label {trigger}") if trigger else ("yes", "")


def _is_selected(text: str, patterns: Sequence[str]) -> bool:
    found = [pattern for pattern in patterns if _matches(text, pattern.removeprefix("!"))]
    return bool(found) and not found[-1].startswith("!")


def _matches(text: str, pattern: str) -> bool:
    """All ways at once: `re` would try them one after the other, without end for many wildcards."""
    starts = {0}
    for wild, one, times in _TOKEN.findall(pattern):
        is_one = re.compile(_MEANS.get(wild) or (one if one[0] == "[" else re.escape(one[-1])), re.DOTALL).match
        ends, new = set[int](), starts
        while (new := {at + 1 for at in new if is_one(text, at)} - ends) and (wild or times == "+" or not ends):
            ends |= new
        none = starts if wild or times == "?" else set[int]()
        starts = none | {at for at in ends if wild != "**/" or text[at - 1] == "/"}
    return len(text) in starts
