"""Test files are imported by path (importmode=importlib), so their neighbour has to be as well."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "ci_tasks_tests_github_format", Path(__file__).with_name("github_format.py")
)
assert _spec is not None
assert _spec.loader is not None
_module = sys.modules["ci_tasks_tests_github_format"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
