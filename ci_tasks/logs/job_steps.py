"""One step of a job while its lines come in: how the runner announces it, and what its checkout, its image pulls and
its output tell of code, image and machine.

The group in which the runner announces a step has its script, inputs and environment:

    ##[group]Run docker run \\\\                  ##[group]Run actions/checkout@v4
    (cyan)docker run \\\\                         with:
    (cyan)  image:latest                         repository: owner/name
    shell: /usr/bin/bash -e {0}                 env:
    env:                                          NAME: value
      NAME: value                              ##[endgroup]
    ##[endgroup]

A test may print such a group too, and many programs print groups whose title begins with Run. So the line below the
title has to be one that the runner writes there. Of a fact that is told twice the first value counts, but for packages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.logs.job_lines import CYAN, LogLine, printable_text
from ci_tasks.workflow import shell

# How a step ended, where the log says so.
FAILURE, CANCELLED, TIMED_OUT, LOST = "failure", "cancelled", "timed out", "runner lost"
SUCCESS = "success"
_PULLING = re.compile(rb"\S{1,200}: Pulling from \S{1,300}\s*")
_LAYER = re.compile(rb"(?:[0-9a-f]{12}: .{0,200}|\s*)")
_DIGEST = re.compile(rb"Digest: (sha256:[0-9a-f]{64})\s*")
_STATUS = re.compile(rb"Status: (?:Downloaded newer image|Image is up to date) for (\S{1,400})\s*")
_ABSENT = re.compile(rb"Unable to find image '\S{1,400}' locally\s*")
_MAX_DIGESTS = 100
_SHA = rb"[0-9a-f]{40}(?:[0-9a-f]{24})?"
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_LOG = re.compile(rb"log -1 ['\"]?--format=['\"]?(?:format:)?%H['\"]?\s*\Z")
_COMMIT = re.compile(rb"['\"]?(" + _SHA + rb")['\"]?\s*")
_FETCHED = re.compile(rb"\+(" + _SHA + rb"):refs/(\S{1,300})")
_HEAD = re.compile(rb"HEAD is now at ([0-9a-f]{4,64})\b ?(.{0,1000})")
_MERGE = re.compile(rb"Merge (" + _SHA + rb") into (" + _SHA + rb")\s*")
_PULL = re.compile(r"refs/pull/(\d{1,9})/\w+")
_DRIVER = re.compile(rb"Driver Version: (\d[\d.]{1,20})")
_TABLE = re.compile(rb"\|\s{1,4}(\d{1,3})\s{1,4}(NVIDIA \S+(?: \S+){0,6})\s")
_LISTED = re.compile(rb"GPU (\d{1,3}): (.{1,100}?) \(UUID: GPU-")
_INSTALLED = b"Successfully installed "
_FROZEN = re.compile(rb"(?: [+~] )?([A-Za-z0-9][\w.-]{0,100})==(\d\S{0,60})\s*")
_HEADING = re.compile(rb"Package +Version\b.{0,100}")
_ENTRY = re.compile(rb"([A-Za-z0-9][\w.-]{0,100}) +(\d\S{0,60})(?: .{0,300})?")
_MAX_PACKAGES = 5000
_MESSAGES = {
    b"Runner name: ": "runner_name",
    b"Complete job name: ": "job_name",
    b"Job defined at: ": "defined_at",
    b"Job is about to start running on the runner: ": "hosted_on",
}
_BEGINNINGS = tuple(_MESSAGES)
_CREATE = re.compile(rb"##\[command\]\S*docker create ")
_CONTAINER_PULL = re.compile(rb"##\[command\]\S*docker (?:--config \S+ )?pull (\S+)\s*\Z")
_CONTAINER = b"Starting job container"
_CONTAINERS = (b"Checking docker version", _CONTAINER)
_DEFINED = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^@]+)@(\S+)")
_RESET = b"\x1b[0m"
TITLE = b"##[group]Run "
END = b"##[endgroup]"
_ACTION = re.compile(r"(?:[\w.-]+/[\w./-]+@|\./|\.github/|docker://)\S*")
_SECTIONS = (b"with:", b"env:")
_SETTING = re.compile(r"  ([^\s:][^:]{0,200}):(?: (.*))?", re.DOTALL)
_MASK = "***"
_SILENT = ("set", "export", "cd")  # commands that print nothing before docker does
WORDS = (
    *(re.escape(beginning) for beginning in _BEGINNINGS),
    *(rb"##\[(?:end)?group\]", rb"\[command\]", rb"HEAD is now at ", rb"Syncing repository: "),
    *(rb"Working directory is '", rb": Pulling from ", rb"Driver Version: \d", rb"NVIDIA ", rb"GPU \d{1,3}: "),
    *(rb"Successfully installed ", rb"==\d", rb"Package +Version"),
)
"""A line without one of these tells something only where `needs_next_line` says so."""


@dataclass(frozen=True)
class RecoveredStep:
    """A step as the runner announces it, secrets shown as `***`.

    `name` is gh's, else GitHub's default ("Run " and the script's first line); `line` the 1-based line of the log where
    it begins; `uses` the action, or "" for a script. `masked` are the variables with a secret in them; `minutes` is the
    limit that it ran into. `outcome` is "" where the
    log does not say that the step ended badly; `error` is the last error that the runner showed.
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
class Head:
    """A commit that git says HEAD is at; of a merge with its parents."""

    commit: str
    merge_head: str = ""
    merge_base: str = ""


@dataclass(frozen=True)
class RecoveredJob:
    """Everything that was recovered; all text is safe for a terminal. "" and None mean: not in the log.

    `commit` has 40 digits, or fewer where the log shows no more; of a pull request it is the merge commit, and
    `merge_head` and `merge_base` are its parents. `image` is as CI names it, `digest` is "sha256:…". `workspace` is
    where CI checked out. `started` and `ended` are in seconds since the epoch. `conclusion` is success, failure,
    cancelled or "". `heads` are the commits of `HEAD is now at` outside of a checkout step, where no such step names
    the commit: the code under test may be one of them, or none. `missing` has one sentence for each fact that is not in
    the log: what, and what that means.
    """

    repository: str = ""
    job_name: str = ""
    workflow: str = ""
    runner_name: str = ""
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
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    heads: tuple[Head, ...] = ()

    @property
    def scripts(self) -> tuple[RecoveredStep, ...]:
        return tuple(step for step in self.steps if not step.uses)


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


class CheckoutParser:
    """Fed with the lines of one checkout step. The first message of a kind counts."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        named = inputs.get("repository", "")
        self.repository = named if _REPOSITORY.fullmatch(named) else ""
        self.has_own_path = bool(inputs.get("path"))  # beside the workspace's own checkout
        self.ref = ""
        self.workspace = ""
        self.head = Head("")
        self._logged = self._fetched = ""
        self._expects_commit = False

    @property
    def commit(self) -> str:
        """As `git log` says it, else as it was fetched, unless that is not what HEAD is at, else the short form."""
        return self._logged or (self._fetched if self._fetched.startswith(self.head.commit) else self.head.commit)

    @property
    def needs_next_line(self) -> bool:
        return self._expects_commit

    def feed(self, text: bytes) -> None:
        if text.startswith((b"[command]", b"##[command]")):
            self._command(text)
        elif self._expects_commit:
            match = _COMMIT.fullmatch(text)
            self._logged = self._logged or (match[1].decode() if match else "")
            self._expects_commit = False
        elif head := head_in(text):
            self.head = self.head if self.head.commit else head
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


def head_in(text: bytes) -> Head | None:
    """What git says of HEAD in a line, by whatever it was run."""
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


class MachineParser:
    """Fed with the output of steps. Of GPUs and driver the first value counts, of a package the last."""

    def __init__(self) -> None:
        self.models: dict[int, str] = {}
        self.driver = ""
        self.packages: dict[str, str] = {}
        self._listing = False

    @property
    def needs_next_line(self) -> bool:
        return self._listing

    def feed(self, text: bytes) -> None:
        if b"Driver Version: " in text and not self.driver:
            match = _DRIVER.search(text[:2000])
            self.driver = match[1].decode() if match else ""
        elif b"NVIDIA " in text or text.startswith(b"GPU "):
            match = _TABLE.match(text[:200]) or _LISTED.match(text[:200])
            if match:
                self.models.setdefault(int(match[1]), printable_text(match[2]).strip())
        elif text.startswith(_INSTALLED):
            for word in text[len(_INSTALLED) : 1 << 20].split():
                name, dash, version = word.rpartition(b"-")
                if dash and version[:1].isdigit():
                    self._package(name, version)
        elif b"==" in text and (frozen := _FROZEN.fullmatch(text[:300])):
            self._package(frozen[1], frozen[2])
        elif self._listing:
            entry = _ENTRY.fullmatch(text.rstrip()[:600])
            if entry:
                self._package(entry[1], entry[2])
            self._listing = entry is not None or text.startswith(b"---")
        elif text.startswith(b"Package "):
            self._listing = _HEADING.fullmatch(text.rstrip()[:300]) is not None

    def _package(self, name: bytes, version: bytes) -> None:
        key = re.sub(r"[-_.]+", "-", printable_text(name)).lower()  # as PEP 503 has it: pip prints both spellings
        if len(self.packages) < _MAX_PACKAGES:
            self.packages[key] = printable_text(version)


class SetupParser:
    """Fed with every line before the first step. The first message of a kind counts."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.pulls = ImagePullParser()
        self.image = ""
        self.containers = False  # whether the runner has come to the job's containers
        self._group = b""

    @property
    def needs_next_line(self) -> bool:
        return self._group == _CONTAINER

    def feed(self, text: bytes) -> None:
        if text.startswith(b"##[group]"):
            self._group = text[9:].strip()
            self.containers = self.containers or self._group in _CONTAINERS
        elif text.startswith(b"##[endgroup]"):
            self._group = b""
        elif self._group == _CONTAINER:
            self._in_container(text)
        elif text.startswith(_BEGINNINGS):  # a log that has no steps is read here to its end
            for start, name in _MESSAGES.items():
                if text.startswith(start):
                    self.values.setdefault(name, printable_text(text[len(start) :]).strip())

    def _in_container(self, text: bytes) -> None:
        self.pulls.feed(text)
        if pull := _CONTAINER_PULL.match(text):
            self.image = printable_text(pull[1])  # all there is of a container that never came to be
        if not _CREATE.match(text):
            return
        try:
            argv = shlex.split(printable_text(text.removeprefix(b"##[command]"), 1 << 20))
            self.image = parse_run(["run", *argv[2:]]).image
        except (ValueError, DockerArgvError):
            pass

    @property
    def runner_name(self) -> str:
        return self.values.get("runner_name", "").strip("'") or self.values.get("hosted_on", "").partition(" (")[0]

    @property
    def defined_at(self) -> tuple[str, str, str]:
        """Repository, workflow file and ref of the workflow."""
        match = _DEFINED.fullmatch(self.values.get("defined_at", ""))
        return (match[1], match[2], match[3]) if match else ("", "", "")


def begins(title: bytes, below: bytes, *, stamped: bool) -> bool:
    """Whether a group's title and the line below are the beginning of a step. In a log without timestamps the script
    may have lost its colour, and in our own logs the title is the step's name, so there every `Run` group is one."""
    first = title.removeprefix(TITLE).strip()
    if not stamped or below.startswith(CYAN) or below.strip() == first:
        return True
    return (below in _SECTIONS or below == END) and _ACTION.fullmatch(printable_text(first)) is not None


def parse_header(title: LogLine, body: Sequence[tuple[bytes, bool]]) -> tuple[RecoveredStep, dict[str, str]]:
    """A step under GitHub's default name, and its inputs, from its group's lines, each with whether it is a line of its
    own (not what a newline in a value made of one)."""
    name = printable_text(title.text.removeprefix(b"##[group]"))
    count = _script_lines(body)
    sections = _sections(body[count:])
    env = sections.get("env:", {})
    masked = tuple(name for name, value in env.items() if _MASK in value)
    if count == 0 and _ACTION.fullmatch(uses := name.removeprefix("Run ")):
        return RecoveredStep(name, title.number, uses, env=env, masked=masked), sections.get("with:", {})
    script = "\n".join(_script_line(line) for line, _ in body[:count])
    return RecoveredStep(name, title.number, script=script, env=env, masked=masked), {}


def _script_line(raw: bytes) -> str:
    """A line of a script as the runner echoes it: without the cyan around it, otherwise as it is but for control
    characters."""
    line = raw.removeprefix(CYAN)
    return printable((line.removesuffix(_RESET) if line is not raw else line).decode("utf-8", "replace"))


def _script_lines(body: Sequence[tuple[bytes, bool]]) -> int:
    """How many of the group's first lines are the script: those in cyan; where the colour is lost, those before the
    last `shell:`, since a script may have such a line as well."""
    if body and body[0][0].startswith(CYAN):
        return next((at for at, (line, _) in enumerate(body) if not line.startswith(CYAN)), len(body))
    if body and body[0][0] in _SECTIONS:
        return 0
    shells = [at for at, (line, _) in enumerate(body) if line.startswith(b"shell: ")]
    return shells[-1] if shells else len(body)


def _sections(body: Sequence[tuple[bytes, bool]]) -> dict[str, dict[str, str]]:
    """The indented entries below `with:` and `env:`. A value goes on in lines that the runner did not begin, and where
    that cannot be seen, in those that are no entry."""
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] | None = None
    last = ""
    for raw, own in body:
        if own and raw in _SECTIONS:
            entries = sections.setdefault(raw.decode(), {})
            last = ""
            continue
        line = printable_text(raw, 1 << 20)
        entry = _SETTING.fullmatch(line) if own else None
        if entries is None:
            continue
        if entry:
            last = entry[1]
            entries[last] = entry[2] or ""
        elif last:
            entries[last] += "\n" + line
    return sections


