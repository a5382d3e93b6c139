"""What a job's log tells of the job; and what the lines between the runner's messages tell: code, image, machine and
packages.

Of a fact that is told twice the first value counts, but for packages: what a program prints comes after what the runner
and git say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import visible

# How a step ended, if the log says so.
FAILURE, CANCELLED, TIMED_OUT, LOST = "failure", "cancelled", "timed out", "runner lost"
SUCCESS = "success"


@dataclass(frozen=True)
class RecoveredStep:
    """A step as the runner announces it, secrets shown as `***`.

    `name` is gh's, else GitHub's default ("Run " and the script's first line); `line` the 1-based line of the log where
    it begins; `uses` the action, or "" for a script. `masked` are the variables with a secret in them; `minutes` is the
    limit that it ran into. `outcome` is "" if the log does not say that the step ended badly; `error` is the last error
    that the runner showed.
    """

    name: str
    line: int
    uses: str = ""
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    outcome: str = ""
    exit_code: int | None = None
    minutes: int | None = None
    error: str = ""


@dataclass(frozen=True)
class RecoveredJob:
    """Everything that was recovered; all text is safe for a terminal. "" and None mean: not in the log.

    `commit` has 40 digits, or fewer if the log shows no more; of a pull request it is the merge commit, and
    `merge_head` and `merge_base` are its parents. `image` is as CI names it, `digest` is "sha256:…". `workspace` is
    where CI checked out. `runner_image` is GitHub's image of the machine and its version, `python` CI's version of it.
    `started` and `ended` are in seconds since the epoch. `conclusion` is success, failure, cancelled or "". `missing`
    has one sentence for each fact that is not in the log.
    """

    repository: str = ""
    job_name: str = ""
    workflow: str = ""
    runner_name: str = ""
    runner_image: str = ""
    commit: str = ""
    ref: str = ""
    pull_request: int | None = None
    merge_head: str = ""
    merge_base: str = ""
    workspace: str = ""
    image: str = ""
    digest: str = ""
    steps: tuple[RecoveredStep, ...] = ()
    failed_step: str = ""
    exit_code: int | None = None
    conclusion: str = ""
    started: float | None = None
    ended: float | None = None
    gpu_models: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def takes_gpus(self) -> bool:
        return bool(self.gpu_models) or any(re.search("--gpus|gpu_lock_exec", step.script) for step in self.steps)

    @property
    def scripts(self) -> tuple[RecoveredStep, ...]:
        return tuple(step for step in self.steps if not step.uses)


_SHA = rb"[0-9a-f]{40}(?:[0-9a-f]{24})?"
_REPOSITORY = rb"[\w.-]{1,100}/[\w.-]{1,100}"
_COMMAND = rb"(?:##)?\[command\].* "
_REF = rb"((?:remotes/pull|remotes/origin|tags)/\S{1,300})"
# The names of facts, and the lines that tell them.
_SET_UP = {
    "runner_name": re.compile(rb"Runner name: '?(.{1,200}?)'?\s*\Z"),
    "job_name": re.compile(rb"Complete job name: (.{1,2000})\Z"),
    "defined_at": re.compile(rb"Job defined at: (\S{1,1000})\s*\Z"),
}
_CHECKOUT = {
    "repository": re.compile(rb"Syncing repository: (" + _REPOSITORY + rb")\s*\Z"),
    "workspace": re.compile(rb"Working directory is '(.*?)'*\Z"),
    "head": re.compile(rb"HEAD is now at ([0-9a-f]{4,64})\b"),
    "fetched": re.compile(_COMMAND + rb"fetch .*\+(" + _SHA + rb"):refs/\S"),
    "ref": re.compile(_COMMAND + rb"(?:fetch .*\+" + _SHA + rb":refs/|checkout .*--force.* (?:refs/)?)" + _REF),
}
_MACHINE = {
    "python": re.compile(rb"(?:.{0,30}CPython \(?|platform linux -- Python |Python )(\d\.\d{1,2}\.\d{1,2})\b"),
    "driver": re.compile(rb".{0,2000}?Driver Version: (\d[\d.]{1,20})"),
}
_DEFINED = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^@]+)@(\S+)")
_RUNNER_IMAGE, _JOB_CONTAINER, _DOCKER = b"Runner Image", b"Starting job container", b"Checking docker version"
_IMAGE = re.compile(rb"(?:Image|Version): (\S{1,100})\s*")
_CONTAINER_PULL = re.compile(rb"##\[command\]\S*docker (?:--config \S+ )?pull (\S+)\s*")
_LOG = re.compile(rb"\[command\].*log -1 ['\"]?--format=['\"]?(?:format:)?%H['\"]?\s*\Z")
_LOGGED = re.compile(rb"['\"]?(" + _SHA + rb")['\"]?\s*")
_MERGE = re.compile(rb"HEAD is now at [0-9a-f]+ ?Merge (" + _SHA + rb") into (" + _SHA + rb")\s*")
_DIGEST = re.compile(rb"Digest: (sha256:[0-9a-f]{64})\s*")
_STATUS = re.compile(rb"Status: (?:Downloaded newer image|Image is up to date) for (\S{1,400})\s*")
_GPU = re.compile(rb"\|\s{1,4}(\d{1,3})\s{1,4}(NVIDIA \S+(?: \S+){0,6})\s|GPU (\d{1,3}): (.{1,100}?) \(UUID: GPU-")
_INSTALLED = b"Successfully installed "
_FROZEN = re.compile(rb"(?: [+~] )?([A-Za-z0-9][\w.-]{0,100})==(\d\S{0,60})\s*")
_MAX_DIGESTS, _MAX_PACKAGES = 100, 5000
_LONGEST = 1 << 20  # bytes of a line that are looked at
WORDS = (
    *(rb"Runner name: ", rb"Complete job name: ", rb"Job defined at: ", rb"HEAD is now at "),
    *(rb"\[command\]", rb"Syncing repository: ", rb"Working directory is '", rb"Digest: sha256:"),
    *(rb"Driver Version: \d", rb"NVIDIA ", rb"GPU \d{1,3}: ", rb"Python \d", rb"CPython ", rb"==\d"),
    rb"Successfully installed ",
)
"""A line without one of these tells something only where `needs_next_line` says so."""


def with_tag(image: str) -> str:
    """An image's name with its tag, so that two ways to write it compare equal."""
    for default in ("docker.io/", "index.docker.io/", "library/"):
        image = image.removeprefix(default)
    return image if "@" in image or ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"


class _Facts:
    """The facts of a table, as lines tell them. `needs_next_line`: the next line may tell more without one of the
    words."""

    def __init__(self, patterns: Mapping[str, re.Pattern[bytes]]) -> None:
        self._patterns = dict(patterns)
        self.values = dict.fromkeys(patterns, "")
        self.needs_next_line = False

    def read(self, text: bytes) -> None:
        for name, pattern in [*self._patterns.items()]:
            if match := pattern.match(text):
                self.values[name] = visible(match[1]).strip()
                del self._patterns[name]


class CheckoutFacts(_Facts):
    """Fed with the lines of one checkout step. `parents` are a merge commit's."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        super().__init__(_CHECKOUT)
        if re.fullmatch(_REPOSITORY.decode(), named := inputs.get("repository", "")):
            self.values["repository"] = named
            del self._patterns["repository"]
        self.has_own_path = bool(inputs.get("path"))  # beside the workspace's own checkout
        self.parents = ("", "")
        self._logged = ""

    def feed(self, text: bytes) -> None:
        if self.needs_next_line and not self._logged and (match := _LOGGED.fullmatch(text)):
            self._logged = match[1].decode()
        self.needs_next_line = _LOG.search(text) is not None
        if not self.values["head"] and (match := _MERGE.fullmatch(text)):
            self.parents = (match[1].decode(), match[2].decode())
        self.read(text)

    @property
    def commit(self) -> str:
        """As `git log` says it, else as it was fetched, unless that is not what HEAD is at, else the short form."""
        head, fetched = self.values["head"], self.values["fetched"]
        return self._logged or (fetched if fetched.startswith(head) else head)

    @property
    def ref(self) -> str:
        """The server's name of what the checkout fetched or checked out; "" for a commit without a ref."""
        tracking = self.values["ref"].replace("remotes/origin/", "heads/", 1).removeprefix("remotes/")
        return f"refs/{tracking}" if tracking else ""


class SetUpFacts(_Facts):
    """Fed with every line before the first step. `container` is the image of the job's container, `runner_image`
    GitHub's name and version of the machine's: `ubuntu-24.04 20250105.1.0`."""

    def __init__(self) -> None:
        super().__init__(_SET_UP)
        self.container = self.runner_image = ""
        self.has_containers = False  # whether the runner has come to the job's containers
        self._group = b""

    def feed(self, text: bytes) -> None:
        if text.startswith((b"##[group]", b"##[endgroup]")):
            self._group = text.removeprefix(b"##[group]").strip()
            self.has_containers = self.has_containers or self._group in (_DOCKER, _JOB_CONTAINER)
            self.needs_next_line = self._group in (_RUNNER_IMAGE, _JOB_CONTAINER)
        elif self._group == _JOB_CONTAINER:
            pull = _CONTAINER_PULL.fullmatch(text)
            self.container = self.container or (visible(pull[1]) if pull else "")
        elif self._group == _RUNNER_IMAGE and " " not in self.runner_image and (match := _IMAGE.fullmatch(text)):
            self.runner_image = f"{self.runner_image} {visible(match[1])}".lstrip()
        else:
            self.read(text)

    @property
    def defined_at(self) -> tuple[str, str, str]:
        """Repository, workflow file and ref of the workflow."""
        match = _DEFINED.fullmatch(self.values["defined_at"])
        return (match[1], match[2], match[3]) if match else ("", "", "")


class MachineFacts(_Facts):
    """Fed with the output of steps."""

    def __init__(self) -> None:
        super().__init__(_MACHINE)
        self.models: dict[int, str] = {}
        self.packages: dict[str, str] = {}

    def feed(self, text: bytes) -> None:
        text = text[:_LONGEST].rstrip()
        self.read(text)
        if match := _GPU.match(text):
            self.models.setdefault(int(match[1] or match[3]), visible(match[2] or match[4]).strip())
        elif text.startswith(_INSTALLED):
            for word in text.removeprefix(_INSTALLED).split():
                name, _, version = word.rpartition(b"-")
                if name and version[:1].isdigit():
                    self._package(name, version)
        elif package := _FROZEN.fullmatch(text):
            self._package(package[1], package[2])

    def _package(self, name: bytes, version: bytes) -> None:
        key = re.sub(r"[-_.]+", "-", visible(name)).lower()  # as PEP 503 has it: pip prints both spellings
        if len(self.packages) < _MAX_PACKAGES:
            self.packages[key] = visible(version)


class PullFacts:
    """Fed with the output of a set-up or of steps: the digests of the images that Docker pulled. A digest counts if
    Docker names its image on the next line; for each image the first counts."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self._digest = ""

    @property
    def needs_next_line(self) -> bool:
        return bool(self._digest)

    def feed(self, text: bytes) -> None:
        status = _STATUS.fullmatch(text) if self._digest else None
        if status and len(self.digests) < _MAX_DIGESTS:
            self.digests.setdefault(with_tag(visible(status[1])), self._digest)
        match = _DIGEST.fullmatch(text)
        self._digest = match[1].decode() if match else ""
