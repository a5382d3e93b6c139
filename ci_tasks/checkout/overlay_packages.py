"""Which packages of a working tree `--with NAME=DIR` lays over those that are installed, from its files alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ci_tasks.agent.records import Overlay
from ci_tasks.checkout.git import Git
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout

_LAYOUTS = ("", "src/", "python/")
# Distributions of which no part of the name is that of the import.
_IMPORTED_AS = {"megatron-core": "megatron.core", "megatron-lm": "megatron.core", "megatron-bridge": "megatron.bridge"}


def describe_overlay(source: OverlaySource, path: str, tree: Checkout, git_dir: Path) -> Overlay:
    """What is laid over; `tree` is in `git_dir`, and at `path` of the workspace. Raises CheckoutError."""
    listed = Git(git_dir).run("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree.tree)
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name.endswith(b".py")]
    layout, modules = find_modules(source, names)
    return Overlay(
        path=source.path,
        commit=tree.commit,
        tree=tree.tree,
        dirty=tree.dirty,
        head=tree.head,
        rev=source.rev,
        name=source.name,
        directory=f"{path}/{layout}".rstrip("/"),
        modules=modules,
        build=source.build,
    )


def check_distinct(overlays: Sequence[Overlay]) -> None:
    """Raises CheckoutError for a package that two of them have: only one could be imported."""
    owners: dict[str, Overlay] = {}
    for overlay in overlays:
        for module in overlay.modules:
            other = owners.setdefault(module, overlay)
            if other is not overlay:
                raise CheckoutError(
                    f"--with {other.name} and --with {overlay.name} both have the package {module}",
                    hint=f"leave one out: {other.path} or {overlay.path}",
                )


def find_modules(source: OverlaySource, names: list[str]) -> tuple[str, tuple[str, ...]]:
    """The directory with the package, and the package, by the tree's Python files; of a namespace package those of its
    parts that are there. Raises CheckoutError."""
    normal = re.sub("[-_.]+", "-", source.name).lower()
    wanted = _IMPORTED_AS.get(normal, source.name if "." in source.name else source.name.replace("-", "_"))
    top = wanted.partition(".")[0]
    files = set(names)
    for layout in _LAYOUTS:
        if f"{layout}{wanted}.py" in files or f"{layout}{top}/__init__.py" in files:
            return layout, (top,)
        start = f"{layout}{top}/"
        below = (name[len(start) :].partition("/") for name in files if name.startswith(start))
        parts = {name if slash else name.removesuffix(".py") for name, slash, _ in below}
        modules = tuple(sorted(f"{top}.{part}" for part in parts if part.isidentifier()))
        if wanted in (top, *modules) and modules:
            return layout, modules
    found = sorted({_top(name) for name in files} - {""})
    at_rev = f" at {source.rev}" if source.rev else ""
    raise CheckoutError(
        f"--with {source.name}: {source.path}{at_rev} has no Python package {wanted!r}",
        hint=f"it has {', '.join(found[:12])}" if found else "it has no Python package in its root, src or python",
    )


def _top(name: str) -> str:
    """The package that a file belongs to; empty for one outside of the known layouts, and for a mere script."""
    layout = next(layout for layout in reversed(_LAYOUTS) if name.startswith(layout))
    top, slash, _ = name[len(layout) :].partition("/")
    return top if slash and top.isidentifier() else ""