class StepParser:
    """`announced` is the step as its group shows it. `column` is gh's name of it, "" where there is none; `early` says
    that no script ran before it, so nothing but the runner can have announced it."""

    def __init__(self, announced: RecoveredStep, inputs: Mapping[str, str], *, column: str, early: bool) -> None:
        self.announced, self.column, self.early = announced, column, early
        self.outcome = self.error = ""
        self._exit_code: int | None = None
        self._minutes: int | None = None
        self._name = ""
        self.has_later_output = False  # after the message that says how the step ended
        self.checkout = CheckoutParser(inputs) if announced.uses.startswith("actions/checkout@") else None
        has_docker = "docker" in announced.script
        self.pulls = ImagePullParser(strict=_begins_with_docker(announced.script)) if has_docker else None

    @property
    def needs_next_line(self) -> bool:
        ended = bool(self.outcome) and not self.has_later_output
        within = self.checkout or self.pulls
        return ended or (within is not None and within.needs_next_line)

    def feed(self, text: bytes) -> None:
        if self.outcome and text and not text.startswith(b"##["):
            self.has_later_output = True
        if within := self.checkout or self.pulls:
            within.feed(text)

    def fail(
        self, outcome: str, message: bytes, exit_code: int | None = None, minutes: int | None = None, name: str = ""
    ) -> None:
        """The runner's message about the step's end; the last such message is the runner's own."""
        self.outcome, self._exit_code, self._minutes, self.has_later_output = outcome, exit_code, minutes, False
        self.error, self._name = printable_text(message, 300), name

    @property
    def failed(self) -> bool:
        return bool(self.outcome) and not self.has_later_output and self._exit_code != 0

    def record(self) -> RecoveredStep:
        step = replace(self.announced, name=self.column or self._name or self.announced.name, error=self.error)
        if not self.failed:
            return step
        return replace(step, outcome=self.outcome, exit_code=self._exit_code, minutes=self._minutes)


def _begins_with_docker(script: str) -> bool:
    for argv in shell.commands(script):
        if argv[0] not in _SILENT or any("x" in word for word in argv if argv[0] == "set"):
            return argv[0].rsplit("/", 1)[-1] == "docker"
    return False
