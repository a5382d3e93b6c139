"""The environments of a host: found by their key, checked before use, removed when unused for long or too large."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from contextlib import suppress
from typing import Dict, List, Optional, Sequence, Tuple

from ..cleanup.remove_tree import remove_tree
from ..quick_dataclass import dataclass
from ..run_directory import read_record, write_record

MAX_BYTES = 30 << 30  # of all environments together
MAX_DAYS = 14.0  # without use
_MAKING_DAYS = 0.25  # within which it is complete


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: `lock` are the distributions as name==version, `bytes` the size of their files, `seconds` how
    long the steps took."""

    lock: Tuple[str, ...] = ()
    made_at: float = 0.0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def expected(self) -> str:
        """What to expect of steps that install it again."""
        minutes = "%.0f min" % (self.seconds / 60) if self.seconds >= 90 else "%.0f s" % self.seconds
        return "%d packages, %.1f GB, about %s" % (len(self.lock), self.bytes / 1e9, minutes)

    @property
    def description(self) -> str:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made_at))
        digest = hashlib.sha256("\n".join(self.lock).encode()).hexdigest()[:8]
        return "%d packages, resolved %s, lock %s" % (len(self.lock), day, digest)


class Environment:
    """The one in the directory `path`. Its record is empty if it is not complete, or was given up."""

    def __init__(self, path: str) -> None:
        self.path, self.name, self.prefix = path, os.path.basename(path), os.path.join(path, "prefix")
        self._users, self._record = os.path.join(path, "users"), os.path.join(path, "environment.json")
        self.record = EnvironmentRecord()
        with suppress(ValueError):
            self.record = read_record(EnvironmentRecord, self._record) or self.record
        self.unused_days = (time.time() - os.stat(path).st_mtime) / 86400

    @property
    def is_used(self) -> bool:
        """Whether a venv over it exists."""
        links = glob.glob(os.path.join(glob.escape(self._users), "*"))
        return any(os.path.islink(link) and os.path.exists(link) for link in links)

    def add_user(self, venv: str) -> None:
        """It stays as long as the venv exists."""
        os.makedirs(venv, exist_ok=True)
        link = os.path.join(self._users, hashlib.sha256(os.fsencode(venv)).hexdigest())
        if not os.path.lexists(link):
            os.symlink(os.path.abspath(venv), link)
        os.utime(self.path)

    def seal(self, record: EnvironmentRecord) -> None:
        """It is complete: what stat says of its files is noted."""
        self.record = record
        with open(os.path.join(self.path, "files"), "wb") as out:
            out.writelines(b"%s\t%s\0" % (state, os.fsencode(file)) for file, state in _states(self.prefix).items())
        write_record(self._record, record)

    def damage(self) -> str:
        """Which of its files are not as they were stored; empty if all are. Byte code that a row has cached is removed:
        Python would run it without a look at the source."""
        with open(os.path.join(self.path, "files"), "rb") as source:
            lines = (line.split(b"\t", 1) for line in source.read().split(b"\0")[:-1])
            stored = {os.fsdecode(file): state for state, file in lines}
        now = _states(self.prefix)
        changed = sorted(file for file in {*stored, *now} if stored.get(file) != now.get(file))
        changed = [file for file in changed if not _is_removed_cache(os.path.join(self.prefix, file))]
        return "%d of %d files differ, %s is the first" % (len(changed), len(stored), changed[0]) if changed else ""

    def give_up(self) -> None:
        """It is not used again, and removed when no venv is over it."""
        with suppress(FileNotFoundError):
            os.unlink(self._record)


class EnvironmentStore:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def all(self, key: str = "") -> List[Environment]:
        """Those that can be used and whose keys begin with `key`, the newest first."""
        found = [each for each in self._every() if each.record.lock and each.name.startswith(key)]
        return sorted(found, key=lambda each: each.record.made_at, reverse=True)

    def take(self, key: str, venv: str) -> Optional[Environment]:
        """The newest environment with this key, with `venv` among its users."""
        newest = next(iter(self.all(key)), None)
        if newest is not None:
            newest.add_user(venv)
        return newest

    def new(self, key: str) -> Environment:
        """One to be filled and sealed."""
        path = os.path.join(self.directory, "%s-%d" % (key, time.time_ns()))
        os.makedirs(os.path.join(path, "users"))
        return Environment(path)

    def clean(self, days: float = MAX_DAYS, everything: bool = False) -> List[Tuple[str, Sequence[str]]]:
        """Remove what is damaged, unused for `days`, or least recently used above MAX_BYTES, or all; never what is in
        use. Returns a sentence for each, and what could not be removed of it."""
        lines: List[Tuple[str, Sequence[str]]] = []
        size = 0
        for each in sorted(self._every(), key=lambda each: each.unused_days):
            size += each.record.bytes
            is_whole = each.record.lock or each.unused_days < _MAKING_DAYS
            stays = is_whole and each.unused_days <= days and size <= MAX_BYTES and not everything
            if not stays and not each.is_used:
                size -= each.record.bytes
                each.give_up()  # a command that takes it at this moment sees that its files go
                why = "unused for %.0f days" % each.unused_days if is_whole else "not complete"
                lines.append(
                    ("environment %s: removed, %s" % (each.name, why), remove_tree(each.path, None, "none", {}))
                )
        return lines

    def _every(self) -> List[Environment]:
        with suppress(FileNotFoundError):
            return [Environment(each.path) for each in os.scandir(self.directory) if each.is_dir(follow_symlinks=False)]
        return []


def _states(top: str) -> Dict[str, bytes]:
    """Each file and link below `top`, with all that stat says of it but the time of its last access. Only root can
    choose the time of a file's last change (ctime)."""
    states: Dict[str, bytes] = {}
    for directory, names, files in os.walk(top):
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in files + links:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            fields = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
            states[path[len(top) + 1 :]] = b"%d %d %d %d %d" % fields
    return states


def _is_removed_cache(path: str) -> bool:
    """Whether it was byte code, which is gone now."""
    if os.path.basename(os.path.dirname(path)) != "__pycache__":
        return False
    with suppress(OSError):
        os.unlink(path)
    return not os.path.lexists(path)
