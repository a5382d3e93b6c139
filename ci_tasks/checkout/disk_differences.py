"""Files that are tested with another content than on disk, with the reason: filters, line ends, a sparse checkout.

git converts a file when it is added, by the user's attributes and settings, and again when it is checked out, by the
attributes of the tree alone. Only the result of both counts. Where it is not plain, git itself makes it here.
"""

from __future__ import annotations

import filecmp
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.trees.file_hashes import LINK, is_same_file
from ci_tasks.agent.trees.git import HostGit, StoreError
from ci_tasks.agent.trees.objects import TreeEntries, TreeEntry
from ci_tasks.agent.trees.repositories import form_of
from ci_tasks.checkout.git import Git
from ci_tasks.records import DiskDifference

MAX_FILES = 10  # shown of each reason
_ENTRY = re.compile(rb"(\d+) ([0-9a-f]+) \d\t([^\0]*)\0")
_CONVERTING = (b"filter", b"working-tree-encoding", b"ident", b"eol", b"text")

# With these git adds bytes, links and executable bits as they are. Of several lines of a configuration the last one
# counts; here one that says otherwise is enough to compare every file.
_PLAIN = {"autocrlf": "false", "filemode": "true", "symlinks": "true"}

Attributes = dict[bytes, dict[bytes, str]]  # of the paths that have any


@dataclass(frozen=True)
class DiskComparison:
    """Files of a tree and, of those that have any, the attributes that convert them. `is_whole`: any of the files may
    be another one on disk, with or without them."""

    entries: TreeEntries
    attributes: Attributes
    is_whole: bool


def plan_comparison(git: Git, listed: bytes, is_sparse: bool) -> DiskComparison:
    """Of what git has just added from its directory, as `ls-files --stage -z` lists it. Where it only added bytes, what
    it has read is what it has stored."""
    found = _ENTRY.findall(listed)
    entries = {path: TreeEntry(int(mode, 8), name.decode()) for mode, name, path in found if mode != b"160000"}
    if not entries:
        return DiskComparison({}, {}, False)
    attributes = _attributes(git.run("check-attr", "-z", "--stdin", "--all", input=b"\0".join(entries)))
    settings = git.text_or_none("config", "-z", "--get-regexp", rf"^core\.({'|'.join(_PLAIN)})$") or ""
    pairs = (setting.partition("\n") for setting in settings.lower().split("\0") if setting)
    return DiskComparison(entries, attributes, is_sparse or any(_PLAIN[name[5:]] != value for name, _, value in pairs))


def disk_differences(git: Git, compared: DiskComparison, git_dir: Path) -> tuple[DiskDifference, ...]:
    """What of these files is not on disk as it is tested. git has recorded its directory into `git_dir`."""
    entries, attributes = compared.entries, compared.attributes
    own = {path: entry for path, entry in entries.items() if path.endswith(b".gitattributes")}
    if not (own or attributes or compared.is_whole):
        return ()
    with tempfile.TemporaryDirectory() as scratch:
        neutral = HostGit(str(git_dir.absolute()), scratch, GIT_INDEX_FILE=os.path.join(scratch, ".git"))
        converted = _converted_at_checkout(neutral, entries, own)
        candidates = [path for path in entries if compared.is_whole or path in attributes or path in converted]
        disk = os.fsencode(git.directory) + b"/"
        unsure = [
            path
            for path, size in zip(candidates, _sizes(git, [entries[path] for path in candidates]), strict=True)
            if path in converted
            or not _looks_alike(disk + path, entries[path], size)
            or (_rewrites(attributes.get(path, {})) and not _is_same(disk + path, entries[path]))
        ]
        _check_out(neutral, {path: entries[path] for path in unsure})
        reasons = {
            path: _reason(disk + path, entries[path], {**converted.get(path, {}), **attributes.get(path, {})})
            for path in unsure
            if not _is_equal(disk + path, os.path.join(os.fsencode(scratch), path))
        }
    return _by_reason(reasons)


