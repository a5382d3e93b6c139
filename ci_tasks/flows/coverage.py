"""`coverage`: a checkout's workflow and the sources of its tests → the map of what they cover, and how two differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ci_tasks.flows.listing import list_jobs
from ci_tasks.flows.source import Source, situation
from ci_tasks.suites.coverage.coverage import Coverage, labels
from ci_tasks.suites.coverage.gaps import gaps
from ci_tasks.suites.coverage.options import ARGUMENTS
from ci_tasks.sync.git import Git
from ci_tasks.sync.snapshot import resolve_rev

_TESTS = "tests"
_READ = (_TESTS, "scripts/models", ARGUMENTS)  # what of a revision a map is made from


def cover(source: Source) -> Coverage:
    """The map of a checkout, or of its revision. Raises CheckoutError, WorkflowError."""
    names, read = _files(source)
    found = labels(list_jobs(source), read)
    return Coverage(_called(source), source.workflow.place, found, gaps(found, names, read))


def _called(source: Source) -> str:
    """How the map names the checkout: for others to read, so without a path of this machine."""
    name = "the embedded sample" if source.sample else situation(source, secrets=()).repository
    git = Git(source.path)
    commit = git.maybe("rev-parse", "--short", "--verify", "--quiet", f"{source.rev or 'HEAD'}^{{commit}}")
    if not commit or source.sample:
        return f"{name} at {source.rev}" if source.rev else name
    changed = source.rev is None and git.maybe("status", "--porcelain", "--", ".")
    return f"{name} at {commit}{' with local changes' if changed else ''}"


def _files(source: Source) -> tuple[list[str], Callable[[str], str | None]]:
    """The tests' paths, and a reader of the checkout's files."""
    if source.rev is None:
        return sorted(_walk(source.path)), lambda name: _text(source.path, name)
    texts = _revision(source.path, source.rev)
    return sorted(name for name in texts if name.startswith(f"{_TESTS}/")), texts.get


def _walk(root: Path) -> list[str]:
    found = []
    for directory, folders, files in os.walk(root / _TESTS):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        found += [Path(directory, name).relative_to(root).as_posix() for name in files]
    return found


def _text(root: Path, name: str) -> str | None:
    """A file's text; nothing outside the checkout, whatever a test's name or a link in it says."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="replace")


def _revision(root: Path, rev: str) -> Mapping[str, str]:
    """Every file that a map is made from, as it was: two questions to git, however many there are."""
    git = Git(root)
    commit = resolve_rev(root, rev)
    blobs: dict[str, str] = {}
    for entry in git.names("ls-tree", "-r", "-z", commit, "--", *_READ):
        head, _, name = entry.partition("\t")
        mode, kind, blob = head.split(" ")
        if kind == "blob" and mode != "120000":
            blobs[name] = blob
    answer = git.bytes("cat-file", "--batch", input="".join(f"{blob}\n" for blob in blobs.values()).encode())
    found = {}
    for name in blobs:
        head_line, _, rest = answer.partition(b"\n")
        size = int(head_line.split(b" ")[2])
        found[name] = rest[:size].decode("utf-8", errors="replace")
        answer = rest[size + 1 :]
    return found
