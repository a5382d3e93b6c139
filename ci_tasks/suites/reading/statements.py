"""Statements, one after the other, both ways where it is not known which one a run would take."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.suites.reading import library
from ci_tasks.suites.reading.definitions import Definitions, Module
from ci_tasks.suites.reading.expressions import shown, unresolved
from ci_tasks.suites.reading.library import Unknown
from ci_tasks.suites.reading.merging import join, merged, restore, save
from ci_tasks.suites.reading.objects import Function, Imported, Scope
from ci_tasks.suites.reading.values import Check, Unresolved

# How a block ended: it went through (None), or left.
_RETURN, _RAISE, _BREAK, _CONTINUE = "return", "raise", "break", "continue"
_ENDING = {"sys.exit", "os._exit", "builtins.exit", "builtins.quit", "pytest.skip", "pytest.fail", "pytest.exit"}
_ROUNDS = 64  # of a loop; those that wait for a server have more, and say nothing new after the first
_PARTS = {"prepare", "execute"}  # what a test without a `__main__` block would have done


class Statements(Definitions):
    """Runs blocks."""

    def __init__(self, environ: Mapping[str, str], args: Sequence[str], module: Module) -> None:
        super().__init__(environ, args, module)
        self._returned: list[list[Any]] = []
        self.top = Scope()

    def begin(self, tree: ast.Module, file: str) -> None:
        """Run the test file as `python FILE` does. Raises TooMuch."""
        self.file = file
        self.top.names.update(__name__="__main__", __file__=Unresolved(1, "__file__", "where the checkout lies"))
        self.block(tree.body, self.top)

    def collect(self) -> None:
        """Every test function, one after the other, none of its parameters known."""
        for name, value in list(self.top.names.items()):
            if isinstance(value, Function) and name.startswith("test"):
                self._begin(name, value)

    def parts(self) -> None:
        """What the file defines and does not start."""
        self.collect()
        for name, value in list(self.top.names.items()):
            if isinstance(value, Function) and name in _PARTS:
                self._begin("", value)

    def _begin(self, entry: str, function: Function) -> None:
        before = save(self.top, self.environ)
        self.entry = entry
        self.enter(function, (), {}, function.node.lineno)
        self.entry = ""
        if entry:
            restore(before)

    def follow(self, function: Function, scope: Scope) -> Any:
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, scope)
        self._returned.append([])
        ended = self.block(function.node.body, scope)
        values = self._returned.pop()
        if ended is None:
            values.append(None)
        if not values:
            return Unresolved(function.node.lineno, f"{function.name}(…)", "it never returns")
        hole = Unresolved(
            function.node.lineno, f"{function.name}(…)", f"what {function.name} returns depends on the run"
        )
        result = values[0]
        for value in values[1:]:
            result = merged(result, value, hole)
        return result

    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> str | None:
        """Run statements until one leaves. What is known only on one way holds for the rest of the block."""
        depth = len(self.conditions)
        try:
            for statement in statements:
                if ended := self._statement(statement, scope):
                    return ended
            return None
        finally:
            del self.conditions[depth:]

    def _statement(self, node: ast.stmt, scope: Scope) -> str | None:
        self.tick()
        method = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        return method(node, scope) if method else None

    def _do_expr(self, node: ast.Expr, scope: Scope) -> str | None:
        self.value(node.value, scope)
        return _RAISE if self._ends(node.value, scope) else None

    def _ends(self, node: ast.expr, scope: Scope) -> bool:
        if not isinstance(node, ast.Call) or "(" in ast.unparse(node.func):  # a call in it would be recorded twice
            return False
        callee = self.value(node.func, scope)
        return isinstance(callee, Imported) and callee.target in _ENDING

    def _do_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _do_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, scope), scope)

    def _do_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        before, change = self.value(node.target, scope), self.value(node.value, scope)
        try:
            value = self.combined(node.op, before, change)
        except (Unknown, ArithmeticError, TypeError, ValueError):
            value = unresolved(node.target, self._why(node.value, scope))
        self.assign(node.target, value, scope)

    def _do_return(self, node: ast.Return, scope: Scope) -> str:
        value = self.value(node.value, scope) if node.value else None
        if self._returned:
            self._returned[-1].append(value)
        return _RETURN

    def _do_raise(self, node: ast.Raise, scope: Scope) -> str:
        if node.exc is not None:
            self.value(node.exc, scope)
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(called, ast.Name) and called.id == "AssertionError":
                arguments = node.exc.args if isinstance(node.exc, ast.Call) else []
                self._check(node, node.exc, arguments[0] if arguments else None, scope)
        return _RAISE

    def _do_assert(self, node: ast.Assert, scope: Scope) -> None:
        self.value(node.test, scope)
        self._check(node, node.test, node.msg, scope)

    def _check(self, node: ast.stmt, what: ast.expr, message: ast.expr | None, scope: Scope) -> None:
        said = self.value(message, scope) if message is not None else ""
        self.checks.append(
            Check(
                line=node.lineno,
                function=self.via[-1] if self.via else "",
                text=shown(what),
                message=str(said),
                after=len(self.calls),
                conditions=tuple(self.conditions),
                via=tuple(self.via),
                entry=self.entry,
                file=self.file,
            )
        )

    def _do_break(self, node: ast.Break, scope: Scope) -> str:
        return _BREAK

    def _do_continue(self, node: ast.Continue, scope: Scope) -> str:
        return _CONTINUE

    def _do_if(self, node: ast.If, scope: Scope) -> str | None:
        known = self.known(node.test, scope)
        if known is not None:
            return self.block(node.body if known else node.orelse, scope)
        condition = shown(node.test)
        before = save(scope, self.environ)
        with self.under(condition):
            one = self.block(node.body, scope)
        after_one = save(scope, self.environ)
        restore(before)
        with self.under(f"not ({condition})"):
            other = self.block(node.orelse, scope)
        if one and other:
            return one if one == other else _RETURN
        if one:
            self.conditions.append(f"not ({condition})")
        elif other:
            restore(after_one)
            self.conditions.append(condition)
        else:
            join([after_one, save(scope, self.environ)], unresolved(node.test, f"it depends on {condition}"))
        return None

    def _do_for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> str | None:
        try:
            items = library.items(self.value(node.iter, scope))
            if len(items) > _ROUNDS:
                raise Unknown
        except Unknown:
            self._maybe(node.body, scope, f"for … in {shown(node.iter)}", node.iter, node.target)
            return None
        for item in items:
            self.assign(node.target, item, scope)
            ended = self.block(node.body, scope)
            if ended in (_RETURN, _RAISE):
                return ended
            if ended == _BREAK:
                return None
        return self.block(node.orelse, scope)

    _do_asyncfor = _do_for

    def _do_while(self, node: ast.While, scope: Scope) -> str | None:
        known = self.known(node.test, scope)
        if known is False:
            return None
        endless = isinstance(node.test, ast.Constant) and known
        ended = self._maybe(node.body, scope, "" if endless else f"while {shown(node.test)}", node.test)
        return ended if endless and ended in (_RETURN, _RAISE) else None

    def _maybe(
        self,
        body: Sequence[ast.stmt],
        scope: Scope,
        condition: str,
        cause: ast.expr,
        target: ast.expr | None = None,
    ) -> str | None:
        """A loop whose number of rounds is not known: once, and what it changes is not known after it."""
        before = save(scope, self.environ)
        with self.under(*([condition] if condition else [])):
            if target is not None:
                self.assign(target, unresolved(cause, self._why(cause, scope)), scope)
            ended = self.block(body, scope)
        join([save(scope, self.environ), before], unresolved(cause, "it depends on a loop"))
        return ended

    def _do_with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> str | None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.block(node.body, scope)

    _do_asyncwith = _do_with

    def _do_try(self, node: ast.Try, scope: Scope) -> str | None:
        ended = self.block(node.body, scope)
        after = save(scope, self.environ)
        ways = [(ended or self.block(node.orelse, scope), save(scope, self.environ))]
        for handler in node.handlers:
            restore(after)
            with self.under(f"except {shown(handler.type) if handler.type else 'any exception'}"):
                if handler.name:
                    scope.bind(handler.name, Unresolved(handler.lineno, handler.name, "an exception"))
                ways.append((self.block(handler.body, scope), save(scope, self.environ)))
        going = [way for outcome, way in ways if outcome is None]
        join(going or [ways[0][1]], Unresolved(node.lineno, "try: …", "it depends on an exception"))
        return self.block(node.finalbody, scope) or (None if going else ways[0][0])

    _do_trystar = _do_try
