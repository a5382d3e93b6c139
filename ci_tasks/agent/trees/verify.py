"""Whether a directory is exactly what a tree says: names, modes, links, and every file's own bytes.

Independent of git's index, configuration and attributes. A file that is not its blob byte for byte has to be what a
checkout makes of the blob: CRLF for LF, `$Id$` expanded, another encoding.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Collection, Dict, List, Optional, Sequence, Set

from .git import HostGit, MissingBase
from .objects import HASHES, LINK, SUBMODULE, ObjectReader, TreeEntries, TreeEntry, object_id

_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # what was a file may have become a link, or a pipe
_MAX_SHOWN = 5
_IDENT = re.compile(rb"\$Id(?::[^$\n]?[^ $\n]* ?)?\$")
_LONE_LF = re.compile(rb"(?<!\r)\n")


def verify_checkout(
    git: HostGit,
    tree: str,
    entries: TreeEntries,
    reader: ObjectReader,
    converted: Optional[Collection[bytes]] = None,
) -> None:
    """Raises MissingBase, with the first names, unless git's work tree is `entries`, those of `tree`, with empty
    submodules. `converted`: the only files that may be converted."""
    differing = differing_files(git, entries, reader, converted)
    if differing:
        more = " and %d more" % (len(differing) - _MAX_SHOWN) if len(differing) > _MAX_SHOWN else ""
        shown = ", ".join(repr(os.fsdecode(path)) for path in differing[:_MAX_SHOWN])
        raise MissingBase("%s is not the tree %s: %s%s" % (git.directory, tree, shown, more))


def differing_files(
    git: HostGit, entries: TreeEntries, reader: ObjectReader, converted: Optional[Collection[bytes]] = None
) -> List[bytes]:
    """Paths of git's work tree that are not what a checkout makes of `entries`, or that are too many. `converted`: the
    only files that may be converted."""
    may = entries if converted is None else {path: entries[path] for path in converted}
    return _unconverted(git, may, reader, different_files(os.fsencode(git.directory), entries, reader.form))


def different_files(directory: bytes, entries: TreeEntries, form: str) -> List[bytes]:
    """Paths below `directory` that are not as in `entries`, or not there, or too many; `.git` does not count."""
    parents = _parents(entries)
    missing, extra = set(entries), []
    unread = [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(directory, above)) as listing:
            for found in listing:
                path = above + found.name
                entry = entries.get(path)
                if entry is not None and is_same_file(found.path, entry, form):
                    missing.discard(path)
                elif path in parents and found.is_dir(follow_symlinks=False):
                    unread.append(path + b"/")
                elif entry is None and path != b".git":
                    extra.append(path)
    return sorted([*missing, *extra])


def is_same_file(path: bytes, entry: TreeEntry, form: str) -> bool:
    """Whether a file or link is `entry` byte for byte; for a submodule, a directory without files."""
    try:
        if entry.mode == SUBMODULE:
            return not os.path.islink(path) and os.path.isdir(path) and _has_no_files(path)
        if entry.mode == LINK:
            return object_id("blob", os.readlink(path), form) == entry.id
        handle = os.open(path, _READ)
    except OSError:
        return False
    try:
        info = os.fstat(handle)
        return _has_mode(info, entry) and _file_id(handle, info.st_size, form) == entry.id
    finally:
        os.close(handle)


def _has_no_files(path: bytes) -> bool:
    """Repositories may be there already, for submodules that are checked out next."""
    for above, directories, files in os.walk(path):
        if files or any(os.path.islink(os.path.join(above, name)) for name in directories):
            return False
        directories[:] = [name for name in directories if name != b".git"]
    return True


def _content(path: bytes, entry: TreeEntry) -> Optional[bytes]:
    """Of a file with the mode of `entry`."""
    try:
        handle = os.open(path, _READ)
    except OSError:
        return None
    try:
        if _has_mode(os.fstat(handle), entry):
            with open(handle, "rb", closefd=False) as source:
                return source.read()
    finally:
        os.close(handle)
    return None


def _has_mode(info: os.stat_result, entry: TreeEntry) -> bool:
    return stat.S_ISREG(info.st_mode) and bool(info.st_mode & stat.S_IXUSR) == entry.is_executable


def _file_id(handle: int, size: int, form: str) -> str:
    """Of a file that had this size; one that has another by now has an id that no object has."""
    digest = HASHES[form](b"blob %d\0" % size)
    left = size + 1  # one byte more than there should be
    while True:
        asked = min(left, _CHUNK)
        chunk = os.read(handle, asked)
        digest.update(chunk)
        left -= len(chunk)
        if not chunk or (left == 1 and len(chunk) < asked):  # a file gives less than asked only at its end
            return digest.hexdigest()


def _parents(entries: TreeEntries) -> Set[bytes]:
    parents: Set[bytes] = set()
    for path in entries:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents


def _unconverted(git: HostGit, entries: TreeEntries, reader: ObjectReader, differing: List[bytes]) -> List[bytes]:
    """Those of `differing` that are not what a checkout makes of their blob either."""
    files = [path for path in differing if path in entries and entries[path].mode not in (LINK, SUBMODULE)]
    encodings = _encodings(git, files)
    converted = set()
    for path in files:
        entry = entries[path]
        content = _content(os.path.join(os.fsencode(git.directory), path), entry)
        if content is not None and is_checkout_of(
            entry.id, reader.read("blob", entry.id), content, encodings.get(path, "")
        ):
            converted.add(path)
    return [path for path in differing if path not in converted]


def _encodings(git: HostGit, paths: Sequence[bytes]) -> Dict[bytes, str]:
    """Their working-tree-encoding, where they have one."""
    if not paths:
        return {}
    output = git.run("check-attr", "-z", "--stdin", "working-tree-encoding", input=b"\0".join(paths))
    fields = output.split(b"\0")
    encodings = {}
    for at in range(0, len(fields) - 2, 3):  # path, attribute, value
        if fields[at + 2] not in (b"unspecified", b"unset"):
            encodings[fields[at]] = fields[at + 2].decode("ascii", "replace")
    return encodings


def is_checkout_of(blob_id: str, blob: bytes, content: bytes, encoding: str) -> bool:
    """Whether `content` is `blob` as git may check it out: `$Id$` expanded, line ends and encoding converted."""
    if encoding:
        try:
            content = content.decode("utf-16" if encoding.upper() == "UTF-16LE-BOM" else encoding).encode("utf-8")
        except (LookupError, ValueError):
            return False
    expanded = _IDENT.sub(b"$Id: " + blob_id.encode("ascii") + b" $", blob)
    return any(content in (text, _LONE_LF.sub(b"\r\n", text)) for text in (blob, expanded))
