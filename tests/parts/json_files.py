"""Files of JSON that a test writes and reads by itself, without the codec."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: str, value: Any) -> None:
    """Replace `path` whole."""
    beside = Path(f"{path}.new")
    beside.write_bytes(json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace"))
    os.replace(beside, path)


def read_json(path: str) -> dict[str, Any]:
    """The object in `path`, or an empty one where there is no such file yet."""
    file = Path(path)
    return dict(json.loads(file.read_bytes())) if file.exists() else {}
