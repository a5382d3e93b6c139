"""Which lock a thread waits for and which it holds, as far as the text of its functions shows it. Pure.

A lock counts only if it is a global of the module that the frame is in: of `self.lock` the text does not say which
object it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.hang.stacks import Stack, StackFrame

Key = tuple[str, str]  # the file, and the name of the lock there


@dataclass(frozen=True)
class LockUse:
    """What one thread `wants`, None where that is not shown, and what it `holds` meanwhile, with the frames that do."""

    wants: Key | None
    holds: Mapping[Key, StackFrame]


NO_LOCKS = LockUse(None, {})


def lock_use(stack: Stack, sources: Mapping[str, str]) -> LockUse:
    frames = stack.python
    wants: Key | None = None
    holds: dict[Key, StackFrame] = {}
    for at, frame in enumerate(frames):
        text = sources.get(frame.file, "")
        if not text or frame.line is None:
            continue
        wanted, held = _of_frame(text, frame.line)
        if at == 0 and wanted:
            wants = (frame.file, wanted)
        for name in held:
            holds.setdefault((frame.file, name), frame)
    return LockUse(wants, holds)


@lru_cache(maxsize=4096)
def _of_frame(text: str, line: int) -> tuple[str, tuple[str, ...]]:
    tree = _tree(text)
    if tree is None:
        return "", ()
    chain = list(_chain(tree, line))
    local = _locals(chain)
    wanted, held = "", list[str]()
    for at, node in enumerate(chain):
        if isinstance(node, ast.With):
            names = [_name(item.context_expr) for item in node.items]
            if line >= node.body[0].lineno:
                held += [name for name in names if name]
            elif len(names) == 1:  # of several in one statement, nobody knows at which it is
                wanted = names[0]
        elif isinstance(node, ast.stmt):
            wanted = _acquired(node) or wanted if at == len(chain) - 1 else wanted
        held += _acquired_before(node, line)
    if isinstance(chain[-1], ast.Expr):
        wanted = _acquired(chain[-1]) or wanted
    return (wanted if wanted not in local else ""), tuple(name for name in held if name not in local and name)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _chain(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """The innermost function at the line, and the statements in it that the line is in, from the outermost on."""
    nodes = [tree]
    node: ast.AST | None = tree
    while node is not None:
        inside = [child for child in _statements(node) if child.lineno <= line <= (child.end_lineno or child.lineno)]
        node = inside[0] if inside else None
        if node is not None:
            nodes = [node] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else [*nodes, node]
    return iter(nodes)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()) if isinstance(getattr(node, name, ()), list) else ():
            if isinstance(child, ast.stmt):
                yield child
            else:
                yield from _statements(child)


def _locals(chain: list[ast.AST]) -> frozenset[str]:
    """Names that are the function's own: its parameters, and what it assigns."""
    if not isinstance(chain[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset()
    arguments = chain[0].args
    names = {item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    shared = {name for node in ast.walk(chain[0]) if isinstance(node, ast.Global) for name in node.names}
    stored = {node.id for node in ast.walk(chain[0]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(names | (stored - shared))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _acquired(node: ast.AST, method: str = "acquire") -> str:
    """The lock of a statement `LOCK.acquire()`."""
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == method:
        return "" if value.args or value.keywords else _name(value.func.value)
    return ""


def _acquired_before(node: ast.AST, line: int) -> list[str]:
    """Locks that statements of this block took before the line, and did not release since."""
    held: list[str] = []
    for statement in _statements(node) if isinstance(node, (ast.FunctionDef, ast.Module)) else ():
        if (statement.end_lineno or statement.lineno) >= line:
            break
        for inner in ast.walk(statement):
            released = _acquired(inner, "release")
            if released in held:
                held.remove(released)
        name = _acquired(statement)
        if name:
            held.append(name)
    return held
