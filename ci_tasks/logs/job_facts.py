"""What the lines between the runner's messages tell of a job: code, image, machine and packages.

Of a fact that is told twice the first value counts, but for packages: what a program prints comes after what the runner
and git say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ci_tasks.logs.job_lines import printable_text
from ci_tasks.logs.recovered_job import Head

_SHA = rb"[0-9a-f]{40}(?:[0-9a-f]{24})?"
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_SYNCING = re.compile(rb"Syncing repository: (\S{1,200})\s*")
_LOG = re.compile(rb"log -1 ['\"]?--format=['\"]?(?:format:)?%H['\"]?\s*\Z")
_COMMIT = re.compile(rb"['\"]?(" + _SHA + rb")['\"]?\s*")
_FETCHED = re.compile(rb" fetch .*\+(" + _SHA + rb"):refs/(\S{1,300})")
_CHECKED_OUT = re.compile(rb" checkout .*--force.* (\S{1,300})\s*\Z")
_HEAD = re.compile(rb"HEAD is now at ([0-9a-f]{4,64})\b ?(.{0,1000})")
_MERGE = re.compile(rb"Merge (" + _SHA + rb") into (" + _SHA + rb")\s*")

_SET_UP = {
    "runner_name": re.compile(rb"Runner name: '?(.{1,200}?)'?\s*"),
    "job_name": re.compile(rb"Complete job name: (.{1,2000})"),
    "defined_at": re.compile(rb"Job defined at: (\S{1,1000})\s*"),
    "hosted_on": re.compile(rb"Job is about to start running on the runner: (.{1,200}?)(?: \(.{0,200})?"),
}
_DEFINED = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^@]+)@(\S+)")
_RUNNER_IMAGE, _JOB_CONTAINER = b"Runner Image", b"Starting job container"
_IMAGE = re.compile(rb"(?:Image|Version): (\S{1,100})\s*")
_CONTAINER_PULL = re.compile(rb"##\[command\]\S*docker (?:--config \S+ )?pull (\S+)\s*")

_DIGEST = re.compile(rb"Digest: (sha256:[0-9a-f]{64})\s*")
_STATUS = re.compile(rb"Status: (?:Downloaded newer image|Image is up to date) for (\S{1,400})\s*")
_MAX_DIGESTS = 100

_DRIVER = re.compile(rb".{0,2000}?Driver Version: (\d[\d.]{1,20})")
_GPU = re.compile(rb"\|\s{1,4}(\d{1,3})\s{1,4}(NVIDIA \S+(?: \S+){0,6})\s|GPU (\d{1,3}): (.{1,100}?) \(UUID: GPU-")
_PYTHON = re.compile(rb"(?:.{0,30}CPython \(?|platform linux -- Python |Python )(\d\.\d{1,2}\.\d{1,2})\b.{0,300}")
_INSTALLED = b"Successfully installed "
_FROZEN = re.compile(rb"(?: [+~] )?([A-Za-z0-9][\w.-]{0,100})==(\d\S{0,60})\s*")
_HEADING = re.compile(rb"Package +Version\b.{0,100}")
_ENTRY = re.compile(rb"([A-Za-z0-9][\w.-]{0,100}) +(\d\S{0,60})(?: .{0,300})?")
_MAX_PACKAGES = 5000
_LONGEST = 1 << 20  # bytes of a line that are looked at
WORDS = (
    *(rb"Runner name: ", rb"Complete job name: ", rb"Job defined at: ", rb"Job is about to start", rb"HEAD is now at "),
    *(rb"\[command\]", rb"Syncing repository: ", rb"Working directory is '", rb"Digest: sha256:"),
    *(rb"Driver Version: \d", rb"NVIDIA ", rb"GPU \d{1,3}: ", rb"Python \d", rb"CPython ", rb"==\d"),
    *(rb"Successfully installed ", rb"Package +Version"),
)
"""A line without one of these tells something only where `needs_next_line` says so."""


def with_tag(image: str) -> str:
    """An image's name with its tag, so that two ways to write it compare equal."""
    for default in ("docker.io/", "index.docker.io/", "library/"):
        image = image.removeprefix(default)
    return image if "@" in image or ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"


