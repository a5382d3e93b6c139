"""Workflow text → Workflow: GitHub's syntax as records, unevaluated, each with its line.

A key that GitHub does not have is an error with its line and the nearest valid key: a workflow that we read only in
part would be reproduced only in part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError, did_you_mean
from ci_tasks.workflow import schema
from ci_tasks.workflow.model import Container, Job, Step, UnsupportedKey, Workflow, WorkflowInput
from ci_tasks.workflow.schema import FoundKey, Treatment
from ci_tasks.yaml_lines import Map, Text

_JOB = "jobs.<id>"
_STEP = f"{_JOB}.steps.[]"
_JOB_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SECRET = re.compile(r"\bsecrets(?:\.|\[\s*')([A-Za-z_][A-Za-z0-9_]*)")
_WHOLE = re.compile(r"\s*\$\{\{(.*)\}\}\s*", re.DOTALL)
_CALLS = ("workflow_call", "workflow_dispatch")


def read(text: str, file: str, *, rendered: bool = False) -> Workflow:
    """The workflow in `text`. Raises WorkflowError for broken YAML and for anything GitHub would refuse."""
    place = f"{file} (rendered)" if rendered else file
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise WorkflowError(f"invalid YAML: {error.message}", file=place, line=error.line, text=error.text) from None
    if not isinstance(tree, Map):
        raise WorkflowError("a workflow is a mapping with the keys `on` and `jobs`", file=place, line=1)
    return _WorkflowReader(file, place, rendered, text.splitlines()).workflow(tree, text)


def read_steps(body: Map, text: str, file: str) -> tuple[Step, ...]:
    """The steps of a composite action's `runs`. Raises WorkflowError."""
    reader = _WorkflowReader(file, file, False, text.splitlines())
    steps = reader._list(body, "steps", job="")
    return tuple(reader._step(number, step, "", body.lines["steps"]) for number, step in enumerate(steps, 1))


