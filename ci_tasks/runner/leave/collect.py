"""Brings a run's logs out of where it ran, before that is removed: Ray's, and the paths that the plan names.

SGLang has no log file of its own: inside Ray's workers, what it prints is in Ray's logs. From a container comes the tar
stream of `docker cp`, of which only plain files and directories are taken. Without containers the host's own paths are
read, and only what changed since the run began.
"""

from __future__ import annotations

import os
import stat
import tarfile
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from .. import layout
from ..docker.containers import Container
from ..environment import secret_values
from .copyout import CopyOut, TimeUp
from .cores import find_cores
from .intake import Intake

RAY_LOGS = "/tmp/ray/session_latest/logs"  # session_latest is a link to the newest session
SECONDS = 60.0  # for everything that is copied
SLACK = 2.0  # seconds by which a file system's clock may lag behind ours
HOST = "host"
_File = Tuple[str, str, int]
_SLOW = "not all of it came within %.0f s" % SECONDS


def collect(
    paths: layout.RunDir, plan: Dict[str, Any], found: List[Container], began: float, failed: bool
) -> List[str]:
    """Fill `artifacts`. Returns what went wrong on the way; nothing of it changes how the run ended."""
    if not os.path.isdir(paths.artifacts) or os.path.islink(paths.artifacts):
        return []
    intake = Intake(paths, secret_values(plan))
    steps: List[Callable[[], None]] = [
        lambda: find_cores(paths, plan, found if failed else []),
        lambda: _copy(intake, paths, plan, found, began),
        intake.close,
    ]
    problems = []
    for step in steps:
        try:
            step()
        except OSError as error:
            problems.append("artifacts are not complete: %s" % error)
    return problems


def _copy(intake: Intake, paths: layout.RunDir, plan: Dict[str, Any], found: List[Container], began: float) -> None:
    until = time.monotonic() + SECONDS
    for container in found:
        for path in _wanted(plan):
            _from_container(intake, container, path, until)
    runtime = (plan.get("container") or {}).get("runtime")
    if runtime == "none":
        for path in _wanted(plan):
            _from_host(intake, paths, path, began - SLACK, until)
    elif runtime in ("pyxis", "apptainer"):
        _from_scratch(intake, paths, until)


def _wanted(plan: Dict[str, Any]) -> List[str]:
    """Absolute paths, none of them inside another."""
    wanted: List[str] = []
    given = [os.path.normpath(path) for path in [RAY_LOGS, *(plan.get("artifacts") or [])] if path[:1] == "/"]
    for path in sorted(given):
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in wanted):
            wanted.append(path)
    return wanted


# -- out of a container ----------------------------------------------------------------------------------------------


def _from_container(intake: Intake, container: Container, path: str, until: float) -> None:
    where = "container-%d" % container.nth
    try:
        with CopyOut(container.client, container.id, path, until) as entries:
            for inner, entry, archive in entries:
                _take(intake, where, inner, entry, archive)
    except TimeUp:
        intake.leave(where, path, None, _SLOW)
    except tarfile.TarError:
        intake.leave(where, path, None, "the copy broke off")


def _take(intake: Intake, where: str, inner: str, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    if entry.isdir():
        return
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None:
        intake.leave(where, inner, None, "neither a plain file nor a directory")
    else:
        intake.add(where, inner, entry.size, content.read)


def _from_scratch(intake: Intake, paths: layout.RunDir, until: float) -> None:
    """Ray's logs of containers without a daemon, whose /tmp is in the run directory."""
    scratch = os.path.join(paths.path, "tmp")
    for where in sorted(os.listdir(scratch) if os.path.isdir(scratch) else []):
        for below in ("ray", os.path.join("tmp", "ray")):
            session = _newest_session(os.path.join(scratch, where, below))
            if where.startswith("container-") and session:
                logs = _files(os.path.join(session, "logs"), os.path.realpath(paths.artifacts))
                _take_files(intake, where, os.path.join(session, "logs"), RAY_LOGS, logs, 0.0, until)


def _newest_session(ray: str) -> Optional[str]:
    """The link to it leads to a path inside of the container."""
    try:
        found = [entry for entry in os.scandir(ray) if entry.name.startswith("session_") and not entry.is_symlink()]
    except OSError:
        return None
    sessions = [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    return max(sessions, key=lambda entry: entry.stat().st_mtime).path if sessions else None


# -- from the host itself --------------------------------------------------------------------------------------------


def _from_host(intake: Intake, paths: layout.RunDir, path: str, since: float, until: float) -> None:
    top = os.path.realpath(path)
    # The run directory holds the artifacts themselves.
    _take_files(intake, HOST, top, path, _files(top, os.path.realpath(paths.path)), since, until)


def _take_files(
    intake: Intake, where: str, top: str, path: str, files: Iterable[_File], since: float, until: float
) -> None:
    """The plain files in `top` that changed since, under the names that they have below `path`."""
    only_ours = path == RAY_LOGS  # whoever started Ray last has the link
    for name, directory, held in files:
        if time.monotonic() > until:
            intake.leave(where, path, None, _SLOW)
            return
        handle = _open(name, held)
        if handle is None:
            continue
        with os.fdopen(handle, "rb", buffering=0) as source:
            fact = os.fstat(handle)
            if not stat.S_ISREG(fact.st_mode) or fact.st_mtime < since or (only_ours and fact.st_uid != os.geteuid()):
                continue
            inner = path + os.path.join(directory, name)[len(top) :]
            intake.add(where, inner, fact.st_size, _at_most(source, fact.st_size))


def _files(top: str, apart: str) -> Iterator[_File]:
    """Names, the directory they are in, and that directory held open, so that nobody can put a link in the way;
    without what is in `apart`."""
    if os.path.isdir(top):
        for directory, subdirectories, names, held in os.fwalk(top):
            subdirectories[:] = sorted(name for name in subdirectories if os.path.join(directory, name) != apart)
            for name in sorted(names):
                yield name, directory, held
    elif os.path.isfile(top):
        held = os.open(os.path.dirname(top), os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield os.path.basename(top), os.path.dirname(top), held
        finally:
            os.close(held)


def _open(name: str, held: int) -> Optional[int]:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held)
    except OSError:
        return None  # a link, a socket, somebody else's


def _at_most(source: Any, size: int) -> Callable[[int], bytes]:
    """A log that still grows is taken as long as it was."""
    left = [size]

    def read(wanted: int) -> bytes:
        found: bytes = source.read(min(wanted, left[0]))
        left[0] -= len(found)
        return found

    return read
