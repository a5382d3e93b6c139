"""What holds for any rows on any hosts, and until all of them have ended, whatever was expected of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.planning.placement import Decision, HostLoad, WaitingRow, place

ALL = frozenset({"h0", "h1", "h2"})
SECONDS = st.floats(0.1, 5000.0)
TASK = st.builds(
    WaitingRow,
    name=st.just("row"),
    gpus=st.sampled_from([0, 1, 2, 3, 4, 6, 8, 9]),
    seconds=SECONDS,
    exclusive=st.sampled_from([frozenset[str](), frozenset({"ray"}), frozenset({"port"}), frozenset({"ray", "port"})]),
    hosts=st.sampled_from([ALL, ALL, frozenset({"h0"}), frozenset({"h1", "h2"}), frozenset({"gone"})]),
    image=st.sampled_from([None, "one"]),
)
MACHINE = st.builds(
    HostLoad,
    name=st.just(""),
    gpus=st.sampled_from([0, 4, 8]),
    slots=st.integers(1, 6),
    held=st.sampled_from([0, 0, 0, 1, 8]),
    up=st.sampled_from([True, True, True, False]),
    images=st.sampled_from([frozenset[str](), frozenset({"one"})]),
)
MACHINES = st.lists(MACHINE, min_size=1, max_size=3).map(
    lambda hosts: [replace(machine, name=f"h{number}") for number, machine in enumerate(hosts)]
)
TASKS = st.lists(TASK, max_size=10)
COUNTS = settings(max_examples=120)


@dataclass
class World:
    """Rows that wait, and hosts with what runs there; each row really takes its factor times what is expected."""

    waiting: list[WaitingRow]
    machines: list[HostLoad]
    ended: int = 0
    left: dict[int, list[float]] = field(default_factory=dict)  # of each host, seconds until each row ends

    def __post_init__(self) -> None:
        self.left = {number: [] for number in range(len(self.machines))}

    def start(self, decision: Decision, factor: float) -> None:
        for position, host in decision.starts.items():
            number = [machine.name for machine in self.machines].index(host)
            task, machine = self.waiting[position], self.machines[number]
            self.machines[number] = replace(machine, rows=(*machine.rows, task))
            self.left[number].append(task.seconds * factor)
        self.waiting = [task for position, task in enumerate(self.waiting) if position not in decision.starts]

    def pass_on(self) -> None:
        """Until the next row ends."""
        step = min(seconds for left in self.left.values() for seconds in left)
        for number, machine in enumerate(self.machines):
            pairs = list(zip(machine.rows, self.left[number], strict=True))
            stay = [(row, left - step) for row, left in pairs if left > step]
            self.ended += len(pairs) - len(stay)
            self.machines[number] = replace(machine, rows=tuple(row for row, _ in stay))
            self.left[number] = [left for _, left in stay]

    def busy(self) -> bool:
        return any(self.left.values())


def assert_kept(machine: HostLoad) -> None:
    """What no host may be asked for. Where others hold GPUs, rows may wait for them on the host."""
    rows = machine.rows
    names = Counter(name for task in rows for name in set(task.exclusive))
    assert sum(task.gpus for task in rows) <= machine.gpus
    assert len(rows) <= machine.slots
    assert all(times == 1 for times in names.values())
    assert all(machine.name in task.hosts for task in rows)
    assert machine.up or not rows
    with_gpus = [task for task in rows if task.gpus]
    assert sum(task.gpus for task in with_gpus) <= machine.gpus - machine.held or len(with_gpus) <= 1


@COUNTS
@given(TASKS, MACHINES, st.sampled_from([0.2, 1.0, 5.0]))
def test_no_host_is_overcommitted_and_every_row_that_can_run_ends(
    waiting: list[WaitingRow], machines: list[HostLoad], factor: float
) -> None:
    world = World(list(waiting), list(machines))
    while True:
        decision = place(world.waiting, world.machines)
        started = set(decision.starts)
        assert started.isdisjoint(decision.waits) and started | set(decision.waits) == set(range(len(world.waiting)))
        assert all(decision.waits.values())
        world.start(decision, factor)
        for machine in world.machines:
            assert_kept(machine)
        if not world.busy():
            break
        world.pass_on()
    possible = [task for task in waiting if any(can_run(task, machine) for machine in machines)]
    assert world.ended == len(possible)


def can_run(task: WaitingRow, machine: HostLoad) -> bool:
    return machine.up and machine.gpus >= task.gpus and machine.name in task.hosts
