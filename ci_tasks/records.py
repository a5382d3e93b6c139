"""What is known of runs, as typed records: the content of record.json, of the history and of `--json`.

Only `ci_tasks.agent.codec` turns them into JSON and back. Fields may be added, not renamed. Times are ISO texts, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime

from ci_tasks.agent.evidence import ImportedModule
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Deviation, Environment, Plan

ONLY_TESTS = "--test"  # why, in a deviation, only some of the tests of a row run
# Statuses of a row and what a process says of them. 125 is the code that `git bisect run` skips.
PASSED, FAILED, VACUOUS, BLOCKED, CANCELLED, LOST = "passed", "failed", "vacuous", "blocked", "cancelled", "lost"
EXIT_CODES = {PASSED: 0, FAILED: 1, VACUOUS: 1, BLOCKED: 125, CANCELLED: 130, LOST: 125}
# Of a run that has no end yet; of one without an agent see results.store.
PREPARING, INSTALLING, WAITING, RUNNING, PLANNED = "preparing", "installing", "waiting", "running", "planned"
UNFINISHED = (PREPARING, INSTALLING, WAITING, RUNNING, PLANNED)
STATUSES = (*EXIT_CODES, *UNFINISHED)


def overall(statuses: list[str]) -> str:
    """The status of several rows together: failed wins over blocked, blocked over passed. No row at all is vacuous:
    nothing was shown."""
    return next((one for one in (CANCELLED, FAILED, VACUOUS, LOST, BLOCKED, PASSED) if one in statuses), VACUOUS)


@dataclass(frozen=True)
class Evidence:
    """What shows that a row did something. `kind` is junit, pytest, unittest or metrics; set-up if the row ended
    before its lock script had GPUs, none if no test of its file was seen, else script."""

    kind: str
    tests: int = 0
    failures: int = 0
    skipped: int = 0
    steps: int = 0
    detail: str = ""


NO_EVIDENCE = Evidence("none")


@dataclass(frozen=True)
class Verdict:
    """A row's status and the one line that explains it. `line_no` is 1-based in the log, or None."""

    status: str
    reason: str
    evidence: Evidence
    line_no: int | None = None


@dataclass(frozen=True)
class TriageCandidate:
    """A line that may be the reason. `line_no` is 1-based in the log as it was given."""

    cause: str
    verdict: str
    line_no: int
    line: str
    rule: str
    group: str = "unknown"
    confidence: float = 0.0


@dataclass(frozen=True)
class FailureEvidence:
    """What tells one failure from another of its kind; a field that was not seen is empty.

    `exception` is the last part of the exception's type, or the name of the rule; `message` is without what varies from
    run to run. `file` and `function` belong to the innermost call of the code under test, `test` is pytest's name of
    the test, `source_line` the statement that failed there; `source_path` and `line` are its place. A line is not
    compared: an edit above moves it. Of two paths it only counts whether both are in one tree. `metric` is the one that
    broke, `direction` is `above` or `below` its bound; `parameters` are names of weights and layers. `path` is the file
    or model that the message names, its last two parts. `exit_code` and `signal` are known of a failure without an
    exception, and of one whose message says how a program ended; `command` is then that program's first words. `number`
    is what `message` has lost and no run varies: an errno, the small key that is missing, versions.
    """

    exception: str = ""
    message: str = ""
    file: str = ""
    function: str = ""
    test: str = ""
    source_line: str = ""
    source_path: str = ""
    line: int | None = None
    metric: str = ""
    direction: str = ""
    parameters: tuple[str, ...] = ()
    http_status: int | None = None
    path: str = ""
    exit_code: int | None = None
    signal: str = ""
    command: str = ""
    number: str = ""


