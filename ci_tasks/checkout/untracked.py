"""Untracked files that travel with the working tree although they look like data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ci_tasks.checkout.repository import find_repository

LARGE_BYTES = 100 << 20  # GitHub refuses files from this size on, so nobody commits one


def large_untracked_files(directory: Path) -> list[tuple[str, int]]:
    """Those below `directory` that git does not ignore, with their sizes in bytes, the largest first. Raises
    GitError."""
    repository = find_repository(directory)
    if repository is None:
        return []
    git = repository.with_index(repository.index, excludes=repository.excludes)
    listed = git.run("ls-files", "--others", "--exclude-standard", "-z")
    return sorted(_large(directory, listed), key=lambda file: -file[1])


def _large(directory: Path, listed: bytes) -> Iterator[tuple[str, int]]:
    for name in listed.split(b"\0"):
        try:
            size = os.lstat(os.path.join(os.fsencode(directory), name)).st_size if name else 0
        except OSError:  # it has gone meanwhile
            continue
        if size >= LARGE_BYTES:
            yield os.fsdecode(name), size
