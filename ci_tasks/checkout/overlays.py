"""What differs from CI in the recorded trees: the packages of overlays, and files that CI's checkout would convert.

Tested are the bytes on disk, or those of the commit. Filters (Git LFS), line ends and encodings are settings of a
repository, or attributes; nothing here applies them. Everything is told from the recorded trees alone.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import Checkout, Conversion, Overlay
from ci_tasks.agent.trees.git import form_of, make_repository
from ci_tasks.checkout.repository import CheckoutGit
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import OverlaySource

_LAYOUTS = ("", "src/", "python/")
# Distributions of which no part of the name is that of the import.
_IMPORTED_AS = {"megatron-core": "megatron.core", "megatron-lm": "megatron.core", "megatron-bridge": "megatron.bridge"}

_MAX_FILES = 10  # shown of each reason
_CONVERTING = ("filter", "working-tree-encoding", "ident", "eol")
LFS = "Git LFS: CI's checkout has pointers, or the content with `lfs: true`"
LINE_ENDS = "line ends: CI's checkout has LF"


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


def find_conversions(store: Path, tree: str, head: str, written: Collection[bytes]) -> tuple[Conversion, ...]:
    """Of the files of `tree`, which is in the git directory `store`. `written`: `head` does not have them so."""
    git, reasons = CheckoutGit(store), dict[bytes, str]()
    attributes = _attributes(git, tree)
    for path, found in attributes.items():
        name, others = found.get("filter"), ", ".join(f"{key}={found[key]}" for key in sorted(found) if key != "filter")
        if path in written and name:
            reasons[path] = LFS if name == "lfs" else f"the filter {name}: CI's checkout does not have it"
        elif path not in written and others:
            reasons[path] = f"CI's checkout converts them: {others}"
    if written:
        compared = "--numstat", "--no-renames", "--ignore-cr-at-eol", head, tree
        edited = {line.split(b"\t", 2)[2] for line in git.split("diff-tree", "-r", "-z", *compared)}
        for path in set(written) - edited:
            if "eol" not in attributes.get(path, {}):
                reasons[path] = LINE_ENDS
    files: dict[str, list[str]] = {}
    for path, why in sorted(reasons.items()):
        files.setdefault(why, []).append(path.decode("utf-8", "backslashreplace"))
    return tuple(Conversion(why, len(paths), tuple(paths[:_MAX_FILES])) for why, paths in files.items())


def _attributes(git: CheckoutGit, tree: str) -> dict[bytes, dict[str, str]]:
    """Those that may convert a file, by path: of the tree's own files alone, as in CI's checkout."""
    entries = git.split("ls-tree", "-r", "-z", "--full-tree", tree)
    own = [entry + b"\0" for entry in entries if entry.endswith(b".gitattributes")]
    if not own:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        make_repository(scratch, form_of(tree))
        Path(scratch, "info/attributes").unlink()
        plain = CheckoutGit(scratch, GIT_OBJECT_DIRECTORY=f"{git.directory}/objects")
        plain.run("update-index", "-z", "--index-info", input=b"".join(own))
        names = b"\0".join(entry.split(b"\t", 1)[1] for entry in entries)
        fields = plain.split("check-attr", "--cached", "-z", "--stdin", *_CONVERTING, input=names)
    attributes: dict[bytes, dict[str, str]] = {}
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        if value not in (b"unspecified", b"unset", b"lf"):  # a blob with LF stays as it is
            attributes.setdefault(path, {})[name.decode()] = value.decode(errors="backslashreplace")
    return attributes


def in_directory(path: str, conversions: Iterable[Conversion]) -> tuple[Conversion, ...]:
    """The conversions of the repository at `path`, by paths from the directory around it."""
    return tuple(replace(found, files=tuple(f"{path}/{file}" for file in found.files)) for found in conversions)