@dataclass(frozen=True)
class Triage:
    """What a log says of its failure.

    `verdict` is `failed` (the code under test or its configuration), `blocked` (the environment), `passed` (nothing
    failed), `cancelled`, or `unknown` (neither an exit code nor an end was seen); `cause` one of the classes of
    rules.yaml, `unknown` if no rule knows, `pass` if nothing failed; `group` is that of `cause`. `line` has no
    escape sequences; `text` is the same without timestamp, rank and actor. `kind` is equal for failures with the same
    exception, message and file; `signature` for those whose `evidence` is equal too: two runs of one failure. Both are
    "" if nothing failed. `confidence` is between 0 and 1. `context` are the lines around, the failing one among them;
    `reason` is the rule's explanation; `frames` the innermost calls of its traceback as `file:function`, outermost
    first. `candidates` are the next best lines, ten at most with the line itself; if the line is not known, the best.
    `tests` are the tests that pytest says failed, with their place if it was printed: `tests/a.py::test_x
    (tests/a.py:42)`. `jobs` are all failed jobs of a log of several jobs; this is the first. Each entry has the names
    of jobs that failed alike, with commas, and how they failed.
    """

    cause: str
    verdict: str
    line_no: int | None
    line: str
    signature: str
    confidence: float
    text: str = ""
    context: tuple[str, ...] = ()
    reason: str = ""
    rule: str = ""
    frames: tuple[str, ...] = ()
    group: str = "unknown"
    candidates: tuple[TriageCandidate, ...] = ()
    kind: str = ""
    evidence: FailureEvidence | None = None
    tests: tuple[str, ...] = ()
    jobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HangGroup:
    """Processes of a run at the same place: `who` names them, `where` says what they wait for there."""

    who: str
    where: str
    frames: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class HangCulprit:
    """A process, or a thread of it, that the others wait for, or that waits for itself. `pid` is None if it is gone and
    the probe did not see it. `function`, `file` and `line` are its innermost frame outside of libraries; empty if it
    has none."""

    who: str
    where: str
    pid: int | None
    rank: int | None = None
    function: str = ""
    file: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Hang:
    """Why a run hangs, from the stacks and states of its processes at `taken_at`.

    `outcome` is shown, contradicted (it goes on) or not determined; `kind` one word for what it is, `reason` one line.
    `trigger` says what asked: request, stall or timeout. `could_not` has a line for each part that could not be had.
    """

    outcome: str
    kind: str
    reason: str
    culprits: tuple[HangCulprit, ...] = ()
    groups: tuple[HangGroup, ...] = ()
    could_not: tuple[str, ...] = ()
    taken_at: str | None = None
    seconds: float = 0.0
    trigger: str = ""


@dataclass(frozen=True)
class Timings:
    """`seconds` from start to end; `queued` of them the run waited for GPUs or locks, None if that is not known.
    `silence` are the most seconds in which its log did not grow."""

    seconds: float | None = None
    queued: float | None = None
    silence: float | None = None


@dataclass(frozen=True)
class LogDigest:
    """The size and SHA-256 of a log as it was written, secrets masked."""

    bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class RunEnvironment(Environment):
    """What a run had around it, and the image that its plan names. Where the probe saw the test, `interpreter` is what
    it ran in, with the version `python` and the `packages`. `imported` is what any process imported of the
    packages that are watched, or from outside of its interpreter."""

    runtime: str | None = None
    image: str | None = None
    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""
    imported: tuple[ImportedModule, ...] = ()

    @property
    def digest(self) -> str | None:
        """The digest of the first container's image, with the name that it was pulled by."""
        return next((digest for container in self.containers for digest in container.digests), None)

    @property
    def image_identity(self) -> str:
        """The digest, or of an image that was never pulled its id; "" if no container was seen."""
        return self.digest or next((container.image_id for container in self.containers), "")


@dataclass(frozen=True)
class GpuPeaks:
    """What was sampled of one GPU of a run. Memory is in MiB, and `used` its peak; `others` the peak of processes that
    are shown not to be the run's. `utilization` is a mean, `watts` and `celsius` are peaks, `sm_mhz` is the lowest
    clock. `slowed`: seconds in which the clock was held down, by reason. ECC errors count only from the run's time."""

    gpu: int
    uuid: str
    total: int | None = None
    used: int | None = None
    others: int | None = None
    utilization: float | None = None
    watts: float | None = None
    celsius: int | None = None
    sm_mhz: int | None = None
    slowed: Mapping[str, float] = field(default_factory=dict)
    corrected: int | None = None
    uncorrected: int | None = None


