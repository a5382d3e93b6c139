"""Where modules come from: their file, version and commit; no import, no search."""

import os
import sys

from .limits import MAX_MODULES
from .process import read_bytes

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

_INSTALLED = ("site-packages", "dist-packages")
_STARTUP = ("sitecustomize", "usercustomize", "__main__", "__mp_main__", "ci_tasks_probe")


def module_facts(name: str) -> "dict[str, Any] | None":
    """What is known of an imported module; None where there is none."""
    origin = module_origin(name)
    if origin is None:
        return None
    values = _attributes(sys.modules.get(name))
    spec = values.get("__spec__")
    top = os.path.dirname(origin)
    is_file = isinstance(getattr(spec, "origin", None) or values.get("__file__"), str)
    if is_file and getattr(spec, "submodule_search_locations", None) is not None:
        top = os.path.dirname(top)
    for _ in range(name.count(".")):
        top = os.path.dirname(top)
    entry = _metadata(name, top)
    values = {"name": name, "origin": origin, "commit": _commit(top)}
    return dict(values, package_version=_distribution(entry)[1] if entry else "", local=_is_local(top, entry))


def module_origin(name: str) -> "str | None":
    """Its file, or the directory of a namespace package."""
    values = _attributes(sys.modules.get(name))
    spec = values.get("__spec__")
    origin = getattr(spec, "origin", None) or values.get("__file__")
    if not isinstance(origin, str):
        search = getattr(spec, "submodule_search_locations", None)
        origin = next(iter(getattr(search, "_path", search) or ()), None)
    return origin if isinstance(origin, str) else None


def _attributes(module: "Any") -> "dict[str, Any]":
    """Of a module as they are: some modules import more when they are asked for an attribute."""
    return object.__getattribute__(module, "__dict__") if issubclass(type(module), type(sys)) else {}


def _metadata(name: str, top: str) -> str:
    """The directory of metadata beside it; no parsing, no search."""
    wanted = name.replace(".", "_").lower()
    try:
        for entry in os.listdir(top):
            if entry.endswith((".dist-info", ".egg-info")) and _normalized(entry.split("-")[0]) == wanted:
                return entry
    except OSError:
        pass
    return ""


def _is_local(top: str, entry: str) -> bool:
    try:
        return bool(entry) and b'"file:' in read_bytes(os.path.join(top, entry, "direct_url.json"), 4096)
    except OSError:
        return False


def version_attribute(name: str) -> str:
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
        path = read_bytes(git, 4096).decode("utf-8", "surrogateescape").partition(":")[2].strip()
        git = os.path.join(os.path.dirname(git), path)
    head = read_bytes(os.path.join(git, "HEAD"), 4096).decode("ascii").strip()
    if not head.startswith("ref: "):
        return head[:64]
    name = head[5:]
    try:
        git = os.path.join(git, read_bytes(os.path.join(git, "commondir"), 4096).decode("utf-8").strip())
    except OSError:
        pass
    try:
        return read_bytes(os.path.join(git, name), 100).decode("ascii").strip()[:64]
    except OSError:
        packed = read_bytes(os.path.join(git, "packed-refs"), 1 << 20).decode("ascii", "replace")
    found = (line.split(" ")[0] for line in packed.split("\n") if line.endswith(" " + name))
    return next(found, "")[:64]


def installed_packages() -> "dict[str, str]":
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


def outside_modules(known: "dict[str, Any]") -> "list[dict[str, Any]]":
    """Modules of other places than the interpreter's own: of a work tree, or of a directory on PYTHONPATH."""
    library = os.path.join(os.path.dirname(os.__file__), "")
    found: "list[dict[str, Any]]" = []
    for name in sorted(name for name in list(sys.modules) if isinstance(name, str) and "." not in name):
        origin = getattr(_attributes(sys.modules.get(name)).get("__spec__"), "origin", None)
        if name in known or name in _STARTUP or not isinstance(origin, str) or not os.path.isabs(origin):
            continue
        if not origin.startswith(library) and not any(part in origin for part in _INSTALLED):
            values = module_facts(name)
            if values and len(found) < MAX_MODULES:
                found.append(values)
    return found
