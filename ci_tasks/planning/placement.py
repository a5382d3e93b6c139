"""Which hosts can run a row, which waiting rows start now and where, and how long rows are expected to take.

Placing is list scheduling with backfill.

Rows are taken longest first. Each starts where there is room: on a host that has its image and the code, then on the
one with the fewest GPUs left over. A row without room reserves the host where it can start soonest, one row a host.
Later rows start there only if they are expected to end before it starts (backfill). Nothing is planned beyond that, so
a wrong estimate costs little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import inf, isfinite

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.errors import counted
from ci_tasks.workflow.model import Row

# What is left of a row that ran past its estimate, as a part of the time it has run.
OVERRUN = 0.25
_SHORTEST, _LONGEST = 0.01, 30 * 86400.0


def prior(gpus: int) -> float:
    """Expected seconds of a row of which nothing is known. slime's CPU rows took 0.1 to 217 s; its GPU rows take
    minutes to tens of minutes, those on many GPUs longer."""
    return 300.0 + 75.0 * gpus if gpus > 0 else 30.0


# How long others are assumed to keep GPUs: as long as two wide rows, since more runs may wait for them.
HELD_SECONDS = 2 * prior(8)


@dataclass(frozen=True)
class WaitingRow:
    """`seconds` is how long the row is expected to take. Two rows with one name in `exclusive` never share a host.
    `hosts`: where it may run (None: anywhere)."""

    name: str
    gpus: int
    seconds: float
    exclusive: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    image: str | None = None

    @property
    def length(self) -> float:
        """The expected seconds, whatever history says."""
        seconds = self.seconds if isfinite(self.seconds) and self.seconds >= 0 else prior(self.gpus)
        return min(max(seconds, _SHORTEST), _LONGEST)


@dataclass(frozen=True)
class StartedRow:
    """A row that was started `since` seconds ago; it may still wait there."""

    row: WaitingRow
    since: float

    @property
    def remaining(self) -> float:
        """Seconds until it is expected to end; always more than 0."""
        left = self.row.length - self.since
        return left if left > 0 else max(OVERRUN * self.since, _SHORTEST)


@dataclass(frozen=True)
class HostLoad:
    """A host at this moment. `slots` bounds its rows, `held` counts the GPUs that others hold. A host that is not `up`
    gets no new row. `queues`: it has a scheduler, such as Slurm."""

    name: str
    gpus: int
    slots: int
    held: int = 0
    up: bool = True
    images: frozenset[str] = frozenset()
    has_code: bool = True
    started: tuple[StartedRow, ...] = ()
    queues: bool = False

    def can_hold(self, row: WaitingRow) -> bool:
        allowed = row.hosts is None or self.name in row.hosts
        return allowed and self.up and self.slots > 0 and self.gpus >= row.gpus


@dataclass(frozen=True)
class ExpectedTime:
    """How many seconds a row is expected to take. A guess places rows; only what is `from_history` is shown."""

    seconds: float
    from_history: bool = False


def expected(row: str, durations: Mapping[str, float], gpus: int) -> ExpectedTime:
    """How long `row` is expected to take, by those of rows that ran. A mode of a test that never ran (`test[mode]`) is
    taken to last as long as the other modes did."""
    if row in durations:
        return ExpectedTime(durations[row], from_history=True)
    test = row.partition("[")[0]
    siblings = [seconds for name, seconds in durations.items() if name.partition("[")[0] == test]
    return ExpectedTime(_median(siblings) if siblings else prior(gpus))


def _median(values: Sequence[float]) -> float:
    """As `statistics` has it, whose import takes longer than planning a label."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


# -- placing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Start the waiting row at `position` on `host`; `why` is for a person."""

    position: int
    host: str
    why: str


@dataclass(frozen=True)
class Decision:
    """What starts now; why each other row waits, by position; and the least seconds until all rows have ended."""

    starts: tuple[Start, ...]
    waits: Mapping[int, str]
    left: float


