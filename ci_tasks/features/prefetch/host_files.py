"""What of a repository is on a host: a question for its Python, and the answer."""

from __future__ import annotations

import base64
import json
import posixpath
import zlib

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.prefetch.hub import HubError, Listing
from ci_tasks.features.prefetch.report import MISSING, PARTLY, THERE
from ci_tasks.features.prefetch.repositories import CACHE, HubRepository
from ci_tasks.hosts.queries import parse_json_object, python_query

_LONGEST = 100_000  # characters of one argument; Linux allows 128 KiB
# Of each file its size, and whether it is known to be that of the commit; of one that is absent, null. With --local-dir
# huggingface_hub has DIR/FILE, and DIR/.cache/huggingface/download/FILE.metadata of three lines: commit, etag, and the
# time at which both were true. In its cache, snapshots/COMMIT/FILE is of that commit.
_SCRIPT = """
import base64, json, os, sys, zlib
top, below, commit, names = json.loads(zlib.decompress(base64.b64decode("".join(sys.argv[1:]))))
top = os.path.expanduser(top)
def look(name):
    path = os.path.join(top, below, name)
    if not os.path.isfile(path):
        return None
    status = os.stat(path)
    try:
        with open(os.path.join(top, ".cache", "huggingface", "download", name + ".metadata")) as source:
            of, etag, when = source.read().split()
        return [status.st_size, of == commit and status.st_mtime - 1 <= float(when)]
    except (OSError, ValueError):
        return [status.st_size, bool(below)]
mount = os.path.realpath(top)
while not os.path.ismount(mount):
    mount = os.path.dirname(mount)
disk = os.statvfs(mount)
print(json.dumps({"mount": mount, "free": disk.f_bavail * disk.f_frsize, "files": [look(name) for name in names]}))
"""


@dataclass(frozen=True)
class HostState:
    """How a repository's files are on the host: the mount that they are on, its free bytes, how many files are there,
    how many have the right size and perhaps another content, how many and how many bytes are missing."""

    mount: str
    free: int
    there: int
    unsure: int
    absent: int
    missing: int

    @property
    def word(self) -> str:
        if not self.unsure and not self.absent:
            return THERE
        return PARTLY if self.there or self.unsure else MISSING


def files_query(repository: HubRepository, directory: str, listing: Listing) -> list[str]:
    in_cache = repository.layout == CACHE
    top = posixpath.join(directory, repository.folder) if in_cache else directory
    query = [top, f"snapshots/{listing.commit}" if in_cache else "", listing.commit, [*listing.files]]
    text = base64.b64encode(zlib.compress(json.dumps(query).encode())).decode()
    return python_query(_SCRIPT, *(text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)))


def host_state(answer: QueryAnswer, listing: Listing) -> HostState | HubError:
    """The answer to `files_query`."""
    said = parse_json_object(answer)
    try:
        counts, missing = {True: 0, False: 0, None: 0}, 0
        for size, entry in zip(listing.files.values(), said["files"], strict=True):
            sure = bool(entry[1]) if entry and entry[0] == size else None
            counts[sure] += 1
            missing += size if sure is None else 0
        return HostState(str(said["mount"]), int(said["free"]), counts[True], counts[False], counts[None], missing)
    except (KeyError, TypeError, ValueError, IndexError):
        return HubError("denied", f"the host cannot say what is there: {answer.last_line}")
