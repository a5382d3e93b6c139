"""Composite actions of the checkout itself (`uses: ./DIR`): their steps, read as those of a job are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ci_tasks import yaml_lines
from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.model import Job, LocalAction, Step, Workflow
from ci_tasks.workflow.reader import read_steps

_FILES = ("action.yml", "action.yaml")


def with_local_actions(workflow: Workflow, read: Callable[[str], str | None]) -> Workflow:
    """The workflow with the steps of the composite actions that it uses from its checkout; `read` gives the text of a
    file there, None where there is none. An action that is not there, or is no composite one, stays as it is: the
    plan refuses its step by name. Raises WorkflowError for one that cannot be read."""
    known: dict[str, LocalAction | None] = {}
    if not any(_is_local(step) for job in workflow.jobs.values() for step in job.steps):
        return workflow

    def with_action(step: Step, inside: tuple[str, ...] = ()) -> Step:
        if not step.uses or not _is_local(step) or step.uses in inside:
            return step
        if step.uses not in known:
            action = _read(step.uses.removeprefix("./").rstrip("/"), read)
            steps = tuple(with_action(each, (*inside, step.uses)) for each in action.steps) if action else ()
            known[step.uses] = replace(action, steps=steps) if action else None
        return replace(step, action=known[step.uses])

    def with_actions(job: Job) -> Job:
        return replace(job, steps=tuple(with_action(step) for step in job.steps))

    return replace(workflow, jobs={name: with_actions(job) for name, job in workflow.jobs.items()})


def _is_local(step: Step) -> bool:
    return (step.uses or "").startswith("./")


def _read(directory: str, read: Callable[[str], str | None]) -> LocalAction | None:
    for name in _FILES:
        file = f"{directory}/{name}"
        text = read(file)
        if text is not None:
            return _action(text, file)
    return None


def _action(text: str, file: str) -> LocalAction | None:
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise WorkflowError(f"invalid YAML: {error.message}", file=file, line=error.line, text=error.text) from None
    runs = tree.get("runs") if isinstance(tree, Mapping) else None
    if not isinstance(runs, yaml_lines.Map) or runs.get("using") != "composite":
        return None
    declared = tree.get("inputs")
    inputs = {
        str(name): body.get("default", "") if isinstance(body, Mapping) else ""
        for name, body in (declared if isinstance(declared, Mapping) else {}).items()
    }
    return LocalAction(file, inputs, read_steps(runs, text, file))
