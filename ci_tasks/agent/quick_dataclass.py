"""`dataclass` as the standard library's, made at first use: a command loads hundreds of classes and uses few.

The standard library reads the annotations of a class, writes methods and compiles them. Here a class waits for that
until its first instance is made or its fields are asked for. Nor is `inspect` loaded, which `dataclasses` imports for
signatures in documentation: it takes four times as long as all else.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict


class _Inspect(ModuleType):
    """Loads the module that it stands for when something of it is used."""

    @staticmethod
    def get_annotations(cls: type) -> Dict[str, Any]:
        """What `dataclasses` of Python 3.13 asks of each class."""
        return dict(vars(cls).get("__annotations__") or {})

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("inspect"), name)


_is_inspect_deferred = not {"dataclasses", "inspect"} & set(sys.modules)
if _is_inspect_deferred:
    sys.modules["inspect"] = _Inspect("inspect")

import dataclasses  # noqa: E402

if _is_inspect_deferred:
    del sys.modules["inspect"]

_FIELDS = "__dataclass_fields__"  # where the standard library looks for the fields of a class
_lock = threading.RLock()


class _Deferred:
    """Stands for the fields of a class until they are read; makes the class a dataclass then."""

    def __init__(self, cls: Any, options: Dict[str, bool]) -> None:
        self._cls, self._options, self._is_made = cls, options, False
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes a signature there
        setattr(cls, _FIELDS, self)

        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:
            self.make()  # also waits for another thread that makes it
            cls.__init__(instance, *args, **kwargs)

        cls.__init__ = __init__

    def make(self) -> None:
        with _lock:
            if self._is_made:
                return
            cls, options = self._cls, self._options
            # The waiting __init__ stays until the real one replaces it, since other threads may call it at any moment.
            # So a child gets the real one, with the same fields.
            dataclasses.dataclass(**options, init=False)(cls)
            names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
            child = type(cls)(cls.__name__, (cls,), names)
            cls.__init__ = dataclasses.dataclass(**options)(child).__init__
            self._is_made = True

    def __get__(self, _instance: object, _owner: type) -> Any:
        self.make()
        return vars(self._cls)[_FIELDS]


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, **options):
        """Without slots; a `field(default=…)` is no attribute of the class before the first instance."""
        if cls is None:
            return lambda made: dataclass(made, **options)
        _Deferred(cls, options)
        return cls
