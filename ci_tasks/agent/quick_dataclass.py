"""`dataclass` as the standard library's, made at first use: a command loads hundreds of classes and uses few.

The standard library reads the annotations of a class, writes methods and compiles them, 1 to 2 ms a class. Here a class
waits until its first instance is made or its fields are asked for, and nothing is compiled: all classes share what
makes, compares, hashes, shows and freezes them. Nor is `inspect` loaded, which `dataclasses` imports for signatures in
documentation: it takes four times as long as all else.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple


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


def _compared(one: Any) -> Tuple[object, ...]:
    return tuple([getattr(one, each.name) for each in dataclasses.fields(one) if each.compare])


def _equals(one: Any, other: object) -> bool:
    return _compared(one) == _compared(other) if other.__class__ is one.__class__ else NotImplemented


def _hash(one: Any) -> int:
    return hash(_compared(one))


def _repr(one: Any) -> str:
    shown = ["%s=%r" % (each.name, getattr(one, each.name)) for each in dataclasses.fields(one) if each.repr]
    return "%s(%s)" % (one.__class__.__qualname__, ", ".join(shown))


def _initializer(cls: type) -> Callable[..., None]:
    """`__init__` of a class whose fields are known."""
    fields = [each for each in dataclasses.fields(cls) if each.init]
    positional = [each.name for each in fields if not getattr(each, "kw_only", False)]  # from Python 3.10 on
    names, set_value = {each.name for each in fields}, object.__setattr__
    defaults = {each.name: each.default for each in fields if each.default is not dataclasses.MISSING}
    factories = [(each.name, each.default_factory) for each in fields if callable(each.default_factory)]

    def __init__(self: Any, *args: object, **kwargs: object) -> None:
        values = {**defaults, **dict(zip(positional, args)), **kwargs}  # noqa: B905  # Python 3.8
        for name, factory in factories:
            if name not in values:
                values[name] = factory()
        if values.keys() != names or len(args) > len(positional):
            raise TypeError("%s lacks, or does not take: %s" % (cls.__qualname__, sorted(values.keys() ^ names)))
        for name, value in values.items():
            set_value(self, name, value)
        getattr(self, "__post_init__", bool)()

    return __init__


def _refuse(one: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError("cannot assign to field %r" % name)


class _Deferred:
    """Stands for the fields of a class until they are read; makes the class a dataclass then."""

    def __init__(self, cls: Any, options: Dict[str, bool]) -> None:
        self._cls, self._is_frozen, self._is_made = cls, options.pop("frozen", False), False
        self._options = options
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes a signature there
        setattr(cls, _FIELDS, self)

        def __new__(made: Any, *args: Any, **kwargs: Any) -> Any:
            self.make()  # Python asks for __init__ after this: by then it is the real one, in whichever thread
            return super(cls, made).__new__(made)

        cls.__new__ = __new__

    def make(self) -> None:
        if not self._is_made:
            with _lock:
                if not self._is_made:
                    cls = self._cls
                    dataclasses.dataclass(init=False, eq=False, repr=False, **self._options)(cls)
                    cls.__init__, cls.__eq__, cls.__repr__ = _initializer(cls), _equals, _repr
                    cls.__hash__ = _hash if self._is_frozen else None
                    if self._is_frozen:
                        cls.__setattr__ = cls.__delattr__ = _refuse
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
