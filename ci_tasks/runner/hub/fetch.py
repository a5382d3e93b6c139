"""A repository onto this host: `look` says how it stands and changes nothing, `fetch` brings what is missing.

One caller at a time fetches a repository into a directory, whoever they are; the others wait, and find it there.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, List, Mapping, Optional

from .alone import alone
from .folders import (
    ABSENT,
    PART,
    THERE,
    UNSURE,
    File,
    Folder,
    Wanted,
    by_state,
    existing,
    folder_of,
    mount_of,
    recall,
    stay_inside,
)
from .refused import CHECKSUM, DENIED, FULL, HubRefused
from .sizes import SPARE, human
from .transfer import CHUNK, Client, Stopped, address

AT_ONCE = 4  # files
EVERY = 0.5  # seconds between two words of how far it is
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

Tell = Callable[[Dict[str, Any]], None]


def look(given: Dict[str, Any]) -> Dict[str, Any]:
    """How a repository stands here, in bytes and files, and how much its mount has left. Raises HubRefused.

    Without `files`, since the hub could not be asked: as it was last seen here; {} where nobody knows."""
    request = given if given.get("files") is not None else recall(given)
    if request is None:
        return {}
    wanted = Wanted.read(request)
    folder = folder_of(wanted)
    found = by_state(folder)
    above = existing(folder.top)
    disk = os.statvfs(above)
    return {
        "commit": wanted.commit,
        "size": sum(file.size for file in wanted.files),
        "mount": mount_of(above),
        "free": disk.f_bavail * disk.f_frsize,
        "files": {state: len(files) for state, files in found.items()},
        "bytes": {
            **{state: sum(file.size for file in files) for state, files in found.items()},
            PART: sum(_part(folder, file) for file in found[PART]),
        },
        "missing": _missing(folder, found),
    }


def present(path: str) -> bool:
    """Whether something that no repository brings is there."""
    return os.path.exists(os.path.expanduser(path))


def fetch(
    given: Dict[str, Any],
    token: Optional[str],
    tell: Tell,
    proxies: Optional[Mapping[str, str]] = None,
    stop: Optional[threading.Event] = None,
) -> Dict[str, Any]:
    """Bring the files that are missing, each checked against the hub's checksum. Raises HubRefused, Stopped."""
    folder = folder_of(Wanted.read(given))
    client = Client(token, proxies, stop, lambda text: tell({"note": text}))
    try:
        stay_inside(folder)
        with alone(folder.lock, client.stop, lambda: tell({"waits": True})):
            return _fetch(folder, client, tell)
    except OSError as error:
        raise _refusal(error, folder.top) from None


def _fetch(folder: Folder, client: Client, tell: Tell) -> Dict[str, Any]:
    found = by_state(folder)
    missing, free = _missing(folder, found), _free(folder.top)
    if missing and missing > free - SPARE:
        raise HubRefused(FULL, "%s needs %s more and has %s free" % (folder.top, human(missing), human(free)))
    counter = _Counter(folder.wanted, sum(file.size for file in found[THERE]), tell)
    brought: List[File] = found[UNSURE] + found[PART] + found[ABSENT]
    _all(brought, lambda file: _bring(folder, file, client, counter), client.stop)
    left = [file.path for file in folder.wanted.files if folder.state(file) != THERE]
    if left:
        raise HubRefused(CHECKSUM, "%s changed while it was fetched: %s" % (folder.top, left[0]))
    folder.finish()
    folder.acknowledge()
    counter.tell(now=True)
    return {"files": len(brought), "bytes": counter.loaded}


def _all(files: List[File], bring: Callable[[File], None], stop: threading.Event) -> None:
    """The first that fails ends the others, and is what the caller hears of."""
    first: List[BaseException] = []

    def one(file: File) -> None:
        try:
            if not stop.is_set():
                bring(file)
        except BaseException as error:
            first.append(error)
            stop.set()

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        waiting = {pool.submit(one, file) for file in files}
        while waiting:  # not for ever at once: ^C is heard in between
            waiting = set(wait(waiting, timeout=1.0).not_done)
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown()
    if first:
        raise next((error for error in first if not isinstance(error, Stopped)), first[0])
    if stop.is_set():
        raise Stopped


