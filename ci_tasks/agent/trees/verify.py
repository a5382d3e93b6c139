"""Whether a directory is exactly what a tree says: names, modes, links, and every file's own bytes.

Independent of git's index, configuration and attributes. A file that is not its blob byte for byte has to be what a
checkout makes of the blob: CRLF for LF, `$Id$` expanded, another encoding.
"""

from __future__ import annotations

import os
import re
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .file_hashes import LINK, NewFile, has_mode, index_entries
from .git import HostGit, MissingBase
from .objects import SUBMODULE, ObjectReader, TreeEntries, TreeEntry

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # what was a file may have become a link, or a pipe
_MAX_SHOWN = 5
_IDENT = re.compile(rb"\$Id(?::[^$\n]?[^ $\n]* ?)?\$")
_LONE_LF = re.compile(rb"(?<!\r)\n")


def verify_checkout(git: HostGit, tree: str, entries: TreeEntries, reader: ObjectReader) -> None:
    """Raises MissingBase, with the first names, unless git's work tree is `entries`, those of `tree`, with empty
    submodules."""
    raise_if_different(git, tree, differing_files(git, entries, reader))


def raise_if_different(git: HostGit, tree: str, differing: Sequence[bytes]) -> None:
    if differing:
        more = " and %d more" % (len(differing) - _MAX_SHOWN) if len(differing) > _MAX_SHOWN else ""
        shown = ", ".join(repr(os.fsdecode(path)) for path in differing[:_MAX_SHOWN])
        raise MissingBase("%s is not the tree %s: %s%s" % (git.directory, tree, shown, more))


def differing_files(git: HostGit, entries: TreeEntries, reader: ObjectReader) -> List[bytes]:
    """Paths of git's work tree that are not what a checkout makes of `entries`, or that are too many."""
    differing = different_files(os.fsencode(git.directory), entries, reader.form)
    return without_converted(git, entries, reader, differing, entries)


def different_files(directory: bytes, entries: TreeEntries, form: str) -> List[bytes]:
    """Paths below `directory` that are not as in `entries`, or not there, or too many; `.git` does not count."""
    return check_directory(directory, entries, form).differing


class CheckedDirectory(NamedTuple):
    """The paths that are not as they should be, and of each file and link that is, its entry in an index of git's."""

    differing: List[bytes]
    unchanged: Dict[bytes, bytes]


def check_directory(
    directory: bytes,
    entries: TreeEntries,
    form: str,
    were_there: Collection[bytes] = (),
    new: Optional[NewFile] = None,
) -> CheckedDirectory:
    """Hash every file and link below `directory`. Those that `were_there` have to be as a `new` one, too."""
    files = [(path, mode, name, path in were_there) for path, (mode, name) in entries.items() if mode != SUBMODULE]
    found = index_entries(os.path.join(directory, b""), files, form, new)
    unchanged = {file[0]: entry for file, entry in zip(files, found) if entry is not None}  # noqa: B905 # Python 3.8
    present, extra = _names(directory, entries)
    same = {path for path in present if path in unchanged or entries[path].mode == SUBMODULE}
    return CheckedDirectory(sorted([*extra, *(entries.keys() - same)]), unchanged)


def _names(directory: bytes, entries: TreeEntries) -> Tuple[List[bytes], List[bytes]]:
    """Which of `entries` are there, submodules without files; and what is too many. No link is followed."""
    parents = parents_of(entries)
    present, extra = [], []
    unread = [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(directory, above)) as listing:
            for found in listing:
                path = above + found.name
                entry = entries.get(path)
                if entry is not None:
                    if entry.mode != SUBMODULE or _is_empty_directory(found):
                        present.append(path)
                elif path in parents and found.is_dir(follow_symlinks=False):
                    unread.append(path + b"/")
                elif path != b".git":
                    extra.append(path)
    return present, extra


def _is_empty_directory(found: "os.DirEntry[bytes]") -> bool:
    return found.is_dir(follow_symlinks=False) and _has_no_files(found.path)


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
        if has_mode(os.fstat(handle), entry.mode):
            with open(handle, "rb", closefd=False) as source:
                return source.read()
    finally:
        os.close(handle)
    return None


def parents_of(paths: Iterable[bytes]) -> Set[bytes]:
    """The directories that the paths are in."""
    parents: Set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents


def without_converted(
    git: HostGit, entries: TreeEntries, reader: ObjectReader, differing: Sequence[bytes], may: Collection[bytes]
) -> List[bytes]:
    """Those of `differing` that are not what a checkout makes of their blob either. `may`: only these are converted."""
    files = [path for path in differing if path in may and path in entries]
    files = [path for path in files if entries[path].mode not in (LINK, SUBMODULE)]
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
