"""Which hosts can run a row; what starts now, where, and what is said of it. Above each case stands its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import (
    HELD_SECONDS,
    ExpectedTime,
    HostFacts,
    HostLoad,
    StartedRow,
    WaitingRow,
    expected,
    missing_resources,
    other_hosts,
    place,
    prior,
    python_problem,
    requires_python,
)
from ci_tasks.workflow.model import Row

RAY = frozenset({"ray-host-network"})
A, B = HostLoad("a", 8, 8), HostLoad("b", 8, 8)
DOWN = replace(A, up=False)


def row(name: str, gpus: int, seconds: float = 600.0, **more: object) -> WaitingRow:
    return replace(WaitingRow(name, gpus, seconds), **more)  # type: ignore[arg-type]


def on(machine: HostLoad, *rows: tuple[WaitingRow, float], **more: object) -> HostLoad:
    """The machine with rows that have run for so many seconds."""
    return replace(machine, started=tuple(StartedRow(task, since) for task, since in rows), **more)  # type: ignore[arg-type]


def starts(waiting: list[WaitingRow], machines: list[HostLoad]) -> set[tuple[str, str]]:
    return {(waiting[start.position].name, start.host) for start in place(waiting, machines).starts}


WIDE, HALF, CPU = row("wide", 8), row("half", 4), row("cpu", 0, 10.0)
LATE = row("late", 4, 100.0)

CASES = [
    # nothing waits
    ([], [A], set()),
    # nothing to run on
    ([WIDE], [], set()),
    # as many as GPUs allow
    ([row("one", 4), row("two", 4), row("three", 4, 500)], [A], {("one", "a"), ("two", "a")}),
    # as many as places allow, with or without GPUs
    (
        [row("one", 1, 300), row("two", 1, 200), row("three", 1, 100)],
        [replace(A, slots=2)],
        {("one", "a"), ("two", "a")},
    ),
    ([row("one", 0, 300), row("two", 0, 200)], [on(A, (CPU, 1), slots=2)], {("one", "a")}),
    # rows without GPUs start where every GPU is taken, and where there are none
    ([CPU], [on(A, (WIDE, 10))], {("cpu", "a")}),
    # narrow rows share a host, so that the wide one has the other
    ([row("one", 2), WIDE, row("two", 4)], [A, B], {("wide", "a"), ("one", "b"), ("two", "b")}),
    # and leaves the idle host to wider ones
    ([HALF], [A, on(B, (row("there", 4), 100))], {("half", "b")}),
    # no two rows with one name on a host, however many GPUs are free there
    ([row("one", 2, 300, exclusive=RAY), row("two", 2, 200, exclusive=RAY)], [A], {("one", "a")}),
    ([row("one", 2, exclusive=RAY)], [on(A, (row("there", 2, exclusive=RAY), 5)), B], {("one", "b")}),
    ([row("one", 2, exclusive=RAY), row("two", 2, exclusive=frozenset({"port"}))], [A], {("one", "a"), ("two", "a")}),
    # only where it may run
    ([row("one", 8, hosts=frozenset({"b"})), row("two", 8, hosts=frozenset({"b"}))], [A, B], {("one", "b")}),
    # a host that is down gets nothing, with or without GPUs
    ([WIDE, CPU], [DOWN, B], {("wide", "b"), ("cpu", "b")}),
    # too wide for every host: others do not mind
    ([row("huge", 16), HALF], [A], {("half", "a")}),
    # of hosts that are as good, the one that has the image, and the code
    ([row("one", 8, image="img")], [A, replace(B, images=frozenset({"img"}))], {("one", "b")}),
    ([row("one", 8)], [replace(A, has_code=False), B], {("one", "b")}),
    # but no row waits for long for what can be got
    ([row("one", 8, image="img")], [A, on(B, (WIDE, 100), images=frozenset({"img"}))], {("one", "a")}),
    # GPUs of others are not free
    ([HALF, row("two", 4, 590)], [replace(A, held=3)], {("half", "a")}),
    ([WIDE], [replace(A, held=1), B], {("wide", "b")}),
    # a row that fits nowhere else waits on the host for them, where nothing of ours has GPUs
    ([WIDE, row("two", 8, 500)], [replace(A, held=8)], {("wide", "a")}),
    ([WIDE], [on(A, (CPU, 1), held=1)], {("wide", "a")}),
    # and not while narrow rows of ours use what the others leave, or another row waits there already
    ([WIDE], [on(A, (row("queued", 8), 1), held=1)], set()),
    # nor where it could not run beside what is there, or there is no place
    ([row("one", 8, exclusive=RAY)], [on(A, (row("ray", 0, exclusive=RAY), 1), held=1)], set()),
    ([WIDE], [on(A, (CPU, 1), held=1, slots=1)], set()),
    # nor if a host of ours is free sooner than others are thought to let go
    ([WIDE], [replace(A, held=1), on(B, (WIDE, 100))], set()),
    ([WIDE], [replace(A, held=1), on(B, (row("long", 8, HELD_SECONDS + 1), 0))], {("wide", "a")}),
    # history may say anything
    ([row("nan", 8, float("nan"))], [A], {("nan", "a")}),
    ([row("endless", 8, float("inf")), row("less", 8, -1.0)], [A, B], {("endless", "a"), ("less", "b")}),
    # GPUs taken twice over, by a row that waits for others: none are free, and not fewer
    ([CPU], [on(A, (WIDE, 1), held=8)], {("cpu", "a")}),
]


@pytest.mark.parametrize(("waiting", "machines", "chosen"), CASES)
def test_rows_that_start_now(waiting: list[WaitingRow], machines: list[HostLoad], chosen: set[tuple[str, str]]) -> None:
    assert starts(waiting, machines) == chosen


@pytest.mark.parametrize(
    ("waiting", "there", "chosen"),
    [
        # it is not delayed, only passed by what ends in time
        ([row("young", 4, 299.0), WIDE], (HALF, 300), {("young", "a")}),
        ([row("young", 4, 301.0), WIDE], (HALF, 300), set()),
        # a row past its estimate is not believed to end at once: what ends soon passes ...
        ([row("young", 4, 20.0), WIDE], (LATE, 100), {("young", "a")}),
        ([row("young", 4, 60.0), WIDE], (LATE, 110), set()),
        # ... and the longer it goes on, the longer the rows that do
        ([row("young", 4, 60.0), WIDE], (LATE, 2000), {("young", "a")}),
        # rows without GPUs take nothing from it
        ([row("young", 4, 301.0), WIDE, row("cpu", 0, 400.0)], (HALF, 300), {("cpu", "a")}),
    ],
)
def test_a_row_without_room_is_passed_by_rows_that_end_before_its_turn(
    waiting: list[WaitingRow], there: tuple[WaitingRow, float], chosen: set[tuple[str, str]]
) -> None:
    assert starts(waiting, [on(A, there)]) == chosen


WAITS = [
    (row("huge", 16), [A], "it needs 16 GPUs; the largest host it may use, a, has 8"),
    (WIDE, [DOWN], "down, or without a place for rows: a; no other host can take it"),
    (row("there", 8, hosts=frozenset({"c"})), [A], "no host is left for it; it may run on: c"),
    (WIDE, [], "no host is left for it; it may run on: any"),
    (WIDE, [replace(A, slots=0)], "down, or without a place for rows: a; no other host can take it"),
    (WIDE, [on(A, (HALF, 300))], "it needs 8 GPUs, and a has 4 free; its turn is in about 5 min"),
    (
        WIDE,
        [on(A, (HALF, 560), held=2)],
        "it needs 8 GPUs, and a has 2 free, with 2 held by others; its turn is in about 30 min",
    ),
    (
        row("one", 2, exclusive=RAY),
        [on(A, (row("ppo", 2, exclusive=RAY), 560))],
        "it cannot run beside ppo on a (ray-host-network); its turn is in about 40 s",
    ),
    (CPU, [on(A, (CPU, 4), slots=1)], "a runs 1 row at once; its turn is in about 6 s"),
]


@pytest.mark.parametrize(("task", "machines", "why"), WAITS)
def test_why_a_row_waits(task: WaitingRow, machines: list[HostLoad], why: str) -> None:
    decision = place([task], machines)
    assert (decision.starts, decision.waits) == ((), {0: why})


STARTS = [
    (HALF, A, "a has 8 of 8 GPUs free, and it needs 4"),
    (CPU, A, "a has a free slot, and it needs no GPU"),
    (replace(HALF, image="img"), replace(A, has_code=False), "{}; the code and the image must be copied there first"),
    (WIDE, replace(A, queues=True), "a has a queue of its own"),
    (WIDE, replace(A, held=3), "others hold 3 of 8 GPUs of a, and no row of ours uses any: it waits there"),
]


@pytest.mark.parametrize(("task", "machine", "why"), STARTS)
def test_why_a_row_starts_where_it_does(task: WaitingRow, machine: HostLoad, why: str) -> None:
    assert place([task], [machine]).starts[0].why == why.format(STARTS[0][2])


def test_a_row_that_may_not_pass_says_so() -> None:
    busy, slow = on(A, (row("there", 2), 300)), row("slow", 4, 301.0)
    assert place([WIDE, slow], [busy]).waits[1] == "it would delay wide"


@pytest.mark.parametrize(
    ("waiting", "machines", "left"),
    [
        ([], [], 0),
        ([WIDE, row("long", 1, 1000.0)], [A, B], 1000),  # the longest row
        ([row(str(number), 8) for number in range(6)], [A, B], 1800),  # all work on all GPUs
        ([row(str(number), 8) for number in range(6)], [DOWN, B], 3600),  # of hosts that are up
    ],
)
def test_what_is_left_is_what_no_order_of_the_rows_can_beat(
    waiting: list[WaitingRow], machines: list[HostLoad], left: float
) -> None:
    assert place(waiting, machines).left == left


def test_seconds_expected_of_a_row() -> None:
    durations = {"ppo": 50.0, "ckpt[sync]": 100.0, "ckpt[async]": 300.0}
    assert expected("ppo", durations, 8) == ExpectedTime(50, from_history=True)
    assert expected("ckpt[gpu]", durations, 8) == ExpectedTime(200)  # as its other modes
    assert expected("new", durations, 8).seconds == prior(8) > prior(4) > prior(0) > 0


# -- what a host can run -----------------------------------------------------------------------------------------------


ROW = Row("l", "j", None, "r", None, "", 4, "image", {}, "self-hosted", None)
WITHOUT_GPUS = replace(ROW, gpus=0, image=None)
LOCAL = HostSpec("local")
SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)
CLUSTER = HostSpec("cluster", kind="slurm", address="login.example.com", gpus=2)
NO_LOCK = "GPUs for this checkout: simulated ones serve the sample only"


@pytest.mark.parametrize(
    ("row", "host", "facts", "missing"),
    [
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
    ],
)
def test_what_a_host_lacks(row: Row, host: HostSpec, facts: HostFacts, missing: list[str]) -> None:
    assert missing_resources(row, host, facts) == missing


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
    assert other_hosts(replace(ROW, gpus=gpus), HOSTS, here, simulates) == others


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
    assert requires_python(files.get) == requirement


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
    problem = python_problem(requirement, version)
    assert (problem == "") == fits
    assert fits or problem == f"Python {requirement}, as the checkout requires (found {version})"