@dataclass(frozen=True)
class GpuUse:
    """What gpu.csv shows. `oddities` are sentences, each about something that was seen; `strangers` the ones about
    memory that others held. `not_seen` says when there was no sample, and what could not be read. `fullest` is who held
    what when a GPU was fullest before the end, of a row that ran out of its memory."""

    gpus: tuple[GpuPeaks, ...] = ()
    seconds: float = 0.0
    oddities: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    fullest: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try at a row. `id` is its run directory's id; `gpu_ids` count on its host, or on its node. `left` has a
    line for each thing that could not be removed from the host, or collected there."""

    id: str
    host: str | None
    status: str
    reason: str = ""
    slurm_job_id: str | None = None
    node: str | None = None
    gpu_ids: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    queue_seconds: float | None = None
    image_digest: str | None = None
    driver: str | None = None
    started_at: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True)
class ProbeSummary:
    """What a run's Python processes noted through the probe. `ended` of them noted their end: others were killed, or
    left by `os._exit`. `counted` are all that loaded the probe. `exceptions` are the first uncaught ones. `not_seen`
    says what is not known, and why."""

    processes: int = 0
    ended: int = 0
    counted: int = 0
    exceptions: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """A row's run: the content of record.json.

    `status` is one of STATUSES. `attempts` are all tries at the row, the last of them this run. `stopped`: it was ended
    because another row had failed. `may_fail`: its failure does not fail CI's run. `retry_of`: the run whose last
    steps it ran again. `probe` is None for a run without the probe. `files_gone` is set by the history
    alone: nothing but this is left of the run.
    """

    id: str
    label: str
    row: str
    host: str | None
    status: str
    reason: str = ""
    exit_code: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    timings: Timings = Timings()
    checkout: Checkout | None = None
    gpus: int = 0
    gpu_ids: tuple[int, ...] = ()
    log: LogDigest = LogDigest()
    evidence: Evidence = NO_EVIDENCE
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    triage: Triage | None = None
    hang: Hang | None = None
    deviations: tuple[Deviation, ...] = ()
    environment: RunEnvironment = RunEnvironment()
    probe: ProbeSummary | None = None
    gpu_use: GpuUse | None = None
    attempts: tuple[Attempt, ...] = ()
    left: tuple[str, ...] = ()
    stopped: bool = False
    may_fail: bool = False
    retry_of: str = ""
    files_gone: bool = False

    @property
    def counted_status(self) -> str:
        """The status that it has for several rows together."""
        return PASSED if self.may_fail and self.status == FAILED else self.status

    @property
    def is_partial(self) -> bool:
        """Whether it ran a part of its row: the last steps of another run again, or only some tests."""
        return bool(self.retry_of) or any(item.why == ONLY_TESTS for item in self.deviations)

    @property
    def earlier(self) -> tuple[Attempt, ...]:
        return self.attempts[:-1]

    @property
    def cause(self) -> str | None:
        return self.triage.cause if self.triage else None

    @property
    def signature(self) -> str:
        return self.triage.signature if self.triage else ""

    @property
    def line_no(self) -> int | None:
        """The line of the log that triage blames."""
        return self.triage.line_no if self.triage else None


@dataclass(frozen=True)
class BatchResult:
    """Rows that ran together, or were asked for together: the --json of `run`, `remote`, `attach` and `report`.

    `status` and `exit_code` are for all rows: `running` and null if one of them is not over. `directories` has the run
    directory of each run by its id."""

    id: str
    status: str
    exit_code: int | None = None
    runs: tuple[RunRecord, ...] = ()
    directories: Mapping[str, str] = field(default_factory=dict)


def together(id: str, results: Sequence[BatchResult]) -> BatchResult:
    """Several results as one; none at all is vacuous."""
    status = overall([result.status for result in results])
    runs = tuple(run for result in results for run in result.runs)
    directories = {run: path for result in results for run, path in result.directories.items()}
    return BatchResult(id, status, EXIT_CODES[status], runs, directories)


@dataclass(frozen=True)
class LocatedRun:
    """A run, how it stands, and its directory: an entry of `fetch --json` and of `cancel --json`."""

    id: str
    status: str
    directory: str


@dataclass(frozen=True)
class RowTally:
    """A row on a host: how often it ended how, and the medians of its newest passed runs: seconds, and seconds that it
    waited. `flaky`: it has passed and failed there on one and the same tree."""

    label: str
    row: str
    host: str
    counts: Mapping[str, int]
    seconds: float | None
    queued: float | None
    flaky: bool
    runs: int


@dataclass(frozen=True)
class PlanEntry(Plan):
    """An entry of `plan --json`: a plan, the directory that it was written to, and what its host lacks."""

    run_dir: str = ""
    lacks: tuple[str, ...] = ()


def epoch_seconds(stamp: str | None) -> float | None:
    """A time of a record as seconds since the epoch. None for what is no time."""
    try:
        return datetime.fromisoformat(stamp or "").timestamp()
    except (ValueError, OverflowError):
        return None
