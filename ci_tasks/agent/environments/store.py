"""The environments of a host: found by their key, checked before use, removed when unused for long or too large."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from typing import Dict, Iterator, List, Optional, Tuple

from .. import run_directory
from ..cleanup.remove_tree import remove_tree
from ..file_lock import file_lock
from ..quick_dataclass import dataclass
from ..setup_manifest import PREFIX, changed_files, differing, recorded_content

RECORD, DAMAGED, USERS = "environment.json", "damaged.json", "users"
MAX_BYTES = 30 << 30  # of all environments together
MAX_DAYS = 14.0  # without use
_LOCK_SECONDS = 60.0
_STAGING = ".staging-"
_STAGING_SECONDS = 6 * 3600.0  # no install steps are being stored for longer
_DAY = 86400.0


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: `lock` are the distributions as name==version, `scripts_of` the venv that they were installed
    into, `bytes` what the environment has for itself or shares with others, `seconds` how long the steps took."""

    key: str
    lock: Tuple[str, ...] = ()
    made_at: float = 0.0
    scripts_of: str = ""
    bytes: int = 0
    seconds: float = 0.0

    @property
    def expected(self) -> str:
        """What to expect of steps that install it again."""
        time_taken = ", about %.0f min" % (self.seconds / 60) if self.seconds >= 90 else ", about %.0f s" % self.seconds
        return "%d packages, %.1f GB%s" % (len(self.lock), self.bytes / 1e9, time_taken if self.seconds else "")

    @property
    def lock_hash(self) -> str:
        return hashlib.sha256("\n".join(self.lock).encode()).hexdigest()[:8]

    @property
    def description(self) -> str:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made_at))
        return "%d packages, resolved %s, lock %s" % (len(self.lock), day, self.lock_hash)


