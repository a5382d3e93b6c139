"""Whether a file defines tests, and whether `python FILE` would reach them, from the text of the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

_RUNNER = re.compile(r"\b(?:pytest|unittest)\.main\(")
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def defines_tests(source: str) -> bool:
    """Whether the file has tests (`def test_`, `class Test`) for a test runner. One without a runner that names its
    tests outside of them, as `if __name__ == "__main__": test_a()` does, is a script."""
    body = _statements(source)
    tests = [node for node in body if isinstance(node, _DEFINITION) and node.name.startswith(("test_", "Test"))]
    others = [node for node in body if node not in tests]
    is_script = not _RUNNER.search(source) and not _words(others).isdisjoint(test.name for test in tests)
    return bool(tests) and not is_script


def only_defines_tests(source: str) -> bool:
    """Whether `python FILE` defines tests and runs none: there is neither a `__main__` block nor a call of `main`."""
    acting = [node for node in _statements(source) if not isinstance(node, _DEFINITION)]
    return defines_tests(source) and _words(acting).isdisjoint(("main", "__main__"))


def _statements(source: str) -> Sequence[ast.stmt]:
    """The statements of the module, those inside of an `if`, `try` or `with` each on its own."""
    try:
        return _flat(ast.parse(source).body)
    except (SyntaxError, ValueError):
        return ()  # Python will say what is wrong with it


def _flat(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Blocks stay as statements, too, where they define nothing: their conditions and calls are the module's."""
    found: list[ast.stmt] = []
    for node in body:
        blocks = [*getattr(node, "body", ()), *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
        blocks += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
        inner = [] if isinstance(node, _DEFINITION) else _flat(blocks)
        found += inner if any(isinstance(statement, _DEFINITION) for statement in inner) else [node]
    return found


def _words(statements: Sequence[ast.stmt]) -> set[str]:
    """The names in the statements, and `__main__` where it is a text."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return names | attributes | ({"__main__"} & texts)
