"""Exceptions that nothing caught, and those of tasks, which a worker hands to another process."""

import sys
import time

from .evidence_file import FOR_FAILURES, MAX_TEXT, RESERVED, EvidenceFile
from .imports import ImportNotes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

UNCAUGHT, TASK = "uncaught", "task"
_MAX_EXCEPTIONS = 20  # of a process, for each place where they are seen
_MAX_FRAMES = 50  # of an exception, from both ends
_MAX_LINKED = 16  # exceptions that one is caused by, or made of
# Classes that a worker makes of each exception of a task, by their modules: multiprocessing's pools, torch's, Ray's.
_WRAPPERS = {
    "concurrent.futures.process": ("_ExceptionWithTraceback", "pool"),
    "multiprocessing.pool": ("ExceptionWithTraceback", "pool"),
    "torch._utils": ("ExceptionWrapper", "torch"),
    "ray.exceptions": ("RayTaskError", "ray"),
}


class ExceptionNotes:
    def __init__(self, file: EvidenceFile) -> None:
        self.file = file
        self.counts: "dict[str, int]" = {}

    def note(self, value: "Any", where: str, kind: str = UNCAUGHT, name: str = "") -> None:
        """`name` is that of the thread or task."""
        try:
            self.counts[where] = self.counts.get(where, 0) + 1
            if value is None or self.counts[where] > _MAX_EXCEPTIONS:
                return
            noted = {"t": round(time.time(), 3), "kind": kind, "where": where, "name": name[:200]}
            noted["chain"] = [_described(each) for each in _linked(value)]
            self.file.write("exception", {"exceptions": [noted]}, RESERVED if kind == UNCAUGHT else FOR_FAILURES)
        except BaseException:  # the exception's own methods may do anything
            pass


def _linked(value: "Any") -> "list[Any]":
    """The exception, those that it was caused by, and the members of groups."""
    found: "list[Any]" = []
    todo = [value]
    while todo and len(found) < _MAX_LINKED:
        current = todo.pop(0)
        if current is None or any(current is each for each in found):
            continue
        found.append(current)
        todo.append(current.__context__ if not current.__suppress_context__ else current.__cause__)
        if any(base.__name__ == "BaseExceptionGroup" for base in type(current).__mro__):
            todo += current.exceptions
    return found


def _described(value: "Any") -> "dict[str, Any]":
    """The fields of LinkedException. The outermost frame is the first."""
    frames: "list[dict[str, Any]]" = []
    trace = value.__traceback__
    while trace is not None and len(frames) < 10000:
        code = trace.tb_frame.f_code
        place = {"file": code.co_filename[:1000], "line": trace.tb_lineno or 0, "function": code.co_name[:200]}
        frames.append(place)
        trace = trace.tb_next
    frames = frames if len(frames) <= _MAX_FRAMES else frames[:10] + frames[10 - _MAX_FRAMES :]
    kind = type(value)
    return {"type": "%s.%s" % (kind.__module__, kind.__qualname__), "message": message_of(value), "frames": frames}


def message_of(value: "Any") -> str:
    try:
        text = str(value)
    except BaseException:
        return "<its text cannot be read>"
    # Of a long one both ends: of Ray's the last line is the worker's own.
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT // 2] + "\n...\n" + text[-MAX_TEXT // 2 :]


def hook_exceptions(notes: ExceptionNotes) -> None:
    """Also `sys.__excepthook__`, and the function that `threading` will take as its default: a library that asks
    whether the hook has been changed gets the same answer as without the probe."""
    import _thread

    thread: "Any" = _thread
    before, before_thread = sys.excepthook, thread._excepthook

    def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
        notes.note(value, "main")
        before(kind, value, trace)

    def thread_excepthook(args: "Any") -> None:
        notes.note(args.exc_value, "thread", name=str(getattr(args.thread, "name", "")))
        before_thread(args)

    if sys.excepthook is sys.__excepthook__:
        sys.__excepthook__ = excepthook
    sys.excepthook, thread._excepthook = excepthook, thread_excepthook


def hook_workers(notes: ExceptionNotes, imports: ImportNotes, end: "Callable[[str], None]") -> None:
    """Processes of multiprocessing print their exception themselves and leave by `os._exit`: `end` is called then."""

    def hook_processes(module: "Any") -> None:
        bootstrap = module.BaseProcess._bootstrap

        def _bootstrap(self: "Any", *args: "Any", **options: "Any") -> "Any":
            try:
                imports.when_imported("traceback", hook_traceback)
                return bootstrap(self, *args, **options)
            finally:
                end("worker")

        module.BaseProcess._bootstrap = _bootstrap

    def hook_traceback(module: "Any") -> None:
        print_exc = module.print_exc

        def noting_print_exc(*args: "Any", **options: "Any") -> None:
            if sys._getframe(1).f_code.co_name == "_bootstrap":
                notes.note(sys.exc_info()[1], "worker")
            print_exc(*args, **options)

        module.print_exc = noting_print_exc

    imports.when_imported("multiprocessing.process", hook_processes)
    for name, (class_name, where) in _WRAPPERS.items():
        imports.when_imported(name, _wrapper_hook(notes, class_name, where))


def _wrapper_hook(notes: ExceptionNotes, class_name: str, where: str) -> "Callable[[Any], None]":
    """A function that hooks the class in its module. The receiver of a wrapper does not call `__init__`, or with an
    exception without frames; torch's takes the exception that is being handled."""

    def hook(module: "Any") -> None:
        import functools

        wrapper = getattr(module, class_name)
        begin = wrapper.__init__

        @functools.wraps(begin)
        def __init__(wrapped: "Any", *args: "Any", **options: "Any") -> None:
            values = [*args, *options.values(), sys.exc_info()[1]]
            value = next((each for each in values if isinstance(each, BaseException)), None)
            if getattr(value, "__traceback__", None) is not None:
                notes.note(value, where, TASK, str(options.get("proctitle") or options.get("where") or ""))
            begin(wrapped, *args, **options)

        wrapper.__init__ = __init__

    return hook
