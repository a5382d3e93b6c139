"""The probe: writes down what this Python process is, what it imports, and how it fails. ci-tasks puts it into the
interpreters of a run, where a `.pth` file loads it; nothing here may change what the program does.

One file a process, PID-START-RANDOM.jsonl: lines of JSON, and between them the stacks of all threads as faulthandler
writes them when the process gets the signal SIGRTMIN+7. At start-up it imports built-in modules only, since a program's
own `types.py` must not meet another import order than without it. Python 3.8 to 3.14; `begin` never raises.
"""

import os
import sys
import time

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Dict

    _Json = Dict[str, Any]

MAX_FILES = 2000  # of a run; further processes are counted
MAX_BYTES = 1 << 18  # of a process
MAX_EXCEPTIONS = 20
MAX_FRAMES = 50  # of an exception, from both ends
MAX_LINKED = 16  # exceptions that one is caused by, or made of
MAX_TEXT = 4000
MAX_MODULES = 50  # from outside of the interpreter, which nobody asked for
MAX_SOURCE = 1 << 22  # bytes of a source file that a line is read from
LOW_FD, HIGH_FD = 200, 1000  # where the open file is out of the way of a job that closes and opens its own
SIGNAL = 7  # above SIGRTMIN
COUNT = "count"  # a byte for each process
PACKAGES = "packages-"
OFF = "CI_TASKS_NO_PROBE"  # set for processes that are the agent's own

WATCHED = (
    *("torch", "megatron.core", "megatron.bridge", "slime", "sglang", "vllm", "verl", "ray", "transformer_engine"),
    *("flash_attn", "transformers", "numpy", "triton", "deepspeed", "jax", "nemo", "pytest", "unittest"),
)
VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RAY_JOB_ID", "RAY_NODE_ID", "PYTEST_XDIST_WORKER"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
)
_INSTALLED = ("site-packages", "dist-packages")
_TRIES = 100  # searches for modules, after which one that was searched for before is not being imported
_RESERVED = 1 << 15  # bytes for the end mark
_STARTUP = ("sitecustomize", "usercustomize", "__main__", "__mp_main__")

_probe: "Any" = None


def begin(directory: str, names: str = "") -> None:
    """Start to write into `directory`, once in a process. `names` are further packages to watch, with commas."""
    global _probe
    if _probe is None and OFF not in os.environ:
        try:
            probe = _Probe(directory, WATCHED + tuple(filter(None, names.split(","))))
            probe.begin()
            _probe = probe
        except Exception:
            pass


