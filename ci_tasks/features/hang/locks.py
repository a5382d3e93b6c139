"""Which lock a thread waits for and which it holds, as far as the text of its functions shows it. Pure.

A lock counts only if it is a global of the module that the frame is in: of `self.lock` the text does not say which
object it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.hang.stacks import Stack

Key = tuple[str, str]  # the file, and the name of the lock there


@dataclass(frozen=True)
class LockUse:
    """What one thread `wants`, None where that is not shown, and what it `holds` meanwhile."""

    wants: Key | None = None
    holds: frozenset[Key] = frozenset()


def lock_use(stack: Stack, sources: Mapping[str, str]) -> LockUse:
    wants: Key | None = None
    holds: set[Key] = set()
    for at, frame in enumerate(stack.python):
        if frame.line is not None and (text := sources.get(frame.file)):
            wanted, held = _at_line(text, frame.line)
            if at == 0 and wanted:
                wants = (frame.file, wanted)
            holds |= {(frame.file, name) for name in held}
    return LockUse(wants, frozenset(holds))


@lru_cache(maxsize=4096)
def _at_line(text: str, line: int) -> tuple[str, frozenset[str]]:
    """The lock that the line takes, "" for none, and those that its function has taken before."""
    try:
        node: ast.AST = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", frozenset()
    scope, wanted, held = node, "", set[str]()
    while True:
        before, here = [], None
        for child in _statements(node):
            if child.lineno <= line <= (child.end_lineno or child.lineno):
                here = child
                break
            before.append(child)
        for statement in before:
            held |= {_called(statement, "acquire")}
            held -= {_called(inner, "release") for inner in ast.walk(statement)}
        if here is None:
            break
        node = here
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope, held = node, set()
        elif isinstance(node, ast.With):
            names = {item.context_expr.id for item in node.items if isinstance(item.context_expr, ast.Name)}
            if line >= node.body[0].lineno:
                held |= names
            elif len(node.items) == 1:  # of several in one statement, the line does not say which
                wanted = "".join(names)
        else:
            wanted = _called(node, "acquire")
    own = _locals(scope) | {""}
    return ("" if wanted in own else wanted), frozenset(held - own)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from child.body


def _called(node: ast.AST, method: str) -> str:
    """The lock of a statement `LOCK.acquire()`; "" for any other."""
    call = getattr(node, "value", None)
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == method:
        is_plain = isinstance(call.func.value, ast.Name) and not (call.args or call.keywords)
        return getattr(call.func.value, "id", "") if is_plain else ""
    return ""


def _locals(scope: ast.AST) -> set[str]:
    """Names that are the function's own: its parameters, and what it assigns."""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    nodes = list(ast.walk(scope))
    shared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.arg for node in nodes if isinstance(node, ast.arg)} | (stored - shared)
