"""Whether a directory is exactly what a tree says: names, modes, links, and every file's own bytes.

Independent of git's index, configuration and attributes: a file is its blob, byte for byte.
"""

from __future__ import annotations

import os
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .file_hashes import NewFile, index_entries
from .git import HostGit, MissingBase
from .objects import SUBMODULE, TreeEntries

_MAX_SHOWN = 5


def verify_checkout(git: HostGit, tree: str, entries: TreeEntries, form: str) -> None:
    """Raises MissingBase, with the first names, unless git's work tree is `entries`, those of `tree`, with empty
    submodules."""
    raise_if_different(git, tree, different_files(os.fsencode(git.directory), entries, form))


def raise_if_different(git: HostGit, tree: str, differing: Sequence[bytes]) -> None:
    if differing:
        more = " and %d more" % (len(differing) - _MAX_SHOWN) if len(differing) > _MAX_SHOWN else ""
        shown = ", ".join(repr(os.fsdecode(path)) for path in differing[:_MAX_SHOWN])
        raise MissingBase("%s is not the tree %s: %s%s" % (git.directory, tree, shown, more))


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


def parents_of(paths: Iterable[bytes]) -> Set[bytes]:
    """The directories that the paths are in."""
    parents: Set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents
