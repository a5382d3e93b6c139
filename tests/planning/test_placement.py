"""Which hosts can run a row; what starts now, where, and what is said of it. Above each case stands its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.config import HostSpec
from ci_tasks.planning import placement
from ci_tasks.planning.placement import HostFacts, HostLoad, WaitingRow, place
from ci_tasks.workflow.model import Row

RAY = frozenset({"ray-host-network"})
A, B = HostLoad("a", 8, 8), HostLoad("b", 8, 8)
DOWN = replace(A, up=False)


def row(name: str, gpus: int, seconds: float = 600.0, **more: object) -> WaitingRow:
    return replace(WaitingRow(name, gpus, seconds, frozenset("ab")), **more)  # type: ignore[arg-type]


def on(machine: HostLoad, *rows: WaitingRow, **more: object) -> HostLoad:
    """The machine with rows that run there."""
    return replace(machine, rows=rows, **more)  # type: ignore[arg-type]


WIDE, HALF, CPU = row("wide", 8), row("half", 4), row("cpu", 0, 10.0)

CASES = [
    # nothing waits
    ([], [A], set()),
    # nothing to run on
    ([WIDE], [], set()),
    # as many as GPUs allow, those with most work first
    ([row("one", 4), row("two", 4), row("three", 4, 500)], [A], {("one", "a"), ("two", "a")}),
    ([row("long", 2, 1000.0), row("wide", 8, 900.0)], [A], {("wide", "a")}),
    # as many as places allow, with or without GPUs
    (
        [row("one", 1, 300), row("two", 1, 200), row("three", 1, 100)],
        [replace(A, slots=2)],
        {("one", "a"), ("two", "a")},
    ),
    ([row("one", 0, 300), row("two", 0, 200)], [on(A, CPU, slots=2)], {("one", "a")}),
    # rows without GPUs start where every GPU is taken, and where there are none
    ([CPU], [on(A, WIDE)], {("cpu", "a")}),
    # narrow rows share a host, so that the wide one has the other
    ([row("one", 2), WIDE, row("two", 4)], [A, B], {("wide", "a"), ("one", "b"), ("two", "b")}),
    # and leave the idle host to wider ones
    ([HALF], [A, on(B, row("there", 4))], {("half", "b")}),
    # a narrow row does not wait because a wide one does
    ([WIDE, row("young", 4, 20.0)], [on(A, HALF)], {("young", "a")}),
    # no two rows with one name on a host, however many GPUs are free there
    ([row("one", 2, 300, exclusive=RAY), row("two", 2, 200, exclusive=RAY)], [A], {("one", "a")}),
    ([row("one", 2, exclusive=RAY)], [on(A, row("there", 2, exclusive=RAY)), B], {("one", "b")}),
    ([row("one", 2, exclusive=RAY), row("two", 2, exclusive=frozenset({"port"}))], [A], {("one", "a"), ("two", "a")}),
    # only where it may run
    ([row("one", 8, hosts=frozenset({"b"})), row("two", 8, hosts=frozenset({"b"}))], [A, B], {("one", "b")}),
    # a host that is down gets nothing, with or without GPUs
    ([WIDE, CPU], [DOWN, B], {("wide", "b"), ("cpu", "b")}),
    # too wide for every host: others do not mind
    ([row("huge", 16), HALF], [A], {("half", "a")}),
    # GPUs of others are not free
    ([HALF, row("two", 4, 590)], [replace(A, held=3)], {("half", "a")}),
    ([WIDE], [replace(A, held=1), B], {("wide", "b")}),
    # a row that fits nowhere else waits on the host for them, where nothing of ours has GPUs
    ([WIDE, row("two", 8, 500)], [replace(A, held=8)], {("wide", "a")}),
    ([WIDE], [on(A, CPU, held=1)], {("wide", "a")}),
    # and not while narrow rows of ours use what the others leave, or another row waits there already
    ([WIDE], [on(A, row("queued", 8), held=1)], set()),
    # nor where it could not run beside what is there, or there is no place
    ([row("one", 8, exclusive=RAY)], [on(A, row("ray", 0, exclusive=RAY), held=1)], set()),
    ([WIDE], [on(A, CPU, held=1, slots=1)], set()),
    # nor while it may have the GPUs of a row of ours soon
    ([WIDE], [replace(A, held=1), on(B, WIDE)], set()),
    # history may say anything
    ([row("nan", 8, float("nan"))], [A], {("nan", "a")}),
    ([row("endless", 8, float("inf")), row("less", 8, -1.0)], [A, B], {("endless", "a"), ("less", "b")}),
    # GPUs taken twice over, by a row that waits for others: none are free, and not fewer
    ([CPU], [on(A, WIDE, held=8)], {("cpu", "a")}),
]


@pytest.mark.parametrize(("waiting", "machines", "chosen"), CASES)
def test_rows_that_start_now(waiting: list[WaitingRow], machines: list[HostLoad], chosen: set[tuple[str, str]]) -> None:
    assert {(waiting[at].name, host) for at, host in place(waiting, machines)[0].items()} == chosen


WAITS = [
    (row("huge", 16), [A], "not ready, or away: a, b"),
    (WIDE, [DOWN], "not ready, or away: a, b"),
    (WIDE, [], "not ready, or away: a, b"),
    (WIDE, [on(A, HALF)], "it needs 8 GPUs, and a has 4 free"),
    (WIDE, [on(A, HALF, held=2)], "it needs 8 GPUs, and a has 2 free, with 2 held by others"),
    (WIDE, [on(A, WIDE, held=2)], "it needs 8 GPUs, and a has 0 free, with 2 held by others"),
    (
        row("one", 2, exclusive=RAY),
        [on(A, row("ppo", 2, exclusive=RAY))],
        "it cannot run beside ppo on a (ray-host-network)",
    ),
    (CPU, [on(A, CPU, slots=1)], "a runs 1 row at once"),
]


@pytest.mark.parametrize(("task", "machines", "why"), WAITS)
def test_why_a_row_waits(task: WaitingRow, machines: list[HostLoad], why: str) -> None:
    assert place([task], machines) == ({}, {0: why})


def test_seconds_expected_of_a_row() -> None:
    durations = {"ppo": 50.0, "ckpt[sync]": 100.0, "ckpt[async]": 300.0, "ckpt[gpu]": 200.0}
    assert placement.expected_seconds("ppo", durations, 8) == 50
    assert placement.expected_seconds("ckpt[new]", durations, 8) == 200  # as its other modes
    guesses = [placement.expected_seconds("new", durations, gpus) for gpus in (8, 4, 0)]
    assert guesses == sorted(guesses, reverse=True) and guesses[-1] > 0


# -- what holds for any rows on any hosts, and until all of them have ended, whatever was expected of them -------------


ALL = frozenset({"h0", "h1", "h2"})
TASK = st.builds(
    WaitingRow,
    name=st.just("row"),
    gpus=st.sampled_from([0, 1, 2, 3, 4, 6, 8, 9]),
    seconds=st.floats(0.1, 5000.0),
    exclusive=st.sampled_from([frozenset[str](), frozenset({"ray"}), frozenset({"port"}), frozenset({"ray", "port"})]),
    hosts=st.sampled_from([ALL, ALL, frozenset({"h0"}), frozenset({"h1", "h2"}), frozenset({"gone"})]),
)
MACHINE = st.builds(
    HostLoad,
    name=st.just(""), gpus=st.sampled_from([0, 4, 8]), slots=st.integers(1, 6),
    held=st.sampled_from([0, 0, 0, 1, 8]), up=st.sampled_from([True, True, True, False]),
)  # fmt: skip


@settings(max_examples=120)
@given(st.lists(TASK, max_size=10), st.lists(MACHINE, min_size=1, max_size=3), st.integers(0, 2))
def test_no_host_is_overcommitted_and_every_row_that_can_run_ends(
    waiting: list[WaitingRow], loads: list[HostLoad], first: int
) -> None:
    """A row of one host, `first` in turn, ends whenever nothing more starts."""
    hosts = {f"h{number}": replace(load, name=f"h{number}") for number, load in enumerate(loads)}
    possible = sum(
        any(host.up and host.gpus >= row.gpus and host.name in row.hosts for host in hosts.values()) for row in waiting
    )
    ended = 0
    while True:
        starts, waits = place(waiting, list(hosts.values()))
        assert starts.keys().isdisjoint(waits) and {*starts, *waits} == set(range(len(waiting)))
        assert all(waits.values())
        for position, name in starts.items():
            hosts[name] = replace(hosts[name], rows=(*hosts[name].rows, waiting[position]))
            assert_kept(hosts[name])
        waiting = [row for position, row in enumerate(waiting) if position not in starts]
        busy = [host for host in hosts.values() if host.rows]
        if not busy:
            break
        host = busy[(first + ended) % len(busy)]
        hosts[host.name] = replace(host, rows=host.rows[1:])
        ended += 1
    assert ended == possible


def assert_kept(host: HostLoad) -> None:
    """What no host may be asked for. Where others hold GPUs, rows may wait for them on the host."""
    names = Counter(name for row in host.rows for name in set(row.exclusive))
    with_gpus = [row.gpus for row in host.rows if row.gpus]
    assert host.up and sum(with_gpus) <= host.gpus and len(host.rows) <= host.slots
    assert all(times == 1 for times in names.values())
    assert all(host.name in row.hosts for row in host.rows)
    assert sum(with_gpus) <= host.gpus - host.held or len(with_gpus) <= 1


# -- what a host can run -----------------------------------------------------------------------------------------------


ROW = Row("l", "j", None, "r", None, "", 4, "image", {}, "self-hosted", None)
WITHOUT_GPUS = replace(ROW, gpus=0, image=None)
LOCAL = HostSpec("local")
SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)
CLUSTER = HostSpec("cluster", kind="slurm", address="login.example.com", gpus=2)
OF_RUNNER = "the number is its runner's: --gpus 0 if its tests need none"
NO_LOCK = "GPUs for this checkout: simulated ones serve the sample only"


# row, host, its facts, what it lacks
LACKS: list[tuple[Row, HostSpec, HostFacts, list[str]]] = [
    (ROW, LOCAL, HostFacts(gpus=8), []),
    (ROW, LOCAL, HostFacts(gpus=4), []),
    (ROW, LOCAL, HostFacts(gpus=3), ["4 GPUs (found 3)"]),
    (ROW, LOCAL, HostFacts(gpu_problem="no nvidia-smi on PATH"), ["4 GPUs (found 0: no nvidia-smi on PATH)"]),
    (ROW, LOCAL, HostFacts(gpus=8, container_problem="docker (not on PATH)"), ["docker (not on PATH)"]),
    (ROW, LOCAL, HostFacts(container_problem="docker"), ["4 GPUs (found 0)", "docker"]),
    (WITHOUT_GPUS, LOCAL, HostFacts(python_problem="Python >=3.10"), ["Python >=3.10"]),
    (WITHOUT_GPUS, CLUSTER, HostFacts(scheduler_problem="no partition x"), ["Slurm (no partition x)"]),
    (ROW, CLUSTER, HostFacts(scheduler_problem="sinfo: no answer"), ["Slurm (sinfo: no answer)"]),
    (ROW, CLUSTER, HostFacts(gpus=2), ["4 GPUs on one node (found 2)"]),
    # A row that names no GPUs and no image needs neither, whatever is broken.
    (WITHOUT_GPUS, LOCAL, HostFacts(gpu_problem="driver", container_problem="docker"), []),
    (ROW, SIM, HostFacts(gpus=8), []),
    (ROW, SIM, HostFacts(gpus=8, simulates=False), [NO_LOCK]),
    # Without GPUs there is no lock to take.
    (WITHOUT_GPUS, SIM, HostFacts(gpus=8, simulates=False), []),
    (replace(ROW, gpus=16), SIM, HostFacts(gpus=8), ["16 GPUs (found 8)"]),
    (replace(ROW, gpus_of_runner=True), LOCAL, HostFacts(gpus=1), [f"4 GPUs (found 1; {OF_RUNNER})"]),
]


@pytest.mark.parametrize(("row", "host", "facts", "missing"), LACKS)
def test_what_a_host_lacks(row: Row, host: HostSpec, facts: HostFacts, missing: list[str]) -> None:
    assert placement.missing_resources(row, host, facts) == missing


H100 = HostSpec("h100", kind="ssh", address="h100.example.com", gpus=8)
BIG = HostSpec("big", kind="ssh", address="big.example.com")
HOSTS = {host.name: host for host in (LOCAL, SIM, H100, BIG, CLUSTER)}
_H100, _BIG = "h100 (ssh h100.example.com, 8 GPUs)", "big (ssh big.example.com, GPUs unknown)"
_SIM, _CLUSTER = "sim (8 simulated GPUs)", "cluster (slurm login.example.com, 2 GPUs a node)"


@pytest.mark.parametrize(
    ("gpus", "here", "simulates", "others"),
    [
        (4, "local", True, [_SIM, _H100, _BIG]),
        (4, "local", False, [_H100, _BIG]),
        (4, "h100", True, [_SIM, _BIG]),
        (16, "local", True, [_BIG]),
        (0, "local", True, [_SIM, _H100, _BIG, _CLUSTER]),
    ],
)
def test_other_hosts_that_could_run_it(gpus: int, here: str, simulates: bool, others: list[str]) -> None:
    assert placement.other_hosts(replace(ROW, gpus=gpus), HOSTS, here, simulates) == others


# The Python that the checkout requires


@pytest.mark.parametrize(
    ("files", "requirement"),
    [
        ({"pyproject.toml": '[project]\nname = "x"\nrequires-python = ">=3.10,<4"  # as CI\n'}, ">=3.10,<4"),
        ({"setup.cfg": "[options]\npython_requires = >=3.9\n"}, ">=3.9"),
        ({"setup.py": "setup(\n    name='x',\n    python_requires='>=3.8',\n)\n"}, ">=3.8"),
        ({"pyproject.toml": "[build-system]\n", "setup.py": "setup(python_requires=MINIMUM)"}, ""),
        ({"pyproject.toml": "# requires-python = '>=2'\n"}, ""),
        ({}, ""),
    ],
)
def test_where_a_checkout_says_which_python_it_needs(files: dict[str, str], requirement: str) -> None:
    assert placement.requires_python(files.get) == requirement


@pytest.mark.parametrize(
    ("requirement", "version", "fits"),
    [
        (">=3.10", "3.9.2", False),
        (">=3.10", "3.10.0", True),
        (">=3.8,!=3.9.*", "3.9.7", False),
        (">=3.13", "3.14.0rc1", True),
        ("MINIMUM", "3.9.2", True),  # nobody can tell, so it is no reason to leave the host
        (">=3.10", "", True),
    ],
)
def test_a_python_that_the_checkout_excludes_is_named(requirement: str, version: str, fits: bool) -> None:
    problem = placement.python_problem(requirement, version)
    found = f"Python {requirement}, as the checkout requires (found {version}: `python3`, or ci-tasks' own)"
    assert problem == found * (not fits)
