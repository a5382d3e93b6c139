"""A test's source → what it would do when the row runs it. The source is read, never imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ci_tasks.suites.reading.interface import commands_of, helper_of
from ci_tasks.suites.reading.objects import Function, Imported, plain
from ci_tasks.suites.reading.statements import Statements
from ci_tasks.suites.reading.texts import TooMuch, bounded
from ci_tasks.suites.reading.values import MAIN, NONE, PYTEST, Reading, Unresolved

Helpers = Callable[[str], "str | None"]


def no_helpers(path: str) -> str | None:
    """A test that is read alone."""
    return None


def read_test(
    source: str,
    *,
    env: Mapping[str, str],
    args: Sequence[str] = (),
    helpers: Helpers = no_helpers,
    path: str = "tests/test.py",
) -> Reading:
    """What `python PATH ARGS` would do, with the row's `env` (a variable that is not in it counts as unset).

    `helpers` gives the text of another file of the checkout, by its path from the root, or None: modules beside the
    test that it imports from are read too; the framework's own are not, but for a launcher of trainings. Raises
    nothing: a source that cannot be read has a `problem`.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        return Reading(problem=Unresolved(line, path, f"it is not Python that can be read: {error}"))
    machine = Statements(env, args, lambda module, anywhere: _find(path, module, helpers, anywhere=anywhere))
    starts = _has_main(tree)
    problem: Unresolved | None = None
    try:
        machine.begin(tree, path)
        starts = starts or any(helper_of(call) or commands_of(call) for call in machine.calls)
        if not starts:
            machine.parts()
    except (TooMuch, RecursionError):
        problem = Unresolved(1, path, "it does more than is worth following; the rest of it was not read")
    return Reading(
        calls=tuple(machine.calls),
        constants=_constants(machine.top.names),
        checks=tuple(machine.checks),
        tests=tuple(_tests(tree)),
        entry=PYTEST if machine.tested else MAIN if starts else NONE,
        doc=ast.get_docstring(tree) or "",
        problem=problem,
    )


def _has_main(tree: ast.Module) -> bool:
    """Whether `python FILE` does more than define things."""
    local = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "__main__" in ast.unparse(node.test):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            if name in local or name.rpartition(".")[2] == "main":
                return True
    return False


def _tests(tree: ast.Module) -> list[str]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found.append(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found += [
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith("test")
            ]
    return found


def _constants(names: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in names.items():
        if name.startswith("__") or isinstance(value, Function | Imported | Unresolved):
            continue
        try:
            bounded(value)
        except TooMuch:
            continue
        found[name] = plain(value, 0)
    return found


def _find(test: str, module: str, helpers: Helpers, *, anywhere: bool) -> tuple[str, str] | None:
    """The file of a module: beside the test, where Python looks first, under `tests.`, or anywhere in the checkout."""
    directory = test.rpartition("/")[0]
    name = module.lstrip(".").replace(".", "/")
    level = len(module) - len(module.lstrip("."))
    for _ in range(level - 1):
        directory = directory.rpartition("/")[0]
    candidates = [f"{directory}/{name}" if directory else name]
    if not level and (anywhere or name.startswith("tests/")):
        candidates.append(name)
    for candidate in candidates:
        for path in (f"{candidate}.py", f"{candidate}/__init__.py"):
            text = helpers(path)
            if text is not None:
                return path, text
    return None
