"""Overlays: packages of working trees that are imported instead of those that are installed.

A finder before all others, so that neither PYTHONPATH, nor the working directory, nor the finder of an editable install
comes first. Of a namespace package only the parts that the tree has are its; the others stay where they are.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class OverlayFinder:
    """`modules` are the packages, or parts of namespace packages, by the directory that they lie in."""

    def __init__(self, modules: "dict[str, str]") -> None:
        self.modules = modules
        self.namespaces = {name.partition(".")[0]: directory for name, directory in modules.items() if "." in name}

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        directory = self.modules.get(name)
        if directory is not None:
            return _find(name, [os.path.join(directory, *name.split(".")[:-1])])
        directory = self.namespaces.get(name)
        if directory is None:
            return None
        # A regular package of this name that is installed makes the namespace, as it does without the overlay.
        return _installed(name, self) or _find(name, [directory, *sys.path])


def add_overlays(text: str) -> None:
    """`text` is MODULE=DIRECTORY of each, with NUL between them."""
    modules = dict(pair.split("=", 1) for pair in text.split("\0") if pair)
    if modules:
        sys.meta_path.insert(0, OverlayFinder(modules))


def _find(name: str, path: "list[str]") -> "Any":
    from _frozen_importlib_external import PathFinder  # what importlib.machinery has, without importing it

    return PathFinder.find_spec(name, path)


def _installed(name: str, own: "Any") -> "Any":
    """The regular package that the finders behind `own` find."""
    finders = list(sys.meta_path)
    for finder in finders[finders.index(own) + 1 :]:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None, None) if find is not None else None
        if spec is not None:
            return spec if spec.loader is not None and spec.origin is not None else None
    return None
