"""Whether what install steps made is as they left it: rows share it, so what one row writes there the next would run.

The first check records each file with its hash. Afterwards a file whose inode, size, mode and times are as recorded is
the same: nobody but root can choose the time of a file's last change (ctime). Any other file is hashed again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from .files import replace_file

VENV, WORKSPACE, READY = "venv", "workspace", "ready"
PREFIX = "prefix"  # of a shared environment
COPY = "copy"  # of all that the install steps made, for repetitions
ENVIRONMENT = "environment"  # a link to the one that the venv is over
_CHUNK = 1 << 20
_MAX_SHOWN = 3
_THREADS = 8
_CTIME = 3  # its place in a state
CLOCK_SECONDS = 2  # a tick of the coarsest clock of a file system

Manifest = Dict[bytes, Tuple[bytes, bytes]]  # by path: what stat says, and mode and hash of the content


class SetupChanged(Exception):
    """What rows share is not what the install steps made; the message names files."""


def check_setup(directory: str) -> None:
    """Record what rows take over from the directory of install steps, or compare. Raises SetupChanged, OSError."""
    changed = changed_files(directory, (VENV, WORKSPACE, READY, ENVIRONMENT))
    below = os.path.join(directory, ENVIRONMENT)
    changed += changed_files(os.path.realpath(below), (PREFIX,)) if os.path.islink(below) else []
    if changed:
        raise SetupChanged(
            "what the install steps made is not as they left it: %s; the next command makes it anew"
            % differing(changed)
        )


def differing(files: Sequence[str]) -> str:
    """How many files differ, and which. Who wrote them is not known."""
    more = " and %d more" % (len(files) - _MAX_SHOWN) if len(files) > _MAX_SHOWN else ""
    count = "1 file differs" if len(files) == 1 else "%d files differ" % len(files)
    return "%s (%s%s)" % (count, ", ".join(files[:_MAX_SHOWN]), more)


def forget(directory: str, name: str) -> None:
    """The next check records anew: a retry has changed it."""
    try:
        os.unlink(_path(directory, name))
    except FileNotFoundError:
        pass


def changed_files(directory: str, names: Sequence[str]) -> List[str]:
    """Files of the parts `names` that were changed or removed since the first call, and but for a workspace added. Byte
    code that a row has cached is removed: Python would run it without a look at the source."""
    return [name + os.fsdecode(file) for name in names for file in _changed(directory, name)]


def _changed(directory: str, name: str) -> List[bytes]:
    top = os.fsencode(os.path.join(directory, name))
    states = dict(_states(top, with_git=name == COPY))
    try:
        recorded = _read(directory, name)
    except FileNotFoundError:
        write_manifest(directory, name, _hashes(top, states))
        return []
    changed = [file for file in recorded if file not in states and not _is_cache(file)]
    doubtful = [file for file in states if file in recorded and states[file] != recorded[file][0]]
    hashes = _hashes(top, doubtful)
    for file in doubtful:
        if file in hashes and _content(states[file], hashes[file]) == recorded[file][1]:
            recorded[file] = (states[file], recorded[file][1])
        elif not _is_removable_cache(top, file):
            changed.append(file)
    for file in states:
        if file not in recorded and not _is_removable_cache(top, file) and name in (VENV, PREFIX, COPY, ENVIRONMENT):
            changed.append(file)
    if doubtful and not changed:
        _write(directory, name, recorded)
    return sorted(changed)


def write_manifest(directory: str, name: str, hashes: Mapping[bytes, str]) -> None:
    """Record the part `name` as it is; `hashes` are those of its files, which nobody writes at this moment."""
    states = _states(os.fsencode(os.path.join(directory, name)), with_git=name == COPY)
    manifest = {file: (state, _content(state, hashes[file])) for file, state in states if file in hashes}
    _write(directory, name, manifest)


def recorded_content(directory: str, name: str) -> Dict[bytes, bytes]:
    """Mode and hash of each file of the part `name`, as recorded."""
    return {file: content for file, (_, content) in _read(directory, name).items()}


def _write(directory: str, name: str, manifest: Manifest) -> None:
    """A file that was written a moment ago could be written again in the same tick of the file system's clock: its
    state is left out, and it is hashed at each check."""
    with tempfile.TemporaryFile(dir=directory) as now:
        old = os.fstat(now.fileno()).st_mtime_ns - CLOCK_SECONDS * 10**9
    lines = (
        b"%s\t%s\t%s\0" % (state if state and int(state.split()[_CTIME]) < old else b"", content, file)
        for file, (state, content) in manifest.items()
    )
    replace_file(_path(directory, name), b"".join(lines))


def file_hashes(top: str, files: Iterable[str]) -> Dict[str, str]:
    """The hashes of files and links below `top`, of those which exist."""
    hashes = _hashes(os.fsencode(top), [b"/" + os.fsencode(file) for file in files])
    return {os.fsdecode(file[1:]): digest for file, digest in hashes.items()}


def link_equal_files(prefix: str, hashes: Mapping[str, str], others: Sequence[str]) -> None:
    """Make each file below `prefix` one with its equal in another shared environment, so that its bytes are there
    once."""
    wanted: Dict[bytes, List[str]] = {}
    for file, digest in hashes.items():
        info = os.lstat(os.path.join(prefix, file))
        if stat.S_ISREG(info.st_mode) and info.st_size:
            wanted.setdefault(_content(_state(info), digest), []).append(os.path.join(prefix, file))
    for other in others:
        _link_to(other, wanted)


def _link_to(other: str, wanted: Dict[bytes, List[str]]) -> None:
    try:
        manifest = _read(other, PREFIX)
    except OSError:
        return
    linked = False
    for file, (state, content) in manifest.items():
        path = os.path.join(other, PREFIX) + os.fsdecode(file)
        if content in wanted and state and os.path.lexists(path) and _state(os.lstat(path)) == state:
            for own in wanted.pop(content):
                linked = _replace_by_link(path, own) or linked
            manifest[file] = (_state(os.lstat(path)), content)
    if linked:
        _write(other, PREFIX, manifest)


def _replace_by_link(path: str, own: str) -> bool:
    try:
        os.link(path, own + ".link")
    except OSError:  # too many, or the file system has none
        return False
    os.replace(own + ".link", own)
    return True


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, name + ".manifest")


def _read(directory: str, name: str) -> Manifest:
    with open(_path(directory, name), "rb") as source:
        lines = (line.split(b"\t", 2) for line in source.read().split(b"\0")[:-1])
        return {file: (state, content) for state, content, file in lines}


def _states(top: bytes, with_git: bool = False) -> Iterator[Tuple[bytes, bytes]]:
    """Each file and link, by its path behind `top`, with all that stat says of it but the time of its last access;
    git's own records, which every `git status` changes, only `with_git`. No link is followed."""
    if os.path.islink(top):
        yield b"", _state(os.lstat(top))
        return
    unread = [b""]
    while unread:
        above = unread.pop()
        try:
            with os.scandir(top + above) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield above + b"/" + entry.name, _state(entry.stat(follow_symlinks=False))
                    elif with_git or entry.name != b".git":
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


def _is_removable_cache(top: bytes, file: bytes) -> bool:
    """Whether it was byte code, which is gone now."""
    if not _is_cache(file):
        return False
    try:
        os.unlink(top + file)
    except OSError:
        return False
    return True


def _content(state: bytes, digest: str) -> bytes:
    return b"%o %s" % (int(state.split()[0]), digest.encode("ascii"))


def _hashes(top: bytes, files: Iterable[bytes]) -> Dict[bytes, str]:
    """The hash of each file's content, or of a link's target; none of a file that is gone."""
    from concurrent.futures import ThreadPoolExecutor  # loads logging, and most who load this file hash nothing

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda file: (file, _digest(top + file)), files)
        return {file: digest for file, digest in digests if digest}


def _digest(path: bytes) -> str:
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
        return ""
    return digest.hexdigest()
