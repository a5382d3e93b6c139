"""What a person sees of a label's models and datasets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.features.prefetch.report import (
    MountSpace,
    PathStatus,
    PrefetchReport,
    RepositoryStatus,
    UnresolvedInRows,
    human,
    summary,
    text,
)

MODEL = RepositoryStatus(
    kind="model",
    id="org/m",
    revision="main",
    commit="c0ffee" + "0" * 34,
    path="/root/models/m",
    directory="/data/models/m",
    state="partly",
    size=3_000_000_000,
    missing=1_200_000_000,
    gated="",
    private=False,
    mount="/data",
    rows=("a", "b"),
    where=("tests/test_a.py:4", "tests/test_b.py:5"),
)
REPORT = PrefetchReport(
    "box", "https://huggingface.co", (MODEL,), (MountSpace("/data", 10**11, 1_200_000_000, 1 << 28),)
)


def test_each_repository_with_its_size_and_place() -> None:
    assert text(REPORT) == [
        "STATE   REPOSITORY  REVISION       SIZE                    ROWS  ON BOX",
        "partly  org/m       main@c0ffee00  3.0 GB, 1.2 GB to come  2     /data/models/m",
        "",
        "/data: 100.0 GB free, 1.2 GB to come",
    ]
    assert summary(REPORT) == "1 repository: 1 partly"
    assert not REPORT.is_blocked


def test_a_problem_stands_with_its_next_step_and_who_asks() -> None:
    gated = replace(MODEL, problem="gated", message="org/m is gated", hint="accept its terms", gated="manual")
    report = replace(REPORT, repositories=(gated,))
    assert text(report)[3:6] == [
        "org/m is gated",
        "  → accept its terms",
        "  asked for by tests/test_a.py:4 and 1 more",
    ]
    assert summary(report) == "1 repository: 1 gated"
    assert report.is_blocked


def test_one_problem_of_several_repositories_stands_once() -> None:
    first = replace(MODEL, problem="offline", message="the hub cannot be reached", hint="check the network")
    second = replace(first, id="org/n", where=("tests/test_b.py:9",))
    assert text(replace(REPORT, repositories=(first, second)))[4:8] == [
        "the hub cannot be reached",
        "  → check the network",
        "  asked for by tests/test_a.py:4 and 1 more",
        "  asked for by tests/test_b.py:9",
    ]


def test_a_mount_that_is_too_small_blocks() -> None:
    report = replace(REPORT, mounts=(MountSpace("/data", 10**9, 1_200_000_000, 1 << 28),))
    assert report.is_blocked
    assert "too little" in "\n".join(text(report))


@pytest.mark.parametrize(("there", "message", "blocked"), [(True, "there", False), (False, "missing", True)])
def test_a_path_that_no_download_makes(there: bool, message: str, blocked: bool) -> None:
    report = PrefetchReport(
        "box", "", expected=(PathStatus("/root/models/x", "/data/models/x", there, ("a",), ("tests/a.py:1",)),)
    )
    assert f"/root/models/x (/data/models/x) is {message}" in text(report)
    assert report.is_blocked == blocked


def test_what_is_not_kept_and_what_is_not_known() -> None:
    lost = replace(MODEL, state="not kept", directory=None, mount=None, message="it would go with the container")
    report = PrefetchReport(
        "box", "", (lost,), unresolved=(UnresolvedInRows("tests/a.py:7", "hf download ⟨x⟩", "x is input()", ("a",)),)
    )
    output = "\n".join(text(report))
    assert "not fetched ahead: /root/models/m: it would go with the container" in output
    assert "tests/a.py:7: hf download ⟨x⟩\n    x is input()" in output
    assert summary(report) == "1 repository: 1 not kept; 1 unresolved"


def test_rows_that_ask_for_nothing() -> None:
    assert text(PrefetchReport("box", "")) == ["no test of these rows asks a hub for anything"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_999, "1.0 MB"), (61_000_000_000, "61.0 GB"), (2e12, "2.0 TB")],
)
def test_bytes_are_shown_in_readable_units(count: float, expected: str) -> None:
    assert human(count) == expected
