"""Names that a hub gives to files: which may become paths below a directory. Pure."""

from __future__ import annotations

import re

from .refused import HOSTILE, HubRefused

_OURS = ".cache/huggingface"  # what lies there is the library's own, and must not come from a repository
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LONGEST = 4096


def check_file(path: str) -> None:
    """Raises HubRefused for a name that leads elsewhere, on this system or another, or cannot be a file's."""
    parts = path.split("/")
    if (
        not path
        or len(path) > _LONGEST
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in path
        or any(ord(char) < 32 or ord(char) == 127 for char in path)
        or re.match(r"[A-Za-z]:", path)
        or (path + "/").lower().startswith(_OURS + "/")
    ):
        raise HubRefused(HOSTILE, "the hub names a file %s, which could write outside its directory" % ascii(path))


def check_hashes(commit: str, etags: "list[str]") -> None:
    """They become parts of paths too. Raises HubRefused."""
    if not _COMMIT.fullmatch(commit):
        raise HubRefused(HOSTILE, "the hub names a commit %s" % ascii(commit[:80]))
    for etag in etags:
        if not _ETAG.fullmatch(etag):
            raise HubRefused(HOSTILE, "the hub names a checksum %s" % ascii(etag[:80]))
