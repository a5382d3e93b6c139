"""Whether what install steps made is as they left it: rows share it, so what one row writes there the next would run.

The first check records each file with its hash. Afterwards a file whose inode, size, mode and times are as recorded is
the same: nobody but root can choose the time of a file's last change (ctime). Any other file is hashed again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Dict, Iterator, List, Sequence, Tuple

from .files import replace_file

VENV, WORKSPACE, READY = "venv", "workspace", "ready"
_CHUNK = 1 << 20
_MAX_SHOWN = 3
_CTIME = 3  # its place in a state
_TICK_NS = 2 * 10**9  # of the coarsest clock of a file system

Manifest = Dict[bytes, Tuple[bytes, bytes]]  # by path: what stat says, and mode and hash of the content


class SetupChanged(Exception):
    """What rows share is not what the install steps made; the message names files."""


def check_setup(directory: str) -> None:
    """Record what rows take over from the directory of install steps, or compare. Raises SetupChanged, OSError."""
    changed = changed_files(directory, (VENV, WORKSPACE, READY))
    if changed:
        more = " and %d more" % (len(changed) - _MAX_SHOWN) if len(changed) > _MAX_SHOWN else ""
        raise SetupChanged(
            "an earlier row changed what the install steps made: %s%s; the next command makes it anew"
            % (", ".join(changed[:_MAX_SHOWN]), more)
        )


def forget(directory: str, name: str) -> None:
    """The next check records: it is being made anew."""
    try:
        os.unlink(_path(directory, name))
    except FileNotFoundError:
        pass


def changed_files(directory: str, names: Sequence[str]) -> List[str]:
    """Files of the parts `names` that were changed or removed since the first call, and in a venv added. Byte code that
    a row has cached is removed: Python would run it without a look at the source."""
    return [name + os.fsdecode(file) for name in names for file in _changed(directory, name)]


def _changed(directory: str, name: str) -> List[bytes]:
    top = os.fsencode(os.path.join(directory, name))
    states = dict(_states(top))
    try:
        with open(_path(directory, name), "rb") as source:
            recorded = _parse(source.read())
    except FileNotFoundError:
        _record(_path(directory, name), top, states)
        return []
    changed = [file for file in recorded if file not in states and not _is_cache(file)]
    for file, state in states.items():
        before = recorded.get(file)
        if before is not None and (state == before[0] or _content(top + file) == before[1]):
            continue
        if _is_cache(file):
            os.unlink(top + file)
        elif before is not None or name == VENV:
            changed.append(file)
    return sorted(changed)


def _record(path: str, top: bytes, states: Dict[bytes, bytes]) -> None:
    """A file that was written a moment ago could be written again in the same tick of the file system's clock: its
    state is left out, and it is hashed at each check."""
    changed_at = {file: int(state.split()[_CTIME]) for file, state in states.items()}
    old = max(changed_at.values(), default=0) - _TICK_NS
    lines = (
        b"%s\t%s\t%s\0" % (state if changed_at[file] < old else b"", _content(top + file), file)
        for file, state in states.items()
    )
    replace_file(path, b"".join(lines))


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, name + ".manifest")


def _parse(text: bytes) -> Manifest:
    manifest = {}
    for line in text.split(b"\0")[:-1]:
        state, content, file = line.split(b"\t", 2)
        manifest[file] = (state, content)
    return manifest


def _states(top: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """Each file and link, by its path behind `top`, with all that stat says of it but the time of its last access."""
    unread = [b""]
    while unread:
        above = unread.pop()
        try:
            with os.scandir(top + above) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield above + b"/" + entry.name, _state(entry.stat(follow_symlinks=False))
                    elif entry.name != b".git":  # git's own records, which every `git status` changes
                        unread.append(above + b"/" + entry.name)
        except NotADirectoryError:
            yield above, _state(os.lstat(top + above))
        except FileNotFoundError:  # a row that runs now has removed it
            pass


def _state(info: os.stat_result) -> bytes:
    fields = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return b"%d %d %d %d %d" % fields


def _is_cache(file: bytes) -> bool:
    return os.path.basename(os.path.dirname(file)) == b"__pycache__"


def _content(path: bytes) -> bytes:
    """The mode, and a hash of a file's content or a link's target; nothing of a file that is gone."""
    digest = hashlib.sha256()
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            digest.update(os.readlink(path))
        elif stat.S_ISREG(mode):
            with open(path, "rb") as source:
                for chunk in iter(lambda: source.read(_CHUNK), b""):
                    digest.update(chunk)
    except FileNotFoundError:
        return b""
    return b"%o %s" % (mode, digest.hexdigest().encode("ascii"))