class _WorkflowReader:
    def __init__(self, file: str, place: str, rendered: bool, lines: list[str]) -> None:
        self.file, self.place, self.rendered, self.lines = file, place, rendered, lines

    def workflow(self, tree: Map, text: str) -> Workflow:
        keys = self._keys(tree, "", "the workflow")
        bodies = self._map(tree, "jobs", "the workflow")
        if not bodies:
            raise self._error("a workflow has `jobs`", tree.lines.get("jobs", tree.line))
        shell, directory = self._defaults(tree, "the workflow")
        jobs = {name: self._job(name, bodies[name], bodies.lines[name], shell, directory) for name in bodies}
        self._check_needs(jobs, bodies)
        return Workflow(
            path=self.file,
            name=str(tree.get("name") or self.file),
            env=self._map(tree, "env", "the workflow"),
            jobs=jobs,
            secrets=tuple(sorted({*_SECRET.findall(text), "GITHUB_TOKEN"})),
            rendered=self.rendered,
            inputs=_inputs(tree.get("on")),
            events=self._events(tree),
            branches=_branches(tree.get("on")),
            unused=_unsupported(keys, Treatment.WITHOUT_EFFECT),
        )

    def _events(self, tree: Map) -> tuple[str, ...]:
        on, valid = tree.get("on"), schema.children("on")
        events = tuple(map(str, [on] if isinstance(on, str) else on)) if isinstance(on, (str, list, Map)) else ()
        for event in events:
            if event not in valid:
                raise self._error(f"on has no event {event!r}{did_you_mean(event, valid)}", tree.lines["on"])
        return events

    def _job(self, id: str, body: Any, line: int, shell: str | None, directory: str | None) -> Job:
        if not _JOB_ID.fullmatch(id):
            raise self._error("a job's id is letters, digits, `-` and `_`, and begins with no digit", line, job=id)
        if not isinstance(body, Map):
            raise self._error("a job is a mapping", line, job=id)
        where = f"job {id}"
        keys = self._keys(body, _JOB, where, job=id)
        own_shell, own_directory = self._defaults(body, where, job=id)
        steps = self._list(body, "steps", job=id)
        if bool(steps) == bool(body.get("uses")):
            raise self._error("a job has either `steps`, or `uses` another workflow", line, job=id)
        if steps and body.get("runs-on") is None:
            raise self._error("a job with steps has `runs-on`", line, job=id)
        return Job(
            id=id,
            line=line,
            name=_text(body.get("name")),
            condition=_text(body.get("if")),
            needs=self._needs(body, id),
            runs_on=body.get("runs-on"),
            env=self._map(body, "env", where, job=id),
            matrix=self._matrix(body, id),
            fail_fast=self._strategy(body, id).get("fail-fast", True),
            max_parallel=self._strategy(body, id).get("max-parallel"),
            continue_on_error=body.get("continue-on-error", False),
            container=self._container(body, id),
            steps=tuple(self._step(number, step, id, body.lines["steps"]) for number, step in enumerate(steps, 1)),
            shell=own_shell or shell,
            working_directory=own_directory or directory,
            timeout_minutes=body.get("timeout-minutes"),
            outputs=self._map(body, "outputs", where, job=id),
            uses=_text(body.get("uses")),
            refused=_unsupported(keys, Treatment.REFUSED),
            unused=_unsupported(keys, Treatment.WITHOUT_EFFECT),
        )

    def _strategy(self, body: Map, job: str) -> Map:
        strategy = body.get("strategy")
        return Map(body.line) if isinstance(strategy, str) else self._map(body, "strategy", f"job {job}", job=job)

    def _needs(self, body: Map, job: str) -> tuple[str, ...]:
        needs = body.get("needs")
        names = needs if isinstance(needs, list) else [] if needs is None else [needs]
        if not all(isinstance(name, str) for name in names):
            raise self._error("`needs` is a job or a list of jobs", body.lines["needs"], job=job)
        return tuple(str(name) for name in names)

    def _check_needs(self, jobs: Mapping[str, Job], bodies: Map) -> None:
        """What a job needs is there, and no job waits for itself."""
        for job in jobs.values():
            for name in job.needs:
                if name not in jobs:
                    line = bodies[job.id].lines["needs"]
                    guess = did_you_mean(name, jobs)
                    raise self._error(f"needs the job {name!r}, which is not there{guess}", line, job=job.id)
        done: set[str] = set()
        while ready := [job for job in jobs.values() if job.id not in done and done.issuperset(job.needs)]:
            done.update(job.id for job in ready)
        for name in jobs:
            if name not in done:
                line = bodies[name].lines["needs"]
                raise self._error("needs itself, through other jobs or directly", line, job=name)

    def _matrix(self, body: Map, job: str) -> Any:
        """`strategy.matrix`; of a `strategy` that is an expression, that expression's `matrix`."""
        strategy = body.get("strategy")
        if isinstance(strategy, str) and (whole := _WHOLE.fullmatch(strategy)):
            text = Text(f"${{{{ ({whole[1].strip()}).matrix }}}}")
            text.line = getattr(strategy, "line", 0)
            return text
        strategy_body = self._strategy(body, job)
        matrix = strategy_body.get("matrix")
        if matrix is not None and not isinstance(matrix, Map) and not _is_expression(matrix):
            raise self._error("`matrix` is a mapping or an expression", strategy_body.lines["matrix"], job=job)
        return matrix

    def _step(self, number: int, body: Any, job: str, steps_line: int) -> Step:
        if not isinstance(body, Map):
            line = getattr(body, "line", steps_line)
            raise self._error("a step is a mapping", line, job=job, step=f"#{number}")
        name = _text(body.get("name") or body.get("uses") or body.get("id")) or f"step {number}"
        where = f"step {name!r}"
        refused = _unsupported(self._keys(body, _STEP, where, job=job, step=name), Treatment.REFUSED)
        if ("run" in body) == ("uses" in body) and ("run" in body or not refused):
            raise self._error("a step has either `run` or `uses`", body.line, job=job, step=name)
        return Step(
            name=name,
            line=body.line,
            id=_text(body.get("id")),
            uses=_text(body.get("uses")),
            with_=self._map(body, "with", where, job=job, step=name),
            run=_text(body.get("run")),
            shell=_text(body.get("shell")),
            env=self._map(body, "env", where, job=job, step=name),
            working_directory=_text(body.get("working-directory")),
            condition=_text(body.get("if")),
            continue_on_error=body.get("continue-on-error", False),
            timeout_minutes=body.get("timeout-minutes"),
            refused=refused,
        )

    def _container(self, body: Map, job: str) -> Container | None:
        container = body.get("container")
        if container is None or container == "":
            return None
        line = body.lines["container"]
        if isinstance(container, str):
            return Container(image=container, line=line)
        if not isinstance(container, Map) or not isinstance(container.get("image"), str):
            raise self._error("`container` names an image", line, job=job)
        volumes = self._list(container, "volumes", job=job)
        return Container(
            image=container["image"],
            options=(_text(container.get("options")) or "").strip(),
            env=self._map(container, "env", "container", job=job),
            volumes=tuple(str(volume) for volume in volumes),
            line=line,
        )

    def _defaults(self, body: Map, where: str, *, job: str = "") -> tuple[str | None, str | None]:
        defaults = self._map(body, "defaults", where, job=job)
        run = self._map(defaults, "run", "defaults", job=job)
        return _text(run.get("shell")), _text(run.get("working-directory"))

    def _map(self, body: Map, key: str, where: str, *, job: str = "", step: str = "") -> Map:
        value = body.get(key)
        if value is None:
            return Map(body.line)
        if not isinstance(value, Map):
            raise self._error(f"`{key}` of {where} is a mapping", body.lines[key], job=job, step=step)
        return value

    def _list(self, body: Map, key: str, *, job: str) -> list[Any]:
        value = body.get(key)
        if value is not None and not isinstance(value, list):
            raise self._error(f"`{key}` is a list", body.lines[key], job=job)
        return value or []

    def _keys(self, body: Map, path: str, where: str, *, job: str = "", step: str = "") -> list[FoundKey]:
        """The keys below a mapping at `path` of the schema. Those of each job and each step are read with theirs."""
        own = {"": f"{_JOB}.", _JOB: f"{_STEP}."}.get(path, " ")
        keys = [key for key in schema.walk(body, path) if not key.path.startswith(own)]
        for key in keys:
            if key.spec is None:
                place = key.path.removeprefix(path).strip(".").rpartition(".")[0] or where
                raise self._error(
                    f"{place} has no key {key.name!r}{did_you_mean(key.name, key.valid)}",
                    key.line,
                    job=job,
                    step=step,
                    hint=f"valid: {', '.join(key.valid)}",
                )
        return keys

    def _error(self, message: str, line: int, *, job: str = "", step: str = "", hint: str = "") -> WorkflowError:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return WorkflowError(message, file=self.place, line=line, job=job, step=step, text=text, hint=hint)


