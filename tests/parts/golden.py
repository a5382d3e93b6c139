"""Golden files: what was once read and found right. `CI_TASKS_WRITE_GOLDEN=1 pytest FILE` writes them anew: read the
difference before you commit it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
        file.write_text(json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    return known.get(key)
