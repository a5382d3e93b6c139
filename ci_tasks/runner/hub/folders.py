"""Where the files of a repository lie on disk, in huggingface_hub's two layouts, so that its own download finds all.

With `--local-dir DIR`: DIR/FILE, and DIR/.cache/huggingface/download/FILE.metadata, of three lines: commit, etag, the
time at which both were true. Without: blobs by etag, and a snapshot of links to them for each commit. The etag is the
sha256 of a large file, git's blob hash of another.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .names import check_file, check_hashes
from .refused import HOSTILE, HubRefused

FILES, CACHE = "files", "cache"
THERE, UNSURE, PART, ABSENT = "there", "unsure", "part", "absent"
_SAME_TIME = 1.0  # seconds by which a file system's time may be ahead of ours, as the library allows


@dataclass(frozen=True)
class File:
    """A file of a repository: its path there, size in bytes and etag."""

    path: str
    size: int
    etag: str

    def hasher(self) -> Any:
        """What the etag is made with."""
        if len(self.etag) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size)


@dataclass(frozen=True)
class Wanted:
    """One repository at one commit, and where it is to be. `revision` is the name that led to the commit, `part` a name
    for which of its files are wanted, of hexadecimal digits."""

    kind: str
    id: str
    revision: str
    commit: str
    directory: str
    layout: str
    files: Tuple[File, ...]
    endpoint: str = ""
    part: str = "0"

    @classmethod
    def read(cls, given: Dict[str, Any]) -> "Wanted":
        """From a request. Raises HubRefused for names that lead elsewhere."""
        files = tuple(File(str(path), int(size), str(etag)) for path, size, etag in given["files"])
        for file in files:
            check_file(file.path)
        check_hashes(str(given["commit"]), [file.etag for file in files])
        for name in [*str(given["id"]).split("/"), *str(given["revision"]).split("/")]:
            check_file(name)
        directory = os.path.expanduser(str(given["directory"]))
        if not os.path.isabs(directory):
            raise HubRefused(HOSTILE, "%s is not an absolute path" % ascii(directory))
        part = str(given.get("part") or "0")
        if not all(char in "0123456789abcdef" for char in part):
            raise HubRefused(HOSTILE, "%s is no name of a part" % ascii(part[:80]))
        names = ("kind", "id", "revision", "commit", "layout", "endpoint")
        return cls(
            directory=os.path.normpath(directory), files=files, part=part, **{name: str(given[name]) for name in names}
        )


class Folder:
    """The files of one repository in one directory, with `--local-dir`."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.top = wanted.directory
        self._notes = os.path.join(self.top, ".cache", "huggingface")

    @property
    def lock(self) -> str:
        """Held by whoever fetches the repository."""
        return os.path.join(self._notes, "ci-tasks.lock")

    def file(self, file: File) -> str:
        return os.path.join(self.top, *file.path.split("/"))

    def file_lock(self, file: File) -> str:
        """The library's own: a download of the test's, at the same time, waits for ours, and ours for it."""
        return os.path.splitext(self._note(file))[0] + ".lock"

    def incomplete(self, file: File) -> str:
        """The library's name too: what an older one of it left half done is gone on with."""
        note = self._note(file)
        name = base64.urlsafe_b64encode(hashlib.sha1(os.path.basename(note).encode()).digest()).decode()
        return os.path.join(os.path.dirname(note), "%s.%s.incomplete" % (name, file.etag))

    def state(self, file: File) -> str:
        """UNSURE: something of the right size is there, and nothing says what it is."""
        try:
            found = os.stat(self.file(file))
        except OSError:
            return PART if os.path.exists(self.incomplete(file)) else ABSENT
        if not os.path.isfile(self.file(file)) or found.st_size != file.size:
            return ABSENT
        note = self._read(file)
        if note is None or found.st_mtime - _SAME_TIME > note[2]:
            return UNSURE
        return THERE if note[1] == file.etag else ABSENT

    def settle(self, file: File, incomplete: Optional[str]) -> None:
        """The content is what it should be: let it be found. `incomplete` is what becomes the file, if it is not there
        yet."""
        if incomplete is not None:
            os.makedirs(os.path.dirname(self.file(file)), exist_ok=True)
            os.replace(incomplete, self.file(file))
        note = self._note(file)
        os.makedirs(os.path.dirname(note), exist_ok=True)
        whole = "%s\n%s\n%r\n" % (self.wanted.commit, file.etag, max(time.time(), os.stat(self.file(file)).st_mtime))
        _write(note, whole)

    @property
    def receipt(self) -> str:
        """What was all there once: who cannot ask the hub, compares with that."""
        return os.path.join(os.path.dirname(self.lock), "ci-tasks-%s.json" % self.wanted.part)

    def acknowledge(self) -> None:
        """Write the receipt."""
        files = [[file.path, file.size, file.etag] for file in self.wanted.files]
        _write(self.receipt, json.dumps({"commit": self.wanted.commit, "files": files}))

    def finish(self) -> None:
        """Every file is there: say of which commit they are, so that nobody need ask about each again."""
        self._ignore()
        for file in self.wanted.files:
            note = self._read(file)
            if note is not None and note[0] != self.wanted.commit:
                with contextlib.suppress(PermissionError):  # another's note: its etag says enough
                    self.settle(file, None)

    def _ignore(self) -> None:
        """Beside a checkout, notes are nothing to commit: the library does the same."""
        path = os.path.join(self._notes, ".gitignore")
        with contextlib.suppress(OSError):
            if not os.path.exists(path):
                _write(path, "*")

    def _note(self, file: File) -> str:
        return os.path.join(self._notes, "download", *file.path.split("/")) + ".metadata"

    def _read(self, file: File) -> Optional[Tuple[str, str, float]]:
        try:
            with open(self._note(file), encoding="utf-8") as source:
                commit, etag, when = source.read().split()
            return commit, etag, float(when)
        except (OSError, ValueError):
            return None


