"""PyYAML, imported in a third of its time.

Its modules compile patterns for its reader in Python, one of which takes as long as Python's own start. The reader in C
uses none of them, so that they are compiled at their first use here.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_compile: Any = re.compile


class _DeferredPattern:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        value = getattr(_compile(*self._arguments), name)
        setattr(self, name, value)
        return value


def _compile_later(pattern: Any, flags: int = 0) -> Any:
    """Only for PyYAML: another thread may import something meanwhile."""
    is_yaml = sys._getframe(1).f_globals["__name__"].startswith("yaml.")
    return (_DeferredPattern if is_yaml else _compile)(pattern, flags)


re.compile = _compile_later
try:
    import yaml as yaml
finally:
    re.compile = _compile
