"""What of a repository is on a host: a question for its Python, the answer, and the line of the report. Pure."""

from __future__ import annotations

import base64
import json
import posixpath
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.prefetch.hub_errors import DENIED, FULL, HubError, HubFile, HubRefusal, RepoSnapshot
from ci_tasks.features.prefetch.report import MISSING, NOT_KEPT, PARTLY, THERE, MountSpace, RepositoryStatus, human
from ci_tasks.features.prefetch.repositories import CACHE, HubRepository
from ci_tasks.features.prefetch.requirements import RequiredRepository
from ci_tasks.hosts.queries import parse_json_object, python_query

if TYPE_CHECKING:
    from ci_tasks.features.prefetch.hub import Hub

SPARE = 1 << 28  # bytes of a disk that stay free: others write there too
_THERE, _UNSURE, _ABSENT = "there", "unsure", "absent"
_ETAG = 8  # characters of an etag that are compared; a host with many files says no more of each
_LONGEST = 100_000  # characters of one argument; Linux allows 128 KiB
# huggingface_hub's two layouts. With --local-dir: DIR/FILE, and DIR/.cache/huggingface/download/FILE.metadata of three
# lines: commit, etag, the time at which both were true. Else: snapshots/COMMIT/FILE is a link to blobs/ETAG.
_SCRIPT = """
import base64, json, os, sys, zlib
query = json.loads(zlib.decompress(base64.b64decode("".join(sys.argv[1:]))))
top = os.path.expanduser(query["top"])
def etag(name, path, changed):
    if query["cached"]:
        blob = os.path.realpath(path)
        return os.path.basename(blob) if os.path.basename(os.path.dirname(blob)) == "blobs" else ""
    try:
        with open(os.path.join(top, ".cache", "huggingface", "download", name + ".metadata")) as source:
            commit, value, when = source.read().split()
        return value if changed - 1 <= float(when) else ""
    except (OSError, ValueError):
        return ""
def file_state(name):
    path = os.path.join(top, query["below"], name)
    try:
        status = os.stat(path)
        return [status.st_size, etag(name, path, status.st_mtime)[:8]] if os.path.isfile(path) else None
    except OSError:
        return None
mount = top
while not os.path.isdir(mount) and mount != os.path.dirname(mount):
    mount = os.path.dirname(mount)
disk = os.statvfs(mount)
mount = os.path.realpath(mount)
while not os.path.ismount(mount):
    mount = os.path.dirname(mount)
files = [file_state(name) for name in query["names"]]
print(json.dumps({"mount": mount, "free": disk.f_bavail * disk.f_frsize, "files": files}))
"""
_PATHS = "import json, os, sys; print(json.dumps({p: os.path.exists(os.path.expanduser(p)) for p in sys.argv[1:]}))"


@dataclass(frozen=True)
class FolderState:
    """How a repository's files are on the host: the mount that they are on, its free bytes, and three counts. `unsure`
    files have the right size, and nothing says which content."""

    mount: str
    free: int
    there: int
    unsure: int
    absent: int
    missing: int

    @property
    def state(self) -> str:
        if not self.unsure and not self.absent:
            return THERE
        return PARTLY if self.there or self.unsure else MISSING


def files_query(item: RequiredRepository, snapshot: RepoSnapshot) -> list[str]:
    repository, directory = item.what, item.place.path or ""
    cached = repository.layout == CACHE
    query = {
        "top": posixpath.join(directory, cache_name(repository)) if cached else directory,
        "below": f"snapshots/{snapshot.commit}" if cached else "",
        "cached": cached,
        "names": [file.path for file in snapshot.files],
    }
    text = base64.b64encode(zlib.compress(json.dumps(query).encode())).decode()
    return python_query(_SCRIPT, *(text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)))


def paths_query(paths: Sequence[str]) -> list[str]:
    return python_query(_PATHS, *paths)


