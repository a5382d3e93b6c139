"""Collects a run's artifacts before its containers are removed: Ray's logs, the paths that the plan names, and the
names of core files.

SGLang has no log file of its own: inside Ray's workers, what it prints is in Ray's logs. From a container comes the tar
stream of `docker cp`, of which only plain files are taken. Without containers the host's own paths are read, and only
what changed since the run began. Files are taken whole or not at all, within limits, and first into a fresh directory:
a link that a job left in `artifacts` could lead anywhere. Secrets are masked at the very end: see `exit_gate`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, Iterator, List, Optional, Tuple, cast

from .containers.run_containers import RunContainer
from .exit_gate import add_left_out
from .files import open_file, unused_path
from .records import CoreFile, CoreFiles, LeftOutFile, Plan
from .run_directory import RunDir, write_record

RAY_LOGS = "/tmp/ray/session_latest/logs"  # session_latest is a link to the newest session
LIMIT = 200 << 20  # bytes of one run
MAX_FILES = 20000
RESERVED_BYTES = 32 << 20  # bytes that stay free: the end of a run must still fit on the disk
MAX_SECONDS = 60.0  # for everything that is copied
CORE_SECONDS = 5.0  # for looking through the workspace
CLOCK_SLACK = 2.0  # seconds by which a file system's clock may lag behind ours
_MAX_CORES = 100
_CORE_NAME = re.compile(r"core(\.[^/]*)?\.\d+\Z|core\Z")  # not core.py


def collect(run: RunDir, plan: Plan, containers: List[RunContainer], began: float) -> List[str]:
    """Fill `artifacts`. Returns a line for each problem; none of them changes how the run ended."""
    if not os.path.isdir(run.artifacts) or os.path.islink(run.artifacts):
        return []
    try:
        _write_cores(run, plan)
        _Copy(run).collect(plan, containers, began)
    except OSError as error:
        return ["artifacts are not complete: %s" % error]
    return []


def artifact_paths(plan: Plan) -> List[str]:
    """Absolute paths, none of them inside another."""
    chosen: List[str] = []
    for path in sorted(os.path.normpath(path) for path in [RAY_LOGS, *plan.artifacts] if path[:1] == "/"):
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in chosen):
            chosen.append(path)
    return chosen


class _Copy:
    """Copies files into a directory beside `artifacts`, and moves it there."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._deadline = run, time.monotonic() + MAX_SECONDS
        self._left_out: List[LeftOutFile] = []
        self._bytes_left, self._files_left = LIMIT, MAX_FILES

    def collect(self, plan: Plan, containers: List[RunContainer], began: float) -> None:
        """Raises OSError."""
        self._top = tempfile.mkdtemp(prefix=".collected-", dir=self._run.path)
        try:
            for path in artifact_paths(plan):
                for container in containers:
                    self._add_from_container(container, path)
                if plan.container_runtime == "none":
                    self._add_from_host("host", os.path.realpath(path), path, began - CLOCK_SLACK)
            if plan.container_runtime in ("pyxis", "apptainer"):
                for place, session in _rootless_sessions(os.path.join(self._run.path, "tmp")):
                    self._add_from_host(place, os.path.join(session, "logs"), RAY_LOGS, 0.0)
            for name in sorted(os.listdir(self._top)):  # beside what the job itself may have put there
                os.rename(os.path.join(self._top, name), unused_path(os.path.join(self._run.artifacts, name)))
            if self._left_out:
                add_left_out(self._run.artifacts, self._left_out)
        finally:
            shutil.rmtree(self._top, ignore_errors=True)

    def _add_from_container(self, container: RunContainer, path: str) -> None:
        import tarfile  # it loads many modules

        place, is_podman = "container-%d" % container.number, container.client.runtime == "podman"
        # The path itself may be a link; those further up are followed anyway. podman has no -L, and needs none.
        try:
            process = container.client.stream("cp", *([] if is_podman else ["-L"]), f"{container.id}:{path}", "-")
        except OSError:
            return
        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), process.kill)
        timer.start()
        out = cast(Any, process.stdout)
        try:
            if out.peek(1):  # else the path does not exist there
                with tarfile.open(fileobj=out, mode="r|", errors="surrogateescape") as archive:
                    for entry in iter(archive.next, None):
                        archive.members = []  # type: ignore[attr-defined]  # else it keeps every entry of a huge tree
                        # The archive begins with the last part of the path that was asked for.
                        inner = path + entry.name[len(entry.name.split("/")[0]) :]
                        content = archive.extractfile(entry) if entry.isreg() else None
                        if content is not None:
                            self._add(place, inner, entry.size, cast(BinaryIO, content))
                        elif not entry.isdir():
                            self._leave_out(place, inner, "neither a plain file nor a directory")
            if time.monotonic() >= self._deadline:
                raise tarfile.ReadError("killed")
        except tarfile.TarError:
            self._leave_out(place, path, self._too_slow() or "the copy broke off")
        finally:
            timer.cancel()
            process.kill()
            out.close()
            process.wait()

    def _add_from_host(self, place: str, top: str, path: str, since: float) -> None:
        """The plain files in `top` that changed since, under the names that they have below `path`."""
        own = os.path.realpath(self._run.path)  # it holds the artifacts themselves
        for file in _files_below(top, own if place == "host" else ""):
            if self._too_slow():
                self._leave_out(place, path, self._too_slow())
                break
            with suppress(OSError), open_file(file, follow_link=False) as source:  # not a link, a socket, another's
                info = os.fstat(source.fileno())
                is_foreign = path == RAY_LOGS and info.st_uid != os.geteuid()  # the latest session may be another's
                if info.st_mtime >= since and not is_foreign:
                    self._add(place, path + file[len(top) :], info.st_size, source)

    def _add(self, place: str, path: str, size: int, source: BinaryIO) -> None:
        """Copy a file. Raises what reading it raises, if that is no OSError."""
        target = os.path.join(self._top, place, os.path.normpath(path).lstrip("/"))
        reason = ""
        if ".." in path.split("/") or "\0" in path:
            reason = "its path leads elsewhere"
        elif size > self._bytes_left or not self._files_left:
            reason = "over the limit of %d MB or %d files" % (LIMIT >> 20, MAX_FILES)
        elif size > shutil.disk_usage(self._run.path).free - RESERVED_BYTES:
            reason = "the disk is full"
        else:
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as out:
                    try:
                        shutil.copyfileobj(source, out)
                    except BaseException:
                        os.unlink(target)
                        raise
                self._bytes_left, self._files_left = self._bytes_left - size, self._files_left - 1
            except OSError as error:
                reason = error.strerror or str(error)
        if reason:
            self._leave_out(place, path, reason, size)

    def _leave_out(self, place: str, path: str, reason: str, size: Optional[int] = None) -> None:
        self._left_out.append(LeftOutFile(place, path, size, reason))

    def _too_slow(self) -> str:
        return "not copied within %.0f s" % MAX_SECONDS if time.monotonic() >= self._deadline else ""


