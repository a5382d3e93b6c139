"""The records in the files of a run directory, as frozen dataclasses; `codec` converts them to JSON. Pure.

file              record           written by
plan.json         Plan             the client, once; the last file that makes the directory complete
claims.json       RunDescription   the client, in the place of plan.json, of a run that another client began
run.sh            -                the client: the job's script
bin/agent.pyz     -                the client: the agent; bin/docker is its container adapter
client.lock       -                the client, where the run ends with it: a client that waits for the run locks it
status.json       Status           the agent, every two seconds; on Slurm also the process that records the job's end
log               -                the agent: the job's output, secrets masked
evidence/         -                the job's Python processes, where they have the probe: see ci_tasks.agent.probe
evidence.jsonl    RunEvidence      the agent at the end of the run: what it took from there
events.jsonl      Event            the agent, the container adapter and run.sh: one line each
docker.json       ContainerCalls   the container adapter: what run.sh asked of docker, and what was run
gpu.csv           GpuSample        the agent: a row every two seconds for each GPU of the run
environment.json  Environment      the agent at the end of the run: driver, GPUs, images
agent.log         -                the agent: tracebacks of its own bugs
hang/             HangFacts        facts.json: the agent, of a run that is silent for long; stacks.txt for people
hang.request      -                a client that asks the agent to look at the run's processes
artifacts/        LeftOut          left-out.json: files that were not collected, and why
slurm.json        SlurmJob         the host that submits the run to Slurm
attempt.json      SlurmAllocation  the agent on a compute node: which start of the job has the run
secrets.json      Secrets          the host that submits; removed at the end of the run
remote.json       RemoteLocation   the client, beside its copy of a remote run
record.json       -                the client: see ci_tasks.records
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field
from typing import Dict, Final, List, Literal, Mapping, Optional, Tuple

from . import codec
from .docker_argv import ContainerRules
from .quick_dataclass import dataclass

State = Literal["planned", "running", "ended"]
Phase = Literal["starting", "waiting", "running", "collecting", "ended"]
# How a run ended, as the agent saw it; ci_tasks.results.verdict decides what that means (passed, failed, blocked).
End = Literal["exit", "timeout", "cancelled", "error"]

LATEST = 1e11  # seconds since the epoch; a clock that says more is none
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL, as on GitHub


def check_times(*seconds: Optional[float]) -> None:
    """Raises ValueError for seconds since the epoch that are no time: a client could not show them."""
    if any(each is not None and not 0 <= each < LATEST for each in seconds):
        raise ValueError("no time")


# -- plan.json ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """One way in which a run differs from CI."""

    what: str
    ci: str
    here: str
    why: str


@dataclass(frozen=True)
class Conversion:
    """Files that CI's checkout would have with other bytes than the tested files, which are the ones on the user's
    disk, or of the commit: `count`, the first of them, and the reason."""

    why: str
    count: int
    files: Tuple[str, ...]


@dataclass(frozen=True)
class WorkingTree:
    """Where it is, and exactly which tree runs. `head` is the commit that is checked out, or that `rev`, the revision
    that a person named, means; "" where there is none. `commit` holds the tree: it is `head`, or a commit on top of it
    with the uncommitted changes. `dirty` lists paths that differ from `head`."""

    path: str = ""
    commit: str = ""
    tree: str = ""
    dirty: Tuple[str, ...] = ()
    head: str = ""
    rev: Optional[str] = None

    @property
    def title(self) -> str:
        """`b92105e + 4 changed files`. A `commit` that was made for changed files is in no repository."""
        count = len(self.dirty)
        changed = f"{count} changed file{'' if count == 1 else 's'}" if count else ""
        head = self.head or ("" if count else self.commit)
        return " + ".join(filter(None, [head[:7] or "no commit", changed]))


OVERLAYS = ".ci-tasks-overlays"  # a directory of a workspace, with a directory for each


@dataclass(frozen=True)
class Overlay(WorkingTree):
    """A further working tree, whose packages are imported instead of what is installed. `directory` is the one with its
    packages, from the workspace; `modules` are those packages, of a namespace package its parts."""

    name: str = ""
    directory: str = ""
    modules: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkout(WorkingTree):
    """The code under test. `conversions` are files that CI's checkout converts. `commit` and `tree` hold the overlays
    too; `own_tree` is the tree without them, "" where there are none. `flat` is the tree with the files of submodules
    in their places."""

    sample: bool = False
    conversions: Tuple[Conversion, ...] = ()
    overlays: Tuple[Overlay, ...] = ()
    own_tree: str = ""
    flat: str = ""


@dataclass(frozen=True)
class RunDescription:
    """What is shown of a run and what it is judged by. Nothing in it is executed, opened or removed, so that it may
    come from a host, whose job can write what it likes.

    `defines_tests`: the test file has tests for a test runner. `takes_locks`: a lock script starts the test, and prints
    its GPUs. `may_fail`: its failure does not fail CI's run. `retry_of` is the run whose last steps it runs again.
    After `hang_minutes` without a byte of log its processes are looked at.
    """

    id: str = ""
    label: str = ""
    job: str = ""
    row: str = ""
    host: str = ""
    test: Optional[str] = None
    args: str = ""
    gpus: int = 0
    image: Optional[str] = None
    runtime: str = ""
    timeout_minutes: float = 24 * 60
    stall_minutes: float = 10
    hang_minutes: float = 10
    deviations: Tuple[Deviation, ...] = ()
    checkout: Checkout = Checkout()
    defines_tests: bool = False
    takes_locks: bool = False
    may_fail: bool = False
    retry_of: str = ""


@dataclass(frozen=True)
class Retry:
    """What `retry` continues: `directories` are the run directories that went before on the host, the oldest first. The
    workspace and venv are those of the first, the containers those of the last. `step` is the first step that runs
    again. `commit` is what the workspace had before, `tree` its files, those of submodules included."""

    directories: Tuple[str, ...]
    step: int = 1
    commit: str = ""
    tree: str = ""


@dataclass(frozen=True)
class InstallSteps:
    """Steps whose packages are shared with other runs in the directory `store`; with `fresh` none is taken from it.
    Each of `texts` is all that was planned of one, the same for every workspace: script, interpreter, directory and
    variables."""

    store: str = ""
    texts: Tuple[str, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class ProbeHook:
    """A module of a suite: its `source` is loaded in a process once one of `modules` has been imported there."""

    name: str
    modules: Tuple[str, ...]
    source: str


@dataclass(frozen=True)
class ProbeOverlay:
    """A directory of the host with the packages `modules`; `mount` is the part of it that a container needs."""

    directory: str
    modules: Tuple[str, ...]
    mount: str


@dataclass(frozen=True)
class ProbeRules:
    """What the probe looks for: `packages` beside those that it always watches, and what `hooks` add; `own` are those
    of the checkout. `overlays` are directories with packages that come before all that is installed."""

    packages: Tuple[str, ...] = ()
    hooks: Tuple[ProbeHook, ...] = ()
    overlays: Tuple[ProbeOverlay, ...] = ()
    own: Tuple[str, ...] = ()


JOB: Final = "job"  # the checkout's own lock script takes the locks, inside the container
AGENT: Final = "agent"  # for suites without such a script
SLURM: Final = "slurm"  # the batch job has its GPUs before it starts

PATTERN = "/dev/shm/custom_gpu_lock_{gpu_id}.lock"
_GPU_ID = "{gpu_id}"


@dataclass(frozen=True)
class GpuRequest:
    """`count` GPUs, whose locks `by` takes. `total` is the number of GPUs that the lock script assumes, `simulated` the
    number of simulated ones (None: real GPUs); `declared` is the number in hosts.yaml, for a host without nvidia-smi.
    With Slurm, `script` is the checkout's lock script, which is replaced, and `exclusive_node` keeps other jobs off the
    node. Raises ValueError."""

    count: int
    by: Literal["job", "agent", "slurm"] = JOB
    pattern: str = PATTERN
    total: int = 8
    simulated: Optional[int] = None
    declared: Optional[int] = None
    script: Optional[str] = None
    exclusive_node: bool = False

    def __post_init__(self) -> None:
        if _GPU_ID not in self.pattern:
            raise ValueError("pattern: %r has no %s" % (self.pattern, _GPU_ID))

    @property
    def paths(self) -> Dict[int, str]:
        """{GPU id: lock file}"""
        return {gpu: self.pattern.replace(_GPU_ID, str(gpu)) for gpu in range(self.total)}


@dataclass(frozen=True)
class Plan(RunDescription):
    """Everything that was decided about one row on one host; `script` is the text of run.sh, and stands there only.

    `exclusive` are the host-wide locks that the run needs for itself, of names with `|` between them one. `gpu_locks`
    says who takes the locks of its GPUs: the job's own script, the agent, or Slurm. `container` is None where docker
    cannot be adapted.
    `keeps_workspace`: other runs use the workspace after its end. `grace_seconds` lie between SIGTERM and SIGKILL.
    `client_seconds`: it is cancelled when no client has waited for it for so long; None where it goes on by itself.
    `probe` is None where no interpreter gets it.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Tuple[str, ...] = ()
    workspace: str = ""
    container: Optional[ContainerRules] = None
    script: str = field(default="", metadata=codec.NOT_STORED)
    host_env: Mapping[str, str] = field(default_factory=dict)
    setup: Optional[str] = None
    install: InstallSteps = InstallSteps()
    keep: bool = False
    keeps_workspace: bool = False
    exclusive: Tuple[str, ...] = ()
    gpu_locks: Optional[GpuRequest] = None
    artifacts: Tuple[str, ...] = ()
    grace_seconds: float = GRACE_SECONDS
    retry: Optional[Retry] = None
    client_seconds: Optional[float] = None
    probe: Optional[ProbeRules] = None

    @property
    def container_runtime(self) -> Optional[str]:
        return self.container.runtime if self.container is not None else None

    @property
    def is_simulated(self) -> bool:
        """Whether its GPUs are simulated."""
        return self.gpu_locks is not None and self.gpu_locks.simulated is not None


