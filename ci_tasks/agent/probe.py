"""The probe: writes down what this Python process is, what it imports, and how it fails. ci-tasks puts it into the
interpreters of a run as ci_tasks_probe.py, where a `.pth` file loads it; nothing here may change what the program does.
At start-up it imports built-in modules only, since a program's own `types.py` must not meet another import order than
without it. Python 3.8 to 3.14.

The file of a process, PID-START-RANDOM.jsonl, has lines of JSON, the first of which says what the process is. Between
them are the stacks of all threads, which faulthandler writes when the process gets the signal SIGRTMIN+7. Noted is what
is imported, and from where; exceptions that nothing caught; what a suite's own hooks add. Overlays are packages of
working trees that are imported instead of the installed packages.
"""

import os
import sys
import time

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

MODULE = "ci_tasks_probe"
OFF = "CI_TASKS_NO_PROBE"  # set for processes that are the agent's own
MAX_BYTES = 1 << 22  # of a process
RESERVED = 1 << 15  # bytes that are left for the end of the process
FOR_FAILURES = 1 << 19  # bytes that hooks leave for uncaught exceptions and the end
MAX_TEXT = 4000
_MAX_MODULES = 50  # from elsewhere, of a process
_MAX_EXCEPTIONS = 20  # of a process, for each place where they are seen
_MAX_FRAMES = 50  # of an exception, from both ends
_MAX_LINKED = 16  # exceptions that one is caused by, or made of
_SIGNAL = 7  # above SIGRTMIN
_INSTALLED = ("site-packages", "dist-packages")
_METADATA = (".dist-info", ".egg-info")
WATCHED = (
    *("torch", "megatron.core", "megatron.bridge", "slime", "sglang", "vllm", "verl", "ray", "transformer_engine"),
    *("flash_attn", "transformers", "numpy", "triton", "deepspeed", "jax", "nemo", "pytest", "unittest"),
)
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "PYTEST_XDIST_WORKER"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "CUDA_VISIBLE_DEVICES"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)


def quiet(function: "Callable[..., Any]") -> "Callable[..., Any]":
    """A function that returns None where it fails: nothing of the probe changes what the program does."""

    def call(*args: "Any", **options: "Any") -> "Any":
        try:
            return function(*args, **options)
        except Exception:
            return None

    return call


