"""Tables of cases whose texts are no Python: expressions, scripts and workflows, each with its reason above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).resolve().parents[1]


def cases(path: str) -> dict[str, list[Any]]:
    """What a table of cases is about → its rows; `path` is below tests."""
    tables: dict[str, list[Any]] = yaml.safe_load((TESTS / path).read_text(encoding="utf-8"))
    return tables
