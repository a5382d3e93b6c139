"""Statements that define or import a name, and the helper modules that lie beside a test."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.suites.reading.calling import Calling
from ci_tasks.suites.reading.objects import Function, Imported, Scope
from ci_tasks.suites.reading.values import Unresolved

Module = Callable[[str, bool], "tuple[str, str] | None"]


class Definitions(Calling):
    """Binds names. `module` gives the path and text of a module by its dotted name: one that lies beside the test, or
    with True one of the checkout's own packages."""

    def __init__(self, environ: Mapping[str, str], args: Sequence[str], module: Module) -> None:
        super().__init__(environ, args)
        self._module = module
        self._modules: dict[str, Scope | None] = {}

    @abstractmethod
    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> str | None:
        """Run statements; how they ended."""

    def _do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.bind(node.name, self.function_of(node, node.name, scope))

    _do_asyncfunctiondef = _do_functiondef

    def _do_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.bind(node.name, Unresolved(node.lineno, node.name, "a class of the test"))

    def _do_global(self, node: ast.Global, scope: Scope) -> None:
        for name in node.names:
            scope.foreign[name] = scope.chain()[-1]

    def _do_nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            scope.foreign[name] = next((each for each in scope.chain()[1:] if name in each.names), scope)

    def _do_delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)

    def _do_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.bind(name, Imported(alias.name if alias.asname else name))

    def _do_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = ("." * node.level) + (node.module or "")
        helper = self._helper(module) if node.module else None
        for alias in node.names:
            found = helper.names.get(alias.name) if helper else None
            scope.bind(alias.asname or alias.name, found or Imported(f"{module.lstrip('.')}.{alias.name}"))

    def launcher(self, target: str) -> Function | None:
        module, _, name = target.rpartition(".")
        helper = self._helper(module, anywhere=True) if module else None
        found = helper.names.get(name) if helper else None
        return found if isinstance(found, Function) else None

    def _helper(self, module: str, *, anywhere: bool = False) -> Scope | None:
        """The names of a helper module; None where it is none, or cannot be read."""
        if not self._modules.get(module):
            self._modules[module] = None  # for a module that imports itself
            found = self._module(module, anywhere)
            if found is not None:
                self._modules[module] = self._load(*found)
        return self._modules[module]

    def _load(self, path: str, source: str) -> Scope | None:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None
        scope = Scope({"__name__": path, "__file__": Unresolved(1, "__file__", "where the checkout lies")})
        before, self.file = self.file, path
        try:
            self.block(tree.body, scope)
        finally:
            self.file = before
        return scope
