"""What leaves the host of a run: collected before its containers are removed, and masked at the very end.

Collected are Ray's logs, the paths that the plan names, and the names of core files. SGLang has no log file of its own:
inside Ray's workers, what it prints is in Ray's logs. From a container comes the tar stream of `docker cp`, of which
only plain files are taken. Without containers the host's own paths are read, and only what changed since the run began.
Files are taken whole or not at all, within limits, and first into a fresh directory: a link that a job left in
`artifacts` could lead anywhere.

Masked are the content and the names of the artifacts, and the run's small files: a job may write there whatever it
likes. An artifact that cannot be read is not sent. Archives and compressed files cannot be masked, so those of a run
with secrets stay on the host.
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
from typing import Any, BinaryIO, Callable, Iterator, List, Optional, Sequence, Tuple, cast

from . import codec
from .containers.run_containers import RunContainer
from .directories import remove_own
from .files import open_file, unused_path
from .mask import Masker, mask_text
from .records import CoreFile, CoreFiles, LeftOut, LeftOutFile, Plan
from .run_directory import SMALL_FILES, RunDir, read_record, write_record

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


def _files_below(top: str, excluded: str = "") -> Iterator[str]:
    """The plain files below `top`, or `top` itself, but for those in `excluded`."""
    if os.path.isfile(top):
        yield top
    for directory, subdirectories, names in os.walk(top):
        subdirectories[:] = sorted(name for name in subdirectories if os.path.join(directory, name) != excluded)
        for path in (os.path.join(directory, name) for name in sorted(names)):
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


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


MAX_NAMED = 1000  # left-out files that are named; the others are counted
MAX_SEARCHED = 1 << 32  # bytes of one run; a file with a hole of a terabyte would hold up its end for hours
ARCHIVE = "what is in an archive or compressed cannot be masked"
_CHUNK = 1 << 20
_HEAD = 1 << 13  # bytes in which a binary file has a zero
# tar, gzip, compress, xz, zstd, zip (whole, empty, split), lz4, 7-Zip, RAR, lzip, bzip2 (with content, and without)
_ARCHIVE = re.compile(
    rb"(?s).{257}ustar|\x1f[\x8b\x9d]|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|PK(?:\x03\x04|\x05\x06|\x07\x08)|\x04\x22\x4d\x18"
    rb"|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|LZIP|BZh[1-9](?:1AY&SY|\x17rE8P\x90)"
)
StopRequested = Callable[[], bool]


# -- masking -----------------------------------------------------------------------------------------------------------


def mask_run(
    run: RunDir, values: Sequence[str], stop_requested: StopRequested = lambda: False, *, has_secrets: bool = True
) -> str:
    """Mask the run's files. Its archives are withheld if it `has_secrets`: a client may know others. Returns where the
    old artifacts are, for the caller to remove; "" if nothing is masked. Raises OSError, also if a stop is requested:
    then the artifacts are as they were."""
    if os.path.islink(run.path):
        raise OSError("%s is a link" % run.path)
    if os.path.islink(run.artifacts):
        os.unlink(run.artifacts)  # what it leads to is no artifact
    if not values:
        return ""
    beside = tempfile.mkdtemp(prefix=".unmasked-", dir=run.path)
    masked = os.path.join(beside, "masked")
    os.mkdir(masked)
    masking = _Masking(values, stop_requested)
    try:
        for name in SMALL_FILES:
            masking.replace(os.path.join(run.path, name), os.path.join(beside, os.path.basename(name)))
        masking.copy_directory(run.artifacts, masked, withholds_archives=has_secrets)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if os.path.isdir(run.artifacts):
        os.rename(run.artifacts, os.path.join(beside, "artifacts"))
    os.rename(masked, run.artifacts)
    return beside


def withheld_archives(run: RunDir) -> List[str]:
    """The names of artifacts that stayed on the host, since the run has secrets."""
    return [file.path for file in _left_out(run.artifacts).files if file.why == ARCHIVE]


def add_left_out(artifacts: str, files: Sequence[LeftOutFile]) -> None:
    """Name files in left-out.json. Raises OSError."""
    before = _left_out(artifacts)
    files = (*before.files, *files)
    left_out = LeftOut(tuple(files[:MAX_NAMED]), before.more + max(0, len(files) - MAX_NAMED))
    write_record(os.path.join(artifacts, "left-out.json"), left_out)


def _left_out(artifacts: str) -> LeftOut:
    try:
        return read_record(LeftOut, os.path.join(artifacts, "left-out.json")) or LeftOut()
    except (OSError, codec.RecordError):
        return LeftOut()


class _Masking:
    def __init__(self, values: Sequence[str], stop_requested: StopRequested) -> None:
        self._values, self._stop_requested = values, stop_requested
        self._bytes_left = MAX_SEARCHED

    def copy_directory(self, source: str, target: str, withholds_archives: bool) -> None:
        left_out: List[LeftOutFile] = []
        for path in _files_below(source):
            shown = mask_text(self._values, os.path.relpath(path, source))
            try:
                os.makedirs(os.path.dirname(os.path.join(target, shown)), exist_ok=True)
                self._copy(path, unused_path(os.path.join(target, shown)), withholds_archives)
            except OSError as error:
                self._check_stop()
                left_out.append(LeftOutFile("host", shown, None, error.strerror or str(error)))
        if left_out:
            add_left_out(target, left_out)

    def replace(self, path: str, beside: str) -> None:
        """Replace a small file by its masked form; a link, a pipe, or what cannot be searched, is removed."""
        try:
            self._copy(path, beside)
            os.replace(beside, path)
        except FileNotFoundError:
            pass
        except OSError:
            self._check_stop()
            remove_own(path)

    def _copy(self, path: str, target: str, withholds_archives: bool = False) -> None:
        """Write the masked content to the new file `target`. In a binary file a mask is as long as the secret, so that
        whatever stands behind it stays in its place. Raises OSError for what cannot be searched."""
        with open_file(path, follow_link=False) as source:
            size = os.fstat(source.fileno()).st_size
            if size > self._bytes_left:
                raise OSError("too large to be searched for secrets")
            self._bytes_left -= size
            head = source.read(_HEAD)
            if withholds_archives and _ARCHIVE.match(head):
                raise OSError(ARCHIVE)
            source.seek(0)
            masker = Masker(self._values, keep_length=b"\0" in head)
            try:
                with open(target, "xb") as out:
                    for chunk in iter(lambda: source.read(_CHUNK), b""):
                        self._check_stop()
                        out.write(masker.feed(chunk))
                    out.write(masker.flush())
            except BaseException:
                os.unlink(target)
                raise

    def _check_stop(self) -> None:
        if self._stop_requested():
            raise OSError("the agent was asked to end before its files were masked")
