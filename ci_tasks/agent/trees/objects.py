"""What a commit and its trees say, read from their own bytes.

git gives out what its packs and indexes say without hashing it, and a job of the same user may have written either. So
every object that counts is hashed here: one that is not what its name says is as good as missing.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
from contextlib import contextmanager
from typing import IO, Dict, Iterator, List, NamedTuple, Tuple, cast

from .git import HostGit, MissingBase, StoreError

LINK, SUBMODULE = 0o120000, 0o160000
HASHES = {"sha1": hashlib.sha1, "sha256": hashlib.sha256}  # by a repository's object format
_DIRECTORY = 0o040000
_TREE_MODE = b"40000"


class TreeEntry(NamedTuple):
    """A file (with its executable bit), a link, or a submodule's commit: mode and id as git has them."""

    mode: int
    id: str

    @property
    def is_executable(self) -> bool:
        return bool(self.mode & 0o100)


TreeEntries = Dict[bytes, TreeEntry]  # by path from the tree's root


def object_id(kind: str, content: bytes, form: str) -> str:
    """The id that git gives to an object."""
    return HASHES[form](b"%s %d\0%s" % (kind.encode("ascii"), len(content), content)).hexdigest()


class ObjectReader:
    """A `git cat-file --batch` whose every answer is hashed."""

    def __init__(self, process: subprocess.Popen[bytes], form: str) -> None:
        self.form = form
        self._questions = cast(IO[bytes], process.stdin)
        self._answers = io.BufferedReader(cast(io.RawIOBase, process.stdout))

    def read(self, kind: str, name: str) -> bytes:
        """The content of an object. Raises MissingBase unless it is there, of that kind, and hashes to its name."""
        try:
            self._questions.write(name.encode("ascii") + b"\n")
            header = self._answers.readline().split()
            size = int(header[2]) if len(header) == 3 else -1
            content = self._answers.read(size + 1)[:-1] if size >= 0 else b""
        except (OSError, ValueError):
            header, size, content = [], -1, b""
        if len(content) != size or object_id(kind, content, self.form) != name:
            raise MissingBase("the %s %s is missing or damaged" % (kind, name))
        return content

    def close(self) -> None:
        self._answers.close()  # first: a git that has more to say ends, too
        self._questions.close()


@contextmanager
def object_reader(git: HostGit, form: str) -> Iterator[ObjectReader]:
    with git.started(("cat-file", "--batch"), stdin=subprocess.PIPE) as process:
        reader = ObjectReader(process, form)
        try:
            yield reader
        finally:
            reader.close()
            process.wait()


def read_tree(reader: ObjectReader, commit: str, tree: str) -> TreeEntries:
    """Every file, link and submodule of `tree`, which must be the tree of `commit`. Raises MissingBase, StoreError."""
    head = reader.read("commit", commit).split(b"\n", 1)[0].decode("ascii", "replace")
    if head != "tree " + tree:
        raise StoreError("the commit %s has the %s, which is not the tree %s" % (commit, head, tree))
    entries: TreeEntries = {}
    unread: List[Tuple[bytes, str]] = [(b"", tree)]
    while unread:
        above, name = unread.pop()
        for mode, path, entry_id in _parse(reader.read("tree", name), above, reader.form):
            if mode == _DIRECTORY:
                unread.append((path + b"/", entry_id))
            else:
                entries[path] = TreeEntry(mode, entry_id)
    return entries


def _parse(content: bytes, above: bytes, form: str) -> Iterator[Tuple[int, bytes, str]]:
    size = HASHES[form]().digest_size
    names, at = set(), 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        name = content[space + 1 : end]
        # git would refuse most of these too; here they could make two paths one, or lead out of the workspace.
        if name in names or name in (b"", b".", b"..") or b"/" in name or name.lower() == b".git":
            raise StoreError("invalid path %r in the tree" % (above + name).decode("utf-8", "backslashreplace"))
        names.add(name)
        yield int(content[at:space], 8), above + name, content[end + 1 : end + 1 + size].hex()
        at = end + 1 + size
