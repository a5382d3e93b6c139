"""What a test's syntax tree shows directly: calls with literal arguments, constants, assertions. Nothing is executed.

Constants of the module, names that a function assigns once, f-strings and `+` of those are followed; nothing else is,
and stands as ⟨expression⟩.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.recorder.records import MAIN, NONE, PYTEST, READ, AssertionSite, Frame, LaunchCall, Recording, Value

_LONGEST = 50_000
_NOISE = re.compile(r"[^\w.()\[\]=,]")  # what would mean something to a shell
# Before Python 3.12 two threads that parse at once fail with "AST constructor recursion depth mismatch" (gh-106905).
_parser = threading.Lock()
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_source(source: str, path: str, helpers: Mapping[str, Sequence[str]]) -> Recording:
    """The recording of a file that is not run. Raises nothing: a file that is not Python has a `problem`."""
    try:
        with _parser:
            tree = ast.parse(source)
        return _SyntaxRecorder(tree, path, helpers).recording()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Recording(problem=f"it is not Python that can be read: {error}")


class _SyntaxRecorder:
    def __init__(self, tree: ast.Module, path: str, helpers: Mapping[str, Sequence[str]]) -> None:
        self._tree, self._path, self._helpers = tree, path, helpers
        self._imports = dict(_imports(tree))
        self._names: dict[str, Value] = {}

    def recording(self) -> Recording:
        self._names = self._assigned(self._tree.body, {})
        calls: list[LaunchCall] = []
        assertions: list[AssertionSite] = []
        self._walk(self._tree.body, "<module>", self._names, calls, assertions)
        entry = _entry(self._tree)
        return Recording(
            calls=tuple(calls),
            assertions=tuple(assertions),
            constants={name: value for name, value in self._names.items() if "⟨" not in str(value)},
            tests=tuple(_tests(self._tree)),
            entry=MAIN if entry == NONE and any(call.function in self._helpers for call in calls) else entry,
            doc=ast.get_docstring(self._tree) or "",
        )

    def _walk(
        self,
        body: Sequence[ast.AST],
        function: str,
        names: Mapping[str, Value],
        calls: list[LaunchCall],
        assertions: list[AssertionSite],
    ) -> None:
        waiting = list(body)
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, _Function):
                own = {parameter.arg for parameter in ast.walk(node.args) if isinstance(parameter, ast.arg)}
                outer = {name: value for name, value in names.items() if name not in own}
                self._walk(node.body, node.name, self._assigned(node.body, outer), calls, assertions)
                continue
            waiting[:0] = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.Assert):
                assertions.append(self._assertion(node, function, node.test, node.msg, names))
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                if ast.unparse(node.exc.func) == "AssertionError":
                    message = node.exc.args[0] if node.exc.args else None
                    assertions.append(self._assertion(node, function, node.exc, message, names))
            elif isinstance(node, ast.Call) and (target := self._target(node.func)):
                calls.append(self._call(node, target, function, names))
                if calls[-1].function.startswith("assert_"):
                    assertions.append(AssertionSite(self._path, function, node.lineno, target, "", origin=READ))

    def _call(self, node: ast.Call, target: str, function: str, names: Mapping[str, Value]) -> LaunchCall:
        args = [self._value(argument, names) for argument in node.args]
        kwargs = {keyword.arg: self._value(keyword.value, names) for keyword in node.keywords if keyword.arg}
        if parameters := self._helpers.get(target.rpartition(".")[2]):
            kwargs = {**dict(zip(parameters, args, strict=False)), **kwargs}
            args = []
        return LaunchCall(target, args, kwargs, (Frame(self._path, function, node.lineno),), origin=READ)

    def _assertion(
        self, node: ast.stmt, function: str, test: ast.expr, message: ast.expr | None, names: Mapping[str, Value]
    ) -> AssertionSite:
        text = str(self._value(message, names)) if message else ""
        return AssertionSite(self._path, function, node.lineno, ast.unparse(test)[:500], text, origin=READ)

    def _target(self, node: ast.expr) -> str:
        """The function as imported, "" where it is not imported by name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imports:
            return ""
        return ".".join([self._imports[node.id], *reversed(parts)])

    def _assigned(self, body: Sequence[ast.stmt], names: Mapping[str, Value]) -> dict[str, Value]:
        """Names that these statements assign exactly once, with what is known of their values."""
        nodes = [node for statement in body for node in _own(statement)]
        stored = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
        values = {name: value for name, value in names.items() if name not in stored}
        for node in body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if stored.count(name) == 1:
                    values[name] = self._value(node.value, values)
        return values

    def _value(self, node: ast.expr, names: Mapping[str, Value]) -> Value:
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.FormattedValue) and part.format_spec is None else part
                for part in node.values
            )
            return "".join(str(self._value(part, names)) for part in parts)[:_LONGEST]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._value(node.left, names), self._value(node.right, names)
            if isinstance(left, str) and isinstance(right, str):
                return (left + right)[:_LONGEST]
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, names) for item in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {str(key.value): self._value(item, names) for key, item in pairs if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
            return node.value
        return f"⟨{_NOISE.sub('', ast.unparse(node))[:80]}⟩"


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of functions within."""
    yield node
    if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each imported name, and what it stands for ("subprocess", "slime.utils.command_utils")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}".lstrip(".")


def _entry(tree: ast.Module) -> str:
    """How `python FILE` begins it: more than definitions, or pytest called by a `__main__` block."""
    local = {node.name for node in tree.body if isinstance(node, _Function)}
    for node in tree.body:
        text = ast.unparse(node.test) if isinstance(node, ast.If) else ""
        if "__name__" in text and "__main__" in text:
            called = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            return PYTEST if called & {"pytest.main", "unittest.main"} else MAIN
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            if name in local or name.rpartition(".")[2] == "main":
                return MAIN
    return NONE


def _tests(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, _Function) and node.name.startswith("test"):
            yield node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for part in node.body:
                if isinstance(part, _Function) and part.name.startswith("test"):
                    yield f"{node.name}.{part.name}"
