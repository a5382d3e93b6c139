"""The keys of GitHub's workflow syntax and what becomes of each here, as `keys.txt` has them."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from ci_tasks.yaml_lines import Map

SUPPORTED, REFUSED, WITHOUT_EFFECT = "supported", "refused", "without-effect"  # and `text`, which is for people


class KeySpec(NamedTuple):
    treatment: str
    why: str = ""


class FoundKey(NamedTuple):
    """A key of a workflow file: its path in the schema, what becomes of it (None if it is unknown), and its line.
    `valid` are the keys that it could be."""

    path: str
    spec: KeySpec | None
    name: str
    line: int
    valid: tuple[str, ...]


@cache
def keys() -> dict[str, KeySpec]:
    """By their paths."""
    table: dict[str, KeySpec] = {}
    for line in (pkgutil.get_data(__name__, "keys.txt") or b"").decode().splitlines():
        if not line.startswith("#"):
            words, _, why = line.partition(" | ")
            treatment, *paths = words.split()
            for path in paths:
                choices = [part.split(",") for part in re.split(r"[{}]", path)]
                table.update(("".join(parts), KeySpec(treatment, why)) for parts in product(*choices))
    return table


def children(path: str) -> tuple[str, ...]:
    """The keys that may stand right below a path of the table; none where it has no more to say."""
    return _children().get(path, ())


def walk(body: Map, path: str = "") -> Iterator[FoundKey]:
    """The keys below a mapping that stands at `path` of the table, each before those below it."""
    valid = children(path)
    for name in body if valid else ():
        at = f"{path}.{'<id>' if '<id>' in valid else name}".lstrip(".")
        is_known = name in valid or "<id>" in valid
        yield FoundKey(at, keys().get(at, KeySpec(SUPPORTED)) if is_known else None, name, body.lines[name], valid)
        value = body[name]
        if isinstance(value, Map):
            yield from walk(value, at)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Map):
                yield from walk(item, f"{at}.[]")


@cache
def _children() -> dict[str, tuple[str, ...]]:
    below: dict[str, dict[str, None]] = {}
    for path in keys():
        parts = path.split(".")
        for length in range(len(parts)):
            below.setdefault(".".join(parts[:length]), {})[parts[length]] = None
    return {path: tuple(names) for path, names in below.items()}
