"""Workflow text → Workflow: GitHub's syntax as records, unevaluated, each with its line; and the composite actions of
the checkout that a workflow uses (`uses: ./DIR`), whose steps are read like a job's. Templates are rendered here, too.

A key that GitHub does not have is an error with its line and the nearest valid key: a workflow that we read only in
part would be reproduced only in part. What becomes of each key that GitHub has is in `keys.txt`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from ci_tasks import yaml_lines
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import WorkflowError, did_you_mean
from ci_tasks.workflow.model import (
    CALLED,
    OF_REPOSITORY,
    PULL_REQUEST,
    Call,
    Container,
    Job,
    LocalAction,
    Step,
    UnsupportedKey,
    Workflow,
    WorkflowInput,
)
from ci_tasks.yaml_lines import Map, Text

SUPPORTED, REFUSED, WITHOUT_EFFECT = "supported", "refused", "without-effect"  # and `text`, which is for people
_JOB = "jobs.<id>"
_STEP = f"{_JOB}.steps.[]"
_JOB_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SECRET = re.compile(r"\bsecrets(?:\.|\[\s*')([A-Za-z_][A-Za-z0-9_]*)")
_FILTERS = ("types", "paths", "paths-ignore", "branches", "branches-ignore")
_WHOLE = re.compile(r"\s*\$\{\{(.*)\}\}\s*", re.DOTALL)


def read(text: str, file: str, *, rendered: bool = False) -> Workflow:
    """The workflow in `text`. Raises WorkflowError for broken YAML and for anything GitHub would refuse."""
    place = f"{file} (rendered)" if rendered else file
    tree = _tree(text, place)
    if not isinstance(tree, Map):
        raise WorkflowError("a workflow is a mapping with the keys `on` and `jobs`", file=place, line=1)
    at = _At(place, text.splitlines(), "the workflow")
    unused = at.check_keys(tree, "")[WITHOUT_EFFECT]
    bodies = at.map(tree, "jobs")
    if not bodies:
        raise at.error("a workflow has `jobs`", tree.lines.get("jobs", tree.line))
    defaults = at.defaults(tree, (None, None))
    jobs = {
        name: _job(replace(at, where=f"job {name}", job=name), name, body, bodies.lines[name], defaults)
        for name, body in bodies.items()
    }
    _check_needs(at, jobs, bodies)
    on = tree.get("on")
    return Workflow(
        path=file, name=str(tree.get("name") or file), env=at.map(tree, "env"), jobs=jobs,
        secrets=tuple(sorted({*_SECRET.findall(text), "GITHUB_TOKEN"})), rendered=rendered,
        inputs={**_inputs(_below(on, "workflow_call")), **_inputs(_below(on, "workflow_dispatch"))},
        events=_events(at, tree), filters=_filters(on),
        outputs={name: body.get("value") for name, body in _bodies(_below(on, "workflow_call"), "outputs").items()},
        unused=unused,
    )  # fmt: skip


def read_with_called(text: str, file: str, files: Callable[[str], str | None], *, rendered: bool = False) -> Workflow:
    """The workflow with what it uses of its checkout: the steps of composite actions, and the jobs of other workflows,
    each as `CALLER / JOB`. `files` gives the text of a file there, or of another repository's workflow by the name
    that `OF_REPOSITORY` describes, None if there is none. What is not there, or is no composite action, stays: the plan
    refuses it by name. Raises WorkflowError for what cannot be read."""
    return _with_called(_with_local_actions(read(text, file, rendered=rendered), files), files, _MAX_CALLS)


_MAX_CALLS = 4  # levels; "Reusing workflow configurations" in GitHub's documentation has the limit


def _with_called(workflow: Workflow, read_file: Callable[[str], str | None], levels: int) -> Workflow:
    jobs: dict[str, Job] = {}
    secrets = set(workflow.secrets)
    for job in workflow.jobs.values():
        file = _called_file(job.uses or "", workflow)
        text = read_file(file) if file else None
        if text is None:
            jobs[job.id] = job
            continue
        if not levels:
            message = f"calls {file}, the {_MAX_CALLS + 1}th workflow in a row; GitHub allows {_MAX_CALLS}"
            raise WorkflowError(message, file=workflow.place, job=job.id, line=job.line)
        called = _with_called(_with_local_actions(read(text, file), read_file), read_file, levels - 1)
        secrets.update(called.secrets)
        caller = jobs[job.id] = replace(job, calls=True)
        jobs.update({inner.id: inner for inner in (_inside(caller, each, called) for each in called.jobs.values())})
    return replace(workflow, jobs=jobs, secrets=tuple(sorted(secrets)))


def _called_file(uses: str, caller: Workflow) -> str:
    """The file that a job of `caller` calls; "" if its name is no workflow's."""
    if not uses.startswith("./"):
        return uses if OF_REPOSITORY.fullmatch(uses) else ""
    beside = OF_REPOSITORY.fullmatch(caller.path)
    return f"{beside[1]}/{uses.removeprefix('./')}@{beside[3]}" if beside else uses.removeprefix("./")