def _files_below(top: str, excluded: str) -> Iterator[str]:
    """The files below `top`, or `top` itself, but for those in `excluded`."""
    if os.path.isfile(top):
        yield top
    for directory, subdirectories, names in os.walk(top):
        subdirectories[:] = sorted(name for name in subdirectories if os.path.join(directory, name) != excluded)
        yield from (os.path.join(directory, name) for name in sorted(names))


def _rootless_sessions(scratch: str) -> Iterator[Tuple[str, str]]:
    """Containers without a daemon have their /tmp in the run directory: each with Ray's newest session. There
    session_latest is a link to a path inside of the container."""
    for place in sorted(os.listdir(scratch) if os.path.isdir(scratch) else []):
        for ray in (os.path.join(scratch, place, "ray"), os.path.join(scratch, place, "tmp", "ray")):
            entries = list(os.scandir(ray)) if os.path.isdir(ray) else []
            sessions = [one for one in entries if one.name[:8] == "session_" and one.is_dir(follow_symlinks=False)]
            if sessions and place.startswith("container-"):
                yield place, max(sessions, key=lambda entry: entry.stat().st_mtime).path


def _write_cores(run: RunDir, plan: Plan) -> None:
    """Name core files of the workspace in cores.json. They are never copied: they hold the memory of a whole GPU job.
    Their names decide, since root's of a container cannot be read. Raises OSError."""
    cores: List[CoreFile] = []
    deadline = time.monotonic() + CORE_SECONDS
    for directory, _, names in os.walk(plan.workspace) if plan.workspace else ():
        for path in (os.path.join(directory, name) for name in names if _CORE_NAME.match(name)):
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode) and info.st_size:
                cores.append(CoreFile(path, info.st_size))
        if time.monotonic() > deadline or len(cores) > _MAX_CORES:
            break
    if cores:
        write_record(os.path.join(run.artifacts, "cores.json"), CoreFiles(tuple(cores)))
