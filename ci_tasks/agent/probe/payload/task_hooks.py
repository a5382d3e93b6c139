"""Exceptions of tasks in worker processes, which the code that runs the tasks catches: process pools, torch, Ray.

A worker hands each exception to another process, in which the frames are text. Whether it was handled is not seen.
"""

import sys

from .exception_hooks import ExceptionNotes
from .imports import ImportNotes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

TASK = "task"


def add_task_hooks(notes: ExceptionNotes, imports: ImportNotes) -> None:
    for name, (class_name, where, read) in _WRAPPERS.items():
        imports.when_imported(name, _wrapper_hook(notes, class_name, where, read))


def _wrapper_hook(
    notes: ExceptionNotes, class_name: str, where: str, read: "Callable[..., Any]"
) -> "Callable[[Any], None]":
    """A function that hooks the class in its module. The receiver of a wrapper does not call `__init__`, or with an
    exception without frames."""

    def hook(module: "Any") -> None:
        wrapper = getattr(module, class_name)
        begin = wrapper.__init__

        def __init__(wrapped: "Any", *args: "Any", **options: "Any") -> None:
            try:
                value, name = read(*args, **options)
                if isinstance(value, BaseException) and value.__traceback__ is not None:
                    notes.note(value, where, TASK, str(name))
            except Exception:
                pass
            begin(wrapped, *args, **options)

        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(__init__, attribute, getattr(begin, attribute, None))
        wrapper.__init__ = __init__

    return hook


def _of_pool(value: "Any", trace: "Any") -> "tuple[Any, str]":
    return value, ""


def _of_torch(exc_info: "Any" = None, where: str = "") -> "tuple[Any, str]":
    return (exc_info or sys.exc_info())[1], where


def _of_ray(
    function_name: str, text: str, cause: "Any", proctitle: str = "", *more: "Any", **options: "Any"
) -> "tuple[Any, str]":
    return cause, proctitle or function_name


# Classes that a worker makes of each exception of a task, by their modules; and what their arguments say.
_WRAPPERS: "dict[str, tuple[str, str, Callable[..., Any]]]" = {
    "concurrent.futures.process": ("_ExceptionWithTraceback", "pool", _of_pool),
    "multiprocessing.pool": ("ExceptionWithTraceback", "pool", _of_pool),
    "torch._utils": ("ExceptionWrapper", "torch", _of_torch),
    "ray.exceptions": ("RayTaskError", "ray", _of_ray),
}
