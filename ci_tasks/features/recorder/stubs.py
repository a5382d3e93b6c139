"""Runs one test file in the sandbox and writes what it launches, one JSON pair [kind, data] a line. Standard library.

The process gets this source on stdin, its settings as the one argument, and writes to stdout. Modules beside the test
run; others outside the standard library are stubs. Programs are not started, time passes by `sleep` alone, and
assertions are left out.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator
from typing import IO, Any

STUBBED = ("urllib.request", "http.client")  # of the standard library
CODES = ("subprocess.call", "subprocess.check_call", "os.system")  # their result is an exit code
STARTERS = [f"subprocess.{name}" for name in ("run", "Popen", "check_output", "getoutput", "getstatusoutput")]
STARTERS += [*CODES, "os.popen"]
REFUSED = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")
# What is known of a stub: a server answers, and a program runs until the test waits for it, which succeeds.
ATTRIBUTES = {"status": 200, "status_code": 200, "returncode": 0, "pid": 2}
RETURNED = {"poll": None, "wait": 0}


# -- values that are not known -----------------------------------------------------------------------------------------


class Stub:
    """Stands for anything outside the standard library: every attribute is there, every call is recorded."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return ATTRIBUTES[name] if name in ATTRIBUTES else Stub(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # it is taken for a decorator
        function = self._name.rpartition(".")[2]
        if function in RETURNED:
            return RETURNED[function]
        for value in (*args, *kwargs.values()) if function in recorder.helpers else ():
            if isinstance(value, types.FunctionType):
                value()  # what a launcher is to call before it launches
        recorder.call(self._name, args, kwargs)
        return Stub(f"{self._name}()")

    def __str__(self, _: str = "") -> str:
        return f"⟨{self._name}⟩"

    def __getitem__(self, _: Any) -> Stub:
        return Stub(f"{self._name}[]")

    def __add__(self, other: Any) -> Any:
        return f"{self}{other}" if isinstance(other, str) else self

    def __radd__(self, other: Any) -> Any:
        return f"{other}{self}" if isinstance(other, str) else self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    __repr__ = __fspath__ = __format__ = __str__


ARITHMETIC = ["sub", "mul", "truediv", "floordiv", "mod", "pow", "or", "and"]
RESULTS: dict[str, Any] = dict.fromkeys(("lt", "gt", "le", "ge", "contains", "exit"), False)
RESULTS |= {"int": 0, "len": 0, "index": 0, "hash": 0, "float": 0.0, "mro_entries": ()}
for operator in (*ARITHMETIC, *(f"r{name}" for name in ARITHMETIC), "neg", "enter", "setitem", "delitem"):
    setattr(Stub, f"__{operator}__", lambda self, *_: self)
for operator, result in RESULTS.items():
    setattr(Stub, f"__{operator}__", lambda *_, result=result: result)


def placeholder(value: Any) -> Any:
    """What JSON cannot hold becomes ⟨its name⟩."""
    if isinstance(value, (set, frozenset)):
        return [*value]
    is_text = isinstance(value, (Stub, os.PathLike))
    return str(value) if is_text else f"⟨{getattr(value, '__name__', type(value).__name__)}⟩"


# -- what is written ---------------------------------------------------------------------------------------------------


class RecordWriter:
    """Writes what happens, at once: a process that is killed keeps what it had recorded."""

    def __init__(self, root: str, helpers: dict[str, list[str]], out: IO[str]) -> None:
        self.root, self.helpers, self.out = root + "/", helpers, out
        self.before = dict(os.environ)

    def write(self, kind: str, data: Any = None) -> None:
        self.out.write(json.dumps([kind, data], default=placeholder, skipkeys=True) + "\n")
        self.out.flush()

    def call(self, target: str, args: Any, kwargs: dict[str, Any]) -> None:
        arguments = {name: value for name, value in kwargs.items() if name != "env"}
        environment = {**os.environ, **(kwargs.get("env") or {})}
        env = {str(name): str(value) for name, value in environment.items() if self.before.get(name) != value}
        place = next(self.own(traceback.walk_stack(sys._getframe(1))), "")
        self.write("call", {"target": target, "args": args, "kwargs": arguments, "place": place, "env": env})

    def stop(self, error: BaseException) -> None:
        """Why the test ended before its end."""
        place = [*self.own(traceback.walk_tb(error.__traceback__)), ""][-2:][0]
        self.write("stop", f"{place}{': ' if place else ''}{type(error).__name__}: {error}"[:500])

    def own(self, frames: Iterator[tuple[types.FrameType, int]]) -> Iterator[str]:
        """The places in files of the checkout."""
        for frame, line in frames:
            if frame.f_code.co_filename.startswith(self.root):
                yield f"{frame.f_code.co_filename[len(self.root) :]}:{line}"


