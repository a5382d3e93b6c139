"""Sees what is imported, as the first finder of `sys.meta_path`, which finds nothing itself."""

import os
import sys

from .evidence_file import EvidenceFile
from .json_text import json_text
from .limits import PACKAGES
from .modules import installed_packages, module_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_TRIES = 100  # searches for modules, after which one that was searched for before is not being imported


class ImportNotes:
    """Notes the watched packages, and calls functions once a module has been imported."""

    def __init__(self, file: EvidenceFile, watched: "tuple[str, ...]", note_environ: "Callable[[], None]") -> None:
        self.file, self.watched, self.note_environ = file, frozenset(watched), note_environ
        self.pending: "dict[str, int]" = {}  # watched packages that somebody searched for, and when it is given up
        self.imported: "dict[str, Any]" = {}
        self.functions: "dict[str, list[Callable[[Any], None]]]" = {}
        self.before: "dict[str, Callable[[], None]]" = {}  # called once, when somebody searches for the module
        self.finds = 0
        self.has_packages = False

    def when_imported(self, name: str, function: "Callable[[Any], None]") -> None:
        """Call it with the module, now or later."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _call(function, module)
        else:
            self.functions.setdefault(name, []).append(function)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        try:
            self.finds += 1
            if name in self.before:
                self.before.pop(name)()
            if self.pending or not self.finds & 63:
                self.note()
                self.note_environ()
            if name in self.watched:
                self.pending[name] = self.finds + _TRIES
            if name in self.functions and target is None:
                return self.announcing_spec(name, path)
        except Exception:
            pass
        return None

    def note(self) -> None:
        """A module is in sys.modules with its origin before its own code begins."""
        for name, last in list(self.pending.items()):
            values = module_facts(name)
            if values is not None and name not in self.imported:
                self.imported[name] = values["origin"]
                self.file.write("import", values)
            if values is not None or self.finds > last:
                self.pending.pop(name, None)
        if self.imported:
            self.note_packages()

    def note_loaded(self, names: "Any") -> None:
        """Those of the modules that another `.pth` has imported before."""
        self.pending.update((name, 0) for name in names if name in sys.modules)
        self.note()

    def note_packages(self) -> None:
        """What is installed for this interpreter, in a file that processes with the same packages share."""
        if self.has_packages:
            return
        self.has_packages = True
        values = {"python": "%d.%d.%d" % sys.version_info[:3], "packages": installed_packages()}
        text = json_text(values).encode("ascii")
        key = "%s%032x" % (PACKAGES, int.from_bytes(text, "big") % ((1 << 127) - 1))
        path = os.path.join(self.file.directory, key)
        if not os.path.exists(path):
            beside = "%s.%s" % (path, os.urandom(4).hex())
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(file, 0o644)
                os.write(file, text)
            finally:
                os.close(file)
            os.rename(beside, path)
        self.file.write("packages", {"packages": key})

    # -- after an import ---------------------------------------------------------------------------------------------

    def announcing_spec(self, name: str, path: "Any") -> "Any":
        """What the finders behind this one find, which calls `call_functions` at the end of the import."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, None) if find is not None else None
            if spec is not None:
                plain = type(sys.__spec__)
                if type(spec) is plain:
                    spec.__class__ = _announcing(plain, self.call_functions)
                return spec
        return None

    def call_functions(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None:  # else its code failed
            for function in self.functions.pop(name, []):
                _call(function, module)


def _call(function: "Callable[[Any], None]", module: "Any") -> None:
    try:
        function(module)
    except Exception:
        pass


def _announcing(plain: "Any", function: "Callable[[str], None]") -> "Any":
    """A class of specs. importlib sets `_initializing` to False after a module's code; a loader of ours would be a
    frame in the traceback of each exception that comes out of an import."""

    class ModuleSpec(plain):  # type: ignore[misc]
        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__["_initializing"])

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if not value:
                self.__class__ = plain
                function(self.name)

    return ModuleSpec