def _inside(caller: Job, job: Job, workflow: Workflow) -> Job:
    """A job of the workflow that `caller` calls."""
    call = Call(caller, workflow)
    if job.call:
        call = replace(job.call, caller=_inside(caller, job.call.caller, workflow))
    prefix = f"{caller.id}{CALLED}"
    return replace(job, id=prefix + job.id, needs=tuple(prefix + name for name in job.needs), call=call)


def _with_local_actions(workflow: Workflow, read_file: Callable[[str], str | None]) -> Workflow:
    @cache
    def action_in(directory: str) -> LocalAction | None:
        files = (f"{directory.removeprefix('./').rstrip('/')}/{name}" for name in ("action.yml", "action.yaml"))
        return next((_action(text, file) for file in files if (text := read_file(file)) is not None), None)

    def with_action(step: Step, inside: tuple[str, ...] = ()) -> Step:
        uses = step.uses or ""
        action = action_in(uses) if uses.startswith("./") and uses not in inside else None
        if action is None:
            return step
        steps = tuple(with_action(each, (*inside, uses)) for each in action.steps)
        return replace(step, action=replace(action, steps=steps))

    jobs = {id: replace(job, steps=tuple(map(with_action, job.steps))) for id, job in workflow.jobs.items()}
    return replace(workflow, jobs=jobs)


def _action(text: str, file: str) -> LocalAction | None:
    tree = _tree(text, file)
    runs = _below(tree, "runs")
    if not isinstance(runs, Map) or runs.get("using") != "composite":
        return None
    inputs = {name: body.get("default", "") for name, body in _bodies(tree, "inputs").items()}
    outputs = {name: body.get("value", "") for name, body in _bodies(tree, "outputs").items()}
    return LocalAction(file, inputs, _steps(_At(file, text.splitlines(), ""), runs), outputs)


def _tree(text: str, file: str) -> Any:
    try:
        return yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise WorkflowError(f"invalid YAML: {error.message}", file=file, line=error.line, text=error.text) from None