# -- status.json -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """What a failed run left on its host on purpose, for `shell`."""

    containers: Tuple[str, ...] = ()
    workspace: str = ""


@dataclass(frozen=True)
class SlurmAllocation:
    """Where Slurm has put a run: `job` as squeue calls it, `restarts` how often it was requeued. `exit_code` is that of
    the job, by Slurm; None where Slurm does not know it."""

    job: Optional[str] = None
    node: Optional[str] = None
    restarts: int = 0
    exit_code: Optional[int] = None


@dataclass(frozen=True)
class Status:
    """The state of a run. Without a status.json it is `planned`; each write has a higher `sequence`.

    `pid`, `pid_start` and `boot_id` tell its agent from a later process, `group` is the job's process group. `waiting`
    says who holds the resources that it waits for, `queue_seconds` how long it has waited so far. `gpu_uuids` are those
    of `gpu_ids`, as far as nvidia-smi says. `longest_silence` are the most seconds without a byte of log. `oom_kills`:
    how many processes the host's kernel killed for their memory while the run went on, None if not known. `left` has a
    line for each thing that could not be removed or collected. `secrets` are the names of those that the job got,
    `shell` those of other variables of the host's shell that reached it; `masked` says whether secrets are masked in
    all that leaves the host. `concluded`: the end of the Slurm job is included. `gone`: the agent died before it wrote
    an end. `changed`: files of the agent that changed since, most likely by the job.
    """

    state: State = "planned"
    phase: Phase = "starting"
    sequence: int = 0
    waiting: Tuple[str, ...] = ()
    queue_seconds: float = 0.0
    started_at: Optional[float] = None
    heartbeat_at: Optional[float] = None
    ended_at: Optional[float] = None
    pid: Optional[int] = None
    pid_start: Optional[str] = None
    boot_id: Optional[str] = None
    group: Optional[int] = None
    gpu_ids: Optional[Tuple[int, ...]] = None
    gpu_uuids: Tuple[str, ...] = ()
    log_bytes: int = 0
    log_error: Optional[str] = None
    log_sha256: Optional[str] = None
    stalled: bool = False
    longest_silence: float = 0.0
    oom_kills: Optional[int] = None
    end: Optional[End] = None
    exit_code: Optional[int] = None
    error: Optional[str] = None
    kept: Optional[Kept] = None
    left: Tuple[str, ...] = ()
    slurm: Optional[SlurmAllocation] = None
    secrets: Tuple[str, ...] = ()
    shell: Tuple[str, ...] = ()
    masked: bool = False
    concluded: bool = False
    gone: bool = False
    changed: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_times(self.started_at, self.heartbeat_at, self.ended_at)

    @property
    def exists(self) -> bool:
        """Whether the run has a status.json."""
        return self.state != "planned"

    @property
    def has_ended(self) -> bool:
        return self.state == "ended"

    @property
    def has_agent(self) -> bool:
        """Whether an agent has started; otherwise the run waits in Slurm's queue."""
        return self.pid is not None


