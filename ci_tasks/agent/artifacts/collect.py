"""Collects a run's artifacts before its containers are removed: Ray's logs, and the paths that the plan names.

SGLang has no log file of its own: inside Ray's workers, what it prints is in Ray's logs. From a container comes the tar
stream of `docker cp`, of which only plain files and directories are taken. Without containers the host's own paths are
read, and only what changed since the run began.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

from .. import run_directory
from ..containers.run_containers import RunContainer
from ..records import Plan
from .core_files import find_cores
from .docker_cp import container_files
from .limits import ArtifactWriter

RAY_LOGS = "/tmp/ray/session_latest/logs"  # session_latest is a link to the newest session
MAX_SECONDS = 60.0  # for everything that is copied
CLOCK_SLACK = 2.0  # seconds by which a file system's clock may lag behind ours
HOST = "host"
_TIMED_OUT = "not copied within %.0f s" % MAX_SECONDS

_File = Tuple[str, str, int]  # its name, its directory, and that directory's open descriptor


def collect(
    paths: run_directory.RunDir, plan: Plan, containers: List[RunContainer], began: float, failed: bool
) -> List[str]:
    """Fill `artifacts`. Returns a line for each problem; none of them changes how the run ended."""
    if not os.path.isdir(paths.artifacts) or os.path.islink(paths.artifacts):
        return []
    copy = _ArtifactCopy(paths, plan)
    steps: List[Callable[[], None]] = [
        lambda: find_cores(paths, plan, containers if failed else []),
        lambda: copy.run(containers, began),
        copy.writer.close,
    ]
    problems = []
    for step in steps:
        try:
            step()
        except OSError as error:
            problems.append("artifacts are not complete: %s" % error)
    return problems


def artifact_paths(plan: Plan) -> List[str]:
    """Absolute paths, none of them inside another."""
    chosen: List[str] = []
    for path in sorted(os.path.normpath(path) for path in [RAY_LOGS, *plan.artifacts] if path[:1] == "/"):
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in chosen):
            chosen.append(path)
    return chosen


class _ArtifactCopy:
    def __init__(self, paths: run_directory.RunDir, plan: Plan) -> None:
        self.paths, self.plan = paths, plan
        self.writer = ArtifactWriter(paths)
        self._deadline = 0.0

    def run(self, containers: List[RunContainer], began: float) -> None:
        self._deadline = time.monotonic() + MAX_SECONDS
        for path in artifact_paths(self.plan):
            for container in containers:
                self._from_container(container, path)
            if self.plan.container_runtime == "none":
                top = os.path.realpath(path)
                # The run directory holds the artifacts themselves.
                files = _files(top, os.path.realpath(self.paths.path))
                self._add_files(HOST, top, path, files, began - CLOCK_SLACK)
        if self.plan.container_runtime in ("pyxis", "apptainer"):
            self._ray_logs_of_rootless_containers()

    def _from_container(self, container: RunContainer, path: str) -> None:
        import tarfile

        place = "container-%d" % container.number
        try:
            for inner, entry, archive in container_files(container.client, container.id, path, self._deadline):
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    self.writer.add(place, inner, entry.size, content.read)
                elif not entry.isdir():
                    self.writer.leave_out(place, inner, None, "neither a plain file nor a directory")
        except tarfile.TarError:
            is_late = time.monotonic() >= self._deadline
            self.writer.leave_out(place, path, None, _TIMED_OUT if is_late else "the copy broke off")

    def _ray_logs_of_rootless_containers(self) -> None:
        """Their /tmp is in the run directory."""
        scratch = os.path.join(self.paths.path, "tmp")
        for place in sorted(os.listdir(scratch) if os.path.isdir(scratch) else []):
            for below in ("ray", os.path.join("tmp", "ray")):
                session = _newest_session(os.path.join(scratch, place, below))
                if place.startswith("container-") and session:
                    top = os.path.join(session, "logs")
                    self._add_files(place, top, RAY_LOGS, _files(top, os.path.realpath(self.paths.artifacts)), 0.0)

    def _add_files(self, place: str, top: str, path: str, files: Iterable[_File], since: float) -> None:
        """The plain files in `top` that changed since, under the names that they have below `path`."""
        only_ours = path == RAY_LOGS  # whoever started Ray last has the link
        for name, directory, directory_fd in files:
            if time.monotonic() > self._deadline:
                self.writer.leave_out(place, path, None, _TIMED_OUT)
                return
            handle = _open(name, directory_fd)
            if handle is None:
                continue
            with os.fdopen(handle, "rb", buffering=0) as source:
                info = os.fstat(handle)
                foreign = only_ours and info.st_uid != os.geteuid()
                if stat.S_ISREG(info.st_mode) and info.st_mtime >= since and not foreign:
                    inner = path + os.path.join(directory, name)[len(top) :]
                    self.writer.add(place, inner, info.st_size, _read_at_most(source, info.st_size))


def _newest_session(ray: str) -> Optional[str]:
    """session_latest is a link to a path inside of the container."""
    try:
        entries = [entry for entry in os.scandir(ray) if entry.name.startswith("session_") and not entry.is_symlink()]
    except OSError:
        return None
    sessions = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return max(sessions, key=lambda entry: entry.stat().st_mtime).path if sessions else None


def _files(top: str, excluded: str) -> Iterator[_File]:
    """The files below `top`, or `top` itself, but for those in `excluded`. Their directory is held open, so that nobody
    can put a link in the way."""
    if os.path.isdir(top):
        for directory, subdirectories, names, directory_fd in os.fwalk(top):
            subdirectories[:] = sorted(name for name in subdirectories if os.path.join(directory, name) != excluded)
            for name in sorted(names):
                yield name, directory, directory_fd
    elif os.path.isfile(top):
        directory_fd = os.open(os.path.dirname(top), os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield os.path.basename(top), os.path.dirname(top), directory_fd
        finally:
            os.close(directory_fd)


def _open(name: str, directory_fd: int) -> Optional[int]:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
    except OSError:
        return None  # a link, a socket, another user's


def _read_at_most(source: Any, size: int) -> Callable[[int], bytes]:
    """A log that still grows is copied with the length that it had."""
    left = size

    def read(count: int) -> bytes:
        nonlocal left
        chunk: bytes = source.read(min(count, left))
        left -= len(chunk)
        return chunk

    return read