class _Probe:
    def __init__(self, directory: str, watched: "tuple[str, ...]") -> None:
        self.directory, self.watched = directory, frozenset(watched)
        self.file = -1  # open for as long as the process lives, for faulthandler
        self.identity: "Any" = None  # (device, inode) of the file: the job may have closed it
        self.path = ""
        self.signal = 0
        self.left = MAX_BYTES
        self.exceptions_left = MAX_EXCEPTIONS
        self.pending: "dict[str, int]" = {}  # watched packages that somebody searched for, and when it is given up
        self.imported: "dict[str, Any]" = {}
        self.environ: "dict[str, str]" = {}
        self.finds = 0
        # The id of the last exception that ends the process; a reference would keep its frames alive. What is compared
        # with it lives as long: an id is used again for another exception.
        self.noted: "Any" = None
        self.has_packages = self.has_ended = self.has_worker_hook = self.in_worker = False
        self.excepthook: "Any" = None
        self.thread_excepthook: "Any" = None

    def begin(self) -> None:
        if not self.open():
            return
        self.register_signal()
        self.write_start(False)
        import atexit

        atexit.register(self.end, "exit")
        sys.meta_path.insert(0, self)
        os.register_at_fork(after_in_child=self.after_fork)
        self.hook_exceptions()

    # -- the file ----------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Open the file of this process; False where there are too many."""
        # An appended byte a process: cheaper than to list the directory, and right with several processes at once.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        count = os.open(os.path.join(self.directory, COUNT), flags | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            os.write(count, b".")
            if os.fstat(count).st_size > MAX_FILES:
                return False
        finally:
            os.close(count)
        pid = os.getpid()
        name = "%d-%s-%s.jsonl" % (pid, _start_of(pid) or 0, os.urandom(4).hex())
        path = os.path.join(self.directory, name)
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(file, 0o644)  # the agent reads it, whatever the job's umask is
        if self.is_open():
            os.dup2(file, self.file, False)  # after a fork: faulthandler keeps its number
            os.close(file)
        else:
            self.file = _moved_up(file)
            if self.signal:
                self.register_signal()
        info = os.fstat(self.file)
        self.identity, self.path, self.left = (info.st_dev, info.st_ino), path, MAX_BYTES
        return True

    def is_open(self) -> bool:
        """Whether the number is still that of our file."""
        if self.identity is None:
            return False
        try:
            info = os.fstat(self.file)
        except OSError:
            return False
        return bool((info.st_dev, info.st_ino) == self.identity)

    def write(self, event: str, values: "_Json") -> None:
        line = _json(dict({"event": event, "t": round(time.time(), 3)}, **values)).encode("ascii") + b"\n"
        if len(line) > self.left - (0 if event == "end" else _RESERVED):
            return
        self.left -= len(line)
        if self.is_open():
            os.write(self.file, line)
        else:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    # -- what the process is -----------------------------------------------------------------------------------------

    def write_start(self, forked: bool) -> None:
        pid, parent = os.getpid(), os.getppid()
        self.environ = _environ()
        values = {
            "pid": pid,
            "start": _start_of(pid),
            "ppid": parent,
            "parent_start": _start_of(parent),
            "namespace": _namespace(),
            "argv": _argv(),
            "directory": _directory(),
            "executable": sys.executable or "",
            "prefix": sys.prefix,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "env": self.environ,
            "forked": forked,
            "signal": self.signal,
            "descriptor": self.file,
        }
        self.write("start", values)

    def register_signal(self) -> None:
        """Let the signal write the stacks, unless the program has a handler."""
        try:
            import faulthandler

            signal = __import__("_signal")  # the module `signal` brings others along
            number = int(signal.SIGRTMIN) + SIGNAL
            if self.signal or signal.getsignal(number) == signal.SIG_DFL:
                faulthandler.register(number, file=self.file, all_threads=True, chain=False)
                self.signal = number
        except Exception:
            pass

    def note_environ(self) -> None:
        """Ray's workers get their rank and devices long after they have started."""
        now = _environ()
        if now != self.environ:
            self.environ = now
            self.write("environ", {"env": now})

    def after_fork(self) -> None:
        """In the child: other threads are gone, so nothing here takes a lock or imports."""
        try:
            self.has_ended = False
            self.exceptions_left, self.noted = MAX_EXCEPTIONS, None
            if self.open():
                self.write_start(True)
                self.hook_worker()
            elif self.is_open():
                nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nothing, self.file, False)  # the parent's file is none of ours
                os.close(nothing)
                self.left = 0
        except Exception:
            self.left = 0

    # -- what it imports ---------------------------------------------------------------------------------------------

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> None:
        """Finds nothing: it is asked first, and sees what is about to be imported."""
        try:
            self.finds += 1
            if not self.has_worker_hook:
                self.hook_worker()
            if self.in_worker:
                self.hook_traceback(name)
            if name in self.watched:
                self.pending[name] = self.finds + _TRIES
            elif self.pending or not self.finds & 63:
                self.note_imports()
                self.note_environ()
        except Exception:
            pass

    def note_imports(self) -> None:
        """A module is in sys.modules with its origin before its own code begins."""
        for name, last in list(self.pending.items()):
            values = _module(name)
            if values is not None and name not in self.imported:
                self.imported[name] = values["origin"]
                self.write("import", {"module": values})
            if values is not None or self.finds > last:
                self.pending.pop(name, None)
        if self.imported:
            self.note_packages()

    def note_packages(self) -> None:
        """What is installed for this interpreter, in a file that processes with the same packages share."""
        if self.has_packages:
            return
        self.has_packages = True
        text = _json({"python": "%d.%d.%d" % sys.version_info[:3], "packages": _packages()}).encode("ascii")
        key = "%s%032x" % (PACKAGES, int.from_bytes(text, "big") % ((1 << 127) - 1))
        path = os.path.join(self.directory, key)
        if not os.path.exists(path):
            beside = "%s.%s" % (path, os.urandom(4).hex())
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(file, 0o644)
                os.write(file, text)
            finally:
                os.close(file)
            os.rename(beside, path)
        self.write("packages", {"file": key})

    # -- how it fails ------------------------------------------------------------------------------------------------

    def hook_exceptions(self) -> None:
        """`sys.__excepthook__` too, and the function that `threading` will take as its default: a library that asks
        whether somebody has changed the hook gets the same answer as without the probe."""
        self.excepthook = sys.excepthook
        is_default = sys.excepthook is sys.__excepthook__

        def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
            self.note_exception(value, "main")
            self.excepthook(kind, value, trace)

        sys.excepthook = excepthook
        if is_default:
            sys.__excepthook__ = excepthook
        import _thread

        threading: "Any" = sys.modules.get("threading")
        self.thread_excepthook = threading.excepthook if threading else _thread._excepthook

        def thread_excepthook(args: "Any") -> None:
            self.note_exception(getattr(args, "exc_value", None), "thread", getattr(args, "thread", None))
            self.thread_excepthook(args)

        _thread._excepthook = thread_excepthook
        if threading:
            threading.excepthook = thread_excepthook

    def hook_worker(self) -> None:
        util = sys.modules.get("multiprocessing.util")
        if not self.has_worker_hook and util is not None and hasattr(util, "Finalize"):
            self.has_worker_hook = True
            util.register_after_fork(self, _Probe.begin_worker)
            if "--multiprocessing-fork" in getattr(sys, "argv", ()):  # spawned: nothing is done after the fork
                self.begin_worker()

    def begin_worker(self) -> None:
        """A worker of multiprocessing prints its exception itself. Up to Python 3.12 its finalizers run while that is
        on its way; later only `traceback.print_exc` sees it."""
        try:
            sys.modules["multiprocessing.util"].Finalize(None, self.end_worker, exitpriority=1 << 20)
            self.in_worker = True
            self.hook_traceback()
        except Exception:
            pass

    def hook_traceback(self, imported: str = "") -> None:
        """`imported` is what is about to be: an exception may be the reason."""
        traceback: "Any" = sys.modules.get("traceback")
        print_exc = getattr(traceback, "print_exc", None)
        if print_exc is None:
            if imported == "traceback" and _importing_function() == "_bootstrap":
                self.note_worker_exception()
            return
        self.in_worker = False

        def noting_print_exc(*args: "Any", **options: "Any") -> None:
            if sys._getframe(1).f_code.co_name == "_bootstrap":
                self.note_worker_exception()
            print_exc(*args, **options)

        traceback.print_exc = noting_print_exc

    def end_worker(self) -> None:
        self.note_worker_exception()
        self.end("worker")

    def note_worker_exception(self) -> None:
        value = sys.exc_info()[1]
        if isinstance(value, SystemExit):
            value = value.__context__ if value.code else None  # torch's spawn catches, and exits with 1
        if value is not None and self.noted != id(value):
            self.note_exception(value, "worker")

    def note_exception(self, value: "Any", where: str, thread: "Any" = None) -> None:
        try:
            if value is None or self.exceptions_left <= 0:
                return
            self.exceptions_left -= 1
            if where != "thread":
                self.noted = id(value)
            self.note_imports()
            self.note_environ()
            name = str(getattr(thread, "name", "") or "")
            self.write("exception", {"where": where, "thread": name[:200], "chain": _chain(value)})
        except BaseException:  # the exception's own methods may do anything
            pass

    # -- its end -----------------------------------------------------------------------------------------------------

    def end(self, how: str) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        try:
            self.note_last_exception()
            self.note_imports()
            self.note_packages()
            self.note_environ()
        except Exception:
            pass
        try:
            names = [name for name in self.imported if name in sys.modules]
            modules = [values for values in map(_module, names) if values]
            for values in modules:
                values["package_version"] = values["package_version"] or _version_attribute(str(values["name"]))
            self.write("end", {"how": how, "memory": _gpu_memory(), "modules": modules + _outside(self.imported)})
        except Exception:
            pass

    def note_last_exception(self) -> None:
        """One of the main program whose hook did not call ours. pytest puts there what failed in a test."""
        trace = getattr(sys, "last_traceback", None)
        frame = getattr(trace, "tb_frame", None)
        if frame is not None and frame.f_globals.get("__name__") in ("__main__", "runpy"):
            value = getattr(sys, "last_value", None)
            if self.noted != id(value):
                self.note_exception(value, "main")


