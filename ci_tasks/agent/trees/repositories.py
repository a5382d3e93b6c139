"""git directories without a git process: how one is made, and its references with the time of their last use.

A reference here is a file of its own, replaced whole, whose mtime is that of its last use. A killed process leaves no
lock on it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import List, Optional

from ..files import replace_file

SHA1, SHA256 = "sha1", "sha256"
# Outranks every other file with attributes: a file is its blob, byte for byte, and no filter ever runs.
AS_ON_DISK = b"* -text !eol !filter !ident !working-tree-encoding\n"
ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def form_of(object_id: str) -> str:
    """The form of a repository's object ids (sha1 or sha256), by one of them."""
    return SHA256 if len(object_id) == 64 else SHA1


def make_repository(git_dir: str, form: str = "sha1", bare: bool = True) -> bool:
    """Create or repair the repository `git_dir`. Returns False, and changes nothing, where its object ids have another
    form."""
    for name in ("objects/pack", "objects/info", "refs/heads", "info"):
        os.makedirs(os.path.join(git_dir, name), exist_ok=True)
    config = repository_config(form, bare)
    present = _read(os.path.join(git_dir, "config"))
    if present != config:
        if present in (repository_config("sha1", bare), repository_config("sha256", bare)):
            return False
        replace_file(os.path.join(git_dir, "config"), config)
    attributes = os.path.join(git_dir, "info/attributes")
    if _read(attributes) != AS_ON_DISK:
        replace_file(attributes, AS_ON_DISK)
    head = os.path.join(git_dir, "HEAD")
    if not _read(head):
        replace_file(head, b"ref: refs/heads/ci-tasks\n")
    return True


def repository_config(form: str, bare: bool) -> bytes:
    version, more = ("1", "[extensions]\n\tobjectformat = sha256\n") if form == "sha256" else ("0", "")
    core = "[core]\n\trepositoryformatversion = %s\n\tbare = %s\n" % (version, str(bare).lower())
    return (core + more + "[gc]\n\tauto = 0\n").encode("ascii")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return b""


class RepositoryRefs:
    """References `refs/NAME/ID` to ID itself, newest first."""

    def __init__(self, git_dir: str, name: str) -> None:
        self.path = os.path.join(git_dir, "refs", name)

    def add(self, object_id: str) -> None:
        """Add a reference, or note that it is used now."""
        os.makedirs(self.path, exist_ok=True)
        replace_file(os.path.join(self.path, object_id), object_id.encode("ascii") + b"\n")

    def has(self, object_id: str) -> bool:
        """Also false for a file that lost its content when the machine went down."""
        return bool(ID.fullmatch(object_id)) and _read(os.path.join(self.path, object_id)) == object_id.encode() + b"\n"

    def newest(self) -> List[str]:
        times = []
        for name in self._names():
            with suppress(FileNotFoundError):  # another process has just forgotten it
                times.append((os.stat(os.path.join(self.path, name)).st_mtime_ns, name))
        return [name for _, name in sorted(times, reverse=True) if self.has(name)]

    def forget(self, unused_since: Optional[float] = None) -> int:
        """Remove references that were not used since then, or all, and files that are no references. Returns how
        many."""
        count = 0
        for name in self._names():
            path = os.path.join(self.path, name)
            with suppress(FileNotFoundError):
                if unused_since is None or os.stat(path).st_mtime < unused_since or not self.has(name):
                    os.unlink(path)
                    count += 1
        return count

    def keep(self, count: int) -> None:
        """Forget all but the newest."""
        for name in self.newest()[count:]:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))

    def _names(self) -> List[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
