"""Overlays: packages of working trees that are imported instead of those that are installed.

A finder before all others, so that neither PYTHONPATH, nor the working directory, nor the finder of an editable install
comes first. Of a namespace package only the parts that the tree has are its; the others stay where they are. A finder
behind all others finds compiled modules that the tree lacks where the package is installed.
"""

import os
import sys

from .limits import MAX_COMPILED, MAX_MODULES, OVERLAID
from .modules import module_facts, module_origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

_MAX_FILES = 50_000  # of an installed package that are looked at
_MAX_RECORD = 1 << 23


class OverlayFinder:
    """`modules` are the packages, or parts of namespace packages, by the directory that they lie in."""

    def __init__(self, modules: "dict[str, str]") -> None:
        self.modules = modules
        self.namespaces = {name.partition(".")[0]: directory for name, directory in modules.items() if "." in name}
        self.note: "Callable[[str], None] | None" = None  # called with each of them when somebody searches for it
        self.noted: "set[str]" = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        directory = self.modules.get(name)
        if directory is not None:
            self.note_once(name)
            return _find(name, [os.path.join(directory, *name.split(".")[:-1])])
        directory = self.namespaces.get(name)
        if directory is None:
            return None
        # A regular package of this name that is installed makes the namespace, as it does without the overlay.
        return _installed(name, self) or _find(name, [directory, *sys.path])

    def note_once(self, name: str) -> None:
        if self.note is not None and name not in self.noted:
            self.noted.add(name)
            try:
                self.note(name)
            except Exception:
                pass

    def owner(self, name: str) -> str:
        """The package of an overlay that the module is, or lies in; empty for others."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    def own_file(self, name: str, path: str) -> bool:
        return path.startswith(os.path.join(self.modules[name], ""))

    def installed(self, name: str) -> "list[str]":
        """The directories of other copies of the package, regular packages first: in a job's working directory there
        may be one without what was compiled."""
        parts = name.split(".")
        places = [os.path.join(entry or ".", *parts) for entry in sys.path if isinstance(entry, str)]
        for finder in sys.meta_path:  # editable installs have one; PathFinder's places are those above
            if finder is not self and not isinstance(finder, CompiledFinder) and finder is not _path_finder():
                spec = _ask(finder, name)
                places += getattr(spec, "submodule_search_locations", None) or ()
        places = [place for place in places if os.path.isdir(place) and not self.own_file(name, place)]
        return sorted(places, key=lambda place: not os.path.exists(os.path.join(place, "__init__.py")))

    def foreign_modules(self) -> "list[dict[str, Any]]":
        """Loaded modules of the overlays' packages that are not from there, but from another copy of the package: what
        a program compiles into a cache and loads from there is none."""
        found: "list[dict[str, Any]]" = []
        for name in sorted(name for name in list(sys.modules) if isinstance(name, str) and self.owner(name)):
            origin = module_origin(name)
            if origin is None or self.own_file(self.owner(name), origin):
                continue
            beside, file = os.path.split(origin)
            stem = beside if file == "__init__.py" else os.path.join(beside, file.partition(".")[0])
            if stem.endswith(os.sep + name.replace(".", os.sep)) and len(found) < MAX_MODULES:
                found.append(module_facts(name) or {})
        return found

    def compiled_parts(self, name: str, directory: str) -> "dict[str, Any] | None":
        """The installed package, and its compiled files that the tree lacks; None where another process has noted
        them."""
        places = self.installed(name)
        text = os.fsencode("\0".join([name, *places]))
        key = "%s%032x" % (OVERLAID, int.from_bytes(text, "big") % ((1 << 127) - 1))
        try:
            os.close(os.open(os.path.join(directory, key), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except OSError:
            return None
        found = [(place, _compiled_files(name, place)) for place in places]
        installed, files = next((pair for pair in found if pair[1]), found[0] if found else ("", set()))
        missing = sorted(file for file in files if not _has_compiled(self.modules[name], file))
        return {"name": name, "installed": installed, "compiled": missing[:MAX_COMPILED], "count": len(missing)}


class CompiledFinder:
    """The last finder: compiled modules that the package has where it is installed, and the overlay's tree lacks."""

    def __init__(self, overlays: OverlayFinder) -> None:
        self.overlays = overlays

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        try:
            owner = self.overlays.owner(name)
            for installed in self.overlays.installed(owner) if owner and owner != name else ():
                from _frozen_importlib_external import ExtensionFileLoader, FileFinder

                directory = os.path.join(installed, *name[len(owner) + 1 :].split(".")[:-1])
                spec = FileFinder(directory, (ExtensionFileLoader, _suffixes())).find_spec(name)
                if spec is not None:
                    return spec
        except Exception:
            pass
        return None


def add_overlays(text: str) -> "OverlayFinder | None":
    """`text` is MODULE=DIRECTORY of each, with NUL between them."""
    modules = dict(pair.split("=", 1) for pair in text.split("\0") if pair)
    if not modules:
        return None
    finder = OverlayFinder(modules)
    # Those of an earlier run are left in a container that a retry goes on in.
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != __name__]
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(CompiledFinder(finder))
    return finder


def _find(name: str, path: "list[str]") -> "Any":
    return _path_finder().find_spec(name, path)


def _path_finder() -> "Any":
    from _frozen_importlib_external import PathFinder  # what importlib.machinery has, without importing it

    return PathFinder


def _suffixes() -> "list[str]":
    return list(__import__("_imp").extension_suffixes())


def _ask(finder: "Any", name: str) -> "Any":
    find = getattr(finder, "find_spec", None)
    return find(name, None, None) if find is not None else None


def _installed(name: str, own: "Any") -> "Any":
    """The regular package that the finders behind `own` find."""
    finders = list(sys.meta_path)
    for finder in finders[finders.index(own) + 1 :]:
        spec = _ask(finder, name)
        if spec is not None:
            return spec if spec.loader is not None and spec.origin is not None else None
    return None


def _compiled_files(name: str, installed: str) -> "set[str]":
    top = installed
    for _ in name.split("."):
        top = os.path.dirname(top)
    return {*_compiled_below(installed, top), *_compiled_of_record(name, top)}


def _is_compiled(file: str) -> bool:
    return file.endswith(".so") or ".so." in file


def _compiled_below(directory: str, top: str) -> "Iterator[str]":
    seen = 0
    for place, _, files in os.walk(directory):
        seen += len(files)
        if seen > _MAX_FILES:
            return
        for file in files:
            if _is_compiled(file):
                yield os.path.relpath(os.path.join(place, file), top)


def _compiled_of_record(name: str, top: str) -> "Iterator[str]":
    """Also those beside the package, by the wheel's list of files."""
    wanted = name.replace(".", "_").lower()
    for entry in os.listdir(top):
        if entry.endswith(".dist-info") and entry.split("-")[0].replace(".", "_").lower() == wanted:
            try:
                with open(os.path.join(top, entry, "RECORD"), encoding="utf-8", errors="replace") as record:
                    lines = record.read(_MAX_RECORD).split("\n")
            except OSError:
                continue
            yield from (file for file in (line.partition(",")[0] for line in lines) if _is_compiled(file))


def _has_compiled(directory: str, file: str) -> bool:
    """Whether the tree has the file: of a module, one that this Python can load."""
    place, name = os.path.split(os.path.join(directory, file))
    stem = name.partition(".")[0]
    try:
        names = [other for other in os.listdir(place) if other.partition(".")[0] == stem and _is_compiled(other)]
    except OSError:
        return False
    own = [stem + suffix for suffix in _suffixes()]
    return any(other in own for other in names) if name in own else bool(names)