class EvidenceFile:
    def __init__(self, directory: str) -> None:
        self.directory, self.path = os.path.realpath(directory), ""
        self.number = -1  # open for as long as the process lives, for faulthandler
        self.signal = self.left = 0  # bytes that are left
        self.has_packages = False
        self.environ: "dict[str, str]" = {}
        self.failures: "dict[str, int]" = {}  # how many exceptions, by where they were seen

    def open(self, forked: bool = False) -> None:
        """Begin the file of this process, also after a fork."""
        self.left = 0
        is_inherited = os.path.realpath("/proc/self/fd/%d" % self.number) == self.path  # the job may have closed it
        pid, parent = os.getpid(), os.getppid()
        start = _start_of(pid)
        self.path = os.path.join(self.directory, "%d-%d-%s.jsonl" % (pid, start, os.urandom(4).hex()))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(file, 0o644)  # the agent reads it, whatever the job's umask is
        if is_inherited:  # from the parent: faulthandler keeps its number
            os.dup2(file, self.number, False)
            os.close(file)
        else:
            self.number = file
            self._register_signal()
        self.left = MAX_BYTES
        self.environ = _rank_variables()
        words = read_bytes("/proc/self/cmdline").split(b"\0")[:-1]
        values: "dict[str, Any]" = {"started_at": round(time.time(), 3), "pid": pid, "start": start, "forked": forked}
        values.update(ppid=parent, parent_start=_start_of(parent), namespace=os.readlink("/proc/self/ns/pid"))
        values.update(argv=[word.decode("utf-8", "backslashreplace")[:1000] for word in words[:100]], env=self.environ)
        values.update(executable=sys.executable, python="%d.%d.%d" % sys.version_info[:3])
        self.write("start", dict(values, signal=self.signal, descriptor=self.number))

    def note_variables(self) -> None:
        """If they have changed: Ray's workers get their rank and devices long after they have started."""
        now = _rank_variables()
        if now != self.environ:
            self.environ = now
            self.write("environ", {"env": now})

    def write(self, event: str, values: "dict[str, Any]", reserved: int = RESERVED) -> bool:
        """Append a line with fields of ProcessEvidence, unless fewer than `reserved` bytes were left. Returns whether
        it was written."""
        self.note_variables()
        line = json_text(dict({"event": event}, **values)).encode("ascii") + b"\n"
        if len(line) > self.left - reserved:
            return False
        self.left -= len(line)
        is_open = os.path.realpath("/proc/self/fd/%d" % self.number) == self.path  # the job may have closed it
        file = self.number if is_open else os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, line)
        finally:
            if not is_open:
                os.close(file)
        return True

    def note_packages(self) -> None:
        """What is installed for this interpreter, in a file that processes with the same packages share."""
        if not self.has_packages:
            self.has_packages = True
            found = (each for directory in reversed(sys.path) for each in _distributions(directory))
            text = json_text({name: version for _, name, version in found}).encode("ascii")  # the path's first counts
            key = "packages-" + __import__("_imp").source_hash(0, text).hex()
            if not os.path.exists(os.path.join(self.directory, key)):
                write_whole(os.path.join(self.directory, key), text)
            self.write("packages", {"packages": key})

    def _register_signal(self) -> None:
        """Let the signal write the stacks, unless the program has a handler."""
        import faulthandler

        signal = __import__("_signal")  # the module `signal` brings others along
        number = int(signal.SIGRTMIN) + _SIGNAL
        if self.signal or signal.getsignal(number) == signal.SIG_DFL:
            faulthandler.register(number, file=self.number, all_threads=True, chain=False)
            self.signal = number


def _rank_variables() -> "dict[str, str]":
    return {name: os.environ[name][:500] for name in _VARIABLES if name in os.environ}


def _start_of(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it is unique. 0 where that is not known."""
    fields = _content("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def read_bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 20)


def write_whole(path: str, content: bytes) -> None:
    """It appears whole, for every user to read."""
    beside = "%s.%s" % (path, os.urandom(4).hex())
    with open(beside, "xb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
    os.rename(beside, path)


def json_text(value: "Any") -> str:
    """JSON in ASCII; what is of no such type, as its text. The module `json` takes longer to import than all this."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (json_text(str(key)), json_text(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(json_text, value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) is int or (type(value) is float and abs(value) < float("inf")):
        return repr(value)
    text = value if isinstance(value, str) else str(value)[:MAX_TEXT]
    units = memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]
    return '"%s"' % "".join(chr(unit) if 31 < unit < 127 and unit not in b'"\\' else "\\u%04x" % unit for unit in units)


# -- where a module comes from: no import, no search -------------------------------------------------------------------


def module_facts(name: str, spec: "Any" = None) -> "dict[str, Any]":
    """The fields of ImportedModule, by its spec if its import has only started."""
    origin = top = _origin(spec or _attributes(name).get("__spec__"))
    for _ in range(name.count(".") + 1 + os.path.basename(top).startswith("__init__.")):
        top = os.path.dirname(top)
    installed = (each for each in _distributions(top) if each[1].replace("-", "_").lower() == name.replace(".", "_"))
    entry, _, version = next(installed, ("", "", ""))
    shown: "Any" = version or _attributes(name).get("__version__")
    return {
        "name": name,
        "origin": origin,
        "commit": _commit(top),
        "package_version": shown[:100] if isinstance(shown, str) else "",
        "local": bool(entry) and b'"file:' in _content(os.path.join(top, entry, "direct_url.json")),
    }


