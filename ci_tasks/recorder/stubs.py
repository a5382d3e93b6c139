"""Runs one test file in the sandbox and writes what it launches, one JSON line each. Standard library only.

The process gets this source on stdin, its settings as the one argument, and writes to stdout. Modules beside the test
and those that define a launcher run; other modules outside the standard library are stubs. Programs are not started,
time passes by `sleep` alone, and assertions are recorded instead of evaluated.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import IO, Any

MOST_CALLS, LONGEST_TEXT = 5_000, 200_000
STUBBED = ("urllib.request", "http.client")  # of the standard library
RUN_THEIR_ARGUMENT = ("typer.run", "fire.Fire")
# Of `subprocess` and `os`: what gives a process, an exit code, or a stub.
PROCESSES, EXIT_CODES = ("run", "Popen"), ("call", "check_call", "system")
STARTERS: list[tuple[types.ModuleType, tuple[str, ...]]] = [
    (subprocess, (*PROCESSES, "call", "check_call", "check_output", "getoutput", "getstatusoutput")),
    (os, ("system", "popen")),
]
OTHER_STARTERS = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")


def refuse_process(*_: Any, **__: Any) -> None:
    raise PermissionError("no process is started while a test is recorded")


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON; what is none becomes ⟨its name⟩."""
    if isinstance(value, ExitCode):
        return str(value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and abs(value) < 1e300):
        return value
    if isinstance(value, (str, os.PathLike)):
        return str(value)[:LONGEST_TEXT]
    if isinstance(value, bytes):
        return value[:LONGEST_TEXT].decode(errors="replace")
    if depth < 8 and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in itertools.islice(value, MOST_CALLS)]
    if depth < 8 and isinstance(value, dict):
        return {str(name): plain(item, depth + 1) for name, item in itertools.islice(value.items(), MOST_CALLS)}
    return str(value) if isinstance(value, Stub) else f"⟨{getattr(value, '__name__', type(value).__name__)}⟩"


class RecordWriter:
    """Writes what happens, at once: a process that is killed keeps what it had recorded."""

    def __init__(self, root: str, out: IO[str]) -> None:
        self.root, self.out, self.entry, self.calls = root + "/", out, "", 0
        self.before, self.sizes = dict(os.environ), dict[str, int]()

    def write(self, kind: str, **fields: Any) -> None:
        self.out.write(json.dumps({"kind": kind, **fields}) + "\n")
        self.out.flush()

    def call(self, target: str, args: Any, kwargs: dict[str, Any]) -> None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            return
        self.files()
        arguments = {name: plain(value) for name, value in kwargs.items() if name != "env"}
        environment = {**os.environ, **(kwargs.get("env") or {})}
        env = {str(name): str(value) for name, value in environment.items() if self.before.get(name) != value}
        self.write(
            "call", target=target, args=plain(args), kwargs=arguments, stack=self.stack(), entry=self.entry, env=env
        )

    def assertion(self, line: int, text: str, message: Callable[[], Any]) -> None:
        try:
            message_text = str(message())
        except Exception:
            message_text = ""
        file, function, _ = self.stack()[-1]
        self.write("assert", file=file, function=function, line=line, text=text, message=message_text, entry=self.entry)

    def stop(self, error: BaseException) -> None:
        """Why the test, or one of pytest's, ended before its end."""
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        own = [f"{file[len(self.root) :]}:{line}: " for file, line in places if file.startswith(self.root)]
        self.write("stop", why=f"{own[-1] if own else ''}{type(error).__name__}: {error}"[:500], entry=self.entry)

    def stack(self) -> list[tuple[str, str, int]]:
        """The frames that run files of the checkout, innermost last."""
        frames = traceback.walk_stack(sys._getframe(1))
        codes = [(frame.f_code, line) for frame, line in frames if frame.f_code.co_filename.startswith(self.root)]
        return [(code.co_filename[len(self.root) :], code.co_name, line) for code, line in reversed(codes)]

    def files(self) -> None:
        """Texts that the test has written so far: a configuration may be gone when the test ends."""
        own = os.lstat("/tmp").st_dev  # not what is shown there of the machine, such as an interpreter below /root
        for folder, folders, names in itertools.chain(os.walk("/tmp"), os.walk("/root")):
            folders[:] = [name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == own]
            for path in (os.path.join(folder, name) for name in names):
                try:
                    size = os.path.getsize(path)
                    if 0 < size < LONGEST_TEXT and self.sizes.get(path) != size and len(self.sizes) < 200:
                        self.sizes[path] = size
                        with open(path, encoding="utf-8") as file:
                            self.write("file", path=path, text=file.read())
                except (OSError, ValueError):
                    continue


