"""What a call does: a function of the test is followed, one that can be computed is, and every other is recorded."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ci_tasks.suites.reading import arguments, interface, library, methods
from ci_tasks.suites.reading.expressions import Expressions, shown, unresolved
from ci_tasks.suites.reading.library import Unknown
from ci_tasks.suites.reading.merging import truth
from ci_tasks.suites.reading.objects import Environ, Function, Imported, Method, Namespace, Scope, plain
from ci_tasks.suites.reading.values import Call, Check, Unresolved

_DEEP = 30  # functions within functions
_PARSERS = {"argparse.ArgumentParser", "configargparse.ArgumentParser"}
_TESTED = {"pytest.main", "unittest.main"}
_RUN_BY_NAME = {"typer.run", "fire.Fire", "asyncio.run"}
_SILENT = {"builtins.print", "builtins.isinstance", "builtins.super", "sys.path.insert", "sys.path.append"}


class Calling(Expressions):
    """Evaluates calls, and remembers those that leave the test. What a function's body does is the next class's."""

    def __init__(self, environ: Mapping[str, str], args: Sequence[str]) -> None:
        super().__init__(environ)
        self.args = list(args)
        self.names["sys.argv"] = ["test.py", *args]
        self.calls: list[Call] = []
        self.checks: list[Check] = []
        self.conditions: list[str] = []
        self.via: list[str] = []
        self.running: list[Function] = []
        self.entry = ""
        self.file = ""
        self.tested = False

    @abstractmethod
    def follow(self, function: Function, scope: Scope) -> Any:
        """The result of a function's body, its parameters bound in `scope`."""

    @abstractmethod
    def collect(self) -> None:
        """What pytest would do with the test file."""

    @abstractmethod
    def launcher(self, target: str) -> Function | None:
        """The function of a package of the checkout, to follow it."""

    def lambda_of(self, node: ast.Lambda, scope: Scope) -> Function:
        return self.function_of(node, "lambda", scope)

    def function_of(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, scope: Scope
    ) -> Function:
        defaults = tuple(self.value(default, scope) for default in node.args.defaults)
        named = {
            argument.arg: self.value(default, scope)
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default is not None
        }
        return Function(node, scope, name, self.file, defaults, named)

    def call(self, node: ast.Call, scope: Scope) -> Any:
        callee = self.value(node.func, scope)
        args, whole = self._arguments(node, scope)
        kwargs = self._keywords(node, scope)
        if isinstance(callee, Function):
            return self.enter(callee, args, kwargs, node.lineno, whole=whole)
        if isinstance(callee, Method):
            return self._method(callee, node, args, kwargs)
        if isinstance(callee, Imported):
            return self._imported(callee, node, args, kwargs, whole)
        return self._record(node, "", args, kwargs)

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], bool]:
        """The positional arguments, and whether their number is known."""
        found: list[Any] = []
        whole = True
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                found.append(self.value(argument, scope))
                continue
            value = self.value(argument.value, scope)
            try:
                found += library.items(value)
            except Unknown:
                found.append(value if isinstance(value, Unresolved) else unresolved(argument.value, "not a sequence"))
                whole = False
        return found, whole

    def _keywords(self, node: ast.Call, scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, dict):
                found.update({str(name): item for name, item in value.items()})
        return found

    def enter(
        self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], line: int, *, whole: bool = True
    ) -> Any:
        """Follow a function of the test. Parameters that the call does not give are unresolved."""
        if len(self.running) >= _DEEP or self.running.count(function) > 2:
            return Unresolved(line, f"{function.name}(…)", "it calls itself, or goes too deep")
        scope = Scope(_bound(function, args, kwargs, line, whole), function.scope)
        before, self.file = self.file, function.file
        self.running.append(function)
        self.via.append(function.name)
        try:
            with self.under():
                return self.follow(function, scope)
        finally:
            self.running.pop()
            self.via.pop()
            self.file = before

    @contextmanager
    def under(self, *conditions: str) -> Iterator[None]:
        """Within it, calls happen only if the conditions hold; so does what the block itself adds to them."""
        depth = len(self.conditions)
        self.conditions += conditions
        try:
            yield
        finally:
            del self.conditions[depth:]

    def _method(self, method: Method, node: ast.Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        owner = method.owner
        if isinstance(owner, arguments.Parser):
            return self._parser(owner, method.name, node, args, kwargs)
        if isinstance(owner, Environ) and method.name == "get" and args and args[0] not in owner:
            return args[1] if len(args) > 1 else None
        if methods.has(owner, method.name):
            return methods.call(owner, method.name, args, kwargs)
        return self._record(node, "", args, kwargs)

    def _parser(
        self, parser: arguments.Parser, name: str, node: ast.Call, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if name == "add_argument":
            parser.add_argument(args, kwargs)
            return None
        if name not in ("parse_args", "parse_known_args"):
            return unresolved(node, "what the parser does is not known")
        words = args[0] if args and isinstance(args[0], list) else self.args
        try:
            found = parser.parse([str(word) for word in words], known=name != "parse_args")
        except arguments.NotUnderstood as error:
            return unresolved(node, f"the row's arguments do not fit: {error}")
        return (found, []) if name == "parse_known_args" else found

    def _imported(
        self, callee: Imported, node: ast.Call, args: Sequence[Any], kwargs: Mapping[str, Any], whole: bool
    ) -> Any:
        target, last = callee.target, callee.target.rpartition(".")[2]
        if target in library.FUNCTIONS:
            return library.FUNCTIONS[target](*args, **kwargs)
        if target in _PARSERS:
            return arguments.Parser()
        if target == "os.getenv":
            return self.environ.get(args[0], args[1] if len(args) > 1 else kwargs.get("default"))
        if target in _TESTED:
            self.tested = True
            self.collect()
            return 0
        if target in _RUN_BY_NAME and args and isinstance(args[0], Function):
            return self.enter(args[0], (), {}, node.lineno)
        if last in interface.VALUES:
            found = interface.VALUES[last](self.environ, *args, **kwargs)
            return found if found is not None else unresolved(node, f"only a run knows what {last} gives")
        if target.endswith("Namespace") and not args:
            return Namespace(kwargs)
        if last in interface.HELPERS and not interface.is_slimes(target) and (own := self.launcher(target)):
            return self.enter(own, args, kwargs, node.lineno, whole=whole)
        return self._record(node, target, args, kwargs)

    def _record(self, node: ast.Call, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Remember a call. A function among its arguments is taken to be called by it, once, before all else."""
        if target in _SILENT:
            return None if target != "builtins.isinstance" else unresolved(node, "only a run knows it")
        if not target.startswith("builtins."):
            for value in (*args, *kwargs.values()):
                if isinstance(value, Function) and value not in self.running:
                    self.enter(value, (), {}, node.lineno)
        if not target.startswith("builtins.") or target == "builtins.open":
            self.calls.append(
                Call(
                    name=shown(node.func),
                    target=target,
                    function=self.via[-1] if self.via else "",
                    line=node.lineno,
                    args=tuple(plain(value, node.lineno) for value in args),
                    kwargs={name: plain(value, node.lineno) for name, value in kwargs.items()},
                    conditions=tuple(self.conditions),
                    via=tuple(self.via),
                    entry=self.entry,
                    file=self.file,
                )
            )
        return unresolved(node, f"what {shown(node.func)} gives (line {node.lineno})")

    def known(self, node: ast.expr, scope: Scope) -> bool | None:
        """Whether a condition holds, None where it is not known."""
        return truth(self.value(node, scope))


def _bound(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], line: int, whole: bool
) -> dict[str, Any]:
    """The parameters of a call, by name."""
    declared = function.node.args
    positional = [*declared.posonlyargs, *declared.args]
    names = [parameter.arg for parameter in positional]
    bound: dict[str, Any] = {}
    if function.defaults:
        bound.update(zip(names[-len(function.defaults) :], function.defaults, strict=True))
    bound.update(function.keyword_defaults)
    bound.update(zip(names, args, strict=False))
    if declared.vararg:
        bound[declared.vararg.arg] = tuple(args[len(names) :])
    accepted = {*names, *(parameter.arg for parameter in declared.kwonlyargs)}
    bound.update({name: value for name, value in kwargs.items() if name in accepted})
    if declared.kwarg:
        bound[declared.kwarg.arg] = {name: value for name, value in kwargs.items() if name not in accepted}
    for parameter in (*positional, *declared.kwonlyargs):
        if parameter.arg not in bound or (not whole and parameter.arg in names[max(len(args) - 1, 0) :]):
            why = f"no call is seen that gives {function.name} this parameter"
            bound[parameter.arg] = Unresolved(line, parameter.arg, why)
    return bound
