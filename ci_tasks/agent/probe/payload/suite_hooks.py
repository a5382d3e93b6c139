"""What a suite adds: modules beside this one, each imported once a module that it names has been imported.

Such a module has a function `after_import(module, emit)`. `emit("kind", name=value)` notes a line; a value that is a
function is called for it. What fails in either does not reach the program: it is noted.
"""

import os
import sys
import time

from .evidence_file import EvidenceFile
from .imports import ImportNotes
from .json_text import json_text
from .limits import MAX_FIELDS, MAX_TEXT, RESERVED
from .process import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PREFIX = "ci_tasks_probe_"
_DEPTH = 20  # of values in values


class SuiteHook:
    def __init__(self, name: str, file: EvidenceFile) -> None:
        self.name, self.file = name, file

    def after_import(self, module: "Any") -> None:
        try:
            self.module().after_import(module, self.emit)
        except (Exception, SystemExit) as error:
            self.note_failure(error)

    def module(self) -> "Any":
        """Its file lies beside this one, which is not always on the path."""
        name, path = _PREFIX + self.name, os.path.join(os.path.dirname(__file__), _PREFIX + self.name + ".py")
        module: "Any" = sys.modules.get(name)
        if module is None:
            module = sys.modules[name] = type(sys)(name)
            module.__file__ = path
            exec(compile(read_bytes(path, 1 << 20), path, "exec"), module.__dict__)
        return module

    def emit(self, kind: str, **fields: "Any") -> None:
        try:
            text = json_text({name: _plain(value() if callable(value) else value) for name, value in fields.items()})
            if len(text) > MAX_FIELDS:
                raise ValueError("%s has %d bytes, more than %d" % (kind, len(text), MAX_FIELDS))
            if not self.file.write_of_hook(dict(self.head(), kind=kind, fields=text)):
                raise ValueError("no room for %s" % kind)
        except (Exception, SystemExit) as error:
            self.note_failure(error)

    def note_failure(self, error: BaseException) -> None:
        try:
            text = "hook failed: %s: %s%s" % (type(error).__name__, str(error)[:500], self.place(error.__traceback__))
            self.file.write("hook", dict(self.head(), failure=text), RESERVED)
        except (Exception, SystemExit):
            pass

    def place(self, trace: "Any") -> str:
        """The last line of the hook itself."""
        line = 0
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == _PREFIX + self.name:
                line = trace.tb_lineno
            trace = trace.tb_next
        return " (line %d)" % line if line else ""

    def head(self) -> "dict[str, Any]":
        return {"t": round(time.time(), 3), "hook": self.name}


def add_suite_hooks(text: str, file: EvidenceFile, imports: ImportNotes) -> None:
    """`text` is MODULE=HOOK of each, with commas."""
    for pair in filter(None, text.split(",")):
        module, _, hook = pair.partition("=")
        imports.when_imported(module, SuiteHook(hook, file).after_import)


def _plain(value: "Any", depth: int = 0) -> "Any":
    """As JSON's own types; what is of no such type as its text."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and abs(value) < 1 << 63:
        return value
    if type(value) is float and value == value and abs(value) != float("inf"):
        return value
    if isinstance(value, dict) and depth < _DEPTH:
        return {str(name): _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < _DEPTH:
        return [_plain(item, depth + 1) for item in value]
    return str(value)[:MAX_TEXT]
