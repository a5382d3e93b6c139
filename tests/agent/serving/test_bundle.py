"""What a run brings home, and what a host may not do with it."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.bundle import BundleError

END = struct.pack(">H", 0)


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
    return io.BytesIO(b"".join(bundle.pack(str(run))))


def header(value: Any) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">H", len(text)) + text


def entry(path: Any, content: bytes = b"bad", **more: Any) -> bytes:
    return header({"path": path, "size": len(content), **more}) + content


def crafted(*entries: bytes, end: bytes = END) -> io.BytesIO:
    return io.BytesIO(b"".join(entries) + end)


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


ODD = [b"two\nlines", b"\xff\xfe", b"\x1b[2J"]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_a_name_that_a_client_refuses_is_not_sent_and_said(there: Path, here: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(there / "artifacts"), name), "w") as out:
        out.write("odd")
    assert "artifacts/junit.xml" in bundle.unpack(packed(there), str(here))
    (left,) = json.loads((here / bundle.NOT_SENT).read_text())["files"]
    assert "the name" in left["why"]
    assert sorted(path.name for path in (here / "artifacts").iterdir()) == ["container-1", "junit.xml", "not-sent.json"]


def test_what_is_over_the_limits_is_not_sent_and_said(there: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_FILES", 12)
    for number in range(20):
        (there / f"artifacts/n{number:02d}").touch()
    assert len(bundle.unpack(packed(there), str(here))) == 12
    assert len(json.loads((here / bundle.NOT_SENT).read_text())["files"]) == 23 - 11


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
    "a long name": entry("artifacts/" + "a" * 256),
    "a deep path": entry("artifacts/" + "a/" * 200 + "a"),
    "no path": entry(None),
    "a list": entry(["artifacts", "x"]),
    "a negative size": entry("artifacts/x", size=-1),
    "a giant": entry("artifacts/x", size=1 << 62),
    "a size that is no number": entry("artifacts/x", size="3"),
    "no JSON": header(b"hello"),
    "deep JSON": header(b"[" * 60000),
    "a file in a file": entry("artifacts/x") + entry("artifacts/x/y"),
    "a file for a directory": entry("artifacts/x/y") + entry("artifacts/x"),
    "many files": b"".join(entry(f"artifacts/{number}", b"") for number in range(13)),
    "many bytes": entry("artifacts/x", b"x" * 600) + entry("artifacts/y", b"x" * 600),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bundle_is_refused_and_writes_nothing_outside(
    what: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAX_FILES", 12)
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    with pytest.raises(BundleError):
        bundle.unpack(crafted(HOSTILE[what]), str(here))
    assert {path.name for path in here.parent.iterdir()} == {"here"}
    assert {path.name for path in here.iterdir()} <= {"artifacts"}


@pytest.mark.parametrize(
    "cut",
    [b"", b"\0", entry("artifacts/x")[:-1], entry("artifacts/x")[:5], b"hello" * 400, END + b"more"],
    ids=range(6),
)
def test_what_breaks_off_or_goes_on_after_its_end_is_refused(cut: bytes, here: Path) -> None:
    with pytest.raises(BundleError):
        bundle.unpack(io.BytesIO(cut), str(here))


def test_a_link_that_stands_here_already_is_not_written_through(here: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "artifacts").symlink_to(tmp_path / "elsewhere")
    for path in ("artifacts/file", "artifacts/new/file"):
        with pytest.raises(BundleError):
            bundle.unpack(crafted(entry(path)), str(here))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (here / "docker.json").symlink_to(tmp_path / "elsewhere" / "file")
    with pytest.raises(BundleError):
        bundle.unpack(crafted(entry("docker.json")), str(here))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_plain_file_here_is_not_written_to(here: Path) -> None:
    os.mkfifo(here / "docker.json")
    with pytest.raises(BundleError, match="cannot be written"):
        bundle.unpack(crafted(entry("docker.json")), str(here))
    reader = os.open(here / "docker.json", os.O_RDONLY | os.O_NONBLOCK)  # now it can be opened for writing
    with open(reader, "rb"), pytest.raises(BundleError, match="no plain file"):
        bundle.unpack(crafted(entry("docker.json")), str(here))
