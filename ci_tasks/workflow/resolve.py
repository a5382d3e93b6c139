"""Evaluating a workflow's values, so that every error names the job, the step, the line and the text.

A value that only GitHub knows goes no further than this: `text` and what stands on it raise UnknownValueError, `value`,
`decide` and `shown` are for those who can do without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import ExpressionError, JobStatus, Unknown, unknowns
from ci_tasks.workflow.model import Step
from ci_tasks.workflow.unknown_values import UnknownValueError, how_to_give, is_unset, why_unknown


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
        texts = {**step.action.inputs, **step.with_}
        values = self.with_contexts(inputs={})  # a default sees no input
        inputs = {
            name: (self if name in step.with_ else values).value(raw, step=step if name in step.with_ else None)
            for name, raw in texts.items()
        }
        as_text = {
            name: value if isinstance(value, Unknown) else expressions.to_string(value)
            for name, value in inputs.items()
        }
        return Resolver(step.action.file, self.job, self.line, {**self.contexts, "inputs": as_text, "steps": {}})

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
        if isinstance(raw, list):
            return [self.value(item, step=step) for item in raw]
        return raw

    def text(self, raw: Any, *, step: Step | None = None) -> str:
        """A value as GitHub writes it into an environment variable or a script."""
        value = self._known(self.value(raw, step=step), raw, step)
        return value if isinstance(value, str) else expressions.to_string(value)

    def shown(self, raw: Any, *, step: Step | None = None) -> str:
        """As `text`, for a person: what is unknown by its name."""
        return expressions.shown(self.value(raw, step=step))

    def strings(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, str]:
        """The variables of an `env`. One that is a secret or an input, and nothing else, is empty if nobody gave it."""
        values = {name: self.value(value, step=step) for name, value in raw.items()}
        return {name: "" if is_unset(value) else self.text(raw[name], step=step) for name, value in values.items()}

    def values(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, Any]:
        """As `strings`, as expressions see them: Unknown where only GitHub knows the text."""
        values = {name: self.value(value, step=step) for name, value in raw.items()}
        return {
            name: value if isinstance(value, Unknown) else expressions.to_string(value)
            for name, value in values.items()
        }

    def number(self, raw: Any, what: str) -> float | None:
        value = self._known(self.value(raw), raw, None)
        if value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            line = getattr(raw, "line", 0) or self.line
            raise WorkflowError(
                f"{what} is a number, not {value!r}", file=self.file, job=self.job, line=line, text=f"{what}: {raw}"
            )
        return number

    def condition(self, raw: str | None, status: JobStatus = JobStatus(), *, step: Step | None = None) -> bool:
        """Whether an `if:` lets its job or step run, given how the job stands."""
        holds = self.decide(raw, status, step=step)
        if isinstance(holds, Unknown):
            raise self._unknown(holds, raw, step)
        return holds

    def decide(self, raw: str | None, status: JobStatus = JobStatus(), *, step: Step | None = None) -> bool | Unknown:
        """As `condition`; Unknown where only GitHub can say."""
        try:
            return expressions.condition(raw or "", self.contexts, status)
        except ExpressionError as error:
            raise self.error(error, raw or "", step) from None

    def known(self, raw: Any, *, step: Step | None = None) -> Any:
        """As `value`, of which nothing is unknown."""
        return self._known(self.value(raw, step=step), raw, step)

    def _known(self, value: Any, raw: Any, step: Step | None) -> Any:
        for unknown in unknowns(value):
            raise self._unknown(unknown, raw, step)
        return value

    def _unknown(self, unknown: Unknown, raw: Any, step: Step | None) -> UnknownValueError:
        # Its name is what the file says, but for the spelling of an index; else the value's own line will do.
        at = ExpressionError("", unknown.names[0].removesuffix(".*"), 0)
        text = raw if isinstance(raw, str) else ""
        line, quoted = _place(text, at, step.line if step else self.line)
        return UnknownValueError(
            why_unknown(unknown),
            file=self.file,
            job=self.job,
            step=step.name if step else "",
            line=line,
            text=quoted,
            hint=how_to_give(unknown.names),
        )

    def check(self, raw: Any, *, step: Step | None = None) -> None:
        """Whether every expression in a value can be read, without evaluating it."""
        if isinstance(raw, str):
            try:
                expressions.references(raw)
            except ExpressionError as error:
                raise self.error(error, raw, step) from None
        for item in raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ():
            self.check(item, step=step)

    def check_condition(self, raw: str | None, *, step: Step | None = None) -> None:
        """As `check`, for an `if:`."""
        try:
            expressions.uses_status(raw or "")
        except ExpressionError as error:
            raise self.error(error, raw or "", step) from None

    def error(self, error: ExpressionError, raw: str, step: Step | None) -> WorkflowError:
        line, text = _place(raw, error, step.line if step else self.line)
        return WorkflowError(
            error.message,
            file=self.file,
            job=self.job,
            step=step.name if step else "",
            line=line,
            text=text,
        )


def _place(raw: str, error: ExpressionError, fallback: int) -> tuple[int, str]:
    """The line of the file, and its text, on which the refused part of an expression in `raw` stands.

    Looked for in the scalar's own source lines, since a folded scalar's value has other line ends. Words are matched
    with any space between them. What is not found there, such as an escaped text, stands where the scalar begins.
    """
    begin = getattr(raw, "line", 0) or fallback
    lines = list(getattr(raw, "source", ())) or [raw.rstrip("\n")]
    source = "\n".join(lines)
    pattern = _spaced(error.text) or r"\}\}"
    match = re.search(r"\$\{\{\s*" + pattern, source) or re.search(pattern, source)
    offset = 0
    if match:
        before = re.compile(r"(\$\{\{)?\s*" + _spaced(error.text[: error.position])).match(source, match.start())
        end = before.end() if before else match.start()
        if error.position and error.text[error.position - 1].isspace():
            end += len(source[end:]) - len(source[end:].lstrip())
        offset = min(source.count("\n", 0, end), len(lines) - 1)
    return begin + offset, lines[offset]


def _spaced(text: str) -> str:
    return r"\s+".join(map(re.escape, text.split()))
