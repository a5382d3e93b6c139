"""The probe of this process: what it is, and all hooks together."""

import os
import sys
import time

from .evidence_file import EvidenceFile
from .exception_hooks import ExceptionHooks, ExceptionNotes
from .flight_recorder import set_flight_recorder
from .gpu_memory import gpu_memory
from .imports import ImportNotes
from .limits import OFF
from .modules import module_facts, outside_modules, version_attribute
from .overlays import OverlayFinder, add_overlays
from .process import command_line, namespace, rank_variables, start_of, working_directory
from .suite_hooks import add_suite_hooks
from .task_hooks import add_task_hooks
from .worker_hooks import WorkerHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WATCHED = (
    *("torch", "megatron.core", "megatron.bridge", "slime", "sglang", "vllm", "verl", "ray", "transformer_engine"),
    *("flash_attn", "transformers", "numpy", "triton", "deepspeed", "jax", "nemo", "pytest", "unittest"),
)

_probe: "Any" = None


def begin(directory: str, names: str = "", hooks: str = "", overlays: str = "") -> None:
    """Start to write into `directory`, once in a process. `names` are further packages to watch, with commas; `hooks`
    are MODULE=HOOK, with commas; `overlays` MODULE=DIRECTORY, with NUL. It never raises."""
    global _probe
    if _probe is None and OFF not in os.environ:
        try:
            laid = add_overlays(overlays)
            probe = Probe(directory, WATCHED + tuple(filter(None, names.split(","))), laid)
            probe.begin(hooks)
            _probe = probe
        except Exception:
            pass


class Probe:
    def __init__(self, directory: str, watched: "tuple[str, ...]", overlays: "OverlayFinder | None" = None) -> None:
        self.file = EvidenceFile(directory)
        self.imports = ImportNotes(self.file, watched, self.note_environ)
        self.exceptions = ExceptionNotes(self.file, self.note_now)
        self.workers: "WorkerHooks | None" = None
        self.environ: "dict[str, str]" = {}
        self.overlays = overlays
        self.has_ended = False

    def begin(self, hooks: str) -> None:
        if not self.file.open():
            return
        self.file.register_signal()
        self.write_start(False)
        import atexit

        atexit.register(self.end, "exit")
        self.imports.before["torch"] = self.set_flight_recorder
        sys.meta_path.insert(0, self.imports)
        if self.overlays is not None:
            self.overlays.note = self.note_overlaid
            self.imports.note_loaded(self.overlays.modules)
        os.register_at_fork(after_in_child=self.after_fork)
        ExceptionHooks(self.exceptions)
        self.workers = WorkerHooks(self.exceptions, self.imports, self.end)  # multiprocessing keeps it weakly
        add_task_hooks(self.exceptions, self.imports)
        add_suite_hooks(hooks, self.file, self.imports)

    def write_start(self, forked: bool) -> None:
        pid, parent = os.getpid(), os.getppid()
        self.environ = rank_variables()
        values: "dict[str, Any]" = {"started_at": round(time.time(), 3), "pid": pid, "start": start_of(pid)}
        values.update({"ppid": parent, "parent_start": start_of(parent), "namespace": namespace()})
        values.update({"argv": command_line(), "env": self.environ, "forked": forked})
        values.update({"directory": working_directory(), "executable": sys.executable or "", "prefix": sys.prefix})
        values.update({"python": "%d.%d.%d" % sys.version_info[:3], "signal": self.file.signal})
        self.file.write("start", dict(values, descriptor=self.file.number))

    def note_environ(self) -> None:
        """Ray's workers get their rank and devices long after they have started."""
        now = rank_variables()
        if now != self.environ:
            self.environ = now
            self.file.write("environ", {"env": now})

    def note_overlaid(self, name: str) -> None:
        values = self.overlays.compiled_parts(name, self.file.directory) if self.overlays is not None else None
        if values is not None:
            self.file.write("overlaid", values)

    def set_flight_recorder(self) -> None:
        set_flight_recorder(self.file.directory, self.file.path)
        self.note_environ()

    def note_now(self) -> None:
        self.imports.note()
        self.note_environ()

    def after_fork(self) -> None:
        """In the child: other threads are gone, so nothing here takes a lock or imports."""
        try:
            self.has_ended = False
            self.exceptions.forget()
            if self.file.open():
                self.write_start(True)
            else:
                self.file.stop()
        except Exception:
            self.file.left = 0

    def end(self, how: str) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        try:
            self.exceptions.note_last()
            self.note_now()
            self.imports.note_packages()
        except Exception:
            pass
        try:
            self.write_end(how)
        except Exception:
            pass

    def write_end(self, how: str) -> None:
        names = [name for name in self.imports.imported if name in sys.modules]
        modules = [values for values in map(module_facts, names) if values]
        for values in modules:
            values["package_version"] = values["package_version"] or version_attribute(str(values["name"]))
        modules += outside_modules(self.imports.imported)
        modules += self.overlays.foreign_modules() if self.overlays is not None else []
        ended_at = round(time.time(), 3)
        self.file.write("end", {"ended_at": ended_at, "end": how, "memory": gpu_memory(), "modules": modules}, 0)