def _origin(spec: "Any") -> str:
    """Its file, or the directory of a namespace package."""
    search = getattr(spec, "submodule_search_locations", None)
    return str(getattr(spec, "origin", None) or next(iter(getattr(search, "_path", search) or ()), ""))


def _attributes(name: str) -> "dict[str, Any]":
    """Of a module, as they are: some modules import more when they are asked for an attribute."""
    module = sys.modules.get(name)
    return object.__getattribute__(module, "__dict__") if issubclass(type(module), type(sys)) else {}


def _distributions(directory: str) -> "list[tuple[str, str, str]]":
    """(metadata, name, version) of each in a directory, as the name of its metadata says."""
    entries = sorted(entry for entry in quiet(os.listdir)(directory or ".") or () if entry.endswith(_METADATA))
    words = ((entry, (entry.rpartition(".")[0] + "-").split("-")) for entry in entries)
    return [(entry, name, version) for entry, (name, version, *_) in words]


def _content(*path: str) -> bytes:
    return quiet(read_bytes)(os.path.join(*path)) or b""


def _commit(directory: str) -> str:
    """The commit of the work tree that a directory lies in, from git's own files."""
    if any(part in directory for part in _INSTALLED):
        return ""
    while not os.path.exists(os.path.join(directory, ".git")) and directory not in ("", "/"):
        directory = os.path.dirname(directory)
    git = os.path.join(directory, ".git")
    if os.path.isfile(git):  # of a submodule or another work tree: gitdir: PATH
        git = os.path.join(directory, os.fsdecode(_content(git)[8:].strip()))
    kind, _, name = _content(git, "HEAD").strip().rpartition(b" ")
    if not kind:
        return name.decode("ascii", "replace")[:64]
    git = os.path.join(git, os.fsdecode(_content(git, "commondir").strip()))
    packed = (line[:64] for line in _content(git, "packed-refs").split(b"\n") if line.endswith(b" " + name))
    return (_content(git, os.fsdecode(name)) or next(packed, b"")).decode("ascii", "replace").split(" ")[0].strip()[:64]


def loaded_modules(watched: "tuple[str, ...]", overlays: "Overlays | None") -> "list[dict[str, Any]]":
    """Watched modules; those from outside of the interpreter, of a work tree or a directory on PYTHONPATH; and parts of
    an overlay's packages from elsewhere."""
    inside = os.path.join(os.path.dirname(os.__file__), "")
    elsewhere = []
    for name in sorted(name for name in list(sys.modules) if isinstance(name, str) and not name.endswith("customize")):
        origin = str(getattr(_attributes(name).get("__spec__"), "origin", None))  # a namespace package has no file
        is_installed = origin.startswith(inside) or any(part in origin for part in _INSTALLED)
        is_outside = os.path.isabs(origin) and not is_installed and name not in (*watched, "ci_tasks_probe")
        if ("." not in name and is_outside) or (overlays is not None and overlays.is_foreign(name)):
            elsewhere.append(name)
    return [module_facts(name) for name in [*filter(sys.modules.get, watched), *elsewhere[:_MAX_MODULES]]]


# -- imports as they happen --------------------------------------------------------------------------------------------


class ImportNotes:
    """The first finder of `sys.meta_path`, which finds nothing itself: it calls `begun` with the spec of a watched
    module that is about to be imported, whose code may fail or never end, and other functions with what was imported.
    """

    def __init__(self, watched: "tuple[str, ...]", begun: "Callable[[Any], None]") -> None:
        self.watched, self.begun = watched, begun
        self.functions: "dict[str, list[Callable[[Any], None]]]" = {}
        self.spec_class = _announcing_spec(self)

    def when_imported(self, name: str, function: "Callable[[Any], None]") -> None:
        """Call it with the module, now or later."""
        self.functions.setdefault(name, []).append(function)
        if name in sys.modules and not getattr(_attributes(name).get("__spec__"), "_initializing", False):
            self.end(name)

    @quiet
    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        is_asked_for = target is None and (name in self.functions or name in self.watched)
        spec = next(_specs(name, path, self), None) if is_asked_for else None
        if type(spec) is type(sys.__spec__):
            spec.__class__ = self.spec_class
        return spec

    def end(self, name: str) -> None:
        for function in self.functions.pop(name, ()) if name in sys.modules else ():  # else its code failed
            quiet(function)(sys.modules[name])


