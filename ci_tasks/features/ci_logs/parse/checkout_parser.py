"""What actions/checkout tells of the code: repository, ref, commit, and what a pull request's merge was made of."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ci_tasks.features.ci_logs.parse.log_text import printable_text
from ci_tasks.features.ci_logs.parse.recovered_job import Head

_SHA = rb"[0-9a-f]{40}(?:[0-9a-f]{24})?"
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_LOG = re.compile(rb"log -1 ['\"]?--format=['\"]?(?:format:)?%H['\"]?\s*\Z")
_COMMIT = re.compile(rb"['\"]?(" + _SHA + rb")['\"]?\s*")
_FETCHED = re.compile(rb"\+(" + _SHA + rb"):refs/(\S{1,300})")
_HEAD = re.compile(rb"HEAD is now at ([0-9a-f]{4,64})\b ?(.{0,1000})")
_MERGE = re.compile(rb"Merge (" + _SHA + rb") into (" + _SHA + rb")\s*")
WORDS = (rb"\[command\]", rb"HEAD is now at ", rb"Syncing repository: ", rb"Working directory is '")
_PULL = re.compile(r"refs/pull/(\d{1,9})/\w+")


class CheckoutParser:
    """Fed with the lines of one checkout step. The first message of a kind counts."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        named = inputs.get("repository", "")
        self.repository = named if _REPOSITORY.fullmatch(named) else ""
        self.has_own_path = bool(inputs.get("path"))  # beside the workspace's own checkout
        self.ref = ""
        self.workspace = ""
        self.merge_head = self.merge_base = ""
        self._logged = self._fetched = self._short = ""
        self._expects_commit = False

    @property
    def commit(self) -> str:
        """As `git log` says it, else as it was fetched, unless that is not what HEAD is at, else the short form."""
        return self._logged or (self._fetched if self._fetched.startswith(self._short) else self._short)

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        return self._expects_commit

    def feed(self, text: bytes) -> None:
        if text.startswith((b"[command]", b"##[command]")):
            self._command(text)
        elif self._expects_commit:
            match = _COMMIT.fullmatch(text)
            self._logged = self._logged or (match[1].decode() if match else "")
            self._expects_commit = False
        elif head := _HEAD.match(text):
            self._head(head)
        elif text.startswith(b"Syncing repository: "):
            named = printable_text(text.partition(b": ")[2]).strip()
            self.repository = self.repository or (named if _REPOSITORY.fullmatch(named) else "")
        elif text.startswith(b"Working directory is '"):
            self.workspace = self.workspace or printable_text(text.partition(b"'")[2]).rstrip("'")

    def _command(self, text: bytes) -> None:
        self._expects_commit = _LOG.search(text) is not None
        if b" fetch " in text and not self._fetched and (match := _FETCHED.search(text)):
            self._fetched = match[1].decode()
            self.ref = self.ref or _full_ref(printable_text(match[2]))
        elif b" checkout " in text and b"--force" in text and not self.ref:
            self.ref = _full_ref(printable_text(text.rstrip().rsplit(b" ", 1)[-1]).removeprefix("refs/"))

    def _head(self, head: re.Match[bytes]) -> None:
        if self._short:
            return
        self._short = head[1].decode()
        if merge := _MERGE.fullmatch(head[2]):
            self.merge_head, self.merge_base = merge[1].decode(), merge[2].decode()


def head_in(text: bytes) -> Head | None:
    """What git says of HEAD in a line, whoever ran it."""
    match = _HEAD.match(text)
    if match is None:
        return None
    merge = _MERGE.fullmatch(match[2])
    return Head(match[1].decode(), *((merge[1].decode(), merge[2].decode()) if merge else ()))


def pull_request_of(ref: str) -> int | None:
    """The number in refs/pull/N/merge."""
    match = _PULL.fullmatch(ref)
    return int(match[1]) if match else None


def _full_ref(tracking: str) -> str:
    """The server's name of what the checkout fetched into `refs/{tracking}`; "" for a commit without a ref."""
    if tracking.startswith("remotes/pull/"):
        return "refs/" + tracking.removeprefix("remotes/")
    if tracking.startswith("remotes/origin/"):
        return "refs/heads/" + tracking.removeprefix("remotes/origin/")
    return "refs/" + tracking if tracking.startswith("tags/") else ""
