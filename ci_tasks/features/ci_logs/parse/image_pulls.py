"""Which image Docker pulled: `Digest:` and `Status:` at the end of what `docker pull` prints, and of `docker run`.

Only a whole pull counts (`TAG: Pulling from NAME`, layers, `Digest:`, `Status:`): the runner prints a digest for every
action that it downloads as well, and a test may print anything.
"""

from __future__ import annotations

import re

from ci_tasks.features.ci_logs.parse.log_text import printable_text

_PULLING = re.compile(rb"\S{1,200}: Pulling from \S{1,300}\s*")
_LAYER = re.compile(rb"(?:[0-9a-f]{12}: .{0,200}|\s*)")
_DIGEST = re.compile(rb"Digest: (sha256:[0-9a-f]{64})\s*")
_STATUS = re.compile(rb"Status: (?:Downloaded newer image|Image is up to date) for (\S{1,400})\s*")
_ABSENT = re.compile(rb"Unable to find image '\S{1,400}' locally\s*")
_MAX_DIGESTS = 100
WORDS = (rb": Pulling from ",)


class ImagePullParser:
    """Fed with lines of Docker's output, and with those after it. The first digest of an image counts.

    `strict` is for a script that begins with docker: what the container prints comes after the pull, so the first line
    that is none of Docker's ends it, whatever follows.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.digests: dict[str, str] = {}
        self._strict = strict
        self._closed = False
        self._pulling = False
        self._digest = ""

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        return not self._closed and (self._pulling or self._strict)

    def feed(self, text: bytes) -> None:
        if self._closed:
            return
        if not self._pulling:
            self._pulling = _PULLING.fullmatch(text) is not None
            self._closed = self._strict and not self._pulling and _ABSENT.fullmatch(text) is None
        elif match := _DIGEST.fullmatch(text):
            self._digest = match[1].decode()
        elif status := _STATUS.fullmatch(text):
            if self._digest and len(self.digests) < _MAX_DIGESTS:
                self.digests.setdefault(with_tag(printable_text(status[1])), self._digest)
            self._pulling, self._digest = False, ""
        elif not _LAYER.fullmatch(text):
            self._pulling, self._digest = False, ""
            self._closed = self._strict


def with_tag(image: str) -> str:
    """An image's name with its tag, so that two ways to write it compare equal."""
    for default in ("docker.io/", "index.docker.io/", "library/"):
        image = image.removeprefix(default)
    return image if "@" in image or ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"