def place(waiting: Sequence[WaitingRow], loads: Sequence[HostLoad]) -> Decision:
    """Which of the `waiting` rows start now on which hosts. The answer depends on the arguments only. Ask again when a
    row has ended or begins to wait, a host goes or comes, or others take or release GPUs."""
    hosts = [_Host(load) for load in loads]
    starts, waits, work = list[Start](), dict[int, str](), list[tuple[WaitingRow, float]]()
    for at in _order(waiting):
        row = waiting[at]
        able = [host for host in hosts if host.load.can_hold(row)]
        if not able:
            waits[at] = _impossible(row, loads)
            continue
        work.append((row, row.length))
        roomy = [host for host in able if host.has_room(row)]
        if free := [host for host in roomy if not host.is_closed_to(row)]:
            host = min(free, key=lambda host: host.rank(row))
            starts.append(Start(at, host.load.name, _why_here(row, host)))
            host.take(row, row.length)
        elif unreserved := [host for host in able if host.next is None]:
            host = min(unreserved, key=lambda host: host.earliest(row))
            host.next, host.next_start = row, host.earliest(row)
            if host.is_queue_for(row):
                held = f"others hold {host.load.held} of {counted(host.load.gpus, 'GPU')} of {host.load.name}"
                starts.append(Start(at, host.load.name, f"{held}, and no row of ours uses any: it waits there"))
                host.take(row, row.length)
            else:
                waits[at] = _why_next(row, host)
        else:
            delayed = roomy[0].next.name if roomy and roomy[0].next else ""
            waits[at] = f"it would delay {delayed}" if delayed else f"waiting rows that come before it: {len(waits)}"
    return Decision(tuple(starts), waits, _least(work, loads))


def _order(waiting: Sequence[WaitingRow]) -> list[int]:
    return sorted(range(len(waiting)), key=lambda at: (-waiting[at].length, -waiting[at].gpus))


@dataclass
class _Host:
    """A host while a decision is made: what is free, the names in use, and when what is in use becomes free, as
    seconds, GPUs, slots and names. `next` is the row that has reserved the host."""

    load: HostLoad
    gpus: int = 0
    slots: int = 0
    names: frozenset[str] = frozenset()
    ends: list[tuple[float, int, int, frozenset[str]]] = field(default_factory=list)
    rows: list[WaitingRow] = field(default_factory=list)
    next: WaitingRow | None = None
    next_start: float = inf

    def __post_init__(self) -> None:
        self.gpus, self.slots = self.load.gpus, self.load.slots
        for started in self.load.started:
            self.take(started.row, started.remaining)
        held = max(0, min(self.load.held, self.gpus))
        self.gpus -= held
        self.ends.append((HELD_SECONDS, held, 0, frozenset()))

    def take(self, row: WaitingRow, seconds: float) -> None:
        gpus = min(row.gpus, self.gpus)  # a row may wait here for GPUs that others hold
        self.gpus, self.slots, self.names = self.gpus - gpus, self.slots - 1, self.names | row.exclusive
        self.ends.append((seconds, gpus, 1, row.exclusive))
        self.rows.append(row)

    def has_room(self, row: WaitingRow) -> bool:
        return self.gpus >= row.gpus and self.slots > 0 and not self.names & row.exclusive

    def rank(self, row: WaitingRow) -> tuple[int, int]:
        return len(self.missing(row)), self.gpus - row.gpus

    def earliest(self, row: WaitingRow) -> float:
        """When the row could start, in seconds from now."""
        at, gpus, slots, names = 0.0, self.gpus, self.slots, self.names
        ends = sorted(self.ends, key=lambda end: end[0], reverse=True)
        while gpus < row.gpus or slots < 1 or names & row.exclusive:
            at, more_gpus, more_slots, ended = ends.pop()
            gpus, slots, names = gpus + more_gpus, slots + more_slots, names - ended
        return at

    def is_closed_to(self, row: WaitingRow) -> bool:
        """Whether the row would delay the next one."""
        return self.next is not None and (row.gpus > 0 or self.slots <= 1) and row.length > self.next_start

    def is_queue_for(self, row: WaitingRow) -> bool:
        """Whether the row waits for GPUs of others alone. They may be released at any moment."""
        ours = any(other.gpus for other in self.rows)
        return self.load.held > 0 and not ours and self.slots > 0 and not self.names & row.exclusive

    def missing(self, row: WaitingRow) -> list[str]:
        """What must be copied here first."""
        without_image = row.image is not None and row.image not in self.load.images
        return ["code"] * (not self.load.has_code) + ["image"] * without_image


def _least(work: Sequence[tuple[WaitingRow, float]], loads: Sequence[HostLoad]) -> float:
    """Seconds that no order of the rows can beat: the longest row, or all work on all GPUs."""
    work = [*work, *((started.row, started.remaining) for load in loads for started in load.started)]
    gpus = sum(load.gpus for load in loads if load.up and load.slots > 0)
    longest = max((seconds for _, seconds in work), default=0.0)
    return max(longest, sum(seconds * row.gpus for row, seconds in work) / max(gpus, 1) if gpus else 0.0)


# -- why ---------------------------------------------------------------------------------------------------------------


def _about(seconds: float) -> str:
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 100 * 60 else f"about {seconds / 3600:.1f} h"


