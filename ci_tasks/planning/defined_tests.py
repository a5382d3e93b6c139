"""Whether a file defines tests, and whether `python FILE` would reach them, from the text of the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

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
    """The statements of the module, those inside of an `if`, `try` or `with` that has definitions each on its own."""
    try:
        return [statement for node in ast.parse(source).body for statement in _flat(node)]
    except (SyntaxError, ValueError):
        return ()  # Python will say what is wrong with it


def _flat(node: ast.AST) -> Iterator[ast.stmt]:
    is_block = not isinstance(node, _DEFINITION) and any(isinstance(each, _DEFINITION) for each in ast.walk(node))
    for child in ast.iter_child_nodes(node) if is_block else ():
        yield from _flat(child)
    if isinstance(node, ast.stmt) and not is_block:
        yield node


def _words(statements: Sequence[ast.stmt]) -> set[str]:
    """The names in the statements, and `__main__` where it is a text."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = {str(getattr(node, "id", getattr(node, "attr", ""))) for node in nodes}
    return names | {"__main__" for node in nodes if isinstance(node, ast.Constant) and node.value == "__main__"}