def _sizes(git: Git, entries: Sequence[TreeEntry]) -> list[int]:
    if not entries:
        return []
    names = "".join(f"{entry.id}\n" for entry in entries).encode()
    sizes = git.run("cat-file", "--batch-check=%(objectsize)", input=names).splitlines()
    return [int(size) if size.isdigit() else -1 for size in sizes]


def _is_same(path: bytes, entry: TreeEntry) -> bool:
    return is_same_file(path, *entry, form_of(entry.id))


def _attributes(output: bytes) -> Attributes:
    attributes: Attributes = {}
    fields = output.split(b"\0")
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        if name in _CONVERTING and value != b"unset":
            attributes.setdefault(path, {})[name] = value.decode(errors="backslashreplace")
    return attributes


def _looks_alike(path: bytes, entry: TreeEntry, size: int) -> bool:
    """What converts line ends or `$Id$` changes the size."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    if entry.mode == LINK:
        return stat.S_ISLNK(info.st_mode)
    is_executable = bool(info.st_mode & stat.S_IXUSR)
    return stat.S_ISREG(info.st_mode) and is_executable == entry.is_executable and info.st_size == size


def _rewrites(attributes: Mapping[bytes, str]) -> bool:
    return b"filter" in attributes or b"working-tree-encoding" in attributes


def _converted_at_checkout(neutral: HostGit, entries: TreeEntries, own: TreeEntries) -> Attributes:
    """Of the paths that the tree's own attributes may convert."""
    if not own:
        return {}
    _add_to_index(neutral, own)
    attributes = _attributes(neutral.run("check-attr", "-z", "--stdin", "--all", input=b"\0".join(entries)))
    unconverted = ({b"filter"}, {b"text"}, {b"filter", b"text"})  # there are no filters on a host, and LF stays LF
    return {path: found for path, found in attributes.items() if set(found) not in unconverted}


def _check_out(neutral: HostGit, entries: TreeEntries) -> None:
    """As a host does; what git fails to write is not as on disk."""
    if entries:
        _add_to_index(neutral, entries)
        with suppress(StoreError):
            neutral.run("checkout-index", "--force", "-z", "--stdin", input=b"\0".join(entries))


def _add_to_index(neutral: HostGit, entries: TreeEntries) -> None:
    lines = (b"%06o %s\t%s\0" % (entry.mode, entry.id.encode(), path) for path, entry in entries.items())
    neutral.run("update-index", "-z", "--index-info", input=b"".join(lines))


def _is_equal(one: bytes, other: bytes) -> bool:
    try:
        modes = [os.lstat(path).st_mode for path in (one, other)]
        if any(map(stat.S_ISLNK, modes)):
            return os.readlink(one) == os.readlink(other)
        return modes[0] & stat.S_IXUSR == modes[1] & stat.S_IXUSR and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _reason(path: bytes, entry: TreeEntry, attributes: Mapping[bytes, str]) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "they are not on disk: a sparse checkout, or skip-worktree"
    if (entry.mode == LINK) != stat.S_ISLNK(mode):
        return "core.symlinks: git takes a file for a link"
    if bool(mode & stat.S_IXUSR) != entry.is_executable and entry.mode != LINK:
        return "core.fileMode: git does not look at the executable bit"
    if attributes.get(b"filter") == "lfs":
        return "Git LFS: their pointers are tested"
    for name in (b"filter", b"working-tree-encoding", b"ident"):
        if name in attributes:
            return f"the attribute {name.decode()}={attributes[name]} converts them"
    return "git converts their line ends"


def _by_reason(reasons: Mapping[bytes, str]) -> tuple[DiskDifference, ...]:
    paths: dict[str, list[str]] = {}
    for path, why in sorted(reasons.items()):
        paths.setdefault(why, []).append(path.decode("utf-8", "backslashreplace"))
    return tuple(DiskDifference(why, len(files), tuple(files[:MAX_FILES])) for why, files in paths.items())


def in_directory(path: str, differences: Iterable[DiskDifference]) -> tuple[DiskDifference, ...]:
    """The differences of the repository at `path`, by paths from the directory around it."""
    return tuple(
        DiskDifference(found.why, found.count, tuple(f"{path}/{file}" for file in found.files)) for found in differences
    )
