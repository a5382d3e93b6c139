"""What operators give for values that may have holes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.library import MOST, TooMuch, Unknown
from ci_tasks.suites.reading.values import Partly, Unresolved, holes

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
_COMPUTED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}


def computed(op: ast.operator, left: Any, right: Any) -> Any:
    """`left op right` of known values, `+` and paths aside. Raises Unknown."""
    if any(True for _ in holes([left, right])):
        raise Unknown
    if isinstance(op, ast.Mult):
        return _product(left, right)
    if isinstance(op, ast.Mod) and (not isinstance(left, str) or _plain_percent(left)):
        return left % right
    if type(op) not in _COMPUTED:
        raise Unknown
    return _COMPUTED[type(op)](left, right)


def added(left: Any, right: Any) -> Any:
    texts_ = (str, Partly)
    if isinstance(left, texts_) or isinstance(right, texts_):
        if not all(isinstance(side, (*texts_, Unresolved)) for side in (left, right)):
            raise Unknown
        return texts.joined([left, right])
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) + len(right) > MOST:
        raise TooMuch
    if isinstance(left, list) and isinstance(right, list | Unresolved):
        return [*left, *(right if isinstance(right, list) else [right])]
    if isinstance(left, Unresolved) and isinstance(right, list):
        return [left, *right]
    if isinstance(left, Unresolved) or isinstance(right, Unresolved):
        raise Unknown
    return left + right


def _product(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * max(other, 0) > MOST:
            raise Unknown
        if isinstance(one, int) and isinstance(other, int) and max(one.bit_length(), other.bit_length()) > 256:
            raise Unknown
    return left * right


def _plain_percent(text: str) -> bool:
    """Whether `%` in it has no width that could make a huge text."""
    return not any(part[:1].isdigit() or part[:1] in "-+ #*." for part in text.replace("%%", "").split("%")[1:])


def compared(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.Is | ast.IsNot):
        if isinstance(left, Unresolved) or isinstance(right, Unresolved):
            raise Unknown
        return (left is right) is isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(left, str) and isinstance(right, Partly):
        if any(left in part for part in right.parts if isinstance(part, str)):
            return isinstance(op, ast.In)
        raise Unknown
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, list | tuple) and left in right:
        return isinstance(op, ast.In)
    by_key = isinstance(op, ast.In | ast.NotIn) and isinstance(right, dict)
    if any(True for _ in holes([left, list(right) if by_key else right])):
        raise Unknown
    return bool(_COMPARED[type(op)](left, right))
