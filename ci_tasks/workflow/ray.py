"""Whether a test starts Ray: it says so itself, or a module of the checkout that it imports does."""

from __future__ import annotations

import re
from collections.abc import Callable

_STARTS = re.compile(r"\bray start\b|\bray\.init\(")
_IMPORT = re.compile(r"^[ \t]*(?:import[ ]+([\w.]+)|from[ ]+(\w[\w.]*)[ ]+import[ ]+\(?([\w, ]*))", re.MULTILINE)
_DEEP = 2  # imports of imports; slime's tests import one helper that runs `ray start --head`
_MANY = 200  # files that are looked into


def starts_ray(test: str, read: Callable[[str], str | None]) -> bool:
    """`read` gives the text of a file of the checkout, or None where it has none of that name."""
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
    modules = [module for found in _IMPORT.finditer(text) for module in _modules(*found.groups(""))]
    roots = ("", f"{path.rpartition('/')[0]}/")
    names = [f"{root}{module.replace('.', '/')}" for module in modules for root in roots]
    return [file for name in names for file in (f"{name}.py", f"{name}/__init__.py")]


def _modules(module: str, package: str, names: str) -> list[str]:
    inside = [f"{package}.{words[0]}" for name in names.split(",") if (words := name.split())]
    return [module] if module else [package, *inside]
