"""What a run brings home, and what a host may not do with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.bundle import BundleError
from ci_tasks.agent.serving.protocol import DATA, FILE

Frames = Iterable[tuple[bytes, bytes]]


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


def receive(frames: Frames, here: Path) -> list[str]:
    files = bundle.Receiver(str(here))
    try:
        for kind, payload in frames:
            files.take(kind, 0, payload)
    finally:
        files.close()
    return files.paths


def fetch(there: Path, here: Path) -> list[str]:
    return receive(bundle.pack(str(there)), here)


def entry(path: str | bytes, content: bytes = b"bad") -> list[tuple[bytes, bytes]]:
    return [(FILE, path if isinstance(path, bytes) else path.encode("utf-8", "surrogatepass")), (DATA, content)]


def test_small_files_and_artifacts_arrive_as_they_were(there: Path, here: Path) -> None:
    names = fetch(there, here)
    assert sorted(names) == ["artifacts/container-1/logs/raylet.out", "artifacts/junit.xml", "docker.json"]
    for name in names:
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_a_link_among_the_artifacts_is_not_followed(there: Path, here: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (there / "artifacts/link").symlink_to(tmp_path / "secret")
    os.mkfifo(there / "artifacts/pipe")
    assert "artifacts/link" not in fetch(there, here)


ODD = [b"two\nlines", b"\xff\xfe", b"\x1b[2J"]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_a_name_that_a_client_refuses_is_not_sent_and_said(there: Path, here: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(there / "artifacts"), name), "w") as out:
        out.write("odd")
    assert "artifacts/junit.xml" in fetch(there, here)
    (left,) = (here / bundle.NOT_SENT).read_text().splitlines()
    assert "the name" in left
    assert sorted(path.name for path in (here / "artifacts").iterdir()) == ["container-1", "junit.xml", "not-sent.txt"]


def test_what_is_over_the_limits_is_not_sent_and_said(there: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_FILES", 12)
    for number in range(20):
        (there / f"artifacts/n{number:02d}").touch()
    assert len(fetch(there, here)) == 12
    assert len((here / bundle.NOT_SENT).read_text().splitlines()) == 23 - 11


HOSTILE = {
    "above": entry("../outside"),
    "absolute": entry("/etc/outside"),
    "above by a detour": entry("artifacts/../../outside"),
    "nothing between": entry("artifacts//outside"),
    "a record": entry("record.json"),
    "a plan": entry("plan.json"),
    "a script": entry("run.sh"),
    "a place": entry("remote.json"),
    "the directory itself": entry("artifacts"),
    "NUL": entry("artifacts/a\0b"),
    "a newline": entry("artifacts/a\nb"),
    "half of a character": entry("artifacts/\ud83d"),
    "no UTF-8": entry(b"artifacts/\xff"),
    "a long name": entry("artifacts/" + "a" * 256),
    "a deep path": entry("artifacts/" + "a/" * 200 + "a"),
    "no path": entry(""),
    "bytes of no file": [(DATA, b"bad")],
    "a file in a file": [*entry("artifacts/x"), *entry("artifacts/x/y")],
    "a file for a directory": [*entry("artifacts/x/y"), *entry("artifacts/x")],
    "many files": [each for number in range(13) for each in entry(f"artifacts/{number}", b"")],
    "many bytes": [*entry("artifacts/x", b"x" * 600), *entry("artifacts/y", b"x" * 600)],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bundle_is_refused_and_writes_nothing_outside(
    what: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAX_FILES", 12)
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    with pytest.raises(BundleError):
        receive(HOSTILE[what], here)
    assert {path.name for path in here.parent.iterdir()} == {"here"}
    assert {path.name for path in here.iterdir()} <= {"artifacts"}


def test_a_link_that_stands_here_already_is_not_written_through(here: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "artifacts").symlink_to(tmp_path / "elsewhere")
    for path in ("artifacts/file", "artifacts/new/file"):
        with pytest.raises(BundleError):
            receive(entry(path), here)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (here / "docker.json").symlink_to(tmp_path / "elsewhere" / "file")
    with pytest.raises(BundleError):
        receive(entry("docker.json"), here)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_plain_file_here_is_not_written_to(here: Path) -> None:
    os.mkfifo(here / "docker.json")
    with pytest.raises(BundleError, match="cannot be written"):
        receive(entry("docker.json"), here)
    reader = os.open(here / "docker.json", os.O_RDONLY | os.O_NONBLOCK)  # now it can be opened for writing
    with open(reader, "rb"), pytest.raises(BundleError, match="no plain file"):
        receive(entry("docker.json"), here)
