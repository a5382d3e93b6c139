"""The end of a run: its artifacts are collected, then what it left on the host is removed or kept, and what leaves the
host is masked. Nothing here changes how the run ended, and nothing may keep the run from ending: what hangs is left
behind, and named.

Collected are Ray's logs and the paths that the plan names. SGLang has no log file of its own: inside Ray's workers,
what it prints is in Ray's logs. From a container comes the tar stream of `docker cp`, of which only plain files are
taken. Without containers the host's own paths are read, and only what changed since the run began. Files are taken
whole or not at all, within limits, and first into a fresh directory: a link that a job left in `artifacts` could lead
anywhere.

Masked are the content and the names of the artifacts, and the run's small files: a job may write there whatever it
likes. An artifact that cannot be read is not sent. Archives and compressed files cannot be masked, so those of a run
with secrets stay on the host.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, cast

from . import processes
from .codec import masked_record
from .containers import RunContainer, RunContainers, below, make_readable, remove_own, remove_tree, take_ownership
from .evidence import collect_evidence
from .files import open_file, pieces, unused_path
from .git import StoreError
from .mask import Masker, mask_text
from .nvidia_smi import Gpu
from .processes import end_program
from .records import Environment, GpuModel, Kept, LeftOut, LeftOutFile, Plan
from .run_directory import SMALL_FILES, RunDir, log_traceback, read_if_readable, secret_values, write_record
from .workspace import release, slot_of


class RunCleanup:
    """What is still to be done for a run when its processes have ended: what was `kept` on purpose, a line for each
    thing that is `left`, and whether secrets are `masked` in all that leaves the host."""

    def __init__(self, paths: RunDir, plan: Plan) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self.containers = RunContainers(paths.path)
        self.kept: Optional[Kept] = None
        self.left: List[str] = []
        self.masked = False
        self._directory = os.path.realpath(paths.path)

    def finish(self, succeeded: bool, gpus: Sequence[Gpu] = ()) -> None:
        """Collect artifacts, then remove or keep the rest. `gpus` are those of the host."""
        try:
            containers = self.containers.find()
            root = root_container(containers, self.plan)
            if not self._leads_elsewhere():
                self._collect(containers, gpus, root)
            if self.plan.keep and not succeeded:
                self.kept = Kept(tuple(container.name for container in containers), self.plan.workspace)
            else:
                self._remove(root)
        except Exception as error:  # whatever it is, the run has ended
            log_traceback(self.paths.path, "cleanup", error)
            self.left.append("not everything was removed: %r" % error)

    def _collect(self, containers: List[RunContainer], gpus: Sequence[Gpu], root: RootContainer) -> None:
        """Collect and mask what leaves the host."""
        if self.containers.problems:
            self.left.append("the artifacts in containers are not collected")
        secrets, problem = secret_values(self.plan), "the evidence of its processes is not complete"
        if self.plan.container is not None:  # else it is no row's
            self._write_environment(containers, gpus, secrets)
        self.left += collect(self.paths, self.plan, containers, self.began)
        make_readable(self.paths.artifacts, *root)
        try:
            if self.plan.probe is not None:
                collect_evidence(self.paths)
            problem = "secrets are not masked yet"
            mask_run(self.paths, secrets, remove=lambda old: self.left.extend(remove_tree(old, *root)))
            self.masked = True
        except (OSError, ValueError) as error:
            self.left.append("%s: %s" % (problem, error))

    def _write_environment(self, containers: List[RunContainer], gpus: Sequence[Gpu], secrets: List[str]) -> None:
        """environment.json: driver, GPUs, and the containers with the digests of their images."""
        memory = {gpu.index: "[N/A]" if gpu.total is None else "%d MiB" % gpu.total for gpu in gpus}
        models = tuple(GpuModel(gpu.index, gpu.uuid, gpu.name, memory[gpu.index]) for gpu in gpus)
        driver, states = gpus[0].driver if gpus else None, tuple(container.state() for container in containers)
        environment = Environment(os.uname().release, driver, models, states)
        with suppress(OSError):  # a full disk
            write_record(self.paths.environment, masked_record(environment, secrets))

    def _remove(self, root: RootContainer) -> None:
        problems, workspace, is_own = self.containers.remove(), self.paths.workspace, not self.plan.keeps_workspace
        self.left += problems
        if self._leads_elsewhere():
            self.left.append("%s is a different directory now: nothing in it is removed" % self.paths.path)
            return
        # Another run may have the workspace, unless something of the job's still exists that may write into it.
        if is_own and not problems and os.path.isdir(slot_of(workspace)) and not processes.of_job(os.getpid()):
            take_ownership(workspace, *root)
            with suppress(OSError, StoreError):  # then it is removed
                release(workspace, self.plan.checkout.path)
        # A run's own workspace is in its directory, whatever a plan names: a job can write what it likes into that.
        for path in (os.path.join(self.paths.path, "tmp"), self.paths.evidence, *([workspace] if is_own else [])):
            self.left += remove_tree(path, *root)

    def _leads_elsewhere(self) -> bool:
        """Whether a job put something else in the place of its run directory."""
        return os.path.realpath(self.paths.path) != self._directory


RootContainer = Tuple[Optional[str], str, Mapping[str, str]]


def root_container(containers: List[RunContainer], plan: Plan) -> RootContainer:
    """What a container that is root in the run's files needs: an image that the host has, or else the plan's, the
    runtime, and the environment of its client."""
    pinned = plan.container.image if plan.container is not None else {}
    planned = pinned.get(plan.image, plan.image) if plan.image is not None else None
    image = next((container.image_id for container in containers if container.image_id), planned)
    return image, plan.container_runtime or "none", {**os.environ, **plan.host_env}


# -- artifacts ---------------------------------------------------------------------------------------------------------

RAY = "/tmp/ray"
RAY_LOGS = RAY + "/session_latest/logs"  # session_latest is a link to the newest session
LIMIT = 200 << 20  # bytes of one run
RESERVED_BYTES = 32 << 20  # bytes that stay free: the end of a run must still fit on the disk
MAX_SECONDS = 60.0  # for everything that is copied
CLOCK_SLACK = 2.0  # seconds by which a file system's clock may lag behind ours
MAX_NAMED = 1000  # left-out files that are named; the others are counted
MAX_SEARCHED = 1 << 32  # bytes of a file; one with a hole of a terabyte would hold up the end for hours
ARCHIVE = "archives and compressed files cannot be masked"
_HEAD = 1 << 13  # bytes in which a binary file has a zero
# tar, gzip, compress, xz, zstd, zip (whole, empty, split), lz4, 7-Zip, RAR, lzip, bzip2 (with content, and without)
_ARCHIVE = re.compile(
    rb"(?s).{257}ustar|\x1f[\x8b\x9d]|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|PK(?:\x03\x04|\x05\x06|\x07\x08)|\x04\x22\x4d\x18"
    rb"|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|LZIP|BZh[1-9](?:1AY&SY|\x17rE8P\x90)"
)


_File = Tuple[str, str, Optional[int], Union[BinaryIO, str]]  # place, path, bytes; its content, or why it is not taken


def collect(run: RunDir, plan: Plan, containers: List[RunContainer], began: float) -> List[str]:
    """Fill `artifacts`. Returns a line for each problem; none of them changes how the run ended."""
    if not os.path.isdir(run.artifacts) or os.path.islink(run.artifacts):
        return []
    try:
        with tempfile.TemporaryDirectory(prefix=".collected-", dir=run.path) as top:
            left_out = _copy(_files(run, plan, containers, began), top)
            for name in os.listdir(top):  # beside what the job itself may have put there
                os.rename(os.path.join(top, name), unused_path(os.path.join(run.artifacts, name)))
            add_left_out(run.artifacts, left_out)
    except OSError as error:
        return ["artifacts are not complete: %s" % error]
    return []


def _copy(files: Iterator[_File], top: str) -> List[LeftOutFile]:
    """Copy files into `top`, below a name for each place that they come from. Returns the files that are left out."""
    left_out: List[LeftOutFile] = []
    bytes_left = LIMIT
    for place, path, size, source in files:
        target = os.path.join(top, place, os.path.normpath(path).lstrip("/"))
        try:
            if isinstance(source, str):
                raise OSError(source)
            if ".." in path.split("/") or "\0" in path:
                raise OSError("its path points outside the workspace")
            if (size or 0) > bytes_left:
                raise OSError("over the limit of %d MB" % (LIMIT >> 20))
            if (size or 0) > shutil.disk_usage(top).free - RESERVED_BYTES:
                raise OSError("the disk is full")
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _write_new(target, pieces(source))
            bytes_left -= size or 0
        except Exception as error:  # whatever a stream that breaks off raises
            left_out.append(LeftOutFile(place, path, size, getattr(error, "strerror", None) or str(error)))
    return left_out


def _files(run: RunDir, plan: Plan, containers: List[RunContainer], began: float) -> Iterator[_File]:
    own, deadline = os.path.realpath(run.path), time.monotonic() + MAX_SECONDS
    paths = {os.path.normpath(path) for path in (RAY_LOGS, *plan.artifacts) if path[:1] == "/"}
    for path in sorted(paths):
        if any(path.startswith(other.rstrip("/") + "/") for other in paths - {path}):
            continue  # it comes with the other one; a link to it there would be copied, and counted, twice
        for container in containers:
            yield from _in_container(container, path, deadline)
        if plan.container_runtime == "none" and os.path.realpath(path) != own:  # which would be copied into itself
            yield from _on_host("host", os.path.realpath(path), path, began - CLOCK_SLACK, deadline, excluded=own)
    # Containers without a daemon have their /tmp in the run directory.
    for ray in ("ray", "tmp/ray"):
        found = glob.glob(os.path.join(glob.escape(own), "tmp", "container-*", ray, "session_*[0-9]", "logs"))
        for logs in sorted(found, reverse=True):  # the newest first
            if os.path.realpath(logs) == logs:
                place, session = os.path.relpath(logs, own).split("/")[1], os.path.basename(os.path.dirname(logs))
                yield from _on_host(place, logs, "%s/%s/logs" % (RAY, session), 0.0, deadline)


def _in_container(container: RunContainer, path: str, deadline: float) -> Iterator[_File]:
    import tarfile  # it loads many modules

    place = "container-%d" % container.number
    # The path itself may be a link; those further up are followed anyway. podman has no -L, and needs none.
    follow = [] if container.client.runtime == "podman" else ["-L"]
    try:
        process = container.client.stream("cp", *follow, f"{container.id}:{path}", "-")
    except OSError:
        return
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    timer.start()
    out = cast(Any, process.stdout)
    try:
        if not out.peek(1):
            return  # the path does not exist there
        with tarfile.open(fileobj=out, mode="r|", errors="surrogateescape") as archive:
            for entry in iter(archive.next, None):
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every entry of a huge tree
                # The archive begins with the last part of the path that was asked for.
                inner = path + entry.name[len(entry.name.split("/")[0]) :]
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    yield place, inner, entry.size, cast(BinaryIO, content)
                elif not entry.isdir():
                    yield place, inner, None, "neither a regular file nor a directory"
        if timer.finished.is_set():
            raise tarfile.ReadError
    except tarfile.TarError:
        yield place, path, None, "the copy failed, or took longer than %.0f s" % MAX_SECONDS
    finally:
        timer.cancel()
        end_program(process)


def _on_host(place: str, top: str, path: str, since: float, deadline: float, excluded: str = "") -> Iterator[_File]:
    """The plain files in `top` that changed since, under the names that they have below `path`."""
    for file in _files_below(top, excluded):
        if time.monotonic() > deadline:
            yield place, path, None, "copying did not finish within %.0f s" % MAX_SECONDS
            return
        with suppress(OSError), open_file(file, follow_link=False) as source:  # not a link, a socket, another's
            info = os.fstat(source.fileno())
            is_foreign = path == RAY_LOGS and info.st_uid != os.geteuid()  # the latest session may be another's
            if info.st_mtime >= since and not is_foreign:
                yield place, path + file[len(top) :], info.st_size, source


def _write_new(path: str, chunks: Iterator[bytes]) -> None:
    """Write the new file `path`, whole or not at all."""
    with open(path, "xb") as out:
        try:
            out.writelines(chunks)
        except BaseException:
            os.unlink(path)
            raise


def _files_below(top: str, excluded: str = "") -> Iterator[str]:
    """The plain files below `top`, or `top` itself, but for those in `excluded`."""
    if os.path.isfile(top):
        yield top
    yield from (entry.path for entry in below(top, excluded) if entry.is_file(follow_symlinks=False))


def add_left_out(artifacts: str, files: Sequence[LeftOutFile]) -> None:
    """Name files in left-out.json. Raises OSError."""
    if files:
        before = left_out_files(artifacts)
        files = (*before.files, *files)
        left_out = LeftOut(tuple(files[:MAX_NAMED]), before.more + max(0, len(files) - MAX_NAMED))
        write_record(os.path.join(artifacts, "left-out.json"), left_out)


def left_out_files(artifacts: str) -> LeftOut:
    """What left-out.json says."""
    return read_if_readable(LeftOut, os.path.join(artifacts, "left-out.json")) or LeftOut()


# -- masking -----------------------------------------------------------------------------------------------------------


def mask_run(
    run: RunDir, values: Sequence[str], *, has_secrets: bool = True, remove: Callable[[str], object] = remove_own
) -> None:
    """Mask the run's files, and `remove` the old artifacts. Its archives are withheld if it `has_secrets`: a client may
    know others. Raises OSError: then the artifacts are as they were."""
    if os.path.islink(run.path):
        raise OSError("%s is a link" % run.path)
    if os.path.islink(run.artifacts):
        os.unlink(run.artifacts)  # what it leads to is no artifact
    if not values:
        return
    beside = tempfile.mkdtemp(prefix=".unmasked-", dir=run.path)
    masked = os.path.join(beside, "masked")
    os.mkdir(masked)
    try:
        for name in SMALL_FILES:
            _mask_small_file(os.path.join(run.path, name), os.path.join(beside, os.path.basename(name)), values)
        left_out: List[LeftOutFile] = []
        for path in _files_below(run.artifacts):
            shown = mask_text(values, os.path.relpath(path, run.artifacts))
            target = os.path.join(masked, shown)
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                _write_masked(path, unused_path(target), values, has_secrets)
            except OSError as error:
                left_out.append(LeftOutFile("host", shown, None, error.strerror or str(error)))
        add_left_out(masked, left_out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if os.path.isdir(run.artifacts):
        os.rename(run.artifacts, os.path.join(beside, "artifacts"))
    os.rename(masked, run.artifacts)
    remove(beside)


def _mask_small_file(path: str, beside: str, values: Sequence[str]) -> None:
    """Replace a file by its masked form; a link, a pipe, or what cannot be searched, is removed."""
    try:
        _write_masked(path, beside, values, False)
        os.replace(beside, path)
    except FileNotFoundError:
        pass
    except OSError:
        remove_own(path)


def _write_masked(path: str, target: str, values: Sequence[str], withholds_archives: bool) -> None:
    """Write the masked content to the new file `target`. In a binary file a mask is as long as the secret, so that
    whatever stands behind it stays in its place. Raises OSError for what cannot be searched."""
    with open_file(path, follow_link=False) as source:
        if os.fstat(source.fileno()).st_size > MAX_SEARCHED:
            raise OSError("too large to be searched for secrets")
        head = source.read(_HEAD)
        if withholds_archives and _ARCHIVE.match(head):
            raise OSError(ARCHIVE)
        source.seek(0)
        _write_new(target, Masker(values, keep_length=b"\0" in head).stream(pieces(source)))
