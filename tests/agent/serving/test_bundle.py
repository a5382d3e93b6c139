"""What a run brings home, and what a host may not do with it."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.bundle import BundleError


@pytest.fixture
def there(tmp_path: Path) -> Path:
    run = tmp_path / "there"
    (run / "artifacts/container-1/logs").mkdir(parents=True)
    (run / "artifacts/junit.xml").write_text("<testsuites/>")
    (run / "artifacts/container-1/logs/raylet.out").write_bytes(b"\0ray\n" * 1000)
    (run / "docker.json").write_text("[]")
    (run / "plan.json").write_text("{}")
    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def packed(run: Path) -> io.BytesIO:
    chunks: list[bytes] = []
    bundle.send(str(run), chunks.append)
    return io.BytesIO(b"".join(chunks))


def crafted(*entries: tarfile.TarInfo) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for entry in entries:
            entry.size = 3 if entry.isreg() else 0
            made.addfile(entry, io.BytesIO(b"bad") if entry.isreg() else None)
    out.seek(0)
    return out


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_small_files_and_artifacts_arrive_as_they_were(there: Path, here: Path) -> None:
    names = bundle.unpack(packed(there), str(here))
    assert sorted(names) == ["artifacts/container-1/logs/raylet.out", "artifacts/junit.xml", "docker.json"]
    for name in names:
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_a_link_among_the_artifacts_is_not_followed(there: Path, here: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (there / "artifacts/link").symlink_to(tmp_path / "secret")
    os.mkfifo(there / "artifacts/pipe")
    assert "artifacts/link" not in bundle.unpack(packed(there), str(here))


def test_a_run_that_is_gone_brings_nothing(tmp_path: Path, here: Path) -> None:
    assert bundle.unpack(packed(tmp_path / "gone"), str(here)) == []


@pytest.mark.parametrize(
    "bad",
    [
        entry("../outside"),
        entry("/etc/outside"),
        entry("artifacts/../../outside"),
        entry("artifacts//outside"),
        entry("record.json"),
        entry("plan.json"),
        entry("run.sh"),
        entry("artifacts"),
        entry("artifacts/link", tarfile.SYMTYPE, "/etc"),
        entry("artifacts/hard", tarfile.LNKTYPE, "docker.json"),
        entry("artifacts/device", tarfile.CHRTYPE),
        entry("artifacts/pipe", tarfile.FIFOTYPE),
        entry("artifacts/directory", tarfile.DIRTYPE),
    ],
    ids=lambda bad: bad.name,
)
def test_a_hostile_bundle_is_refused_and_writes_nothing_outside(bad: tarfile.TarInfo, here: Path) -> None:
    with pytest.raises(BundleError):
        bundle.unpack(crafted(bad), str(here))
    assert {path.name for path in here.parent.iterdir()} == {"here"}
    assert not (here / "plan.json").exists()


def test_a_link_that_stands_here_already_is_not_written_through(here: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "artifacts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError):
        bundle.unpack(crafted(entry("artifacts/file")), str(here))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_bundle_is_refused(here: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        bundle.unpack(io.BytesIO(b"hello" * 400), str(here))