recorder: RecordWriter


# -- the test and its modules ------------------------------------------------------------------------------------------


def run_file(path: str, module: types.ModuleType) -> None:
    """Without its assertions, which fail only because no program ran."""
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True, optimize=1), module.__dict__)


class ModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs a module beside the test or below `tests`; others are stubs."""

    def __init__(self, root: str, test: str, helpers: dict[str, list[str]]) -> None:
        self.root, self.beside, self.helpers = root, os.path.dirname(test), helpers

    def file_of(self, name: str) -> str | None:
        at = name.replace(".", "/")
        places = [f"{self.beside}/{at}", *([f"{self.root}/{at}"] if name.startswith("tests.") else [])]
        files = [place + end for place in places for end in (".py", "/__init__.py")]
        return next(filter(os.path.isfile, files), None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_standard = name.partition(".")[0] in sys.stdlib_module_names and name not in STUBBED
        return None if is_standard else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        name, path = module.__name__, self.file_of(module.__name__)

        def missing(attribute: str) -> Any:
            if attribute.startswith("__") and attribute.endswith("__"):
                raise AttributeError(attribute)
            full = f"{name}.{attribute}"
            return importlib.import_module(full) if self.file_of(full) else Stub(full)

        module.__path__ = []
        try:
            if path is not None:
                module.__file__ = path
                run_file(path, module)
        except Exception:
            path = None
        if path is None:  # what it could not define under stubs is a stub
            module.__getattr__ = missing  # type: ignore[method-assign]
        for function in self.helpers:
            if isinstance(own := module.__dict__.get(function), types.FunctionType) and own.__module__ == name:
                module.__dict__[function] = Stub(f"{name}.{function}")


def start(target: str, *args: Any, **kwargs: Any) -> Any:
    """What a function that starts a program gives: an exit code, or a process or output that is not known."""
    recorder.call(target, args, kwargs)
    return 0 if target in CODES else Stub(f"{target}()")


def replace_programs_and_time() -> None:
    for target in STARTERS:
        module, _, name = target.partition(".")
        setattr(os if module == "os" else subprocess, name, functools.partial(start, target))
    for name in REFUSED:
        delattr(os, name)
    clock, slept, world = itertools.count(1_700_000_000.0, 0.01), [0.0], vars(time)
    world.update(dict.fromkeys(("time", "monotonic", "perf_counter"), lambda: next(clock) + slept[0]))
    world["sleep"] = lambda seconds: slept.append(slept.pop() + float(seconds))
    sys.executable = "python3"


def main() -> None:
    global recorder
    settings = json.loads(sys.argv[1])
    root = os.getcwd()
    test = os.path.join(root, settings["test"])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    quiet = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    os.environ.clear()
    os.environ.update(settings["env"])
    recorder = RecordWriter(root, settings["helpers"], out)
    replace_programs_and_time()
    module = types.ModuleType("__main__")
    module.__file__ = test
    sys.modules["__main__"], sys.argv = module, [test, *settings["args"]]
    sys.path[:] = [os.path.dirname(test), *(directory for directory in sys.path if directory)]
    sys.meta_path.insert(0, ModuleFinder(root, test, settings["helpers"]))
    try:
        run_file(test, module)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            recorder.stop(error)
    recorder.write("end")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # without settings it only shows that it can begin
        main()
    os._exit(0)