# -- the process -------------------------------------------------------------------------------------------------------


def _start_of(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it is nobody else's. 0 where that is not known."""
    try:
        return int(_read("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _namespace() -> str:
    """Where the pids count: each container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _argv() -> "list[str]":
    try:
        words = _read("/proc/self/cmdline", 1 << 14).split(b"\0")[:-1]
    except OSError:
        return []
    return [word.decode("utf-8", "backslashreplace")[:1000] for word in words[:100]]


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _environ() -> "dict[str, str]":
    found = ((name, os.environ.get(name)) for name in VARIABLES)
    return {name: value[:200] for name, value in found if value is not None}


def _read(path: str, most: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def _moved_up(file: int) -> int:
    """The same open file under a number that a job's own files do not get."""
    for low in (HIGH_FD, LOW_FD):
        for number in range(low, low + 20):
            try:
                os.fstat(number)
            except OSError:
                try:
                    os.dup2(file, number, False)
                except OSError:
                    break  # over the limit
                os.close(file)
                return number
    return file


# -- modules -----------------------------------------------------------------------------------------------------------


def _module(name: str) -> "_Json | None":
    """What is known of an imported module; None where there is none."""
    values = _attributes(sys.modules.get(name))
    spec = values.get("__spec__")
    origin = getattr(spec, "origin", None) or values.get("__file__")
    if not isinstance(origin, str):
        search = getattr(spec, "submodule_search_locations", None)
        origin = next(iter(getattr(search, "_path", search) or ()), None)
        if not isinstance(origin, str):
            return None
        top = os.path.dirname(origin)
    else:
        top = os.path.dirname(origin)
        if getattr(spec, "submodule_search_locations", None) is not None:
            top = os.path.dirname(top)
    for _ in range(name.count(".")):
        top = os.path.dirname(top)
    return {"name": name, "origin": origin, "package_version": _version(name, top), "commit": _commit(top)}


def _importing_function() -> str:
    frame: "Any" = sys._getframe(1)
    while frame is not None and (frame.f_globals is globals() or "importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_name if frame is not None else ""


def _attributes(module: "Any") -> "_Json":
    """Of a module as they are: some modules import more when they are asked for an attribute."""
    return object.__getattribute__(module, "__dict__") if issubclass(type(module), type(sys)) else {}


def _version(name: str, top: str) -> str:
    """By the metadata beside it; no parsing, no search."""
    wanted = name.replace(".", "_").lower()
    try:
        for entry in os.listdir(top):
            if entry.endswith((".dist-info", ".egg-info")) and _normalized(entry.split("-")[0]) == wanted:
                return _distribution(entry)[1]
    except OSError:
        pass
    return ""


def _version_attribute(name: str) -> str:
    value = _attributes(sys.modules.get(name)).get("__version__")
    return value[:100] if isinstance(value, str) else ""


def _commit(directory: str) -> str:
    """The commit of the work tree that a directory lies in, from git's own files."""
    if any(name in directory for name in _INSTALLED):
        return ""
    try:
        for _ in range(6):
            git = os.path.join(directory, ".git")
            if os.path.exists(git):
                return _head(git)
            directory = os.path.dirname(directory)
    except (OSError, ValueError):
        pass
    return ""


def _head(git: str) -> str:
    if not os.path.isdir(git):  # of a submodule or another work tree: gitdir: PATH
        path = _read(git, 4096).decode("utf-8", "surrogateescape").partition(":")[2].strip()
        git = os.path.join(os.path.dirname(git), path)
    head = _read(os.path.join(git, "HEAD"), 4096).decode("ascii").strip()
    if not head.startswith("ref: "):
        return head[:64]
    name = head[5:]
    try:
        git = os.path.join(git, _read(os.path.join(git, "commondir"), 4096).decode("utf-8").strip())
    except OSError:
        pass
    try:
        return _read(os.path.join(git, name), 100).decode("ascii").strip()[:64]
    except OSError:
        packed = _read(os.path.join(git, "packed-refs"), 1 << 20).decode("ascii", "replace")
    found = (line.split(" ")[0] for line in packed.split("\n") if line.endswith(" " + name))
    return next(found, "")[:64]


def _packages() -> "dict[str, str]":
    """Name and version of each distribution, as the names of their metadata say; the first on the path counts."""
    packages: "dict[str, str]" = {}
    for directory in list(sys.path):
        try:
            entries = sorted(os.listdir(directory or "."))
        except (OSError, TypeError, ValueError):
            continue
        for entry in entries:
            if entry.endswith((".dist-info", ".egg-info")):
                name, version = _distribution(entry)
                packages.setdefault(name, version)
    return packages


def _distribution(entry: str) -> "tuple[str, str]":
    parts = entry.rpartition(".")[0].split("-")
    return parts[0], parts[1] if len(parts) > 1 else ""


def _normalized(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _outside(known: "dict[str, Any]") -> "list[_Json]":
    """Modules of other places than the interpreter's own: of a work tree, or of a directory on PYTHONPATH."""
    library = os.path.join(os.path.dirname(os.__file__), "")
    found: "list[_Json]" = []
    for name in sorted(name for name in list(sys.modules) if isinstance(name, str) and "." not in name):
        origin = getattr(_attributes(sys.modules.get(name)).get("__spec__"), "origin", None)
        if name in known or name in _STARTUP or not isinstance(origin, str) or not os.path.isabs(origin):
            continue
        if not origin.startswith(library) and not any(part in origin for part in _INSTALLED):
            values = _module(name)
            if values and len(found) < MAX_MODULES:
                found.append(values)
    return found


# -- exceptions --------------------------------------------------------------------------------------------------------


def _chain(value: "Any") -> "list[_Json]":
    """The exception, those that it was caused by, and the members of groups; `of` is the number of the one that each
    belongs to."""
    found: "list[_Json]" = []
    todo: "list[tuple[Any, int, str]]" = [(value, -1, "")]
    known: "set[int]" = set()
    sources: "dict[str, list[str]]" = {}
    while todo and len(found) < MAX_LINKED:
        current, of, link = todo.pop(0)
        if id(current) in known:
            continue
        known.add(id(current))
        here, cause = len(found), getattr(current, "__cause__", None)
        kind = type(current)
        values: "_Json" = {"of": of, "link": link, "type": "%s.%s" % (kind.__module__, kind.__qualname__)}
        values["message"] = _message(current)
        values["frames"] = _frames(getattr(current, "__traceback__", None), sources)
        found.append(values)
        if cause is not None:
            todo.append((cause, here, "cause"))
        elif getattr(current, "__context__", None) is not None and not getattr(current, "__suppress_context__", False):
            todo.append((getattr(current, "__context__", None), here, "context"))
        members = getattr(current, "exceptions", None)
        if isinstance(members, tuple) and any(base.__name__ == "BaseExceptionGroup" for base in kind.__mro__):
            todo += [(member, here, "member") for member in members]
    return found


def _message(value: "Any") -> str:
    try:
        text = str(value)
    except BaseException:
        return "<its text cannot be had>"
    # Of a long one both ends: of Ray's the last line is the worker's own.
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT // 2] + "\n...\n" + text[-MAX_TEXT // 2 :]


def _frames(trace: "Any", sources: "dict[str, list[str]]") -> "list[_Json]":
    """The outermost first."""
    found: "list[tuple[Any, int]]" = []
    while trace is not None and len(found) < 10000:
        found.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    if len(found) > MAX_FRAMES:
        found = found[:10] + found[-(MAX_FRAMES - 10) :]
    frames = []
    for code, line in found:
        values: "_Json" = {"file": code.co_filename[:1000], "line": line or 0, "function": code.co_name[:200]}
        values["source"] = _source(code.co_filename, line or 0, sources)
        frames.append(values)
    return frames


def _source(path: str, line: int, sources: "dict[str, list[str]]") -> str:
    if path not in sources:
        sources[path] = []
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_SOURCE:
                sources[path] = _read(path, MAX_SOURCE).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            pass
    lines = sources[path]
    return lines[line - 1].strip()[:300] if 0 < line <= len(lines) else ""


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _gpu_memory() -> "list[_Json]":
    """Torch's own peaks since they were last reset, of devices that were used. Imports and initializes nothing."""
    cuda = sys.modules.get("torch.cuda")
    found: "list[_Json]" = []
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        for device in range(cuda.device_count()):
            reserved = int(cuda.max_memory_reserved(device))
            if reserved > 0:
                allocated = int(cuda.max_memory_allocated(device))
                values: "_Json" = {"device": device, "allocated": allocated, "reserved": reserved}
                uuid = str(getattr(cuda.get_device_properties(device), "uuid", ""))
                values["uuid"] = "GPU-" + uuid if uuid and "-" not in uuid[:4] else uuid  # as nvidia-smi has it
                found.append(values)
    except Exception:
        pass
    return found


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(value: "Any") -> str:
    """ASCII. The module `json` takes longer to import than all of this."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (_quoted(str(key)), _json(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(_json, value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)  # a number


def _quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"%s"' % text
    return '"%s"' % "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    number = ord(char)
    if char in '"\\':
        return "\\" + char
    if 32 <= number < 127:
        return char
    if number < 0x10000:
        return "\\u%04x" % number
    number -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF))