recorder: RecordWriter


class Stub:
    """Stands for anything outside the standard library: every attribute is there, every call is recorded."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return 200 if name in ("status", "status_code") else Stub(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]() if self._name in RUN_THEIR_ARGUMENT else args[0]  # else it is taken for a decorator
        recorder.call(self._name, args, kwargs)
        return Stub(f"{self._name}()")

    def __str__(self) -> str:
        return f"⟨{self._name}⟩"

    def __format__(self, _: str) -> str:
        return str(self)

    def __getitem__(self, _: Any) -> Stub:
        return Stub(f"{self._name}[]")

    def __mro_entries__(self, _: Any) -> tuple[()]:
        return ()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __hash__(self) -> int:
        return hash(self._name)

    def __add__(self, other: Any) -> Any:
        return f"{self}{other}" if isinstance(other, str) else self

    def __radd__(self, other: Any) -> Any:
        return f"{other}{self}" if isinstance(other, str) else self

    async def __aenter__(self) -> Stub:
        return self

    async def __aexit__(self, *_: Any) -> None:
        pass

    def __await__(self) -> Iterator[Any]:
        return iter(())


def give_operators() -> None:
    arithmetic = ["sub", "mul", "truediv", "floordiv", "mod", "pow", "or", "and", "xor", "matmul", "lshift", "rshift"]
    itself = [*arithmetic, *(f"r{name}" for name in arithmetic), *["neg", "invert", "enter", "setitem", "delitem"]]
    nothing: dict[str, float] = {"lt": False, "gt": False, "le": False, "ge": False, "contains": False, "exit": False}
    nothing |= {"int": 0, "len": 0, "index": 0, "float": 0.0}
    for name in itself:
        setattr(Stub, f"__{name}__", lambda self, *_: self)
    for name, result in nothing.items():
        setattr(Stub, f"__{name}__", lambda *_, result=result: result)
    for name in ("repr", "fspath"):
        setattr(Stub, f"__{name}__", Stub.__str__)


class ExitCode(int):
    """0, which no program has given."""

    def __str__(self) -> str:
        return "⟨exit code⟩"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        return str(self)


class UnstartedProcess:
    """A program that was not started. It runs until someone waits for it or ends it."""

    def __init__(self, target: str) -> None:
        self.pid, self.args, self.returncode = 2, (), None if target.endswith("Popen") else ExitCode()
        self.stdout, self.stderr, self.stdin = (Stub(f"{target}().{name}") for name in ("stdout", "stderr", "stdin"))

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, *_: Any, **__: Any) -> int:
        self.returncode = ExitCode()
        return self.returncode

    terminate = kill = send_signal = wait

    def communicate(self, *_: Any, **__: Any) -> tuple[Stub, Stub]:
        self.wait()
        return self.stdout, self.stderr

    def check_returncode(self) -> None:
        pass

    def __enter__(self) -> UnstartedProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.wait()


def starter(module: types.ModuleType, name: str) -> Callable[..., Any]:
    target = f"{module.__name__}.{name}"

    def start(*args: Any, **kwargs: Any) -> Any:
        recorder.call(target, args, kwargs)
        if name in PROCESSES:
            return UnstartedProcess(target)
        return ExitCode() if name in EXIT_CODES else Stub(f"{target}()")

    return start


class AssertionsRecorded(ast.NodeTransformer):
    """`assert x, y` and `raise AssertionError(y)` become calls that record them. No file is there that a program would
    have made, so `raise FileNotFoundError(…)` is passed over."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self._recorded(node, node.test, node.msg)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        call = node.exc
        name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if name == "AssertionError" and isinstance(call, ast.Call):
            return self._recorded(node, call, call.args[0] if call.args else None)
        return ast.copy_location(ast.Pass(), node) if name == "FileNotFoundError" else node

    def _recorded(self, node: ast.stmt, test: ast.expr, message: ast.expr | None) -> ast.AST:
        made: Any = ast.parse(f"__assertion__({node.lineno}, {ast.unparse(test)[:500]!r}, lambda: '')").body[0]
        for part in ast.walk(made):
            ast.copy_location(part, node)
        made.value.args[2].body = message or made.value.args[2].body
        return made  # type: ignore[no-any-return]


def run_file(path: str, module: types.ModuleType) -> None:
    with open(path, encoding="utf-8") as file:
        tree = AssertionsRecorded().visit(ast.parse(file.read(), path))
    module.__dict__["__assertion__"] = recorder.assertion
    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)


class ModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs a module beside the test, below `tests`, or one of the checkout that defines a launcher; stubs others."""

    def __init__(self, root: str, test: str, helpers: dict[str, list[str]]) -> None:
        self.root, self.beside, self.helpers = root, os.path.dirname(test), helpers
        self.launcher = re.compile(rf"^def (?:{'|'.join(map(re.escape, helpers)) or '$^'})\(", re.MULTILINE)

    def file_of(self, name: str) -> str | None:
        for directory in (self.beside, self.root):
            for end in (".py", "/__init__.py"):
                path = os.path.join(directory, name.replace(".", "/") + end)
                if os.path.isfile(path):
                    if directory == self.beside or name.startswith("tests."):
                        return path
                    with open(path, encoding="utf-8", errors="replace") as file:
                        return path if self.launcher.search(file.read()) else None
        return None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names and name not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        name, path = module.__name__, self.file_of(module.__name__)

        def missing(attribute: str) -> Any:
            if attribute.startswith("__") and attribute.endswith("__"):
                raise AttributeError(attribute)
            full = f"{name}.{attribute}"
            return importlib.import_module(full) if self.file_of(full) else Stub(full)

        module.__path__ = []
        if path is None:
            module.__getattr__ = missing  # type: ignore[method-assign]
            return
        module.__file__ = path
        try:
            run_file(path, module)
        except Exception:  # what it could not define under stubs is a stub
            module.__getattr__ = missing  # type: ignore[method-assign]
        for function, parameters in self.helpers.items():
            own = module.__dict__.get(function)
            if isinstance(own, types.FunctionType) and own.__module__ == name:
                module.__dict__[function] = recorded_helper(own, f"{name}.{function}", parameters)


def recorded_helper(function: Callable[..., Any], target: str, parameters: list[str]) -> Callable[..., Any]:
    """A helper of the known signature is recorded; one of another is followed, as far as it comes."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def helper(*args: Any, **kwargs: Any) -> Any:
        if list(signature.parameters)[:1] == parameters[:1]:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            for value in arguments.values():
                if isinstance(value, types.FunctionType):
                    value()  # what it is to call before it launches
            recorder.call(target, (), arguments)
        else:
            try:
                return function(*args, **kwargs)
            except Exception:
                pass
        return Stub(f"{function.__name__}()")

    return helper


def replace_programs_and_time() -> None:
    for module, names in STARTERS:
        for name in names:
            setattr(module, name, starter(module, name))
    for name in OTHER_STARTERS:
        setattr(os, name, refuse_process)
    clock = itertools.count(1_700_000_000.0, 0.01)
    slept = [0.0]
    world: Any = time
    world.time = world.monotonic = world.perf_counter = lambda: next(clock) + slept[0]
    world.sleep = lambda seconds: slept.append(slept.pop() + float(seconds))
    random.seed(0)
    world = tempfile
    world._name_sequence = (f"{number:08}" for number in itertools.count())
    sys.executable = "python3"


def run_tests(module: types.ModuleType) -> int:
    recorder.write("pytest")
    for name, test in list(vars(module).items()):
        cases: list[Any] = (
            [(name, test, None)] if name.startswith("test") and isinstance(test, types.FunctionType) else []
        )
        if name.startswith("Test") and isinstance(test, type):
            cases = [
                (f"{name}.{method}", function, test)
                for method, function in vars(test).items()
                if method.startswith("test")
            ]
        for recorder.entry, function, owner in cases:
            try:
                arguments = [Stub(parameter) for parameter in inspect.signature(function).parameters]
                function(*([owner(), *arguments[1:]] if owner else arguments))
            except (Exception, SystemExit) as error:
                recorder.stop(error)
    recorder.entry = ""
    return 0


def main() -> None:
    global recorder
    settings = json.loads(sys.argv[1])
    root, test = settings["root"], os.path.join(settings["root"], settings["test"])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    quiet = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    os.environ.clear()
    os.environ.update(settings["env"])
    recorder = RecordWriter(root, out)
    give_operators()
    replace_programs_and_time()
    module = types.ModuleType("__main__")
    module.__file__ = test
    sys.modules["__main__"], sys.argv = module, [test, *settings["args"]]
    sys.path[:] = [os.path.dirname(test), *(directory for directory in sys.path if directory)]
    sys.meta_path.insert(0, ModuleFinder(root, test, settings["helpers"]))
    importlib.import_module("pytest").main = lambda *_, **__: run_tests(module)  # type: ignore[attr-defined]
    try:
        run_file(test, module)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            recorder.stop(error)
    recorder.files()
    constants = {
        name: value for name, value in vars(module).items() if isinstance(value, (str, int)) and name[0] != "_"
    }
    recorder.write("end", constants={name: plain(value) for name, value in constants.items()})


if __name__ == "__main__":
    if len(sys.argv) > 1:  # without settings it only shows that it can begin
        main()
    os._exit(0)
