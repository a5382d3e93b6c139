"""What a person sees of a label's models and datasets."""

from __future__ import annotations

from ci_tasks.features.prefetch.report import (
    MountSpace,
    PrefetchReport,
    RepositoryStatus,
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
