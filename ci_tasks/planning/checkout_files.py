"""What files of the checkout say of a row: whether its test's file defines tests, whether `python FILE` would reach
them, whether it starts Ray, itself or through a module that it imports; and which packages the probe watches."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Sequence

from ci_tasks.agent.records import ProbeHook, ProbeRules
from ci_tasks.workflow.suite import Suite

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
    """The names in the statements, and `__main__` if it is a text."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = {str(getattr(node, "id", getattr(node, "attr", ""))) for node in nodes}
    return names | {"__main__" for node in nodes if isinstance(node, ast.Constant) and node.value == "__main__"}


# -- Ray ---------------------------------------------------------------------------------------------------------------

_STARTS = re.compile(r"\bray start\b|\bray\.init\(")
_IMPORT = re.compile(r"^[ \t]*(?:import[ ]+([\w.]+)|from[ ]+(\w[\w.]*)[ ]+import[ ]+\(?([\w, ]*))", re.MULTILINE)
_DEEP = 2  # imports of imports; slime's tests import one helper that runs `ray start --head`
_MANY = 200  # files that are looked into


def starts_ray(test: str, read: Callable[[str], str | None]) -> bool:
    """`read` gives the text of a file of the checkout, or None if it has none of that name."""
    level, visited = [test], {test}
    for _ in range(_DEEP + 1):
        texts = {path: read(path) or "" for path in level}
        if any(_STARTS.search(text) for text in texts.values()):
            return True
        paths = dict.fromkeys(found for path, text in texts.items() for found in _imported(text, path))
        level = [path for path in paths if path not in visited][: _MANY - len(visited)]
        visited.update(level)
    return False


def _imported(text: str, path: str) -> list[str]:
    """The files that the text's imports may mean: from the checkout's root, and from beside the file."""
    modules: list[str] = []
    for module, package, names in _IMPORT.findall(text):
        inside = [f"{package}.{words[0]}" for name in names.split(",") if (words := name.split())]
        modules += [module] if module else [package, *inside]
    roots = ("", f"{path.rpartition('/')[0]}/")
    places = [f"{root}{module.replace('.', '/')}" for module in modules for root in roots]
    return [file for place in places for file in (f"{place}.py", f"{place}/__init__.py")]


# -- what the probe watches --------------------------------------------------------------------------------------------

_PROJECT = re.compile(r"""^name *= *["']([\w.-]+)["']""", re.MULTILINE)
_ROOTS = ("", "src/", "python/")  # of a checkout, where projects have their packages


def probe_rules(suite: Suite, own: tuple[str, ...] = ()) -> ProbeRules:
    """A suite's hook uses the standard library of Python 3.8 only, so it can be imported here for its `MODULES`."""
    packages = tuple(dict.fromkeys([*suite.packages, *own]))
    if not suite.probe_hook:
        return ProbeRules(packages, own=own)
    import inspect  # the suites of most labels have no hook

    module = importlib.import_module(suite.probe_hook)
    hook = ProbeHook(suite.name, tuple(module.MODULES), inspect.getsource(module))
    return ProbeRules(packages, (hook,), own=own)


def own_packages(suite: Suite, repository: str, read_file: Callable[[str], str | None]) -> Iterator[str]:
    """The packages that the checkout has: the suite's, and one with the name of the project or the repository."""
    projects = [*_PROJECT.findall(read_file("pyproject.toml") or "")[:1], repository.rpartition("/")[2]]
    for name in dict.fromkeys([*suite.packages, *(re.sub("[-.]+", "_", project.lower()) for project in projects)]):
        path = name.replace(".", "/")
        if any(read_file(f"{root}{path}/__init__.py") is not None for root in _ROOTS):
            yield name
