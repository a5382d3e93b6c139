"""What is asked of the history, and what it answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import history, store
from ci_tasks.results.history import RunQuery
from ci_tasks.results.index import passed_runs
from tests.parts.json_files import read_json, write_json

Make = Callable[..., RunDir]
DAY = 86400.0
NEW_YEAR = 1767225600.0  # 2026-01-01, UTC

# number of the batch's day in January 2026 → what its run is
RUNS: dict[int, dict[str, Any]] = {
    1: {"label": "ckpt", "row": "async[save]", "host": "h100a", "commit": "aaa1"},
    2: {"label": "ckpt", "row": "sync%", "host": "h100b", "commit": "aab2", "status": "failed"},
    3: {"label": "image", "row": "new\nline", "host": "sim", "commit": "bbb3", "status": "blocked"},
    4: {"label": "'; DROP TABLE runs; --", "row": '"; DROP TABLE runs; --', "host": "h100a", "commit": "ccc4"},
    5: {"label": "im\udcffage", "row": "no \udcff text", "host": "h\udcff", "commit": "", "status": "running"},
    6: {"label": "日本", "row": "nul\0byte", "host": "h_00a", "commit": "ddd6", "status": "cancelled"},
}
FILTERS: dict[str, tuple[RunQuery, list[int]]] = {
    "nothing": (RunQuery(), [6, 5, 4, 3, 2, 1]),
    "the newest": (RunQuery(limit=2), [6, 5]),
    "a label": (RunQuery(label="ckpt"), [2, 1]),
    "a part of a row": (RunQuery(row=("sync",)), [2, 1]),
    "one of two parts": (RunQuery(row=("line", "[save]")), [3, 1]),
    "a part with a wildcard is only itself": (RunQuery(row=("%",)), [2]),
    "another case": (RunQuery(row=("SYNC",)), []),
    "statuses": (RunQuery(status=("failed", "blocked")), [3, 2]),
    "what goes on": (RunQuery(status=("running",)), [5]),
    "a host": (RunQuery(host=("h100a",)), [4, 1]),
    "a host whose name looks like a pattern": (RunQuery(host=("h_00a",)), [6]),
    "the beginning of a commit": (RunQuery(commit="aa"), [2, 1]),
    "more than a commit": (RunQuery(commit="aaa1f"), []),
    "from a day on": (RunQuery(since=NEW_YEAR + 2 * DAY, limit=9), [6, 4, 3]),
    "until a day": (RunQuery(until=NEW_YEAR + 2 * DAY), [5, 2, 1]),  # what runs began in 1970 here
    "from its very beginning on": (RunQuery(since=NEW_YEAR + 0.5 * DAY, until=NEW_YEAR + 1.5 * DAY), [1]),
    "a time and all else": (RunQuery("ckpt", ("s",), ("passed",), ("h100a",), "a", 0, NEW_YEAR + DAY, 5), [1]),
    "SQL as a label": (RunQuery(label="'; DROP TABLE runs; --"), [4]),
    "a label that is no text": (RunQuery(label="im\udcffage"), [5]),
}


@pytest.fixture
def runs(make: Make) -> None:
    for day, fields in RUNS.items():
        make(f"202601{day:02d}-120000-ckpt", **fields)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("filter", "days"), FILTERS.values(), ids=FILTERS)
def test_a_search_finds_what_the_filter_says_newest_first(filter: RunQuery, days: list[int]) -> None:
    records = history.search(filter)
    assert [int(record.id[6:8]) for record in records] == days
    assert [record.row for record in records] == [RUNS[day]["row"] for day in days]


@pytest.mark.usefixtures("runs")
def test_the_labels_of_all_runs_are_known() -> None:
    expected = {fields["label"].encode("utf-8", "backslashreplace").decode() for fields in RUNS.values()}
    assert history.labels() == sorted(expected)


def test_runs_of_one_second_are_in_the_order_of_their_planning(make: Make) -> None:
    for at, batch in enumerate(["zeta", "alpha", "alpha-2"]):
        for number in (1, 2):
            make(f"20260101-120000-{batch}", number)
        os.utime(make(f"20260101-120000-{batch}").plan, (at, at))
    ids = [record.id.removeprefix("20260101-120000-") for record in history.search(RunQuery())]
    assert ids == ["alpha-2.02", "alpha-2.01", "alpha.02", "alpha.01", "zeta.02", "zeta.01"]


# (host, status, seconds, seconds waited) from old to new → for hosts asked → seconds
TAKEN: dict[str, tuple[list[tuple[Any, ...]], list[str], float | None]] = {
    "the median": ([("a", "passed", s, 0) for s in (1, 50, 3)], [], 3),
    "of an even number": ([("a", "passed", s, 0) for s in (1, 2, 4, 8)], [], 3),
    "without the wait": ([("a", "passed", 90, 60)], [], 30),
    "wait unknown": ([("a", "passed", 90, None)], [], 90),
    "only what passed": ([("a", "passed", 9, 0), *[("a", "failed", 1, 0)] * 3], [], 9),
    "none that passed": ([("a", "failed", 1, 0), ("a", "running", 1, 0)], [], None),
    "the newest": ([*[("a", "passed", 99, 0)] * 30, *[("a", "passed", 5, 0)] * 20], [], 5),
    "a named host first": ([("a", "passed", 1, 0), ("b", "passed", 9, 0)], ["b"], 9),
    "other hosts else": ([("a", "passed", 1, 0), ("b", "passed", 9, 0)], ["c"], 5),
}


@pytest.mark.parametrize(("taken", "hosts", "expected"), TAKEN.values(), ids=TAKEN)
def test_a_row_may_be_expected_to_take_what_it_took(
    taken: list[tuple[Any, ...]], hosts: list[str], expected: float | None, make: Make
) -> None:
    for number, (host, status, seconds, queued) in enumerate(taken, 1):
        make(number=number, row="r", host=host, status=status, seconds=seconds, queued=queued)
    make("20260202-120000-other", label="other", row="r", seconds=1000)
    assert history.durations("ckpt", hosts) == ({"r": expected} if expected else {})


BEFORE = {
    "20260101-115930-a": "h100a",
    "20260102-115910-b": "h100a",
    "20260103-115951-c": "box",
    "20260104-000000-d": "h100a",
}  # d: resumed
EXPECTED: dict[str, tuple[str, tuple[str, ...], float | None]] = {
    "the longest of the rows, and the usual time before the first one": ("h100a", ("one", "two"), 20 + 40),
    "some rows": ("h100a", ("one",), 10 + 40),
    "another host": ("box", ("two",), 20 + 9),
    "a host without runs": ("new", ("two",), 20),
    "a row that never passed": ("h100a", ("never",), None),
}


@pytest.mark.parametrize(("host", "rows", "expected"), EXPECTED.values(), ids=EXPECTED)
def test_a_run_is_expected_to_take_as_long_as_its_longest_row_and_what_comes_before(
    host: str, rows: tuple[str, ...], expected: float | None, make: Make
) -> None:
    for batch, at in BEFORE.items():
        make(batch, 1, row="one", host=at, seconds=10)
        make(batch, 2, row="two", host=at, seconds=20)
        make(batch, 3, row="never", host=at, status="blocked")
    assert history.expected_seconds("ckpt", [host], rows) == expected


# (status, tree) of a row's runs on one host → whether it is flaky
FLAKY: dict[str, tuple[list[tuple[str, str]], bool]] = {
    "both on one tree": ([("passed", "t1"), ("failed", "t1")], True),
    "mended": ([("failed", "t1"), ("passed", "t2")], False),
    "blocked says nothing": ([("passed", "t1"), ("blocked", "t1"), ("lost", "t1"), ("cancelled", "t1")], False),
    "always": ([("failed", "t1"), ("failed", "t1")], False),
    "the tree is unknown": ([("passed", ""), ("failed", "")], False),
}


@pytest.mark.parametrize(("ends", "flaky"), FLAKY.values(), ids=FLAKY)
def test_flaky_is_what_passed_and_failed_on_one_tree(ends: list[tuple[str, str]], flaky: bool, make: Make) -> None:
    for number, (status, tree) in enumerate(ends, 1):
        make(number=number, row="r", status=status, tree=tree)
    (tally,) = history.flakes(RunQuery(label="ckpt"))
    assert (tally.flaky, tally.runs) == (flaky, len(ends))


def test_a_row_that_never_began_counts_for_nothing(make: Make, home: Path) -> None:
    make(status="planned")
    batch = home / "runs/20260101-120000-ckpt"
    store.write_phase(batch, "preparing")
    write_json(str(batch / "state.json"), {**read_json(str(batch / "state.json")), "pid": 2**22 + 1})
    assert history.flakes() == []


def test_every_row_and_host_is_counted_by_itself(make: Make) -> None:
    ends = [("a", "passed"), ("a", "passed"), ("a", "vacuous"), ("b", "failed"), ("b", "running"), ("b", "planned")]
    for number, (host, status) in enumerate(ends, 1):
        make(number=number, row="r", host=host, status=status, seconds=10.0 * number, queued=float(number))
    make("20260101-120000-image", label="image", row="r", host="a")
    on_a, on_b = history.flakes(RunQuery(label="ckpt"))
    assert (on_a.host, on_a.counts, on_a.seconds, on_a.queued) == ("a", {"passed": 2, "vacuous": 1}, 15.0, 1.5)
    assert (on_b.host, on_b.counts, on_b.seconds, on_b.queued) == ("b", {"failed": 1}, None, None)
    of_a = history.flakes(RunQuery(host=("a",)))
    assert [(tally.label, tally.runs) for tally in of_a] == [("ckpt", 3), ("image", 1)]


def test_the_newest_batch_of_a_label_and_checkout_says_how_its_rows_ended_last(make: Make) -> None:
    make("20260101-120000-ckpt", status="failed", row="older")
    batch = "20260102-120000-ckpt"
    ends = [("one", "lost"), ("two", "passed"), ("one", "failed"), ("three", "planned")]
    for number, (row, status) in enumerate(ends, 1):
        make(batch, number, row=row, status=status)
    make("20260103-120000-ckpt", path="/another/checkout")
    make("20260104-120000-image", label="image")
    make("20260105-120000-ckpt", status="planned")
    last = {"one": "failed", "two": "passed", "three": "planned"}
    assert [*history.latest("ckpt", "/home/somebody/slime").items()] == [*last.items()]
    assert history.latest("nothing", "/home/somebody/slime") == {}


TESTS = {"what": "tests", "ci": "all of the row", "here": "tests/a.py::b", "why": "--test"}


@pytest.mark.parametrize("part", [{"retry_of": "20260101-120000-ckpt.01"}, {"deviations": [TESTS]}])
def test_a_run_of_a_part_of_a_row_is_found_and_counts_for_nothing(make: Make, part: dict[str, Any]) -> None:
    make("20260101-120000-ckpt", status="failed")
    make(f"{time.strftime('%Y%m%d')}-120000-ckpt", status="passed", **part)
    assert [record.is_partial for record in history.search(RunQuery())] == [True, False]
    assert history.durations("ckpt") == {}
    assert [tally.runs for tally in history.flakes(RunQuery(label="ckpt"))] == [1]
    assert [*history.latest("ckpt", "/home/somebody/slime").values()] == ["failed"]


def test_the_newest_runs_of_the_same_row_that_passed_and_have_a_log(make: Make) -> None:
    for day, fields in enumerate([{}, {}, {"status": "failed"}, {"row": "other"}, {}, {}], 1):
        run = make(f"2026010{day}-120000-ckpt", **{"row": "async", **fields})
        if day != 6:
            Path(run.log).write_bytes(b"step 1\n")
    history.search(RunQuery())  # which takes them in
    assert [Path(run.path).parts[-2][:8] for run in passed_runs("ckpt", "async", 3)] == ["20260105", "20260102"]
    assert passed_runs("ckpt", "none", 3) == []
