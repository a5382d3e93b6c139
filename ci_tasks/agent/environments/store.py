"""The environments of a host: found by their key, checked before use, removed when unused for long or too many."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..directories import remove_tree
from ..files import content_of, file_lock, replace_file
from ..quick_dataclass import dataclass
from ..run_directory import read_record, write_record

MOST = 8  # environments of a host; of CUDA's torch each has about 6 GB
MAX_DAYS = 14.0  # without use
LOCK_SECONDS = 300.0  # another row may list all files of the install steps
_MAKING_DAYS = 0.25  # within which it is complete


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: `lock` are the distributions as name==version."""

    lock: Tuple[str, ...] = ()
    made_at: float = 0.0

    @property
    def description(self) -> str:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made_at))
        digest = hashlib.sha256("\n".join(self.lock).encode()).hexdigest()[:8]
        return "%d packages, resolved %s, lock %s" % (len(self.lock), day, digest)


class SharedEnvironment:
    """The one in the directory `path`. Its record is empty if it is not complete, or was given up."""

    def __init__(self, path: str) -> None:
        self.path, self.name, self.prefix = path, os.path.basename(path), os.path.join(path, "prefix")
        self._users, self._record = os.path.join(path, "users"), os.path.join(path, "environment.json")
        self._files = os.path.join(path, "files")
        self.record = EnvironmentRecord()
        with suppress(ValueError):
            self.record = read_record(EnvironmentRecord, self._record) or self.record
        self.unused_days = (time.time() - os.stat(path).st_mtime) / 86400

    @property
    def is_used(self) -> bool:
        """Whether a venv over it exists."""
        return any(os.path.exists(os.path.join(self._users, name)) for name in os.listdir(self._users))

    def add_user(self, venv: str) -> None:
        """It stays as long as the venv exists."""
        os.makedirs(venv, exist_ok=True)
        os.symlink(os.path.abspath(venv), os.path.join(self._users, "%d-%d" % (os.getpid(), time.time_ns())))
        os.utime(self.path)

    def seal(self, record: EnvironmentRecord) -> None:
        """It is complete: what stat says of its files is noted."""
        self.record = record
        write_listing(self._files, self.prefix)
        write_record(self._record, record)

    def changed(self) -> List[str]:
        """Its files that are not as they were stored."""
        return changed_files(read_listing(self._files), self.prefix)

    def give_up(self) -> None:
        """It is not used again, and removed when no venv is over it."""
        with suppress(FileNotFoundError):
            os.unlink(self._record)


class EnvironmentStore:
    def __init__(self, directory: str) -> None:
        self.directory, self._lock = directory, os.path.join(directory, "lock")

    def all(self, key: str = "") -> List[SharedEnvironment]:
        """Those that can be used and whose keys begin with `key`, the newest first."""
        found = [each for each in self._every() if each.record.lock and each.name.startswith(key)]
        return sorted(found, key=lambda each: each.record.made_at, reverse=True)

    def take(self, key: str, venv: str) -> Optional[SharedEnvironment]:
        """The newest environment with this key, with `venv` among its users."""
        if not os.path.isdir(self.directory):
            return None
        with file_lock(self._lock, exclusive=True, timeout=LOCK_SECONDS):
            newest = next(iter(self.all(key)), None)
            if newest is not None:
                newest.add_user(venv)
        return newest

    def new(self, key: str) -> SharedEnvironment:
        """One to be filled and sealed."""
        path = os.path.join(self.directory, "%s-%d" % (key, time.time_ns()))
        os.makedirs(os.path.join(path, "users"))
        return SharedEnvironment(path)

    def clean(self, days: float = MAX_DAYS, everything: bool = False) -> List[Tuple[str, Sequence[str]]]:
        """Remove what is damaged, unused for `days`, or least recently used above MOST, or all; never what is in use.
        Returns a sentence for each, and what could not be removed of it."""
        lines: List[Tuple[str, Sequence[str]]] = []
        for number, each in enumerate(sorted(self._every(), key=lambda each: each.unused_days), 1):
            is_whole = each.record.lock or each.unused_days < _MAKING_DAYS
            if is_whole and each.unused_days <= days and number <= MOST and not everything:
                continue
            with file_lock(self._lock, exclusive=True, timeout=LOCK_SECONDS):  # no command takes it meanwhile
                if each.is_used:
                    continue
                each.give_up()
            why = "unused for %.0f days" % each.unused_days if is_whole else "not complete"
            lines.append(("environment %s: removed, %s" % (each.name, why), remove_tree(each.path, None, "none", {})))
        return lines

    def _every(self) -> List[SharedEnvironment]:
        entries = os.scandir(self.directory) if os.path.isdir(self.directory) else ()
        return [SharedEnvironment(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


# -- files that must stay as they are ----------------------------------------------------------------------------------


def write_listing(path: str, top: str) -> None:
    """Note in the file `path` what is below `top`."""
    listed = (b"%s\t%s\0" % (state, os.fsencode(file)) for file, state in _states(top).items())
    replace_file(path, b"".join(listed))


def read_listing(path: str) -> Dict[str, bytes]:
    """Without the list nothing is listed: every file counts as changed."""
    lines = (line.split(b"\t", 1) for line in content_of(path).split(b"\0")[:-1])
    return {os.fsdecode(file): state for state, file in lines}


def changed_files(listed: Mapping[str, bytes], top: str) -> List[str]:
    """The files below `top` that are not as listed. Byte code that a row has cached is removed, and is not among them:
    Python would run it without a look at the source."""
    now = _states(top)
    changed = sorted(file for file in {*listed, *now} if listed.get(file) != now.get(file))
    byte_code = {file for file in changed if os.path.basename(os.path.dirname(file)) == "__pycache__"}
    for file in byte_code:
        with suppress(OSError):
            os.unlink(os.path.join(top, file))
    return [file for file in changed if file not in byte_code or os.path.lexists(os.path.join(top, file))]


def _states(top: str) -> Dict[str, bytes]:
    """Each file and link below `top`, but for git's own, with all that stat says of it but the time of its last access.
    Only root can choose the time of a file's last change (ctime)."""
    found: Dict[str, bytes] = {}
    for directory, names, files in os.walk(top):
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        names[:] = [name for name in names if name != ".git"]
        for path in (os.path.join(directory, name) for name in files + links):
            with suppress(OSError):  # it is gone by now
                info = os.lstat(path)
                # uv links files of its cache into a venv, and a further link is such a change.
                changed_at = 0 if info.st_nlink > 1 else info.st_ctime_ns
                values = (info.st_mode, info.st_size, info.st_mtime_ns, changed_at, info.st_ino)
                found[os.path.relpath(path, top)] = b"%d %d %d %d %d" % values
    return found
