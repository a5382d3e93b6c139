"""Whether `python FILE` would run anything, from the text of the file."""

from __future__ import annotations

import ast


def has_entry_point(source: str) -> bool:
    """Whether `python FILE` does more than define things: it has a `__main__` block, or calls its own functions, or
    somebody's `main`, at its top. Changing `sys.path` there, as many test files do, is not enough."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return True  # Python will say what is wrong with it
    local = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return any(_acts(statement, local) for statement in body)


def _acts(statement: ast.stmt, local: set[str]) -> bool:
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return True
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.Expr | ast.For | ast.While | ast.With | ast.Try | ast.Raise | ast.If):
        return False
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(
        (isinstance(called, ast.Name) and (called.id in local or called.id == "main"))
        or (isinstance(called, ast.Attribute) and called.attr == "main")
        for called in calls
    )
