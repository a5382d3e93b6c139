"""The probe of this process: all hooks together, a suite's own, torch's memory, and the probe in interpreters that
appear while the run goes on.
"""

import os
import sys
import time

from .evidence_file import FOR_FAILURES, OFF, EvidenceFile, json_text, read_bytes, write_whole
from .exceptions import ExceptionNotes, hook_exceptions, hook_workers, message_of
from .imports import ImportNotes, Overlays, loaded_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WATCHED = (
    *("torch", "megatron.core", "megatron.bridge", "slime", "sglang", "vllm", "verl", "ray", "transformer_engine"),
    *("flash_attn", "transformers", "numpy", "triton", "deepspeed", "jax", "nemo", "pytest", "unittest"),
)
MODULE = "ci_tasks_probe"

_file: "EvidenceFile | None" = None


def begin(directory: str, packages: "tuple[str, ...]", hooks: "dict[str, str]", overlays: "dict[str, str]") -> None:
    """Start to write into `directory`, once in a process. `packages` are watched too; `hooks` are those of a suite by
    module, `overlays` directories by package. It never raises."""
    global _file
    if _file is None and OFF not in os.environ and os.path.isdir(directory):
        try:
            finder = Overlays(overlays) if overlays else None
            sys.meta_path[:0] = [finder] if finder is not None else []
            file = EvidenceFile(directory)
            file.open()
            _file = file
            _add_hooks(file, WATCHED + packages, hooks, finder)
        except Exception:
            pass


def _add_hooks(
    file: EvidenceFile, watched: "tuple[str, ...]", hooks: "dict[str, str]", overlays: "Overlays | None"
) -> None:
    imports, exceptions = ImportNotes(file, watched), ExceptionNotes(file)

    def after_fork() -> None:
        """In the child: other threads are gone, so nothing here takes a lock or imports."""
        try:
            file.open(forked=True)
        except Exception:
            pass

    def end(how: str) -> None:
        try:
            imports.note_packages()
            modules = loaded_modules(watched, overlays)
            file.write("end", {"end": how, "memory": gpu_memory(), "imports": modules}, reserved=0)
            file.left = 0  # once
        except Exception:
            pass

    import atexit

    atexit.register(end, "exit")
    os.register_at_fork(after_in_child=after_fork)
    sys.meta_path.insert(0, imports)
    hook_exceptions(exceptions)
    hook_workers(exceptions, imports, end)
    for module, hook in hooks.items():
        imports.when_imported(module, SuiteHook(hook, file).after_import)


def gpu_memory() -> "list[dict[str, Any]]":
    """Torch's own peaks since they were last reset, of devices that were used. Imports and initializes nothing."""
    cuda: "Any" = sys.modules.get("torch.cuda")
    found: "list[dict[str, Any]]" = []
    try:
        for device in range(cuda.device_count()) if cuda is not None and cuda.is_initialized() else ():
            allocated, reserved = int(cuda.max_memory_allocated(device)), int(cuda.max_memory_reserved(device))
            if reserved > 0:
                uuid = str(getattr(cuda.get_device_properties(device), "uuid", ""))
                uuid = "GPU-" + uuid if uuid and "-" not in uuid[:4] else uuid  # as nvidia-smi has it
                found.append({"device": device, "allocated": allocated, "reserved": reserved, "uuid": uuid})
    except Exception:
        pass
    return found


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

    def note(self, reserved: int, **values: str) -> bool:
        try:
            event = dict(values, t=round(time.time(), 3), hook=self.name)
            return self.file.write("hook", {"hook_events": [event]}, reserved)
        except Exception:
            return False


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