def _bring(folder: Folder, file: File, client: Client, counter: _Counter) -> None:
    with alone(folder.file_lock(file), client.stop, lambda: None):
        state = folder.state(file)
        if state == UNSURE and _hash(folder.file(file), file) == file.etag:
            folder.settle(file, None)
            state = THERE
        if state == THERE:
            counter.add(file.size, loaded=0)
            return
        _download(folder, file, client, counter)


def _download(folder: Folder, file: File, client: Client, counter: _Counter) -> None:
    path, wanted = folder.incomplete(file), folder.wanted
    os.makedirs(os.path.dirname(path), exist_ok=True)
    url = address(wanted.endpoint, wanted.kind, wanted.id, wanted.commit, file.path)
    what = "%s of %s" % (file.path, wanted.id)
    went_on = _begin(path, file)
    while True:
        hasher = file.hasher()
        counter.add(_read(path, hasher.update), loaded=0)

        def take(chunk: bytes, hasher: Any = hasher) -> None:
            hasher.update(chunk)
            counter.add(len(chunk), loaded=len(chunk))

        try:
            client.get(url, what, path, file.size, take)
        except OSError as error:
            if error.errno in _FULL:  # whoever else needs that disk needs it more than half a file
                os.unlink(path)
            raise
        if hasher.hexdigest() == file.etag:
            break
        os.unlink(path)
        counter.add(-file.size, loaded=0)
        if not went_on:
            raise HubRefused(CHECKSUM, "%s: what came is not what the hub says it is" % what)
        went_on = _begin(path, file)  # what an earlier transfer had left was something else
    folder.settle(file, path)


def _begin(path: str, file: File) -> bool:
    """Whether there is a part to go on with."""
    with open(path, "ab") as part:
        if part.tell() > file.size:
            part.truncate(0)
        return os.fstat(part.fileno()).st_size > 0


def _hash(path: str, file: File) -> str:
    hasher = file.hasher()
    _read(path, hasher.update)
    return str(hasher.hexdigest())


def _read(path: str, take: Callable[[bytes], None]) -> int:
    size = 0
    with open(path, "rb") as source:
        for chunk in iter(lambda: source.read(CHUNK), b""):
            take(chunk)
            size += len(chunk)
    return size


class _Counter:
    """How far it is. `loaded` are the bytes that came over the network."""

    def __init__(self, wanted: Wanted, done: int, tell: Tell) -> None:
        self.loaded = 0
        self._done, self._tell = done, tell
        self._total = sum(file.size for file in wanted.files)
        self._change = threading.Lock()
        self._told = 0.0

    def add(self, count: int, loaded: int) -> None:
        with self._change:
            self._done += count
            self.loaded += loaded
        self.tell()

    def tell(self, now: bool = False) -> None:
        if now or time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self._tell({"done": self._done, "total": self._total, "loaded": self.loaded})


def _missing(folder: Folder, found: Mapping[str, List[File]]) -> int:
    """Bytes that are still to be written."""
    return sum(file.size - _part(folder, file) for state in (PART, ABSENT) for file in found[state])


def _part(folder: Folder, file: File) -> int:
    try:
        size = os.path.getsize(folder.incomplete(file))
    except OSError:
        return 0
    return size if size <= file.size else 0


def _free(path: str) -> int:
    disk = os.statvfs(existing(path))
    return disk.f_bavail * disk.f_frsize


def _refusal(error: OSError, directory: str) -> HubRefused:
    where = error.filename or directory
    if error.errno in _FULL:
        return HubRefused(FULL, "%s: %s; %s free" % (where, error.strerror, human(_free(directory))))
    if error.errno in _DENIED:
        return HubRefused(DENIED, "%s cannot be written: %s" % (where, error.strerror))
    return HubRefused(DENIED, "%s: %s" % (where, error.strerror or error))