def _impossible(row: WaitingRow, loads: Sequence[HostLoad]) -> str:
    allowed = [load for load in loads if row.hosts is None or load.name in row.hosts]
    if not allowed:
        return f"no host is left for it; it may run on: {', '.join(sorted(row.hosts or ())) or 'any'}"
    largest = max(allowed, key=lambda load: load.gpus)
    if largest.gpus < row.gpus:
        return f"it needs {counted(row.gpus, 'GPU')}; the largest host it may use, {largest.name}, has {largest.gpus}"
    down = ", ".join(load.name for load in allowed if load.gpus >= row.gpus)
    return f"down, or without a place for rows: {down}; no other host can take it"


def _why_here(row: WaitingRow, host: _Host) -> str:
    name, missing = host.load.name, host.missing(row)
    if host.load.queues:
        return f"{name} has a queue of its own"
    why = f"{name} has {host.gpus} of {counted(host.load.gpus, 'GPU')} free, and it needs {row.gpus}"
    if not row.gpus:
        why = f"{name} has a free slot, and it needs no GPU"
    if missing:
        why += f"; the {' and the '.join(missing)} must be copied there first"
    return why


def _why_next(row: WaitingRow, host: _Host) -> str:
    load, turn = host.load, f"its turn is in {_about(host.next_start)}"
    for other in host.rows:
        if shared := sorted(row.exclusive & other.exclusive):
            return f"it cannot run beside {other.name} on {load.name} ({', '.join(shared)}); {turn}"
    if host.gpus < row.gpus:
        held = f", with {load.held} held by others" if load.held else ""
        return f"it needs {counted(row.gpus, 'GPU')}, and {load.name} has {host.gpus} free{held}; {turn}"
    return f"{load.name} runs {counted(load.slots, 'row')} at once; {turn}"


# -- what a host can run -----------------------------------------------------------------------------------------------

# `requires-python` of pyproject.toml, `python_requires` of setup.cfg and setup.py
_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_REQUIREMENT = re.compile(r"""^\s*(?:requires-python|python_requires)\s*=\s*["']?([^"'#\n]+)""", re.MULTILINE)


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. `gpus` are those of one node, where it is a cluster. `container_problem` says why its
    runtime cannot start one, `python_problem` why the Python that rows would get there is none for the checkout,
    `scheduler_problem` why Slurm takes no job; empty when it can, and is."""

    gpus: int = 0
    gpu_problem: str = ""
    container_problem: str = ""
    simulates: bool = True
    python_problem: str = ""
    scheduler_problem: str = ""


def missing_resources(row: Row, host: HostSpec, facts: HostFacts) -> list[str]:
    """What `row` needs and `host` does not have; empty when it can run there."""
    if facts.scheduler_problem:
        return [f"Slurm ({facts.scheduler_problem})"]
    if host.simulate and row.needed_gpus and not facts.simulates:
        # The lock script must take its files from CI_TASKS_GPU_LOCK_DIR, or the rows would take the real locks.
        return ["GPUs for this checkout: simulated ones serve the sample only"]
    missing = [facts.container_problem if row.image else "", facts.python_problem]
    if row.needed_gpus > facts.gpus:
        found = f"found {facts.gpus}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        missing.insert(0, f"{row.needed_gpus} GPUs{' on one node' if host.kind == 'slurm' else ''} ({found})")
    return [each for each in missing if each]


def other_hosts(row: Row, hosts: Mapping[str, HostSpec], here: str, simulates: bool) -> list[str]:
    """The hosts of hosts.yaml that could run `row`, each with its resources."""
    others = [(name, host) for name, host in hosts.items() if name != here]
    return [f"{name} ({_resources_of(host)})" for name, host in others if _has_resources(row, host, simulates)]


def _has_resources(row: Row, host: HostSpec, simulates: bool) -> bool:
    if host.simulate:
        return simulates and (host.gpus or 0) >= row.needed_gpus
    return host.kind != "local" and (host.gpus is None or host.gpus >= row.needed_gpus)


def _resources_of(host: HostSpec) -> str:
    if host.simulate:
        return f"{host.gpus} simulated GPUs"
    if host.gpus is None:
        return f"{host.kind} {host.address}, GPUs unknown"
    return f"{host.kind} {host.address}, {host.gpus} GPUs{' a node' if host.kind == 'slurm' else ''}"


def requires_python(read_file: Callable[[str], str | None]) -> str:
    """The checkout's own version specifier, such as `>=3.10`; empty where it names none."""
    texts = (read_file(name) or "" for name in _FILES)
    return next((found[1].strip() for text in texts if (found := _REQUIREMENT.search(text))), "")


def python_problem(requirement: str, version: str) -> str:
    """What is wrong with a Python of `version`; empty where nothing is, or where that is not known."""
    if not requirement or not version:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(requirement).contains(version, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return ""
    return "" if fits else f"Python {requirement}, as the checkout requires (found {version})"