class Cache(Folder):
    """The hub's own cache, which several repositories share."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._name = "--".join(["%ss" % wanted.kind, *wanted.id.split("/")])
        self.top = os.path.join(wanted.directory, self._name)
        self._locks = os.path.join(wanted.directory, ".locks", self._name)

    @property
    def lock(self) -> str:
        return os.path.join(self._locks, "ci-tasks.lock")

    def file(self, file: File) -> str:
        return os.path.join(self.top, "blobs", file.etag)

    def file_lock(self, file: File) -> str:
        return os.path.join(self._locks, file.etag + ".lock")

    def incomplete(self, file: File) -> str:
        return self.file(file) + ".incomplete"

    def state(self, file: File) -> str:
        try:
            if os.stat(self.file(file)).st_size == file.size:
                return THERE if os.path.exists(self._link(file)) else UNSURE
        except OSError:
            pass
        return PART if os.path.exists(self.incomplete(file)) else ABSENT

    def settle(self, file: File, incomplete: Optional[str]) -> None:
        if incomplete is not None:
            os.makedirs(os.path.dirname(self.file(file)), exist_ok=True)
            os.replace(incomplete, self.file(file))
        link = self._link(file)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.exists(link):
            beside = "%s.%d" % (link, os.getpid())
            os.symlink(os.path.relpath(self.file(file), os.path.dirname(link)), beside)
            os.replace(beside, link)

    def finish(self) -> None:
        if self.wanted.revision != self.wanted.commit:
            ref = os.path.join(self.top, "refs", *self.wanted.revision.split("/"))
            os.makedirs(os.path.dirname(ref), exist_ok=True)
            _write(ref, self.wanted.commit)

    def _link(self, file: File) -> str:
        return os.path.join(self.top, "snapshots", self.wanted.commit, *file.path.split("/"))


def folder_of(wanted: Wanted) -> Folder:
    return Cache(wanted) if wanted.layout == CACHE else Folder(wanted)


def recall(given: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The request as it was when all of it was there; None where nobody knows. Raises HubRefused."""
    folder = folder_of(Wanted.read({**given, "commit": "0" * 40, "files": []}))
    try:
        with open(folder.receipt, encoding="utf-8") as source:
            known = json.load(source)
        return {**given, "commit": known["commit"], "files": known["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stay_inside(folder: Folder) -> None:
    """No link below the repository's directory leads out of it. Raises HubRefused."""
    top = os.path.realpath(folder.top)
    for directory in sorted({os.path.dirname(folder.file(file)) for file in folder.wanted.files}):
        real = os.path.realpath(directory)
        if real != top and not real.startswith(top.rstrip("/") + "/"):
            raise HubRefused(HOSTILE, "%s is a link that leads out of %s" % (directory, folder.top))


def existing(path: str) -> str:
    """The nearest directory above `path`, or itself, that is there."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def mount_of(path: str) -> str:
    """The mount that `path` is on, or will be on."""
    path = os.path.realpath(existing(path))
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _write(path: str, text: str) -> None:
    beside = "%s.%d" % (path, os.getpid())
    try:
        with open(beside, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def by_state(folder: Folder) -> Dict[str, List[File]]:
    """The repository's files by their state."""
    found: Dict[str, List[File]] = {THERE: [], UNSURE: [], PART: [], ABSENT: []}
    for file in folder.wanted.files:
        found[folder.state(file)].append(file)
    return found
