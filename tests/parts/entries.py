"""Matrix entries that name their test, as slime's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.workflow.suite import MatrixTest


def describe(entry: Mapping[str, Any]) -> MatrixTest:
    info = entry.get("info", entry)
    if not isinstance(info, Mapping) or "test_file" not in info:
        return MatrixTest(None, "", None)
    return MatrixTest(f"tests/{info['test_file']}", info.get("test_args", ""), info.get("num_gpus"))