# -- events.jsonl ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """A line of events.jsonl. `t` is in seconds since the epoch; what else it has depends on `event`: `name` of a step
    or container or what is to be said of packages, `image` that is pulled, `ids` of GPUs, `reasons` to wait, `minutes`
    of silence, processes `killed`. The agent writes started, waiting, gpus,
    stalled, resumed, killed, cancelled, timeout and ended; run.sh and the container
    adapter write step, step failed, packages, changed packages, changed checkout, pull and container."""

    t: float
    event: str
    name: Optional[str] = None
    image: Optional[str] = None
    ids: Tuple[int, ...] = ()
    reasons: Tuple[str, ...] = ()
    minutes: Optional[float] = None
    killed: Optional[int] = None
    end: Optional[End] = None
    exit_code: Optional[int] = None

    def __post_init__(self) -> None:
        check_times(self.t)

    def line(self) -> str:
        return codec.to_line(self) + "\n"


def read_events(text: str) -> List[Event]:
    """Those in the lines of `text`, without what cannot be decoded: half written, or printed by a job."""
    events = []
    for line in text.split("\n"):
        with suppress(codec.RecordError):
            events.append(codec.from_json(Event, line, where="a line"))
    return events


# -- docker.json -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DockerInvocation:
    """What a script asked of docker (`ci`), what was run for it (`here`), and how they differ. Secrets are masked."""

    ci: Tuple[str, ...]
    here: Tuple[str, ...]
    deviations: Tuple[Deviation, ...] = ()
    name: Optional[str] = None
    runtime: str = ""


@dataclass(frozen=True)
class DockerInvocations:
    calls: Tuple[DockerInvocation, ...]


# -- environment.json --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuModel:
    index: int
    uuid: str
    name: str
    memory: str


@dataclass(frozen=True)
class ContainerState:
    """A container of the run, and its image."""

    name: str = ""
    image: str = ""
    image_id: str = ""
    digests: Tuple[str, ...] = ()
    started_at: str = ""


@dataclass(frozen=True)
class Environment:
    """What a run was run with. Its Python and packages are in its evidence."""

    kernel: Optional[str] = None
    driver: Optional[str] = None
    gpus: Tuple[GpuModel, ...] = ()
    containers: Tuple[ContainerState, ...] = ()


# -- gpu.csv -----------------------------------------------------------------------------------------------------------

ProcessOwner = Literal["run", "other", "unknown"]


@dataclass(frozen=True)
class GpuProcessSample:
    """A process on a GPU. `memory` is in MiB. `owner` is `run` for one of the run's, `other` for one that is shown not
    to be."""

    pid: int
    memory: Optional[int] = None
    owner: ProcessOwner = "unknown"
    name: str = ""


@dataclass(frozen=True)
class GpuSample:
    """A row of gpu.csv: a GPU at `t` (seconds since the epoch), or in the `seconds` from there on. Of several
    seconds it has the highest values, of the utilization the mean, and of the clock the lowest.

    `used` and `total` are MiB. `slowed`: for how many seconds of these its clock was held down, by reason. ECC errors
    count from when the driver was loaded. What nvidia-smi did not say is None. Rows of another kind have an `xid` of
    the kernel's log; a `problem` of the sampling; or `ended`, with `kernel_log`: whether that log could be read.
    """

    t: float
    gpu: Optional[int] = None
    uuid: str = ""
    seconds: float = 1.0
    used: Optional[int] = None
    total: Optional[int] = None
    utilization: Optional[float] = None
    watts: Optional[float] = None
    celsius: Optional[int] = None
    sm_mhz: Optional[int] = None
    slowed: Mapping[str, float] = field(default_factory=dict)
    corrected: Optional[int] = None
    uncorrected: Optional[int] = None
    processes: Tuple[GpuProcessSample, ...] = ()
    xid: Optional[int] = None
    problem: str = ""
    ended: bool = False
    kernel_log: bool = False

    def __post_init__(self) -> None:
        check_times(self.t, self.seconds)

    @property
    def is_measurement(self) -> bool:
        """Whether it is about a GPU at a moment, not an event."""
        return self.gpu is not None and self.xid is None


# -- artifacts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOutFile:
    """A file of `place` (the host, a container) that was not taken, and why."""

    place: str
    path: str
    bytes: Optional[int]
    why: str


@dataclass(frozen=True)
class LeftOut:
    """`more`: how many others there are."""

    files: Tuple[LeftOutFile, ...] = ()
    more: int = 0


# -- the checkout that goes to a host ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckoutPart:
    """The checkout, whose `path` is empty, or a submodule of it: a commit without parents, and its tree. `flat` is the
    tree of the checkout with the files of its submodules in their places, "" where that is `tree`."""

    path: str
    commit: str
    tree: str
    flat: str = ""


# -- Slurm -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlurmJob:
    """`name` is known before `id`, the number that Slurm gave: a client, or a login node, may go away in between.
    `store` has the objects of `parts`, the run's checkout."""

    store: str = ""
    parts: Tuple[CheckoutPart, ...] = ()
    name: str = ""
    id: str = ""


@dataclass(frozen=True)
class Secrets:
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


# -- programs of the host ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryAnswer:
    """Output of a program on the host. `code` is None where the program is missing or timed out; `err` says which."""

    code: Optional[int]
    out: str = ""
    err: str = ""

    @property
    def timed_out(self) -> bool:
        return self.code is None and self.err.startswith("no answer")

    @property
    def is_missing(self) -> bool:
        """The program is missing; `env` says so with exit code 127."""
        return self.code == 127 or (self.code is None and not self.timed_out)

    @property
    def last_line(self) -> str:
        """The last line of its standard error, or of its output where that is empty."""
        lines = [line.strip() for text in (self.out, self.err) for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


# -- remote.json -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteLocation:
    """Where a run is, as its host was called then: hosts.yaml may say something else by now. An `adopted` one was begun
    by another person; of a `complete` one everything is here.
    `persist`: the connection to it may be kept."""

    host: str
    kind: str = "ssh"
    address: Optional[str] = None
    workspace: str = ""
    directory: str = ""
    adopted: bool = False
    complete: bool = False
    persist: bool = True
