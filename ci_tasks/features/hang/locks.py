"""Which lock a thread waits for and which it holds, as far as `with` statements around its line show it. Pure.

A lock counts only if it is a global of the module that the frame is in: of `self.lock` the text does not say which
object it is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.hang.stacks import Stack

Key = tuple[str, str]  # the file, and the name of the lock there


@dataclass(frozen=True)
class LockUse:
    """What one thread `wants`, None if that is not shown, and what it `holds` meanwhile."""

    wants: Key | None = None
    holds: frozenset[Key] = frozenset()


def lock_use(stack: Stack, sources: Mapping[str, str]) -> LockUse:
    wants: Key | None = None
    holds: set[Key] = set()
    for at, frame in enumerate(stack.frames):
        if frame.line is not None and (text := sources.get(frame.file)):
            wanted, held = _at_line(text, frame.line)
            if at == 0 and wanted:
                wants = (frame.file, wanted)
            holds |= {(frame.file, name) for name in held}
    return LockUse(wants, frozenset(holds))


@lru_cache(maxsize=4096)
def _at_line(text: str, line: int) -> tuple[str, frozenset[str]]:
    """The lock that the line takes, "" for none, and those that its function holds there."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", frozenset()
    wanted, held, local = "", set[str](), set[str]()
    for node in ast.walk(tree):  # what is around comes before what is inside
        if not _is_around(node, line):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = list(ast.walk(node))
            stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            held, local = set(), local | stored | {each.arg for each in nodes if isinstance(each, ast.arg)}
        elif isinstance(node, ast.With):
            names = {item.context_expr.id for item in node.items if isinstance(item.context_expr, ast.Name)}
            if line >= node.body[0].lineno:
                held |= names
            elif len(node.items) == 1:  # of several in one statement, the line does not say which
                wanted = "".join(names)
    return ("" if wanted in local else wanted), frozenset(held - local)


def _is_around(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
