"""Exceptions of the main program and of threads that nobody caught, and those that the interpreter could not raise."""

import sys
import time

from .evidence_file import EvidenceFile
from .exceptions import linked_exceptions, with_sources
from .limits import MAX_EXCEPTIONS, RESERVED, RESERVED_FOR_UNCAUGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

UNCAUGHT, UNRAISABLE = "uncaught", "unraisable"


class ExceptionNotes:
    """Writes exceptions down. `before` is called before each."""

    def __init__(self, file: EvidenceFile, before: "Callable[[], None]") -> None:
        self.file, self.before = file, before
        self.counts: "dict[str, int]" = {}
        # The id of the last exception that ends the process; a reference would keep its frames alive. What is compared
        # with it lives as long: an id is used again for another exception.
        self.last: "Any" = None

    def forget(self) -> None:
        self.counts, self.last = {}, None

    def note(self, value: "Any", where: str, kind: str = UNCAUGHT, name: str = "") -> None:
        """`name` is that of the thread or task."""
        try:
            if value is None:
                return
            if kind == UNCAUGHT and where != "thread":
                self.last = id(value)
            self.write(linked_exceptions(value), where, kind, name)
        except BaseException:  # the exception's own methods may do anything
            pass

    def write(self, linked: "list[dict[str, Any]]", where: str, kind: str, name: str) -> None:
        self.counts[where] = self.counts.get(where, 0) + 1
        if self.counts[where] > MAX_EXCEPTIONS:
            return
        self.before()
        reserved = RESERVED if kind == UNCAUGHT else RESERVED + RESERVED_FOR_UNCAUGHT
        values = {"t": round(time.time(), 3), "kind": kind, "where": where, "name": name[:200]}
        self.file.write("exception", dict(values, chain=with_sources(linked)), reserved)

    def note_last(self) -> None:
        """One of the main program whose hook did not call ours. pytest puts there what failed in a test."""
        trace = getattr(sys, "last_traceback", None)
        frame = getattr(trace, "tb_frame", None)
        if frame is not None and frame.f_globals.get("__name__") in ("__main__", "runpy"):
            value = getattr(sys, "last_value", None)
            if self.last != id(value):
                self.note(value, "main")


class ExceptionHooks:
    """`sys.__excepthook__` too, and the function that `threading` will take as its default: a library that asks
    whether somebody has changed the hook gets the same answer as without the probe."""

    def __init__(self, notes: ExceptionNotes) -> None:
        self.notes = notes
        self.excepthook: "Any" = sys.excepthook
        self.unraisablehook: "Any" = sys.unraisablehook
        import _thread

        threading: "Any" = sys.modules.get("threading")
        self.thread_excepthook: "Any" = threading.excepthook if threading else _thread._excepthook

        def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
            self.notes.note(value, "main")
            self.excepthook(kind, value, trace)

        def unraisablehook(args: "Any") -> None:
            self.notes.note(getattr(args, "exc_value", None), "interpreter", UNRAISABLE, _ignored(args))
            self.unraisablehook(args)

        def thread_excepthook(args: "Any") -> None:
            name = str(getattr(getattr(args, "thread", None), "name", "") or "")
            self.notes.note(getattr(args, "exc_value", None), "thread", name=name)
            self.thread_excepthook(args)

        if sys.excepthook is sys.__excepthook__:
            sys.__excepthook__ = excepthook
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.__unraisablehook__ = unraisablehook
        sys.excepthook, sys.unraisablehook = excepthook, unraisablehook
        _thread._excepthook = thread_excepthook
        if threading:
            threading.excepthook = thread_excepthook


def _ignored(args: "Any") -> str:
    """`ignored in Pool.__del__`. The object may be half gone, and is not asked. Since Python 3.14 there is often none:
    the message names it."""
    text, value = str(getattr(args, "err_msg", None) or "Exception ignored in"), getattr(args, "object", None)
    if value is not None:
        text += " " + (value if type(value) is type(_ignored) else type(value)).__qualname__
    return text[len("Exception ") :] if text.startswith("Exception ") else text
