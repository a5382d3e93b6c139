"""The nouns of the house, as frozen records. They know nothing of files, processes or terminals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Statuses of a row and what a process says of them. 125 is the code that `git bisect run` skips.
PASSED, FAILED, VACUOUS, BLOCKED, CANCELLED, LOST = "passed", "failed", "vacuous", "blocked", "cancelled", "lost"
EXIT_CODES = {PASSED: 0, FAILED: 1, VACUOUS: 1, BLOCKED: 125, CANCELLED: 130, LOST: 125}
# Of several rows the first of these that occurred speaks for all: failed wins over blocked, blocked over passed.
_WORST_FIRST = (CANCELLED, FAILED, VACUOUS, LOST, BLOCKED, PASSED)


def overall(statuses: list[str]) -> str:
    """The status of several rows together. No row at all is vacuous: nothing was shown."""
    return next((status for status in _WORST_FIRST if status in statuses), VACUOUS)


@dataclass(frozen=True)
class Step:
    """One entry of a job's `steps`, unevaluated. `line` is 1-based in the workflow file."""

    name: str
    line: int
    id: str | None = None
    uses: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    shell: str | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    working_directory: str | None = None
    condition: str | None = None
    continue_on_error: Any = False
    timeout_minutes: Any = None


@dataclass(frozen=True)
class Container:
    """A job's `container:`, unevaluated. `options` are words for `docker create`; `unused` are keys that CI acts on and
    we do not: how to log in to a registry, and ports."""

    image: str
    options: str = ""
    env: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Job:
    """One job of a workflow, unevaluated. `matrix` is a mapping, or an expression that gives one."""

    id: str
    line: int
    name: str | None = None
    condition: str | None = None
    needs: tuple[str, ...] = ()
    runs_on: Any = None
    env: Mapping[str, Any] = field(default_factory=dict)
    matrix: Any = None
    container: Container | None = None
    services: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    shell: str | None = None
    working_directory: str | None = None
    timeout_minutes: Any = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    uses: str | None = None


@dataclass(frozen=True)
class Workflow:
    """A workflow file. `path` is from the checkout's root; `rendered` says that it came from a template.

    `inputs` are the defaults of what a caller gives, for a workflow that no pull request starts.
    """

    path: str
    name: str
    jobs: Mapping[str, Job]
    env: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    rendered: bool = False
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What line numbers count in: the file, or the text that its template gave."""
        return f"{self.path} (rendered)" if self.rendered else self.path


@dataclass(frozen=True)
class Row:
    """One entry of a job's expanded matrix, evaluated: what CI shows as one check.

    `test` is a path from the checkout's root, or None where the job names no test file; `gpus` is None where the
    workflow does not say; `dynamic` is the expression of a matrix that only another job's output can give.
    """

    label: str
    job: str
    trigger: str | None
    row: str
    test: str | None
    args: str
    gpus: int | None
    image: str | None
    env: Mapping[str, str]
    runner: str
    timeout_minutes: float | None
    matrix: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    total: int = 1
    dynamic: str | None = None

    def public(self) -> dict[str, Any]:
        """The fields of `jobs --json`."""
        shown = asdict(self)
        for internal in ("matrix", "index", "total"):
            del shown[internal]
        if self.dynamic is None:
            del shown["dynamic"]
        return shown


@dataclass(frozen=True)
class Deviation:
    """One way in which a run differs from CI."""

    what: str
    ci: str
    here: str
    why: str


@dataclass(frozen=True)
class Override:
    """An entry of hosts.yaml's `overrides`: a step replaced (`run`, `with_`) or skipped."""

    job: str
    step: str
    run: str | None = None
    skip: bool = False
    with_: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class HostSpec:
    """A host of hosts.yaml. `gpus` is None where it has to be counted on the host itself.

    `workspace` is the directory there for everything of ours; `network` replaces CI's `--network host`; `artifacts` are
    further paths that are brought back after a run. What follows `partition` is Slurm's: `gres` without its count, and
    `sbatch`, further options of it as words.
    """

    name: str
    kind: str = "local"
    address: str | None = None
    runtime: str = "docker"
    gpus: int | None = None
    simulate: bool = False
    pull: str | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_minutes: float = 24 * 60
    stall_minutes: float = 10
    workspace: str = "~/.ci-tasks"
    network: str | None = None
    artifacts: tuple[str, ...] = ()
    partition: str | None = None
    gres: str | None = None
    account: str | None = None
    qos: str | None = None
    sbatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkout:
    """The code under test: where it is, and exactly which tree runs. `dirty` lists paths that differ from HEAD; `rev`
    is the revision that a person named, None for the working tree."""

    path: str
    commit: str
    tree: str
    dirty: tuple[str, ...] = ()
    sample: bool = False
    rev: str | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that was decided about one row on one host; `script` is the text of run.sh.

    `owned` are the directories that go with the run, `exclusive` the host-wide locks that it needs for itself, and
    `gpu_locks` says who takes the locks of its GPUs: the job's own script, or the runner. `entry_point` is whether the
    test file does anything when it is run, None where the row names no test file. `nodes` are
    those of a cluster, each with the row's GPUs.
    """

    id: str
    label: str
    job: str
    row: str
    host: str
    test: str | None
    args: str
    gpus: int
    image: str | None
    runtime: str
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    workspace: str
    timeout_minutes: float
    stall_minutes: float
    deviations: tuple[Deviation, ...]
    container: Mapping[str, Any]
    checkout: Checkout
    script: str
    host_env: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    keep: bool = False
    owned: tuple[str, ...] = ()
    exclusive: tuple[str, ...] = ()
    gpu_locks: Mapping[str, Any] | None = None
    artifacts: tuple[str, ...] = ()
    entry_point: bool | None = None
    nodes: int = 1

    def public(self) -> dict[str, Any]:
        """The content of plan.json; the script stands beside it, in run.sh."""
        shown = asdict(self)
        del shown["script"]
        return shown


@dataclass(frozen=True)
class Evidence:
    """What shows that a row did something. `kind` is junit, pytest, unittest, metrics, script or none."""

    kind: str
    tests: int = 0
    failures: int = 0
    skipped: int = 0
    steps: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """A row's status and the one line that explains it. `line_no` is 1-based in the log, or None."""

    status: str
    reason: str
    evidence: Evidence
    line_no: int | None = None