def _unsupported(keys: list[FoundKey], treatment: Treatment) -> tuple[UnsupportedKey, ...]:
    return tuple(
        UnsupportedKey(key.path.removeprefix(f"{_STEP}.").removeprefix(f"{_JOB}."), key.spec.why, key.line)
        for key in keys
        if key.spec and key.spec.treatment is treatment
    )


def _branches(on: Any) -> tuple[str, ...]:
    """The base branches for whose pull requests the workflow starts, as far as it names them."""
    body = on.get("pull_request") if isinstance(on, Mapping) else None
    branches = body.get("branches") if isinstance(body, Mapping) else None
    return tuple(map(str, branches if isinstance(branches, list) else [branches])) if branches else ()


def _inputs(on: Any) -> dict[str, WorkflowInput]:
    inputs: dict[str, WorkflowInput] = {}
    for event in _CALLS:
        declared = on[event].get("inputs") if isinstance(on, Mapping) and isinstance(on.get(event), Mapping) else None
        for name, body in (declared if isinstance(declared, Mapping) else {}).items():
            definition = body if isinstance(body, Mapping) else {}
            before = inputs.get(name, WorkflowInput()).default
            default = definition.get("default") if definition.get("default") is not None else before
            inputs[name] = WorkflowInput(str(definition.get("type") or "string"), default)
    return inputs


def _is_expression(value: Any) -> bool:
    return isinstance(value, str) and "${{" in value


def _text(value: Any) -> str | None:
    """A scalar as GitHub sees it where it wants text; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
