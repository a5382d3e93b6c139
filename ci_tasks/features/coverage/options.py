"""What the framework's own argument parser offers: options with a closed list of values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Where slime declares its arguments.
ARGUMENTS = "slime/utils/arguments.py"
# Tracking and profiling say nothing about what is trained.
_ASIDE = ("--wandb", "--profile", "--memory", "--tensorboard", "--use-wandb")


def choices(source: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Option → its values, and its default ("" where it has none or it is not a literal)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    choices_by_option = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [name for name in map(_literal, node.args) if isinstance(name, str) and name.startswith("--")]
            keywords = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
            offered = keywords.get("choices")
            if names and isinstance(offered, list | tuple) and not names[0].startswith(_ASIDE):
                choices_by_option[names[0]] = (tuple(map(str, offered)), str(keywords.get("default") or ""))
    return choices_by_option


def unused(source: str, passed: dict[str, set[str]], trained: int) -> Iterator[tuple[str, list[str]]]:
    """Options and those of their values that no training has; `passed` are the values given, and trainings that do not
    give one have its default."""
    if not trained:
        return
    for option, (offered, default) in choices(source).items():
        missing = [value for value in offered if value not in passed.get(option, set()) and value != default]
        if missing:
            yield option, missing


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
