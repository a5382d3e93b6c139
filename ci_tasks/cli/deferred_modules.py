"""Modules that a library imports but a command seldom needs, loaded at their first use.

Invoke imports `unittest.mock`, which imports asyncio and ssl, for a class meant for tests, and a copy of PyYAML for its
configuration files: half of the time that its import takes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Within the block, importing these modules loads nothing. What is loaded already stays as it is."""
    placeholders = {name: _Placeholder(name) for name in names if name not in sys.modules}
    sys.modules.update(placeholders)
    try:
        yield
    finally:
        for name in placeholders:
            del sys.modules[name]


class _Placeholder(ModuleType):
    """Stands for a module. `from module import name` in the block gives a function that calls the real `name`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is not self:
            return self._real(name)
        return lambda *args, **kwargs: self._real(name)(*args, **kwargs)

    def _real(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)
