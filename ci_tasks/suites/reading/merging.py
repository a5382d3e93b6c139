"""Two ways that a run may take: what is known after both, and how to go back to before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.objects import Imported, PathText, Scope
from ci_tasks.suites.reading.values import Partly, Unresolved

Saved = list[tuple[dict[str, Any], dict[str, Any]]]


def truth(value: Any) -> bool | None:
    """`bool(value)`, None where it is not known."""
    if isinstance(value, Unresolved):
        return None
    if isinstance(value, Partly):
        return True if any(isinstance(part, str) for part in value.parts) else None
    if value is None or isinstance(value, bool | int | float | str | bytes | list | tuple | dict | set | frozenset):
        return bool(value)
    return True


def merged(one: Any, other: Any, hole: Unresolved) -> Any:
    """A value that is either of two: as much as they agree on."""
    if one is other or same(one, other):
        return one
    if isinstance(one, str | Partly) and isinstance(other, str | Partly):
        return texts.agreed(one, other, hole)
    if isinstance(one, list) and isinstance(other, list):
        return [*_agreed(one, other), hole]
    if isinstance(one, dict) and isinstance(other, dict) and type(one) is type(other):
        return type(one)({key: merged(one[key], other[key], hole) for key in one if key in other})
    return hole


def same(one: Any, other: Any) -> bool:
    """Equality that takes True and 1 for two values."""
    if isinstance(one, Imported) and isinstance(other, Imported):
        return one.target == other.target
    if type(one) is not type(other):
        return False
    if isinstance(one, PathText):
        return bool(one.text == other.text)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def save(scope: Scope, environ: dict[str, Any]) -> Saved:
    """Everything that a statement in `scope` may change, copied."""
    copies: dict[int, Any] = {}
    living = [*(each.names for each in _scopes(scope)), environ]
    return [(names, {name: _copied(value, copies) for name, value in names.items()}) for names in living]


def restore(saved: Saved) -> None:
    copies: dict[int, Any] = {}
    for names, before in saved:
        names.clear()
        names.update({name: _copied(value, copies) for name, value in before.items()})


def join(ways: Iterable[Saved], hole: Unresolved) -> None:
    """Go on with what all ways, of the same scopes, agree on. A name that only some have is taken to be set."""
    first, *others = ways
    restore(first)
    for way in others:
        for names, after in way:
            for name, value in after.items():
                names[name] = merged(names[name], value, hole) if name in names else value


def _scopes(scope: Scope) -> list[Scope]:
    found = scope.chain()
    return [*found, *(other for other in scope.foreign.values() if other not in found)]


def _agreed(one: list[Any], other: list[Any]) -> list[Any]:
    agreed = []
    for a, b in zip(one, other, strict=False):
        if not same(a, b):
            break
        agreed.append(a)
    return agreed


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of what can change; two names of one list stay names of one list."""
    if not isinstance(value, list | dict | set):
        return value
    if id(value) not in copies:
        if isinstance(value, list):
            copies[id(value)] = found = list[Any]()
            found.extend(_copied(item, copies) for item in value)
        elif isinstance(value, dict):
            copies[id(value)] = table = type(value)()
            table.update({key: _copied(item, copies) for key, item in value.items()})
        else:
            copies[id(value)] = set(value)
    return copies[id(value)]