def _announcing_spec(imports: ImportNotes) -> "Any":
    """A class of specs that tell when their import begins and ends. importlib sets `_initializing` around a module's
    code; a loader of ours would be a frame in the traceback of each exception that comes out of an import."""
    plain: "Any" = type(sys.__spec__)

    class ModuleSpec(plain):  # type: ignore[misc, unused-ignore]
        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__["_initializing"])

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if value and self.name in imports.watched:
                imports.begun(self)
            elif not value:
                self.__class__ = plain
                imports.end(self.name)

    return ModuleSpec


def _specs(name: str, path: "Any", own: "Any") -> "Iterator[Any]":
    """What the finders behind `own` find."""
    finders = list(sys.meta_path)
    for finder in finders[finders.index(own) + 1 :]:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, None) if find is not None else None
        if spec is not None:
            yield spec


def set_flight_recorder(directory: str, path: str) -> None:
    """torch's, by which a rank says which collective it has started: in memory, and written when it is asked. What the
    job, its workflow or its image has set stays. `path` is of the file of this process; what its parent got from us
    would be the parent's."""
    stem, environ = path.rpartition(".")[0] + ".", os.environ
    sizes = [environ[name] for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE") if name in environ]
    if "0" in sizes:
        return
    os.mkfifo(stem + "pipe", 0o600)  # torch ends a job whose pipe it cannot make
    os.unlink(stem + "pipe")
    if not sizes:
        environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    # Each with its older name.
    dumps = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    for names, value in ((("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",), stem), (dumps, stem + "fr-")):
        if all(environ.get(name, directory + "/").startswith(directory + "/") for name in names):
            environ[names[0]] = value


# -- overlays ----------------------------------------------------------------------------------------------------------


class Overlays:
    """A finder before all others, so that neither PYTHONPATH, nor the working directory, nor the finder of an editable
    install comes first. `modules` are the packages by the directory that they lie in. Of a namespace package only the
    parts that the tree has are its; compiled modules that the tree lacks are the installed ones."""

    def __init__(self, modules: "dict[str, str]") -> None:
        self.modules = modules
        self.namespaces = {name.partition(".")[0]: directory for name, directory in modules.items() if "." in name}

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        owner = self.owner(name)
        if not owner and name not in self.namespaces:
            return None
        # What importlib.machinery has, without importing it.
        from _frozen_importlib_external import ExtensionFileLoader, FileFinder, PathFinder

        if owner == name:
            return PathFinder.find_spec(name, [os.path.join(self.modules[name], *name.split(".")[:-1])])
        found = next(_specs(name, path, self), None)
        if not owner:
            # A regular package of this name that is installed makes the namespace, as it does without the overlay.
            is_regular = found is not None and found.loader is not None and found.origin is not None
            return found if is_regular else PathFinder.find_spec(name, [self.namespaces[name], *sys.path])
        places = [os.path.join(entry or ".", *owner.split(".")) for entry in sys.path if isinstance(entry, str)]
        for spec in _specs(owner, [], self):  # the finders of editable installs; there is no other in no directory
            places += spec.submodule_search_locations or ()
        for place in places if found is None else ():
            directory = os.path.join(place, *name[len(owner) + 1 :].split(".")[:-1])
            loader = ExtensionFileLoader, __import__("_imp").extension_suffixes()
            found = found or FileFinder(directory, loader).find_spec(name)
        return found

    def owner(self, name: str) -> str:
        """The package of an overlay that the module is, or lies in; empty for others."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    def is_foreign(self, name: str) -> bool:
        """Whether a module is of another copy of an overlay's package. What a program compiles into a cache and loads
        from there is none."""
        owner, origin = self.owner(name), _origin(_attributes(name).get("__spec__"))
        beside, file = os.path.split(origin)
        stem = beside if file == "__init__.py" else os.path.join(beside, file.partition(".")[0])
        is_part = owner and stem.endswith(os.sep + name.replace(".", os.sep))
        return bool(is_part and not origin.startswith(os.path.join(self.modules[owner], "")))


# -- exceptions that nothing caught ------------------------------------------------------------------------------------


def note_exception(file: EvidenceFile, value: "Any", where: str, name: str = "") -> None:
    """`name` is a thread's name."""
    try:
        file.failures[where] = file.failures.get(where, 0) + 1
        if value is not None and file.failures[where] <= _MAX_EXCEPTIONS:
            noted = {"t": round(time.time(), 3), "where": where, "name": name[:200]}
            noted["chain"] = [_described(each) for each in _linked(value)]
            file.write("exception", {"exceptions": [noted]})
    except BaseException:  # the exception's own methods may do anything
        pass


def _linked(value: "Any") -> "list[Any]":
    """The exception, its causes, and the members of groups."""
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


def hook_exceptions(file: EvidenceFile) -> None:
    """Also `sys.__excepthook__`, and the function that `threading` will take as its default: a library that asks
    whether the hook has been changed gets the same answer as without the probe."""
    import _thread

    thread: "Any" = _thread
    before, before_thread = sys.excepthook, thread._excepthook

    def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
        note_exception(file, value, "main")
        before(kind, value, trace)

    def thread_excepthook(args: "Any") -> None:
        note_exception(file, args.exc_value, "thread", str(getattr(args.thread, "name", "")))
        before_thread(args)

    if sys.excepthook is sys.__excepthook__:
        sys.__excepthook__ = excepthook
    sys.excepthook, thread._excepthook = excepthook, thread_excepthook


def hook_workers(file: EvidenceFile, imports: ImportNotes, end: "Callable[[str], None]") -> None:
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
                note_exception(file, sys.exc_info()[1], "worker")
            print_exc(*args, **options)

        module.print_exc = noting_print_exc

    imports.when_imported("multiprocessing.process", hook_processes)


# -- the probe ---------------------------------------------------------------------------------------------------------


_file: "EvidenceFile | None" = None


@quiet
def begin(directory: str, packages: "tuple[str, ...]", hooks: "dict[str, str]", overlays: "dict[str, str]") -> None:
    """Start to write into `directory`, once in a process. `packages` are watched too; `hooks` are those of a suite by
    module, `overlays` directories by package."""
    global _file
    if _file is not None or OFF in os.environ or not os.path.isdir(directory):
        return
    finder = Overlays(overlays) if overlays else None
    sys.meta_path[:0] = [finder] if finder is not None else []
    file = EvidenceFile(directory)
    file.open()
    _file = file
    watched = WATCHED + packages

    @quiet
    def after_fork() -> None:
        """In the child: other threads are gone, so nothing here takes a lock or imports."""
        file.open(forked=True)

    @quiet
    def end(how: str) -> None:
        file.note_packages()
        file.write("end", {"end": how, "imports": loaded_modules(watched, finder)}, reserved=0)
        file.left = 0  # once

    @quiet
    def note_import(spec: "Any") -> None:
        file.write("import", {"imports": [module_facts(spec.name, spec)]})
        file.note_packages()

    import atexit

    imports = ImportNotes(watched, note_import)
    atexit.register(end, "exit")
    os.register_at_fork(after_in_child=after_fork)
    sys.meta_path.insert(0, imports)
    imports.when_imported("torch", lambda _: set_flight_recorder(file.directory, file.path))
    imports.when_imported("torch", lambda _: file.note_variables())
    hook_exceptions(file)
    hook_workers(file, imports, end)
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
