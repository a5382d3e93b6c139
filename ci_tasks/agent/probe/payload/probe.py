"""The probe of this process: exceptions that nothing caught, a suite's own hooks, and the probe in interpreters that
appear while the run goes on.
"""

import os
import sys
import time

from .notes import (
    FOR_FAILURES,
    MAX_TEXT,
    OFF,
    EvidenceFile,
    ImportNotes,
    Overlays,
    json_text,
    loaded_modules,
    quiet,
    read_bytes,
    write_whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_MAX_EXCEPTIONS = 20  # of a process, for each place where they are seen
_MAX_FRAMES = 50  # of an exception, from both ends
_MAX_LINKED = 16  # exceptions that one is caused by, or made of


class ExceptionNotes:
    def __init__(self, file: EvidenceFile) -> None:
        self.file = file
        self.counts: "dict[str, int]" = {}

    def note(self, value: "Any", where: str, name: str = "") -> None:
        """`name` is that of a thread."""
        try:
            self.counts[where] = self.counts.get(where, 0) + 1
            if value is None or self.counts[where] > _MAX_EXCEPTIONS:
                return
            noted = {"t": round(time.time(), 3), "where": where, "name": name[:200]}
            noted["chain"] = [_described(each) for each in _linked(value)]
            self.file.write("exception", {"exceptions": [noted]})
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


# -- the probe ---------------------------------------------------------------------------------------------------------


WATCHED = (
    *("torch", "megatron.core", "megatron.bridge", "slime", "sglang", "vllm", "verl", "ray", "transformer_engine"),
    *("flash_attn", "transformers", "numpy", "triton", "deepspeed", "jax", "nemo", "pytest", "unittest"),
)
MODULE = "ci_tasks_probe"

_file: "EvidenceFile | None" = None


@quiet
def begin(directory: str, packages: "tuple[str, ...]", hooks: "dict[str, str]", overlays: "dict[str, str]") -> None:
    """Start to write into `directory`, once in a process. `packages` are watched too; `hooks` are those of a suite by
    module, `overlays` directories by package."""
    global _file
    if _file is None and OFF not in os.environ and os.path.isdir(directory):
        finder = Overlays(overlays) if overlays else None
        sys.meta_path[:0] = [finder] if finder is not None else []
        file = EvidenceFile(directory)
        file.open()
        _file = file
        _add_hooks(file, WATCHED + packages, hooks, finder)


def _add_hooks(
    file: EvidenceFile, watched: "tuple[str, ...]", hooks: "dict[str, str]", overlays: "Overlays | None"
) -> None:
    imports, exceptions = ImportNotes(file, watched), ExceptionNotes(file)

    @quiet
    def after_fork() -> None:
        """In the child: other threads are gone, so nothing here takes a lock or imports."""
        file.open(forked=True)

    @quiet
    def end(how: str) -> None:
        imports.note_packages()
        file.write("end", {"end": how, "imports": loaded_modules(watched, overlays)}, reserved=0)
        file.left = 0  # once

    import atexit

    atexit.register(end, "exit")
    os.register_at_fork(after_in_child=after_fork)
    sys.meta_path.insert(0, imports)
    hook_exceptions(exceptions)
    hook_workers(exceptions, imports, end)
    for module, hook in hooks.items():
        imports.when_imported(module, SuiteHook(hook, file).after_import)


class SuiteHook:
    """A module beside this one with a function `after_import(module, emit)`. `emit("kind", name=value)` notes a line; a
    value that is a function is called for it. What fails in either does not reach the program: it is noted."""

    def __init__(self, name: str, file: EvidenceFile) -> None:
        self.name, self.file = name, file

    def after_import(self, module: "Any") -> None:
        try:
            name = "%s_%s" % (MODULE, self.name)
            hook: "Any" = sys.modules.get(name)
            if hook is None:  # its file lies beside this one, which is not always on the path
                hook = sys.modules[name] = type(sys)(name)
                hook.__file__ = os.path.join(os.path.dirname(__file__), name + ".py")
                exec(compile(read_bytes(hook.__file__), hook.__file__, "exec"), hook.__dict__)
            hook.after_import(module, self.emit)
        except (Exception, SystemExit) as error:
            self.note_failure(error)

    def emit(self, kind: str, **fields: "Any") -> None:
        try:
            text = json_text({name: value() if callable(value) else value for name, value in fields.items()})
            if not self.note(FOR_FAILURES, kind=kind, fields=text):
                raise ValueError("no room for %s: %d bytes" % (kind, len(text)))
        except (Exception, SystemExit) as error:
            self.note_failure(error)

    def note_failure(self, error: BaseException) -> None:
        self.note(0, failure="hook failed: %s: %s" % (type(error).__name__, message_of(error)[:500]))

    @quiet
    def note(self, reserved: int, **values: str) -> bool:
        event = dict(values, t=round(time.time(), 3), hook=self.name)
        return self.file.write("hook", {"hook_events": [event]}, reserved)


def spread(source: str, roots: "tuple[str, ...]") -> None:
    """Copy the probe from `source` beside the packages of this interpreter, if they vanish with the run: below `roots`,
    its own directories, or in a container, which has none, where nothing is mounted. From then on the interpreter has
    it whatever its PYTHONPATH is."""
    names = sorted(name for name in os.listdir(source) if name.startswith(MODULE))
    names.sort(key=lambda name: name.endswith(".pth"))  # with it they are whole
    for place in sys.modules["site"].getsitepackages():
        if place in sys.path and vanishes(os.path.realpath(place), roots):
            last = os.path.join(place, names[-1])
            if not os.path.exists(last) or read_bytes(last) != read_bytes(os.path.join(source, names[-1])):
                for name in names:
                    write_whole(os.path.join(place, name), read_bytes(os.path.join(source, name)))
            return


def vanishes(place: str, roots: "tuple[str, ...]") -> bool:
    if roots:
        return place.startswith(roots)
    with open("/proc/self/mountinfo", "rb") as mounts:
        targets = [os.fsdecode(line.split(b" ")[4]).replace("\\040", " ") for line in mounts]
    return not any((place + "/").startswith(target + "/") for target in targets if target != "/")
