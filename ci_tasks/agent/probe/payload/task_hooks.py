"""Exceptions of tasks, which whoever runs the tasks has caught: asyncio, process pools, torch's loaders, Ray.

Most of them reach somebody who asks for the result, and may be handled there. Those that nobody asks for are noted as
`unretrieved`, those of asyncio's callbacks as `callback`. A worker process hands each exception to another process, in
which the frames are text: it is noted as `task`, and whether it was handled is not seen.
"""

import sys

from .exception_hooks import ExceptionNotes
from .exceptions import linked_exceptions
from .imports import ImportNotes
from .limits import MAX_FUTURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

TASK, UNRETRIEVED, CALLBACK = "task", "unretrieved", "callback"


class TaskHooks:
    def __init__(self, notes: ExceptionNotes, imports: ImportNotes) -> None:
        self.notes = notes
        self.futures: "dict[int, tuple[Any, list[dict[str, Any]]]]" = {}  # by id: a weak reference, the exception
        imports.when_imported("asyncio.base_events", lambda module: self.hook_loop(module.BaseEventLoop))
        imports.when_imported("uvloop", lambda module: self.hook_loop(module.Loop))
        imports.when_imported("concurrent.futures._base", self.hook_futures)
        for name, (class_name, where, read) in _WRAPPERS.items():
            imports.when_imported(name, self.wrapper_hook(class_name, where, read))

    def forget(self) -> None:
        """After a fork: the futures are the parent's."""
        self.futures = {}

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def hook_loop(self, loop: "Any") -> None:
        """Tasks call this method when they are collected and nobody has asked for their result."""
        call = loop.call_exception_handler

        def call_exception_handler(loop: "Any", context: "Any") -> "Any":
            self.note_context(context)
            return call(loop, context)

        _replace(loop, "call_exception_handler", call, call_exception_handler)

    def note_context(self, context: "Any") -> None:
        try:
            is_unretrieved = "never retrieved" in context.get("message", "")
            name = _task_name(context.get("task") or context.get("future")) if is_unretrieved else context["message"]
            kind = UNRETRIEVED if is_unretrieved else CALLBACK
            self.notes.note(context.get("exception"), "asyncio", kind, str(name))
        except Exception:
            pass

    # -- concurrent.futures ------------------------------------------------------------------------------------------

    def hook_futures(self, module: "Any") -> None:
        """An attribute that sees who reads it leaves no frame in a traceback, as a method in the place of `result`
        would."""

        def read(future: "Any") -> "Any":
            self.futures.pop(id(future), None)
            return future.__dict__["_exception"]

        def write(future: "Any", value: "Any") -> None:
            future.__dict__["_exception"] = value
            if value is not None:
                self.watch_future(future, value)

        module.Future._exception = property(read, write)

    def watch_future(self, future: "Any", value: "Any") -> None:
        """Until somebody asks for the exception, or the future is collected."""
        try:
            if len(self.futures) < MAX_FUTURES:
                key, weak = id(future), __import__("_weakref")
                reference = weak.ref(future, lambda _: self.note_future(key))
                self.futures[key] = reference, linked_exceptions(value)
        except BaseException:  # the exception's own methods may do anything
            pass

    def note_future(self, key: int) -> None:
        try:
            found = self.futures.pop(key, None)
            if found is not None:
                self.notes.write(found[1], "future", UNRETRIEVED, "")
        except Exception:
            pass

    def note_futures(self) -> None:
        for key in list(self.futures):
            self.note_future(key)

    # -- worker processes --------------------------------------------------------------------------------------------

    def wrapper_hook(self, class_name: str, where: str, read: "Callable[..., Any]") -> "Callable[[Any], None]":
        """A function that hooks the class in its module. Whoever receives a wrapper does not call `__init__`, or with
        an exception without frames."""

        def hook(module: "Any") -> None:
            wrapper = getattr(module, class_name)
            begin = wrapper.__init__

            def __init__(wrapped: "Any", *args: "Any", **options: "Any") -> None:
                self.note_wrapped(where, read, args, options)
                begin(wrapped, *args, **options)

            _replace(wrapper, "__init__", begin, __init__)

        return hook

    def note_wrapped(self, where: str, read: "Callable[..., Any]", args: "Any", options: "Any") -> None:
        try:
            value, name = read(*args, **options)
            if isinstance(value, BaseException) and value.__traceback__ is not None:
                self.notes.note(value, where, TASK, str(name))
        except Exception:
            pass


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


def _replace(owner: "Any", name: str, before: "Any", after: "Any") -> None:
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(after, attribute, getattr(before, attribute, None))
    after.__wrapped__ = before
    setattr(owner, name, after)


def _task_name(task: "Any") -> str:
    """The function of the task's coroutine, else the task's name."""
    coroutine = task.get_coro() if hasattr(task, "get_coro") else None
    return str(getattr(coroutine, "__qualname__", "") or (task.get_name() if hasattr(task, "get_name") else ""))
