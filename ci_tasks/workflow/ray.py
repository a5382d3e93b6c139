"""Whether a test starts Ray: it says so itself, or a module of the checkout that it imports does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

_STARTS = re.compile(r"\bray start\b|\bray\.init\(")
_DEEP = 2  # imports of imports; slime's tests import one helper that runs `ray start --head`
_MANY = 200  # files that are looked into

Read = Callable[[str], "str | None"]


def starts_ray(test: str, read: Read) -> bool:
    """`read` gives the text of a file of the checkout, or None where it has none of that name."""
    level, visited = [test], {test}
    for _ in range(_DEEP + 1):
        following: list[str] = []
        for path in level:
            text = read(path)
            if text is None:
                continue
            if _STARTS.search(text):
                return True
            for name in _imported(text, path):
                for candidate in (f"{name}.py", f"{name}/__init__.py"):
                    if candidate not in visited and len(visited) < _MANY:
                        visited.add(candidate)
                        following.append(candidate)
        level = following
    return False


def _imported(text: str, path: str) -> Iterator[str]:
    """Paths without suffix that the file's imports may mean: from the checkout's root, and from beside the file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    beside = path.rpartition("/")[0]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            yield name.replace(".", "/")
            if beside:
                yield f"{beside}/{name.replace('.', '/')}"
