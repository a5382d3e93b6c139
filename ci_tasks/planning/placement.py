"""Which waiting rows start now, and where: list scheduling with backfill.

Rows are taken longest first, after those that have waited much longer. Each goes where it is expected to end soonest;
of equally good hosts, to the one with the fewest GPUs left over. A row without room reserves the host where it will end
soonest, one row a host. Later rows start there only if that does not delay it (backfill). Nothing is planned beyond
that, so a wrong estimate costs little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted
from ci_tasks.planning.load import HostLoad, WaitingRow, prior

# Seconds that count against a host without the row's image or the code. To pull tens of gigabytes takes minutes, but
# once for all rows of the host, and mostly ahead.
IMAGE_COST, CODE_COST = 60.0, 5.0
# How long others are assumed to keep GPUs: as long as two wide rows, for somebody may wait for them already.
HELD_SECONDS = 2 * prior(8)
# A row that has waited this much longer than another comes before it; one that has waited twice that is never passed.
OVERTAKE_SECONDS = prior(8)


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
    able: dict[object, list[_Host]] = {}
    starts, waits, next_rows, work = (
        list[Start](),
        dict[int, str](),
        dict[int, _Host](),
        list[tuple[WaitingRow, float]](),
    )
    for at in _order(waiting):
        row = waiting[at]
        wants = (row.gpus, row.hosts)
        if wants not in able:
            able[wants] = [host for host in hosts if host.load.can_hold(row)]
        if not able[wants]:
            waits[at] = _impossible(row, loads)
            continue
        work.append((row, row.length / max(host.load.speed for host in able[wants])))
        host, full = _best(row, able[wants])
        if host is None:
            waits[at] = full or f"waiting rows that come before it, longer ones mostly: {len(waits)}"
        elif host.has_room(row):
            starts.append(Start(at, host.load.name, _why_here(row, host)))
            host.start(row)
        else:
            host.reserve(row)
            next_rows[at], waits[at] = host, ""
    for at, host in next_rows.items():
        if host.is_queue_for(waiting[at]):
            del waits[at]
            starts.append(Start(at, host.load.name, _why_queued(waiting[at], host.load)))
        else:
            waits[at] = _why_next(waiting[at], host)
    return Decision(tuple(starts), waits, _least(work, loads))


def _order(waiting: Sequence[WaitingRow]) -> list[int]:
    youngest = min((row.waited for row in waiting), default=0.0)
    keys = [(-int((row.waited - youngest) / OVERTAKE_SECONDS), -row.length, -row.gpus) for row in waiting]
    return sorted(range(len(waiting)), key=keys.__getitem__)


@dataclass
class _Host:
    """A host while a decision is made. `ends`: when what is in use becomes free, as seconds, GPUs, slots and names;
    `next` is the row that has reserved the host, `spare` the GPUs and slots that it will leave over."""

    load: HostLoad
    gpus: int = 0  # free ones
    slots: int = 0
    names: frozenset[str] = frozenset()  # that are in use
    ends: list[tuple[float, int, int, frozenset[str]]] = field(default_factory=list)
    rows: list[WaitingRow] = field(default_factory=list)
    next: WaitingRow | None = None
    next_start: float = inf
    spare: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.gpus, self.slots = self.load.gpus, self.load.slots
        for started in self.load.started:
            self._take(started.row, self.load.remaining(started))
        held = max(0, min(self.load.held, self.gpus))
        self.gpus -= held
        self.ends.append((HELD_SECONDS, held, 0, frozenset()))

    def _take(self, row: WaitingRow, seconds: float) -> None:
        gpus = min(row.gpus, self.gpus)  # a row may wait here for GPUs that others hold
        self.gpus, self.slots, self.names = self.gpus - gpus, self.slots - 1, self.names | row.exclusive
        self.ends.append((seconds, gpus, 1, row.exclusive))
        self.rows.append(row)

    def has_room(self, row: WaitingRow) -> bool:
        return self.gpus >= row.gpus and self.slots > 0 and not self.names & row.exclusive

    def start(self, row: WaitingRow) -> None:
        if self._ends_late(row):
            self.spare = self.spare[0] - row.gpus, self.spare[1] - 1
        self._take(row, self.load.seconds(row))

    def reserve(self, row: WaitingRow) -> None:
        self.next, (self.next_start, *spare) = row, self.earliest(row)
        self.spare = spare[0], spare[1]

    def earliest(self, row: WaitingRow) -> tuple[float, int, int]:
        """When the row could start, and the GPUs and slots that it would leave over then."""
        at, gpus, slots, names = 0.0, self.gpus, self.slots, self.names
        ends = sorted(self.ends, key=lambda end: end[0], reverse=True)
        while gpus < row.gpus or slots < 1 or names & row.exclusive:
            at, more_gpus, more_slots, ended = ends.pop()
            gpus, slots, names = gpus + more_gpus, slots + more_slots, names - ended
        return at, gpus - row.gpus, slots - 1

    def delays_next(self, row: WaitingRow) -> bool:
        if self.next is None:
            return False
        beside = self.spare[0] >= row.gpus and self.spare[1] > 0 and not self.next.exclusive & row.exclusive
        return self.lets_none_pass(row) or (self._ends_late(row) and not beside)

    def lets_none_pass(self, row: WaitingRow) -> bool:
        """Whether the next row has waited so long that no row may pass it, whatever is expected: estimates may be wrong
        again and again."""
        return self.next is not None and row.gpus > 0 and self.next.waited - row.waited >= 2 * OVERTAKE_SECONDS

    def _ends_late(self, row: WaitingRow) -> bool:
        return self.load.seconds(row) > self.next_start + 1e-6

    def is_queue_for(self, row: WaitingRow) -> bool:
        """Whether the row waits for GPUs of others alone. They may be released at any moment."""
        ours = any(other.gpus for other in self.rows)
        return self.load.held > 0 and not ours and self.slots > 0 and not self.names & row.exclusive

    def missing(self, row: WaitingRow) -> dict[str, float]:
        """What must be brought here first, and the seconds that count against the host for it."""
        missing = {} if self.load.has_code else {"code": CODE_COST}
        return missing if row.image is None or row.image in self.load.images else {**missing, "image": IMAGE_COST}


def _best(row: WaitingRow, hosts: Sequence[_Host]) -> tuple[_Host | None, str]:
    """The host where the row ends soonest, now or as the next one. If there is none, why it may not use free GPUs."""
    best, rank, why = None, (inf, 0), ""
    for host in hosts:
        has_room = host.has_room(row)
        if has_room and host.delays_next(row):
            why = why or _why_delays(row, host)
        elif has_room or host.next is None:
            start, spare, _ = (0.0, host.gpus - row.gpus, 0) if has_room else host.earliest(row)
            end = start + host.load.seconds(row) + sum(host.missing(row).values())
            if (round(end, 6), spare) < rank:
                best, rank = host, (round(end, 6), spare)
    return best, why


def _least(work: Sequence[tuple[WaitingRow, float]], loads: Sequence[HostLoad]) -> float:
    """Seconds that no order of the rows can beat: the longest row, all work on all GPUs, rows that exclude others."""
    work = [*work, *((started.row, load.remaining(started)) for load in loads for started in load.started)]
    able = [load for load in loads if load.up and load.slots > 0]
    bounds = [max((seconds for _, seconds in work), default=0.0)]
    if able:
        bounds.append(sum(seconds * row.gpus for row, seconds in work) / max(sum(load.gpus for load in able), 1))
        bounds.append(sum(seconds for _, seconds in work) / sum(load.slots for load in able))
        for name in {name for row, _ in work for name in row.exclusive}:
            bounds.append(sum(seconds for row, seconds in work if name in row.exclusive) / len(able))
    return max(bounds)


# -- why ---------------------------------------------------------------------------------------------------------------


def _about(seconds: float) -> str:
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 100 * 60 else f"about {seconds / 3600:.1f} h"


def _impossible(row: WaitingRow, loads: Sequence[HostLoad]) -> str:
    allowed = [load for load in loads if row.hosts is None or load.name in row.hosts]
    if not allowed:
        return f"no host is left for it; it may run on: {', '.join(sorted(row.hosts or ())) or 'any'}"
    able = [load for load in allowed if load.gpus >= row.gpus]
    if not able:
        largest = max(allowed, key=lambda load: load.gpus)
        return f"it needs {counted(row.gpus, 'GPU')}; the largest host it may use, {largest.name}, has {largest.gpus}"
    down = [load.name for load in able if not load.up]
    if down:
        return f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down, and no other host can take it"
    return f"{', '.join(load.name for load in able)} may run no rows at all"


def _why_here(row: WaitingRow, host: _Host) -> str:
    name, missing = host.load.name, host.missing(row)
    if host.load.queues:
        return f"{name} has a queue of its own"
    why = f"{name} has {host.gpus} of {counted(host.load.gpus, 'GPU')} free, and it needs {row.gpus}"
    if not row.gpus:
        why = f"{name} has a free slot, and it needs no GPU"
    if missing:
        why += f"; the {' and the '.join(missing)} must be copied there first"
    elif row.image is not None:
        why += "; its image is there"
    if host.load.speed != 1:
        why += f"; rows take about {1 / host.load.speed:.2g} times as long there as elsewhere"
    if host.next is not None and row.gpus:
        gets = f"which gets its {counted(host.next.gpus, 'GPU')} in {_about(host.next_start)}"
        why += f"; it does not delay {host.next.name}, {gets}"
    return why


def _why_queued(row: WaitingRow, load: HostLoad) -> str:
    held = f"others hold {load.held} of {counted(load.gpus, 'GPU')} of {load.name}"
    return f"{held}, and no row of ours uses any: it waits there for its {row.gpus}"


def _why_next(row: WaitingRow, host: _Host) -> str:
    load, turn = host.load, f"its turn is in {_about(host.next_start)}"
    for other in host.rows:
        if shared := sorted(row.exclusive & other.exclusive):
            return f"it cannot run beside {other.name} on {load.name} ({', '.join(shared)}); {turn}"
    if host.gpus < row.gpus:
        held = f", with {load.held} held by others" if load.held else ""
        return f"it needs {counted(row.gpus, 'GPU')}, and {load.name} has {host.gpus} free{held}; {turn}"
    return f"{load.name} runs {counted(load.slots, 'row')} at once; {turn}"


def _why_delays(row: WaitingRow, host: _Host) -> str:
    assert host.next is not None
    if host.lets_none_pass(row):
        return f"{host.next.name} has waited much longer for {host.load.name}, so no row passes it"
    return f"it would delay {host.next.name}, which is next on {host.load.name} in {_about(host.next_start)}"
