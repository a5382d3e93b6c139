"""What differs from CI in the recorded trees: the packages of overlays, and the files of Git LFS.

Tested are the bytes on disk, or those of the commit. Filters (Git LFS), line ends and encodings are settings of a
repository, or attributes; nothing here applies them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Checkout, Conversion, Overlay
from ci_tasks.checkout.repository import CheckoutGit
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource

_LAYOUTS = ("", "src/", "python/")
# Distributions of which no part of the name is that of the import.
_IMPORTED_AS = {"megatron-core": "megatron.core", "megatron-lm": "megatron.core", "megatron-bridge": "megatron.bridge"}

_MAX_FILES = 10  # shown of each reason
LFS = "Git LFS: CI's checkout has pointers, or the content with `lfs: true`"


def describe_overlay(source: OverlaySource, path: str, tree: Checkout, git_dir: Path) -> Overlay:
    """What is laid over; `tree` is in `git_dir`, and at `path` of the workspace. Raises CheckoutError."""
    names = CheckoutGit(git_dir).null_separated("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree.tree)
    layout, modules = find_modules(source, [name for name in names if name.endswith(".py")])
    where = f"{path}/{layout}".rstrip("/")
    own = Overlay(source.path, tree.commit, tree.tree, tree.dirty, tree.head, source.rev, source.name)
    return replace(own, directory=where, modules=modules)


def check_distinct(overlays: Sequence[Overlay]) -> None:
    """Raises CheckoutError for a package that two of them have: only one could be imported."""
    owners: dict[str, Overlay] = {}
    for overlay in overlays:
        for module in overlay.modules:
            if (other := owners.setdefault(module, overlay)) is not overlay:
                message = f"--with {other.name} and --with {overlay.name} both have the package {module}"
                raise CheckoutError(message, hint=f"leave one out: {other.path} or {overlay.path}")


def find_modules(source: OverlaySource, names: list[str]) -> tuple[str, tuple[str, ...]]:
    """The directory with the package, and the package, by the tree's Python files; of a namespace package those of its
    parts that are there. Raises CheckoutError."""
    normal = re.sub("[-_.]+", "-", source.name).lower()
    wanted = _IMPORTED_AS.get(normal, source.name if "." in source.name else source.name.replace("-", "_"))
    top, files, found = wanted.partition(".")[0], set(names), set[str]()
    for layout in _LAYOUTS:
        if f"{layout}{wanted}.py" in files or f"{layout}{top}/__init__.py" in files:
            return layout, (top,)
        below = [name[len(layout) :].split("/") for name in files if name.startswith(layout)]
        parts = {path[1].removesuffix(".py" * (len(path) == 2)) for path in below if path[0] == top and path[1:]}
        modules = tuple(sorted(f"{top}.{part}" for part in parts if part.isidentifier()))
        if wanted in (top, *modules) and modules:
            return layout, modules
        found |= {path[0] for path in below if path[1:] and path[0].isidentifier()}
    at_rev, found = f" at {source.rev}" if source.rev else "", found - {"src", "python"}
    hint = f"it has {', '.join(sorted(found)[:12]) or 'no Python package in its root, src or python'}"
    raise CheckoutError(f"--with {source.name}: {source.path}{at_rev} has no Python package {wanted!r}", hint=hint)


def lfs_files(git: CheckoutGit, head: str, path: str, dirty: Sequence[str]) -> tuple[Conversion, ...]:
    """The files of the repository at `path` for which the commit `head` has a pointer of Git LFS, and the tree that
    runs has something else."""
    if "filter=lfs" not in (git.text_or_none("show", f"{head}:.gitattributes") or ""):
        return ()
    listed = git.text_or_none("grep", "-l", "-z", "-e", "^version https://git-lfs.github.com/spec/", head) or ""
    pointers = {name.partition(":")[2] for name in listed.split("\0")}
    files = [f"{path}/{name}".lstrip("/") for name in dirty if name in pointers]
    return (Conversion(LFS, len(files), tuple(files[:_MAX_FILES])),) if files else ()