def cache_name(repository: HubRepository) -> str:
    return "--".join([f"{repository.kind}s", *repository.id.split("/")])


def folder_state(answer: QueryAnswer, snapshot: RepoSnapshot) -> FolderState | HubError:
    """The answer to `files_query`."""
    listing = parse_json_object(answer)
    try:
        states = [_state(file, entry) for file, entry in zip(snapshot.files, listing["files"], strict=True)]
        return FolderState(
            mount=str(listing["mount"]),
            free=int(listing["free"]),
            there=states.count(_THERE),
            unsure=states.count(_UNSURE),
            absent=states.count(_ABSENT),
            missing=sum(file.size for file, state in zip(snapshot.files, states, strict=True) if state == _ABSENT),
        )
    except (KeyError, TypeError, ValueError):
        return HubError(DENIED, f"the host cannot say what is there: {answer.last_line}")


def _state(file: HubFile, entry: Sequence[Any] | None) -> str:
    if entry is None or entry[0] != file.size:
        return _ABSENT
    if entry[1] == "":
        return _UNSURE
    return _THERE if entry[1] == file.etag[:_ETAG] else _ABSENT


def repository_status(
    item: RequiredRepository, answer: RepoSnapshot | HubRefusal, state: FolderState | HubError | None, hub: Hub
) -> RepositoryStatus:
    """`state` is None where there is no directory that outlives a run, or nothing to compare it with."""
    repository = item.what
    line = RepositoryStatus(
        kind=repository.kind,
        id=repository.id,
        revision=repository.revision,
        commit=None,
        path=repository.directory,
        directory=item.place.path,
        state=MISSING if item.place.path else NOT_KEPT,
        size=None,
        missing=None,
        gated="",
        private=False,
        mount=None,
        rows=tuple(item.rows),
        where=tuple(item.where),
        message=item.place.why,
    )
    if isinstance(answer, HubRefusal):
        return _from_last_listing(line, answer, state)
    line = replace(
        line, commit=answer.commit, size=answer.size, gated=answer.gated, private=answer.private, missing=answer.size
    )
    if isinstance(state, HubError):
        return refused(line, hub.refusal(state, repository))
    if state is not None:
        line = replace(line, state=state.state, missing=state.missing, mount=state.mount)
    return line if answer.closed is None or line.state == THERE else refused(line, answer.closed)


def _from_last_listing(
    line: RepositoryStatus, refusal: HubRefusal, state: FolderState | HubError | None
) -> RepositoryStatus:
    """Nobody knows what the hub has now; a test's own download takes what is there."""
    if refusal.last is None or not isinstance(state, FolderState) or state.state != THERE:
        return refused(line, refusal)
    message = f"{refusal.message}; everything that the hub listed last time is there"
    last = refusal.last
    return replace(line, state=THERE, commit=last.commit, size=last.size, missing=0, message=message)


def refused(line: RepositoryStatus, refusal: HubRefusal) -> RepositoryStatus:
    return replace(line, problem=refusal.code, message=refusal.message, hint=refusal.hint)


def mount_space(lines: Sequence[RepositoryStatus], states: Sequence[FolderState | HubError | None]) -> list[MountSpace]:
    free = {state.mount: state.free for state in states if isinstance(state, FolderState)}
    return [
        MountSpace(
            mount, space, sum(line.missing or 0 for line in lines if line.mount == mount and not line.problem), SPARE
        )
        for mount, space in sorted(free.items())
    ]


def with_space_check(
    line: RepositoryStatus, full: Sequence[MountSpace], hub: Hub, item: RequiredRepository
) -> RepositoryStatus:
    """Refused where its mount has too little space: no download starts that cannot end."""
    mount = next((space for space in full if space.mount == line.mount), None)
    if mount is None or not line.missing or line.problem:
        return line
    message = f"{mount.mount} has {human(mount.free)} free, and {human(mount.needed)} are to come to it"
    return refused(line, hub.refusal(HubError(FULL, message), item.what))