@dataclass(frozen=True)
class _At:
    """Where in a file a reader is: for its errors, which name the job, the step and the line."""

    file: str
    lines: list[str]
    where: str  # in words
    job: str = ""
    step: str = ""

    def error(self, message: str, line: int, hint: str = "") -> WorkflowError:
        text = "".join(self.lines[line - 1 : line]) if line else ""
        return WorkflowError(message, file=self.file, line=line, job=self.job, step=self.step, text=text, hint=hint)

    def map(self, body: Map, key: str) -> Map:
        value = body.get(key)
        if value is not None and not isinstance(value, Map):
            raise self.error(f"`{key}` of {self.where} is a mapping", body.lines[key])
        return Map(body.line) if value is None else value

    def list(self, body: Map, key: str) -> list[Any]:
        value = body.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"`{key}` is a list", body.lines[key])
        return value or []

    def defaults(self, body: Map, above: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
        """Shell and directory of `run:` steps, by `above` if `body` does not say."""
        run = replace(self, where="defaults").map(self.map(body, "defaults"), "run")
        return _text(run.get("shell")) or above[0], _text(run.get("working-directory")) or above[1]

    def check_keys(self, body: Map, path: str) -> Mapping[str, tuple[UnsupportedKey, ...]]:
        """What of the keys at `path` of keys.txt is refused and what has no effect, by treatment. A job's and a step's
        are checked with theirs. Raises WorkflowError for a key that GitHub does not have."""
        found: dict[str, tuple[UnsupportedKey, ...]] = {REFUSED: (), WITHOUT_EFFECT: ()}
        for key in _walk(body, path):
            if key.name not in key.valid and "<id>" not in key.valid:
                place = key.path.removeprefix(path).strip(".").rpartition(".")[0] or self.where
                message = f"{place} has no key {key.name!r}{did_you_mean(key.name, key.valid)}"
                raise self.error(message, key.line, f"valid: {', '.join(key.valid)}")
            treatment, why = keys().get(key.path, (SUPPORTED, ""))
            if treatment in found:
                name = key.path.removeprefix(f"{_STEP}.").removeprefix(f"{_JOB}.")
                found[treatment] = (*found[treatment], UnsupportedKey(name, why, key.line))
        return found


def _filters(on: Any) -> dict[str, tuple[str, ...]]:
    """Which pull requests start the workflow, or pushes if none does: filter → patterns."""
    below = _below(on, next((event for event in (*PULL_REQUEST, "push") if isinstance(on, Map) and event in on), ""))
    given = {name: below.get(name) or [] for name in _FILTERS}
    return {name: tuple(map(str, each if isinstance(each, list) else [each])) for name, each in given.items() if each}


def _events(at: _At, tree: Map) -> tuple[str, ...]:
    on, valid = tree.get("on"), _children()["on"]
    events = tuple(map(str, [on] if isinstance(on, str) else on)) if isinstance(on, (str, list, Map)) else ()
    for event in events:
        if event not in valid:
            raise at.error(f"on has no event {event!r}{did_you_mean(event, valid)}", tree.lines["on"])
    return events


def _job(at: _At, id: str, body: Any, line: int, defaults: tuple[str | None, str | None]) -> Job:
    if not _JOB_ID.fullmatch(id):
        raise at.error("a job's id is letters, digits, `-` and `_`, and begins with no digit", line)
    if not isinstance(body, Map):
        raise at.error("a job is a mapping", line)
    unsupported = at.check_keys(body, _JOB)
    shell, directory = at.defaults(body, defaults)
    steps = _steps(at, body)
    if bool(steps) == bool(body.get("uses")):
        raise at.error("a job has either `steps`, or `uses` another workflow", line)
    if steps and body.get("runs-on") is None:
        raise at.error("a job with steps has `runs-on`", line)
    needs = body.get("needs") or []
    names = needs if isinstance(needs, list) else [needs]
    if not all(isinstance(name, str) for name in names):
        raise at.error("`needs` is a job or a list of jobs", body.lines["needs"])
    strategy = Map(body.line) if isinstance(body.get("strategy"), str) else at.map(body, "strategy")
    return Job(
        id=id, line=line, name=_text(body.get("name")), condition=_text(body.get("if")), needs=tuple(map(str, names)),
        runs_on=body.get("runs-on"), env=at.map(body, "env"), matrix=_matrix(at, body.get("strategy"), strategy),
        fail_fast=strategy.get("fail-fast", True), max_parallel=strategy.get("max-parallel"),
        continue_on_error=body.get("continue-on-error", False), container=_container(at, body), steps=steps,
        shell=shell, working_directory=directory, timeout_minutes=body.get("timeout-minutes"),
        outputs=at.map(body, "outputs"), uses=_text(body.get("uses")), with_=at.map(body, "with"),
        secrets=body.get("secrets"), refused=unsupported[REFUSED], unused=unsupported[WITHOUT_EFFECT],
    )  # fmt: skip


def _check_needs(at: _At, jobs: Mapping[str, Job], bodies: Map) -> None:
    """What a job needs is there, and no job waits for itself."""
    done: set[str] = set()
    while ready := [job for job in jobs.values() if job.id not in done and done.issuperset(job.needs)]:
        done.update(job.id for job in ready)
    for job in jobs.values():
        missing = next((name for name in job.needs if name not in jobs), None)
        if missing is not None or job.id not in done:
            there = f"needs the job {missing!r}, which does not exist{did_you_mean(missing, jobs)}" if missing else ""
            message = there or "needs itself, through other jobs or directly"
            raise replace(at, job=job.id).error(message, bodies[job.id].lines["needs"])


def _matrix(at: _At, raw: Any, strategy: Map) -> Any:
    """`strategy.matrix`; of a `strategy` that is an expression, that expression's `matrix`."""
    if isinstance(raw, str) and (whole := _WHOLE.fullmatch(raw)):
        text = Text(f"${{{{ ({whole[1].strip()}).matrix }}}}")
        text.line = getattr(raw, "line", 0)
        return text
    matrix = strategy.get("matrix")
    is_expression = isinstance(matrix, str) and "${{" in matrix
    if matrix is not None and not isinstance(matrix, Map) and not is_expression:
        raise at.error("`matrix` is a mapping or an expression", strategy.lines["matrix"])
    return matrix


def _steps(at: _At, body: Map) -> tuple[Step, ...]:
    return tuple(_step(at, number, step, body.lines["steps"]) for number, step in enumerate(at.list(body, "steps"), 1))


def _step(at: _At, number: int, body: Any, steps_line: int) -> Step:
    if not isinstance(body, Map):
        raise replace(at, step=f"#{number}").error("a step is a mapping", getattr(body, "line", steps_line))
    name = _text(body.get("name") or body.get("uses") or body.get("id")) or f"step {number}"
    at = replace(at, where=f"step {name!r}", step=name)
    refused = at.check_keys(body, _STEP)[REFUSED]
    if ("run" in body) == ("uses" in body) and ("run" in body or not refused):
        raise at.error("a step has either `run` or `uses`", body.line)
    texts = {key: _text(body.get(key.replace("_", "-"))) for key in ("id", "uses", "run", "shell", "working_directory")}
    return Step(
        name=name,
        line=body.line,
        with_=at.map(body, "with"),
        env=at.map(body, "env"),
        condition=_text(body.get("if")),
        continue_on_error=body.get("continue-on-error", False),
        timeout_minutes=body.get("timeout-minutes"),
        refused=refused,
        **texts,  # type: ignore[arg-type]
    )


def _container(at: _At, body: Map) -> Container | None:
    container = body.get("container")
    if container is None or container == "":
        return None
    line = body.lines["container"]
    if isinstance(container, str):
        return Container(image=container, line=line)
    if not isinstance(container, Map) or not isinstance(container.get("image"), str):
        raise at.error("`container` names an image", line)
    options, volumes = (_text(container.get("options")) or "").strip(), at.list(container, "volumes")
    env = replace(at, where="container").map(container, "env")
    return Container(container["image"], options, env, tuple(map(str, volumes)), line)


def _inputs(event: Mapping[str, Any]) -> dict[str, WorkflowInput]:
    bodies = _bodies(event, "inputs").items()
    return {name: WorkflowInput(body.get("type") or "string", body.get("default")) for name, body in bodies}


def _bodies(of: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """The mappings below each name under a key."""
    declared = _below(of, key)
    return {name: _below(declared, name) for name in declared}


def _below(body: Any, key: str) -> Mapping[str, Any]:
    """The mapping under a key; an empty one if there is none."""
    value = body.get(key) if isinstance(body, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    """A scalar as GitHub reads it if it expects text; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- keys.txt ----------------------------------------------------------------------------------------------------------


class _FoundKey(NamedTuple):
    """A key of a file: its path in keys.txt, its name and line, and the keys that may replace it."""

    path: str
    name: str
    line: int
    valid: tuple[str, ...]


@cache
def keys() -> dict[str, tuple[str, str]]:
    """What becomes of each key of GitHub's syntax here and why, by its path."""
    table: dict[str, tuple[str, str]] = {}
    for line in (pkgutil.get_data(__name__, "keys.txt") or b"").decode().splitlines():
        words, _, why = line.partition(" | ")
        treatment, *paths = words.split()
        for path in paths if not line.startswith("#") else ():
            choices = [part.split(",") for part in re.split(r"[{}]", path)]
            table.update(("".join(parts), (treatment, why)) for parts in product(*choices))
    return table


@cache
def _children() -> dict[str, tuple[str, ...]]:
    """The keys right below each path; none if the table has no more to say."""
    below: dict[str, dict[str, None]] = {}
    for path in keys():
        parts = path.split(".")
        for length, part in enumerate(parts):
            below.setdefault(".".join(parts[:length]), {})[part] = None
    return {path: tuple(names) for path, names in below.items()}


def _walk(body: Map, path: str) -> Iterator[_FoundKey]:
    """The keys below a mapping at `path`, each before the keys below it, without the keys of the jobs and steps in
    it."""
    valid = _children().get(path, ())
    for name in body if valid else ():
        at, value = f"{path}.{'<id>' if '<id>' in valid else name}".lstrip("."), body[name]
        yield _FoundKey(at, name, body.lines[name], valid)
        items = [(f"{at}.[]", item) for item in value] if isinstance(value, list) else [(at, value)]
        for inside, item in items:
            if isinstance(item, Map) and inside not in (_JOB, _STEP):
                yield from _walk(item, inside)


# -- templates ---------------------------------------------------------------------------------------------------------


def render_template(text: str, file: str) -> str:
    """The workflow that the template gives. Raises WorkflowError with the template's line."""
    import traceback

    import jinja2
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        """Refuses at once: the text of what was refused would otherwise be silently empty."""

        def unsafe_undefined(self, obj: object, attribute: str) -> jinja2.Undefined:
            raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is unsafe")

    environment = Sandbox("<%", "%>", "<<", ">>") if "<%" in text else Sandbox()
    try:
        return environment.from_string(text).render()
    except jinja2.TemplateSyntaxError as error:
        cause: Exception = error
        line, why = error.lineno, f"the template has an error: {error.message}"
    except Exception as error:  # whatever the template's own code raises, 1/0 as well
        # jinja2 writes the template's lines into the traceback
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        cause, line, why = error, (frames[-1].lineno if frames else 0) or 1, f"the template cannot be rendered: {error}"
    raise WorkflowError(why, file=file, line=line, text="".join(text.splitlines()[line - 1 : line])) from cause
