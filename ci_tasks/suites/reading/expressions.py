"""An expression → its value, as far as the source and the row say it."""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from ci_tasks.suites.reading import library, methods, operators, texts
from ci_tasks.suites.reading.library import TooMuch, Unknown
from ci_tasks.suites.reading.merging import merged, truth
from ci_tasks.suites.reading.objects import Environ, Function, Imported, Method, Namespace, PathText, Scope
from ci_tasks.suites.reading.values import Partly, Unresolved, holes

_STEPS = 200_000  # of a reading; slime's longest test takes some 3,000
_SHOWN = 80  # characters of an expression in a message


class Expressions(ABC):
    """Evaluates expressions. What a call does is the next class's knowledge."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = Environ(environ)
        self.names: dict[str, Any] = {**library.CONSTANTS, "os.environ": self.environ}
        self._steps = 0

    @abstractmethod
    def call(self, node: ast.Call, scope: Scope) -> Any: ...

    @abstractmethod
    def lambda_of(self, node: ast.Lambda, scope: Scope) -> Function: ...

    def tick(self) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise TooMuch

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression; an `Unresolved` where it is not known. Never raises but TooMuch."""
        self.tick()
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            return unresolved(node, f"{type(node).__name__} is not read")
        try:
            found = method(node, scope)
            texts.bounded(found)
            return found
        except Unknown:
            return unresolved(node, self._why(node, scope))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return unresolved(node, f"it would raise {type(error).__name__}")

    def _why(self, node: ast.expr, scope: Scope) -> str:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                known = scope.find(part.id) if any(part.id in each.names for each in scope.chain()) else None
                for hole in holes(known):
                    return hole.why
        return "only a run knows it"

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        return node.value

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        try:
            return scope.find(node.id)
        except KeyError:
            if hasattr(builtins, node.id):
                return Imported(f"builtins.{node.id}")
            return unresolved(node, "nothing of that name is set before")

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(owner, Imported):
            target = f"{owner.target}.{node.attr}"
            return self.names.get(target) if target in self.names else Imported(target)
        if isinstance(owner, Namespace):
            return owner[node.attr] if node.attr in owner else Method(owner, node.attr)
        if isinstance(owner, PathText) and (found := owner.attribute(node.attr)) is not None:
            return found
        if isinstance(owner, Unresolved):
            return Unresolved(node.lineno, shown(node), owner.why)
        return Method(owner, node.attr)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(owner, Unresolved):
            return Unresolved(node.lineno, shown(node), owner.why)
        if isinstance(owner, Environ):
            name = self.value(node.slice, scope)
            return owner[name] if name in owner else unresolved(node, "the row does not set this variable")
        if isinstance(node.slice, ast.Slice):
            bounds = [self.value(part, scope) if part else None for part in _bounds(node.slice)]
            self._all_known(bounds)
            self._countable(owner)
            return owner[slice(*bounds)]
        index = self.value(node.slice, scope)
        self._all_known([index])
        if isinstance(index, int):
            self._countable(owner)
        return owner[index]

    def _countable(self, owner: Any) -> None:
        """A list that merged two ways has a hole at its end, and nobody knows for how many items."""
        if isinstance(owner, Partly) or (isinstance(owner, list) and any(isinstance(x, Unresolved) for x in owner)):
            raise Unknown

    def _all_known(self, values: Any) -> None:
        if any(True for _ in holes(values)):
            raise Unknown

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        return texts.joined(self._in_text(part, scope) for part in node.values)

    def _in_text(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Constant):
            return str(node.value)
        assert isinstance(node, ast.FormattedValue)
        value = self.value(node.value, scope)
        spec = self.value(node.format_spec, scope) if node.format_spec else ""
        try:
            if not isinstance(spec, str):
                raise Unknown
            return methods.formatted(value, spec, chr(node.conversion) if node.conversion > 0 else None)
        except (Unknown, ValueError, TypeError):
            return unresolved(node.value, self._why(node.value, scope))

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return self.combined(node.op, left, right)

    def combined(self, op: ast.operator, left: Any, right: Any) -> Any:
        """`left op right`. Raises Unknown."""
        if isinstance(op, ast.Add):
            return operators.added(left, right)
        if isinstance(op, ast.Div) and (isinstance(left, PathText) or isinstance(right, PathText)):
            return PathText(library.text_of(left)) / library.text_of(right)
        return operators.computed(op, left, right)

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        wanted = isinstance(node.op, ast.Or)
        result, *rest = [self.value(node.values[0], scope)], *node.values[1:]
        for following in rest:
            known = truth(result[-1])
            if known is wanted:
                break
            value = self.value(following, scope)
            # `unknown or value`: either of them.
            result = [merged(result[-1], value, unresolved(node, self._why(node, scope))) if known is None else value]
        return result[-1]

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            if known is None:
                raise Unknown
            return not known
        self._all_known([value])
        return -value if isinstance(node.op, ast.USub) else +value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, scope)
            if not operators.compared(op, left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        known = truth(self.value(node.test, scope))
        if known is not None:
            return self.value(node.body if known else node.orelse, scope)
        hole = unresolved(node.test, self._why(node.test, scope))
        return merged(self.value(node.body, scope), self.value(node.orelse, scope), hole)

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._elements(node.elts, scope))

    def _list(self, node: ast.List, scope: Scope) -> Any:
        return list(self._elements(node.elts, scope))

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        found = list(self._elements(node.elts, scope))
        self._all_known(found)
        return set(found)

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> Iterator[Any]:
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self.value(node, scope)
                continue
            value = self.value(node.value, scope)
            yield from [value] if isinstance(value, Unresolved) else library.items(value)

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, scope)
            if key is not None:
                name = self.value(key, scope)
                if not any(True for _ in holes(name)):
                    found[name] = value
            elif isinstance(value, dict):
                found.update(value)
        return found

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        scope.bind(node.target.id, value)
        return value

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self.lambda_of(node, scope)

    def _await(self, node: ast.Await, scope: Scope) -> Any:
        return self.value(node.value, scope)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        return self.call(node, scope)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Any:
        inner = Scope(parent=scope)
        return [self.value(node.elt, inner) for _ in self._each(node.generators, inner)]

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        found = self._listcomp(node, scope)
        self._all_known(found)
        return set(found)

    def _dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        inner = Scope(parent=scope)
        pairs = [
            (self.value(node.key, inner), self.value(node.value, inner)) for _ in self._each(node.generators, inner)
        ]
        self._all_known([key for key, _ in pairs])
        return dict(pairs)

    def _each(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[None]:
        """Bind the names of a comprehension to one combination after the other. Raises Unknown."""
        if not generators:
            yield
            return
        first, *rest = generators
        for item in library.items(self.value(first.iter, scope)):
            self.assign(first.target, item, scope)
            known = [truth(self.value(test, scope)) for test in first.ifs]
            if None in known:
                raise Unknown
            if all(known):
                yield from self._each(rest, scope)

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind what stands left of `=`."""
        if isinstance(target, ast.Name):
            scope.bind(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, scope)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            is_place = isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner)
            if is_place or (isinstance(owner, dict) and not any(True for _ in holes(key))):
                owner[key] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Namespace):
                owner[target.attr] = value

    def _unpack(self, targets: list[ast.expr], value: Any, scope: Scope) -> None:
        fits = isinstance(value, list | tuple) and len(value) == len(targets)
        plain = not any(isinstance(target, ast.Starred) for target in targets)
        for at, target in enumerate(targets):
            self.assign(target, value[at] if fits and plain else unresolved(target, _first_why(value)), scope)


def unresolved(node: ast.expr, why: str) -> Unresolved:
    return Unresolved(node.lineno, shown(node), why)


def shown(node: ast.AST) -> str:
    """An expression's text on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _first_why(value: Any) -> str:
    return next((hole.why for hole in holes(value)), "it does not unpack")


def _bounds(part: ast.Slice) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    return part.lower, part.upper, part.step
