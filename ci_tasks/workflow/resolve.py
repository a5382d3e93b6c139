"""Evaluating a workflow's values, so that every error names the job, the step, the line and the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.errors import WorkflowError
from ci_tasks.model import Step
from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import ExpressionError, JobStatus


class Resolver:
    """Evaluates values of one job under fixed contexts. All methods raise WorkflowError."""

    def __init__(self, file: str, job: str, line: int, contexts: Mapping[str, Any]) -> None:
        self.file, self.job, self.line = file, job, line
        self.contexts = dict(contexts)

    def with_env(self, env: Mapping[str, str]) -> Resolver:
        """The same contexts with `env` as the env context."""
        return Resolver(self.file, self.job, self.line, {**self.contexts, "env": dict(env)})

    def value(self, raw: Any, *, step: Step | None = None) -> Any:
        """Any YAML value with its expressions evaluated; a scalar that is one expression keeps its type."""
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
        value = self.value(raw, step=step)
        return value if isinstance(value, str) else expressions.to_string(value)

    def strings(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, str]:
        return {name: self.text(value, step=step) for name, value in raw.items()}

    def number(self, raw: Any, what: str) -> float | None:
        """A number, or None where there is none."""
        value = self.value(raw)
        if value is None or value == "":
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise WorkflowError(
                f"{what} is a number", file=self.file, job=self.job, line=self.line, text=f"{what}: {raw}"
            ) from None

    def condition(self, raw: str | None, status: JobStatus = JobStatus(), *, step: Step | None = None) -> bool:
        """Whether an `if:` lets its job or step run, given how the job stands."""
        try:
            return expressions.condition(raw or "", self.contexts, status)
        except ExpressionError as error:
            raise self.error(error, raw or "", step) from None

    def error(self, error: ExpressionError, raw: str, step: Step | None) -> WorkflowError:
        line, text = _place(raw, error.text, step.line if step else self.line)
        return WorkflowError(
            error.message,
            file=self.file,
            job=self.job,
            step=step.name if step else "",
            line=line,
            text=text,
        )


def _place(raw: str, expression: str, fallback: int) -> tuple[int, str]:
    """The line and the text where `expression` stands in `raw`, whose own first line YAML told us."""
    begin = getattr(raw, "line", 0) or fallback
    for offset, text in enumerate(raw.splitlines()):
        if expression and expression.strip().splitlines()[:1] and expression.strip().splitlines()[0] in text:
            return begin + offset, text
    return begin, raw.splitlines()[0] if raw else ""
