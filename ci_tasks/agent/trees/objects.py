"""What a commit and its trees say, read from their own bytes.

git gives out what its packs and indexes say without hashing it, and a job of the same user may have written either. So
every object that counts is hashed here: one that is not what its name says is as good as missing.
"""

from __future__ import annotations

import io
import re
import subprocess
from contextlib import contextmanager
from typing import IO, Dict, Iterator, List, NamedTuple, Tuple, cast

from .file_hashes import HASHES
from .git import HostGit, MissingBase, StoreError

SUBMODULE = 0o160000
_DIRECTORY = b"40000"
_MODES = {b"100644": 0o100644, b"100755": 0o100755}
# A pattern takes a fraction of the time of a loop.
_ENTRY = {
    form: re.compile(rb"([0-7]+) ([^\0]*)\0(.{%d})" % new().digest_size, re.DOTALL) for form, new in HASHES.items()
}
_TREE = {form: re.compile(b"(?:%s)*" % entry.pattern, re.DOTALL) for form, entry in _ENTRY.items()}
# git would refuse most of these too; here they could make two paths one, or lead out of the workspace.
_INVALID = re.compile(rb"\0(\.{0,2}|\.git|[^\0]*/[^\0]*)(?=\0)", re.IGNORECASE)


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
        above, tree = unread.pop()
        for mode, name, entry_id in _parse(reader.read("tree", tree), above, reader.form):
            if mode == _DIRECTORY:
                unread.append((above + name + b"/", entry_id.hex()))
            else:
                entries[above + name] = TreeEntry(_MODES.get(mode) or int(mode, 8), entry_id.hex())
    return entries


def _parse(content: bytes, above: bytes, form: str) -> List[Tuple[bytes, bytes, bytes]]:
    """Of each entry its mode, name and id."""
    if not _TREE[form].fullmatch(content):
        raise StoreError("the tree of %r is no list of entries" % above.decode("utf-8", "backslashreplace"))
    found = cast(List[Tuple[bytes, bytes, bytes]], _ENTRY[form].findall(content))
    names = [name for _, name, _ in found]
    invalid = _INVALID.search(b"\0%s\0" % b"\0".join(names)) if names else None
    if invalid or len(set(names)) != len(names):
        path = above + (invalid.group(1) if invalid else next(name for name in names if names.count(name) > 1))
        raise StoreError("invalid path %r in the tree" % path.decode("utf-8", "backslashreplace"))
    return found
