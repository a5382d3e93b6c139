"""Golden files: what functions returned when the file was written. They show a change, not that the values were right:
a test's own assertions do that. `CI_TASKS_WRITE_GOLDEN=1 pytest FILE` writes them: read the difference before you
commit it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 200  # characters of a text
_MOST = 60  # values of a test; one of random cases makes more, and others each time


def golden(file: Path, shown: str) -> str:
    """The file's text, to be compared with what is shown; "" where it is missing."""
    if os.environ.get("CI_TASKS_WRITE_GOLDEN"):
        file.write_text(shown, encoding="utf-8")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def golden_value(file: Path, key: str, shown: Any) -> Any:
    """What the JSON file has under a key, to be compared with what is shown."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if os.environ.get("CI_TASKS_WRITE_GOLDEN"):
        known[key] = shown
        text = json.dumps({each: known[each] for each in sorted(known)}, ensure_ascii=False, indent=1)
        file.write_text(text + "\n", encoding="utf-8")
    return known.get(key)


class Golden:
    """All that functions return in the tests of a module is as in a file, under each test's name:
    `whole = (kept := Golden(FILE)).fixture()`, and `function = kept.of(function)`."""

    def __init__(self, file: Path, but: Sequence[str] = ()) -> None:
        """`but`: tests that ask this machine."""
        self.file, self.but, self.made = file, but, list[Any]()

    def of(self, function: F) -> F:
        @functools.wraps(function)
        def kept(*args: Any, **more: Any) -> Any:
            made = function(*args, **more)
            made = [*made] if isinstance(made, Iterator) else made
            self.made.append(plain(made))
            return made

        return kept  # type: ignore[return-value]

    def fixture(self) -> Any:
        @pytest.fixture(autouse=True)
        def compared(request: pytest.FixtureRequest) -> Iterator[None]:
            self.made.clear()
            yield
            if 0 < len(self.made) <= _MOST and request.node.name not in self.but:
                assert golden_value(self.file, request.node.name, self.made) == self.made

        return compared


def plain(value: Any) -> Any:
    """As JSON has it; of records what is not as usual, of long texts the beginning and a digest."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
        value = {name: part for name, (part, usual) in parts.items() if part not in (None, "", (), {}, usual)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    value = round(value, 6) if isinstance(value, float) else value if isinstance(value, int | None) else str(value)
    is_long = isinstance(value, str) and len(value) > _LONGEST
    return f"{value[:_LONGEST]}… {hashlib.sha256(value.encode()).hexdigest()[:16]}" if is_long else value