class CheckoutFacts:
    """Fed with the lines of one checkout step."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        named = inputs.get("repository", "")
        self.repository = named if _REPOSITORY.fullmatch(named) else ""
        self.has_own_path = bool(inputs.get("path"))  # beside the workspace's own checkout
        self.ref = self.workspace = ""
        self.head = Head("")
        self.needs_next_line = False
        self._logged = self._fetched = ""

    @property
    def commit(self) -> str:
        """As `git log` says it, else as it was fetched, unless that is not what HEAD is at, else the short form."""
        return self._logged or (self._fetched if self._fetched.startswith(self.head.commit) else self.head.commit)

    def feed(self, text: bytes) -> None:
        if self.needs_next_line:
            match = _COMMIT.fullmatch(text)
            self._logged = self._logged or (match[1].decode() if match else "")
        self.needs_next_line = b"[command]" in text and _LOG.search(text) is not None
        if text.startswith((b"[command]", b"##[command]")):
            self._command(text)
        elif not self.head.commit and (match := _HEAD.match(text)):
            merge = _MERGE.fullmatch(match[2])
            self.head = Head(match[1].decode(), *((merge[1].decode(), merge[2].decode()) if merge else ()))
        elif match := _SYNCING.fullmatch(text):
            named = printable_text(match[1])
            self.repository = self.repository or (named if _REPOSITORY.fullmatch(named) else "")
        elif text.startswith(b"Working directory is '"):
            self.workspace = self.workspace or printable_text(text.partition(b"'")[2]).rstrip("'")

    def _command(self, text: bytes) -> None:
        if not self._fetched and (match := _FETCHED.search(text)):
            self._fetched = match[1].decode()
            self.ref = self.ref or _full_ref(printable_text(match[2]))
        elif not self.ref and (match := _CHECKED_OUT.search(text)):
            self.ref = _full_ref(printable_text(match[1]).removeprefix("refs/"))


def _full_ref(tracking: str) -> str:
    """The server's name of what the checkout fetched into `refs/{tracking}`; "" for a commit without a ref."""
    if tracking.startswith("remotes/pull/"):
        return "refs/" + tracking.removeprefix("remotes/")
    if tracking.startswith("remotes/origin/"):
        return "refs/heads/" + tracking.removeprefix("remotes/origin/")
    return "refs/" + tracking if tracking.startswith("tags/") else ""


class SetUpFacts:
    """Fed with every line before the first step. `container` is the image of the job's container."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.container = ""
        self.has_containers = False  # whether the runner has come to the job's containers
        self._image: list[str] = []
        self._group = b""

    @property
    def needs_next_line(self) -> bool:
        return self._group in (_RUNNER_IMAGE, _JOB_CONTAINER)

    def feed(self, text: bytes) -> None:
        if text.startswith((b"##[group]", b"##[endgroup]")):
            self._group = text.removeprefix(b"##[group]").strip()
            self.has_containers = self.has_containers or self._group in (b"Checking docker version", _JOB_CONTAINER)
        elif self._group == _JOB_CONTAINER:
            pull = _CONTAINER_PULL.fullmatch(text)
            self.container = self.container or (printable_text(pull[1]) if pull else "")
        elif self._group == _RUNNER_IMAGE and len(self._image) < 2 and (match := _IMAGE.fullmatch(text)):
            self._image.append(printable_text(match[1]))
        else:
            for name, pattern in _SET_UP.items():
                if match := pattern.fullmatch(text):
                    self.values.setdefault(name, printable_text(match[1]).strip())

    @property
    def runner_image(self) -> str:
        """GitHub's name and version of it: `ubuntu-24.04 20250105.1.0`."""
        return " ".join(self._image)

    @property
    def runner_name(self) -> str:
        return self.values.get("runner_name") or self.values.get("hosted_on", "")

    @property
    def defined_at(self) -> tuple[str, str, str]:
        """Repository, workflow file and ref of the workflow."""
        match = _DEFINED.fullmatch(self.values.get("defined_at", ""))
        return (match[1], match[2], match[3]) if match else ("", "", "")


class PullFacts:
    """Fed with the output of a set-up or of steps: the digests of the images that Docker pulled. A digest counts where
    Docker names its image on the next line, and the first of an image."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self._digest = ""

    @property
    def needs_next_line(self) -> bool:
        return bool(self._digest)

    def feed(self, text: bytes) -> None:
        status = _STATUS.fullmatch(text) if self._digest else None
        if status and len(self.digests) < _MAX_DIGESTS:
            self.digests.setdefault(with_tag(printable_text(status[1])), self._digest)
        match = _DIGEST.fullmatch(text)
        self._digest = match[1].decode() if match else ""


class MachineFacts:
    """Fed with the output of steps."""

    def __init__(self) -> None:
        self.models: dict[int, str] = {}
        self.driver = self.python = ""
        self.packages: dict[str, str] = {}
        self.needs_next_line = False  # within `pip list`

    def feed(self, text: bytes) -> None:
        text = text[:_LONGEST].rstrip()
        if not self.python and b"Python " in text and (match := _PYTHON.fullmatch(text)):
            self.python = match[1].decode()
        if not self.driver and (match := _DRIVER.match(text)):
            self.driver = match[1].decode()
        elif match := _GPU.match(text[:200]):
            self.models.setdefault(int(match[1] or match[3]), printable_text(match[2] or match[4]).strip())
        elif text.startswith(_INSTALLED):
            for word in text[len(_INSTALLED) :].split():
                name, dash, version = word.rpartition(b"-")
                if dash and version[:1].isdigit():
                    self._package(name, version)
        elif b"==" in text and (frozen := _FROZEN.fullmatch(text[:300])):
            self._package(frozen[1], frozen[2])
        elif self.needs_next_line:
            entry = _ENTRY.fullmatch(text[:600])
            if entry:
                self._package(entry[1], entry[2])
            self.needs_next_line = entry is not None or text.startswith(b"---")
        elif text.startswith(b"Package "):
            self.needs_next_line = _HEADING.fullmatch(text[:300]) is not None

    def _package(self, name: bytes, version: bytes) -> None:
        key = re.sub(r"[-_.]+", "-", printable_text(name)).lower()  # as PEP 503 has it: pip prints both spellings
        if len(self.packages) < _MAX_PACKAGES:
            self.packages[key] = printable_text(version)
