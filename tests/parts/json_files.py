"""Files of JSON that a test writes and reads by itself, without the codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ci_tasks.agent.files import replace_file


def write_json(path: str, value: Any) -> None:
    """Replace `path` whole."""
    replace_file(path, json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace"))


def read_json(path: str) -> dict[str, Any]:
    """The object in `path`, or an empty one where there is no such file yet."""
    file = Path(path)
    return dict(json.loads(file.read_bytes())) if file.exists() else {}
