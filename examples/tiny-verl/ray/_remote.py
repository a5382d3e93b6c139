"""What `@ray.remote` makes of a function or a class, and how it travels to another process."""

import importlib
import marshal
import types

from ray._process import Process


class RemoteFunction:
    def __init__(self, function):
        self.target = function

    def remote(self, *arguments):
        import ray

        process = Process(ray.connected(), self.target.__name__)
        return process.call("function", packed(self.target), arguments)


class RemoteClass:
    def __init__(self, made):
        self.target = made

    def remote(self, *arguments):
        import ray

        process = Process(ray.connected(), self.target.__name__)
        process.call("class", packed(self.target), arguments)
        return Handle(process)


class Handle:
    """An actor, seen from outside: `handle.method.remote(...)`."""

    def __init__(self, process):
        self._process = process

    def __getattr__(self, method):
        return Method(self._process, method)


class Method:
    def __init__(self, process, name):
        self.process, self.name = process, name

    def remote(self, *arguments):
        return self.process.call("method", self.name, arguments)


def packed(target):
    """By name, or the code itself for a function of a script: a script given on stdin cannot be imported again."""
    if target.__module__ != "__main__":
        return "name", target.__module__, target.__qualname__
    modules = {
        name: value.__name__
        for name, value in target.__globals__.items()
        if name in target.__code__.co_names and isinstance(value, types.ModuleType)
    }
    return "code", marshal.dumps(target.__code__), modules


def unpacked(kind, first, second):
    if kind == "name":
        found = importlib.import_module(first)
        for part in second.split("."):
            found = getattr(found, part)
        return getattr(found, "target", found)
    modules = {name: importlib.import_module(module) for name, module in second.items()}
    return types.FunctionType(marshal.loads(first), {"__builtins__": __builtins__, "__name__": "__main__"} | modules)
