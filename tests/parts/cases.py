"""Tables of cases: files of those whose texts are no Python, as expressions and workflows, and cases with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

TESTS = Path(__file__).resolve().parents[1]


def cases(path: str) -> dict[str, list[Any]]:
    """What a table of cases is about → its rows; `path` is below tests."""
    tables: dict[str, list[Any]] = yaml.safe_load((TESTS / path).read_text(encoding="utf-8"))
    return tables


def named(names: str | tuple[str, ...], table: Mapping[str, Any] | Sequence[Sequence[Any]]) -> pytest.MarkDecorator:
    """Parametrize with a table whose cases have names: each is the key of its case, or stands first in it."""
    rows = table if isinstance(table, Mapping) else {str(name): row for name, *row in table}
    assert len(rows) == len(table), "two cases have one name"
    return pytest.mark.parametrize(names, rows.values(), ids=rows)
