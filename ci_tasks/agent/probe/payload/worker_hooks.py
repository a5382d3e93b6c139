"""Exceptions and ends of the processes of multiprocessing, which print their exception themselves and leave by
`os._exit`."""

import sys

from .exception_hooks import ExceptionNotes
from .imports import ImportNotes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class WorkerHooks:
    """`end` is called at the end of such a process."""

    def __init__(self, notes: ExceptionNotes, imports: ImportNotes, end: "Callable[[str], None]") -> None:
        self.notes, self.imports, self.end = notes, imports, end
        imports.when_imported("multiprocessing.util", self.hook_processes)

    def hook_processes(self, util: "Any") -> None:
        self.util = util
        util.register_after_fork(self, WorkerHooks.begin)
        if "--multiprocessing-fork" in getattr(sys, "argv", ()):  # spawned: nothing is done after the fork
            self.begin()

    def begin(self) -> None:
        """Up to Python 3.12 its finalizers run while the exception is on its way; later only `traceback.print_exc`
        sees it."""
        try:
            self.util.Finalize(None, self.end_worker, exitpriority=1 << 20)
            self.imports.when_imported("traceback", self.hook_traceback)
        except Exception:
            pass

    def hook_traceback(self, traceback: "Any") -> None:
        print_exc = traceback.print_exc

        def noting_print_exc(*args: "Any", **options: "Any") -> None:
            if sys._getframe(1).f_code.co_name == "_bootstrap":
                self.note_exception()
            print_exc(*args, **options)

        traceback.print_exc = noting_print_exc

    def end_worker(self) -> None:
        self.note_exception()
        self.end("worker")

    def note_exception(self) -> None:
        value = sys.exc_info()[1]
        if isinstance(value, SystemExit):
            value = value.__context__ if value.code else None  # torch's spawn catches, and exits with 1
        if value is not None and self.notes.last != id(value):
            self.notes.note(value, "worker")
