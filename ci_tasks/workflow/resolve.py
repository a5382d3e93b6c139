"""Evaluating a workflow's values, so that every error names the job, the step, the line and the text.

A value that only GitHub knows goes no further than this: `text` and what stands on it raise UnknownValueError, which
says how a person gives the value. `value`, `decide` and `shown` are for those who can do without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import SUCCESS, ExpressionError
from ci_tasks.workflow.model import Step
from ci_tasks.workflow.values import Unknown, shown, to_string, unknowns

_OF_THE_EVENT = ("github.event.", "github.head_ref", "github.actor", "github.triggering_actor")


class UnknownValueError(WorkflowError):
    """A value that only GitHub knows would decide what runs."""


class Resolver:
    """Evaluates values of one job under fixed contexts. All methods raise WorkflowError."""

    def __init__(self, file: str, job: str, line: int, contexts: Mapping[str, Any]) -> None:
        self.file, self.job, self.line = file, job, line
        self.contexts = dict(contexts)

    def with_env(self, env: Mapping[str, Any]) -> Resolver:
        return self.with_contexts(env=dict(env))

    def with_contexts(self, **contexts: Any) -> Resolver:
        return Resolver(self.file, self.job, self.line, {**self.contexts, **contexts})

    def of_action(self, step: Step) -> Resolver:
        """For the steps of the action of the checkout that a step uses: its inputs, and no step before its own."""
        if step.action is None:
            return self
        defaults = {name: raw for name, raw in step.action.inputs.items() if name not in step.with_}
        inputs = {**self.with_contexts(inputs={}).values(defaults), **self.values(step.with_, step=step)}
        return Resolver(step.action.file, self.job, self.line, {**self.contexts, "inputs": inputs, "steps": {}})

    def value(self, raw: Any, *, step: Step | None = None) -> Any:
        """Any YAML value with its expressions evaluated; a scalar that is one expression keeps its type. Unknown for
        what only GitHub knows."""
        if isinstance(raw, str):
            try:
                return expressions.interpolate(raw, self.contexts)
            except ExpressionError as error:
                raise self.error(error, raw, step) from None
        if isinstance(raw, Mapping):
            return {str(key): self.value(item, step=step) for key, item in raw.items()}
        return [self.value(item, step=step) for item in raw] if isinstance(raw, list) else raw

    def known(self, raw: Any, *, step: Step | None = None) -> Any:
        """As `value`, of which nothing is unknown."""
        value = self.value(raw, step=step)
        for unknown in unknowns(value):
            raise self._unknown(unknown, raw, step)
        return value

    def text(self, raw: Any, *, step: Step | None = None) -> str:
        """A value as GitHub writes it into an environment variable or a script."""
        return to_string(self.known(raw, step=step))

    def shown(self, raw: Any, *, step: Step | None = None) -> str:
        """As `text`, for a person: what is unknown by its name."""
        return shown(self.value(raw, step=step))

    def strings(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, str]:
        """The variables of an `env`. One that is a secret or an input, and nothing else, is empty if nobody gave it."""
        values = self.values(raw, step=step)
        return {name: "" if is_unset(value) else self.text(raw[name], step=step) for name, value in values.items()}

    def values(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, Any]:
        """As `strings`, as expressions see them: Unknown where only GitHub knows the text."""
        values = {name: self.value(value, step=step) for name, value in raw.items()}
        return {name: value if isinstance(value, Unknown) else to_string(value) for name, value in values.items()}

    def number(self, raw: Any, what: str) -> float | None:
        value = self.known(raw)
        if value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            line, text = getattr(raw, "line", 0) or self.line, f"{what}: {raw}"
            message = f"{what} is a number, not {value!r}"
            raise WorkflowError(message, file=self.file, job=self.job, line=line, text=text)
        return number

    def condition(self, raw: str | None, status: str = SUCCESS, *, step: Step | None = None) -> bool:
        """Whether an `if:` lets its job or step run, given how the job stands."""
        holds = self.decide(raw, status, step=step)
        if isinstance(holds, Unknown):
            raise self._unknown(holds, raw, step)
        return holds

    def decide(self, raw: str | None, status: str = SUCCESS, *, step: Step | None = None) -> bool | Unknown:
        """As `condition`; Unknown where only GitHub can say."""
        try:
            return expressions.condition(raw or "", self.contexts, status)
        except ExpressionError as error:
            raise self.error(error, raw or "", step) from None

    def check(self, raw: Any, condition: str | None = None, *, step: Step | None = None) -> None:
        """Whether every expression in a value and in an `if:` can be read, without evaluating it."""
        for item in raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ():
            self.check(item, step=step)
        text = raw if isinstance(raw, str) else ""
        try:
            expressions.references(text)
            text = condition or ""
            expressions.label_tests(text)
        except ExpressionError as error:
            raise self.error(error, text, step) from None

    def error(self, error: ExpressionError, raw: str, step: Step | None) -> WorkflowError:
        """Names the line of the file that has the refused part of an expression. What is not found there, such as an
        escaped text, stands where the scalar begins."""
        return WorkflowError(error.message, **self._place(raw, error.text, error.position, step))

    def _unknown(self, unknown: Unknown, raw: Any, step: Step | None) -> UnknownValueError:
        # Its name is what the file says, but for the spelling of an index.
        place = self._place(raw if isinstance(raw, str) else "", unknown.names[0].removesuffix(".*"), 0, step)
        return UnknownValueError(_why_unknown(unknown), **place, hint=how_to_give(unknown.names))

    def _place(self, raw: str, text: str, position: int, step: Step | None) -> dict[str, Any]:
        begin = getattr(raw, "line", 0) or (step.line if step else self.line)
        lines = list(getattr(raw, "source", ())) or [raw.rstrip("\n")]
        words = [f"${{{{ {text}", text, *text[position:].split()[:1]]
        offset = next((at for word in words if word for at, line in enumerate(lines) if word in line), 0)
        names = {"file": self.file, "job": self.job, "step": step.name if step else ""}
        return {**names, "line": begin + offset, "text": lines[offset]}


def how_to_give(names: Iterable[str]) -> str:
    """The options that give the values, for an error's hint; "" where there is none."""
    ways = list(dict.fromkeys(way for way in map(_way, names) if way))
    overrides = ", or the same under `overrides` in hosts.yaml" if any(way.startswith("--") for way in ways) else ""
    return f"give {' '.join(ways)}{overrides}" if ways else ""


def is_unset(value: object) -> bool:
    """Whether the value is a secret or an input that nobody gave: empty in a variable, as for a fork's pull request."""
    return isinstance(value, Unknown) and value.absent and value.names[0].startswith(("secrets.", "inputs."))


def _why_unknown(unknown: Unknown) -> str:
    names = ", ".join(unknown.names)
    if all(name.startswith("steps.") for name in unknown.names):
        return f"needs the outcome or an output of an earlier step, which is known only while it runs: {names}"
    if all(name.startswith("secrets.") for name in unknown.names):
        return f"needs {names}, which is not in your environment"
    return f"needs {names}, which only GitHub knows"


def _way(name: str) -> str:
    context, _, rest = name.partition(".")
    if context == "vars":
        return f"--var {rest}=VALUE"
    if context == "inputs" or name.startswith("github.event.inputs."):
        return f"--input {rest.removeprefix('event.inputs.')}=VALUE"
    if context == "needs" and ".outputs." in rest:
        return f"--output {rest.replace('.outputs.', '.', 1)}=VALUE"
    if context == "secrets":
        return f"the environment variable {rest} (empty if CI has no such secret)"
    return "--github-event FILE" if name.startswith(_OF_THE_EVENT) else ""