@dataclass(frozen=True)
class StoredEnvironment:
    path: str
    record: EnvironmentRecord = field(default_factory=lambda: EnvironmentRecord(""))

    @property
    def prefix(self) -> str:
        return os.path.join(self.path, PREFIX)

    @property
    def last_use(self) -> float:
        with suppress(OSError):
            return os.stat(os.path.join(self.path, USERS)).st_mtime
        return 0.0

    def users(self) -> List[str]:
        """The venvs over it that exist."""
        paths = []
        with suppress(OSError):
            for entry in os.scandir(os.path.join(self.path, USERS)):
                with open(entry.path, encoding="utf-8", errors="surrogateescape") as source:
                    path = source.read()
                if os.path.lexists(path):
                    paths.append(path)
                else:
                    os.unlink(entry.path)
        return paths

    def add_user(self, venv: str) -> None:
        """It stays as long as the venv exists."""
        os.makedirs(venv, exist_ok=True)
        name = hashlib.sha256(os.fsencode(venv)).hexdigest()[:16]
        users = os.path.join(self.path, USERS)
        with open(os.path.join(users, name), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(os.path.abspath(venv))
        os.utime(users)

    def damage(self) -> str:
        """Which of its files are not as they were stored; empty where all are."""
        if not os.path.exists(os.path.join(self.path, PREFIX + ".manifest")):
            return "the list of its files is gone"
        changed = changed_files(self.path, (PREFIX,))
        return differing([name[len(PREFIX) + 1 :] for name in changed]) if changed else ""

    def give_up(self) -> None:
        """It is not used again, and removed when nobody uses it."""
        with suppress(OSError):
            os.replace(os.path.join(self.path, RECORD), os.path.join(self.path, DAMAGED))


class EnvironmentStore:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        os.makedirs(self.directory, exist_ok=True)
        with file_lock(os.path.join(self.directory, "lock"), exclusive=True, timeout=_LOCK_SECONDS):
            yield

    def all(self) -> List[StoredEnvironment]:
        """Those which can be used, the newest first."""
        found = [
            StoredEnvironment(path, record)
            for path in self._directories()
            for record in [_record(path)]
            if record and not os.path.basename(path).startswith(".")
        ]
        return sorted(found, key=lambda environment: environment.record.made_at, reverse=True)

    def take(self, key: str, venv: str) -> Optional[StoredEnvironment]:
        """The newest environment with this key, with `venv` among its users."""
        with self.locked():
            for environment in self.all():
                if environment.record.key == key:
                    environment.add_user(venv)
                    return environment
        return None

    def new_directory(self) -> str:
        os.makedirs(self.directory, exist_ok=True)
        return tempfile.mkdtemp(prefix=_STAGING, dir=self.directory)

    def add(self, staging: str, record: EnvironmentRecord, venv: str) -> StoredEnvironment:
        """Put a complete directory in its place. One with the same files may be there: it counts as resolved now."""
        os.makedirs(os.path.join(staging, USERS), exist_ok=True)
        with self.locked():
            path, there = self._place(staging, record)
            if there is not None:
                # Its scripts are those of the venv that it was made from.
                record = replace(record, scripts_of=there.record.scripts_of, bytes=there.record.bytes)
                there.add_user(venv)
                run_directory.write_record(os.path.join(path, RECORD), record)
            else:
                StoredEnvironment(staging).add_user(venv)
                run_directory.write_record(os.path.join(staging, RECORD), record)
                os.rename(staging, path)
        return StoredEnvironment(path, record)

    def _place(self, staging: str, record: EnvironmentRecord) -> Tuple[str, Optional[StoredEnvironment]]:
        """The path for a complete directory, and what is there already if that has the same files. The same versions
        need not be the same files: an index may have replaced them."""
        first = os.path.join(self.directory, "%s-%s" % (record.key[:16], record.lock_hash))
        for number in itertools.count(1):
            path = first if number == 1 else "%s-%d" % (first, number)
            known = _record(path)
            there = StoredEnvironment(path, known) if known else None
            if there is not None and there.damage():
                there.give_up()
                there = None
            if there is None:
                if os.path.lexists(path):  # damaged, and perhaps in use
                    os.rename(path, tempfile.mktemp(prefix=".damaged-", dir=self.directory))
                return path, None
            if _installed(staging) == _installed(path):
                return path, there
        raise AssertionError("there are more numbers")

    def evict(self, max_bytes: float = MAX_BYTES, max_days: float = MAX_DAYS) -> List[Tuple[str, Tuple[str, ...]]]:
        """Remove what is damaged, half made, unused for `max_days`, or least recently used above `max_bytes`; never
        what is in use. Returns a sentence for each, and what could not be removed of it."""
        doomed: List[Tuple[str, str]] = []
        with self.locked():
            whole = sorted(self.all(), key=lambda environment: environment.last_use, reverse=True)
            known = {environment.path for environment in whole}
            for path in self._directories():
                if path not in known and _is_left(path):
                    doomed.append((path, "not complete"))
            total = 0
            for environment in whole:
                old = time.time() - environment.last_use > max_days * _DAY
                if (old or total + environment.record.bytes > max_bytes) and not environment.users():
                    why = "unused for %g days" % max_days if old else "least recently used"
                    doomed.append((environment.path, "%s; %s" % (why, environment.record.description)))
                else:
                    total += environment.record.bytes
            going = [(self._set_aside(path), "environment %s" % os.path.basename(path), why) for path, why in doomed]
        return [
            ("%s: removed, %s" % (name, why), tuple(remove_tree(path, None, "none", {}))) for path, name, why in going
        ]

    def _set_aside(self, path: str) -> str:
        """Out of sight at once; removing it takes seconds."""
        aside = tempfile.mktemp(prefix=".removed-", dir=self.directory)
        os.rename(path, aside)
        return aside

    def clean(self, days: float, everything: bool) -> Iterator[Tuple[str, Tuple[str, ...]]]:
        """Remove what is old, or all that is not in use. Yields a sentence for each, and what is left of it."""
        if not os.path.isdir(self.directory):
            return
        yield from self.evict(0 if everything else MAX_BYTES, days)
        for environment in self.all() if everything else ():
            for user in environment.users()[:1]:
                yield "environment %s: stays, %s uses it" % (os.path.basename(environment.path), user), ()

    def _directories(self) -> List[str]:
        try:
            return sorted(entry.path for entry in os.scandir(self.directory) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return []


def _record(path: str) -> Optional[EnvironmentRecord]:
    try:
        return run_directory.read_record(EnvironmentRecord, os.path.join(path, RECORD))
    except (OSError, ValueError):
        return None


def _installed(path: str) -> Dict[bytes, bytes]:
    """What pip installed, but for what names the venv that it was for: scripts, byte code, their hashes in RECORD."""
    return {
        file: content
        for file, content in recorded_content(path, PREFIX).items()
        if not file.startswith(b"/bin/") and not file.endswith((b".pyc", b".dist-info/RECORD"))
    }


def _is_left(path: str) -> bool:
    """Whether a directory that is no environment can go: nothing is being made there, and nobody uses it."""
    if os.path.basename(path).startswith(_STAGING):
        with suppress(OSError):
            return time.time() - os.stat(path).st_mtime > _STAGING_SECONDS
    return not StoredEnvironment(path).users()
