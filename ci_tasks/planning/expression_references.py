"""What the texts of a step read: the contexts that their expressions name."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.workflow import expressions
from ci_tasks.workflow.model import Step

# The contexts that differ from row to row.
_OF_A_ROW = ("matrix", "strategy")


def expression_texts(step: Step) -> list[str]:
    """Everything in a step that may hold an expression; its `if:` as one."""
    values = [
        *(step.run, step.name, step.working_directory, step.shell, step.continue_on_error, step.timeout_minutes),
        *step.env.values(),
        *step.with_.values(),
    ]
    return [str(text) for text in values if text is not None] + condition_texts(step.condition)


def condition_texts(condition: str | None) -> list[str]:
    """An `if:` as text in which its expressions can be found: `${{ }}` is optional there."""
    if not condition:
        return []
    return [condition if "${{" in condition else f"${{{{ {condition} }}}}"]


def referenced_names(texts: Iterable[str]) -> list[str]:
    """What the expressions in `texts` read, as dotted names."""
    return list(dict.fromkeys(name for text in texts for name in expressions.references(text)))


def depends_on_matrix(names: Iterable[str]) -> bool:
    """Whether something that reads `names` may differ from row to row."""
    return any(name.split(".")[0] in _OF_A_ROW for name in names)
