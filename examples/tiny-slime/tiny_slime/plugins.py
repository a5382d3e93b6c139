"""Functions that a user names on the command line, such as a reward function."""

import importlib
import inspect


def load_function(path, arguments=()):
    """The function at `package.module.name`; one that does not take just `arguments` is refused before training."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is not of the form package.module.function")
    function = getattr(importlib.import_module(module), name)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as problem:
        raise TypeError(f"{path} must accept ({', '.join(arguments)}): {problem}") from None
    return function
