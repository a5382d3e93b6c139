"""Workflow text → Workflow: GitHub's syntax as records, unevaluated, each with its line.

A key that GitHub does not have is an error with its line and the nearest valid key: a workflow that we read only in part
would be reproduced only in part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError, nearest
from ci_tasks.model import Container, Job, Step, Workflow
from ci_tasks.yaml_lines import Map

_TOP = "name run-name on permissions env defaults concurrency jobs"
_JOB = (
    "name permissions needs if runs-on environment concurrency outputs env defaults steps timeout-minutes strategy "
    "continue-on-error container services uses with secrets snapshot"
)
_STEP = "id if name uses run working-directory shell with env continue-on-error timeout-minutes"
_CONTAINER = "image credentials env ports volumes options"
_SECRET = re.compile(r"\bsecrets\.([A-Za-z_][A-Za-z0-9_]*)")


def read(text: str, file: str, *, rendered: bool = False) -> Workflow:
    """The workflow in `text`. Raises WorkflowError for broken YAML and for anything GitHub would refuse."""
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise WorkflowError(f"not YAML: {error.message}", file=file, line=error.line, text=error.text) from None
    if not isinstance(tree, Map):
        raise WorkflowError("a workflow is a mapping with the keys `on` and `jobs`", file=file, line=1)
    return _Reader(file, rendered).workflow(tree, text)


class _Reader:
    """Knows the file's name, so that the functions below need not hand it on."""

    def __init__(self, file: str, rendered: bool) -> None:
        self.file, self.rendered = file, rendered

    def workflow(self, tree: Map, text: str) -> Workflow:
        self._known(tree, _TOP, "the workflow")
        jobs = self._map(tree, "jobs", "the workflow")
        shell, directory = self._defaults(tree, "the workflow")
        return Workflow(
            path=self.file,
            name=str(tree.get("name") or self.file),
            env=self._map(tree, "env", "the workflow"),
            jobs={name: self._job(name, jobs.get(name), jobs.lines[name], shell, directory) for name in jobs},
            secrets=tuple(sorted({*_SECRET.findall(text), "GITHUB_TOKEN"})),
            rendered=self.rendered,
        )

    def _job(self, id: str, body: Any, line: int, shell: str | None, directory: str | None) -> Job:
        if not isinstance(body, Map):
            raise self._error("a job is a mapping", line, job=id)
        self._known(body, _JOB, f"job {id}", job=id)
        own_shell, own_directory = self._defaults(body, f"job {id}")
        strategy = self._map(body, "strategy", f"job {id}")
        self._known(strategy, "matrix fail-fast max-parallel", "strategy", job=id)
        steps = body.get("steps") or []
        if not isinstance(steps, list):
            raise self._error("`steps` is a list", body.lines["steps"], job=id)
        if not steps and not body.get("uses"):
            raise self._error("a job has `steps`, or `uses` another workflow", line, job=id)
        return Job(
            id=id,
            line=line,
            name=_text(body.get("name")),
            condition=_text(body.get("if")),
            needs=tuple(_list(body.get("needs"))),
            runs_on=body.get("runs-on"),
            env=self._map(body, "env", f"job {id}"),
            matrix=strategy.get("matrix"),
            container=self._container(body, id),
            services=tuple(self._map(body, "services", f"job {id}")),
            steps=tuple(self._step(number, step, id, line) for number, step in enumerate(steps, 1)),
            shell=own_shell or shell,
            working_directory=own_directory or directory,
            timeout_minutes=body.get("timeout-minutes"),
            outputs=self._map(body, "outputs", f"job {id}"),
            uses=_text(body.get("uses")),
        )

    def _step(self, number: int, body: Any, job: str, job_line: int) -> Step:
        if not isinstance(body, Map):
            raise self._error("a step is a mapping", job_line, job=job, step=f"#{number}")
        name = str(body.get("name") or body.get("uses") or body.get("id") or f"step {number}")
        self._known(body, _STEP, f"step {name!r}", job=job, step=name)
        if ("run" in body) == ("uses" in body):
            raise self._error("a step has either `run` or `uses`", body.line, job=job, step=name)
        return Step(
            index=number,
            name=name,
            line=body.line,
            id=_text(body.get("id")),
            uses=_text(body.get("uses")),
            with_=self._map(body, "with", f"step {name!r}"),
            run=_text(body.get("run")),
            shell=_text(body.get("shell")),
            env=self._map(body, "env", f"step {name!r}"),
            working_directory=_text(body.get("working-directory")),
            condition=_text(body.get("if")),
            continue_on_error=body.get("continue-on-error", False),
            timeout_minutes=body.get("timeout-minutes"),
        )

    def _container(self, body: Map, job: str) -> Container | None:
        found = body.get("container")
        if found is None:
            return None
        line = body.lines["container"]
        if isinstance(found, str):
            return Container(image=found, line=line)
        if not isinstance(found, Map) or not found.get("image"):
            raise self._error("`container` names an image", line, job=job)
        self._known(found, _CONTAINER, "container", job=job)
        return Container(
            image=str(found["image"]),
            options=str(found.get("options") or "").strip(),
            env=self._map(found, "env", "container"),
            volumes=tuple(str(volume) for volume in found.get("volumes") or ()),
            line=line,
        )

    def _defaults(self, body: Map, where: str) -> tuple[str | None, str | None]:
        run = self._map(self._map(body, "defaults", where), "run", "defaults")
        return _text(run.get("shell")), _text(run.get("working-directory"))

    def _map(self, body: Map, key: str, where: str) -> Map:
        found = body.get(key)
        if found is None:
            return Map()
        if not isinstance(found, Map):
            raise self._error(f"`{key}` of {where} is a mapping", body.lines[key], text=f"{key}: {found}")
        return found

    def _known(self, body: Map, valid: str, where: str, *, job: str = "", step: str = "") -> None:
        for key in body:
            if key not in valid.split():
                near = nearest(key, valid.split())
                raise self._error(
                    f"{where} has no key {key!r}" + (f"; did you mean {near!r}?" if near else ""),
                    body.lines[key],
                    job=job,
                    step=step,
                )

    def _error(self, message: str, line: int, *, job: str = "", step: str = "", text: str = "") -> WorkflowError:
        return WorkflowError(message, file=self.file, line=line, job=job, step=step, text=text)


def _text(value: Any) -> str | None:
    """A scalar as GitHub sees it where it wants text; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
