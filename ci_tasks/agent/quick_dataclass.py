"""`dataclass` as the standard library's, for a fraction of its time: a command loads hundreds of classes and uses few.

The standard library reads the annotations of each class, and writes and compiles five methods. Here a class has methods
that all share, and waits for the rest until its first instance is made or somebody asks for its fields. Nor is
`inspect` loaded, which `dataclasses` imports for signatures in documentation: it takes four times as long as all else.
"""

from __future__ import annotations

import importlib
import sys
import threading
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple


class _Inspect(ModuleType):
    """Loads the module that it stands for where something of it is used."""

    @staticmethod
    def get_annotations(cls: type) -> Dict[str, Any]:
        """What `dataclasses` of Python 3.13 asks of each class; it asks of nothing else, and evaluates no text."""
        return dict(vars(cls).get("__annotations__") or {})

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("inspect"), name)


_is_inspect_deferred = not {"dataclasses", "inspect"} & set(sys.modules)
if _is_inspect_deferred:
    sys.modules["inspect"] = _Inspect("inspect")

import dataclasses  # noqa: E402
from dataclasses import MISSING, FrozenInstanceError  # noqa: E402

if _is_inspect_deferred:
    del sys.modules["inspect"]

_FIELDS = "__dataclass_fields__"  # where the standard library looks for the fields of a class
_lock = threading.RLock()
_keys: Dict[type, Callable[[Any], Any]] = {}


def _make(cls: type, frozen: bool, options: Dict[str, bool]) -> type:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library takes a while to write a signature there
    shared: Dict[str, Any] = {"__init__": _first_init(cls, frozen), "__repr__": _repr, "__eq__": _eq, "__hash__": None}
    if frozen:
        shared.update(__hash__=_hash, __setattr__=_refuse_set, __delattr__=_refuse_delete)
    own = dict(vars(cls))
    for name, method in shared.items():
        if own.get(name) is None:  # a class with an __eq__ of its own has None as its __hash__
            setattr(cls, name, method)
    setattr(cls, _FIELDS, _DeferredFields(cls, options))
    return cls


class _DeferredFields:
    """Stands for the fields of a class until they are read for the first time."""

    def __init__(self, cls: type, options: Dict[str, bool]) -> None:
        self.cls, self.options = cls, options
        self.declared = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
        for name, field in self.declared.items():
            delattr(cls, name) if field.default is MISSING else setattr(cls, name, field.default)

    def __get__(self, _instance: object, _owner: type) -> Any:
        with _lock:
            if vars(self.cls)[_FIELDS] is self:
                for name, field in self.declared.items():
                    setattr(self.cls, name, field)
                dataclasses.dataclass(init=False, repr=False, eq=False, **self.options)(self.cls)
        return vars(self.cls)[_FIELDS]


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _compiled_init(cls, frozen)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _compiled_init(cls: type, frozen: bool) -> Any:
    parameters: List[str] = []
    keywords: List[str] = []
    body: List[str] = []
    names: Dict[str, Any] = {"_set_": object.__setattr__, "_missing_": MISSING}
    for field in dataclasses.fields(cls):
        name = value = field.name
        names[f"_default_{name}"] = field.default
        if field.default_factory is not MISSING:
            names[f"_new_{name}"] = field.default_factory
            value = f"{name} if {name} is not _missing_ else _new_{name}()" if field.init else f"_new_{name}()"
        elif not field.init:
            continue  # its default is the attribute of the class
        if field.init:
            is_required = field.default is MISSING and field.default_factory is MISSING
            keyword_only = getattr(field, "kw_only", False)  # of Python 3.10
            (keywords if keyword_only else parameters).append(name if is_required else f"{name}=_default_{name}")
        body.append(f"_set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ", ".join(["self", *parameters, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({signature}):\n " + "\n ".join(body or ["pass"]), names)
    names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return names["__init__"]


def _repr(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> Any:
    return _key(self) == _key(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self))


def _key(instance: Any) -> Any:
    """The values that are compared."""
    get = _keys.get(instance.__class__)
    if get is None:
        names = [field.name for field in dataclasses.fields(instance) if field.compare]
        get = _keys[instance.__class__] = attrgetter(*names) if len(names) > 1 else _tuple_getter(names)
    return get(instance)


def _tuple_getter(names: List[str]) -> Callable[[Any], Tuple[Any, ...]]:
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _refuse_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False, **options):
        """Without slots, order, InitVar and a field's own `hash`."""
        return _make(cls, frozen, options) if cls is not None else lambda made: _make(made, frozen, options)
