"""Nothing leaves a run's directory unmasked: content, names, small files, whatever the job made of them."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import os
import shutil
from pathlib import Path

import pytest

from ci_tasks.agent.exit_gate import ARCHIVE, mask_run, masked_record
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir

SECRET = "correct-horse"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(str(tmp_path / "run"))
    os.makedirs(run.artifacts)
    return run


def put(run: RunDir, name: str, content: bytes) -> None:
    path = Path(run.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def files(run: RunDir) -> dict[str, bytes]:
    top = Path(run.artifacts)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def masked(run: RunDir) -> dict[str, bytes]:
    old = mask_run(run, [SECRET])
    if old:
        shutil.rmtree(old)
    return files(run)


def test_content_is_masked(run: RunDir) -> None:
    put(run, "artifacts/junit.xml", b'<failure message="assert &#x27;correct-horse&#x27;"/>')
    put(run, "artifacts/clean.txt", b"nothing")
    put(run, "artifacts/deep/er/b64", base64.b64encode(b"x" + SECRET.encode()))
    got = masked(run)
    assert got["junit.xml"] == b'<failure message="assert &#x27;***&#x27;"/>'
    assert got["clean.txt"] == b"nothing"
    assert b"***" in got["deep/er/b64"]


def test_names_are_masked_and_stay_apart(run: RunDir) -> None:
    for name in ("correct-horse.txt", "a correct-horse/b", "a ***/b", "***.txt"):
        put(run, f"artifacts/{name}", name[:3].encode())
    got = masked(run)
    assert sorted(got) == ["***.txt", "***.txt.2", "a ***/b", "a ***/b.2"]
    assert not [path for path in Path(run.path).rglob("*") if SECRET in str(path)]


@pytest.mark.parametrize(
    "head",
    [
        *(gzip.compress(b""), bz2.compress(b""), lzma.compress(b""), b"PK\3\4", b"PK\5\6", b"\x28\xb5\x2f\xfd"),
        *(b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x9d", b"LZIP", b"." * 257 + b"ustar"),
    ],
)
def test_an_archive_of_a_run_with_secrets_stays_behind_and_is_named(run: RunDir, head: bytes) -> None:
    put(run, "artifacts/log", head)
    put(run, "artifacts/plain", b"BZh, PK, ustar")
    got = masked(run)
    assert sorted(got) == ["left-out.json", "plain"]
    (left,) = json.loads(got["left-out.json"])["files"]
    assert (left["path"], left["why"]) == ("log", ARCHIVE)


@pytest.mark.parametrize("steps", range(0, 6, 2))
def test_a_stop_leaves_everything_as_it_was_for_the_next_pass(run: RunDir, steps: int) -> None:
    """It is asked for between any two chunks: nothing is lost, and what is fetched later is masked then."""
    put(run, "agent.log", b"." * (2 << 20))
    put(run, "artifacts/large", b"." * (3 << 20) + SECRET.encode())
    before, asked = files(run), iter(range(steps))
    with pytest.raises(OSError, match="asked to end"):
        mask_run(run, [SECRET], lambda: next(asked, None) is None)
    assert files(run) == before
    assert sorted(os.listdir(run.path)) == ["agent.log", "artifacts"]
    assert sorted(masked(run)) == ["large"]


def test_a_file_that_would_be_searched_for_hours_stays_behind_and_is_named(run: RunDir) -> None:
    for name in ("artifacts/hole", "agent.log"):
        put(run, name, b"")
        os.truncate(Path(run.path, name), 1 << 40)
    put(run, "artifacts/other", b"x")
    got = masked(run)
    assert sorted(got) == ["left-out.json", "other"]
    (left,) = json.loads(got["left-out.json"])["files"]
    assert (left["path"], left["why"]) == ("hole", "too large to be searched for secrets")
    assert not os.path.exists(run.agent_log)


def test_in_a_binary_file_nothing_moves(run: RunDir) -> None:
    put(run, "artifacts/model.bin", b"\0\1" + SECRET.encode() + b"\2end")
    assert masked(run)["model.bin"] == b"\0\1" + b"*" * len(SECRET) + b"\2end"


def test_links_and_devices_do_not_pass(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(SECRET)
    put(run, "artifacts/deep/file", b"x")
    os.symlink(tmp_path / "outside", Path(run.artifacts, "link"))
    os.symlink(tmp_path, Path(run.artifacts, "directory"))
    os.mkfifo(Path(run.artifacts, "pipe"))
    assert list(masked(run)) == ["deep/file"]
    assert (tmp_path / "outside").read_text() == SECRET


@pytest.mark.parametrize("name", ["docker.json", "environment.json", "events.jsonl", "agent.log"])
def test_small_files_are_masked_in_place(run: RunDir, name: str) -> None:
    put(run, name, b'{"event": "step", "name": "correct-horse"}\n')
    masked(run)
    assert Path(run.path, name).read_bytes() == b'{"event": "step", "name": "***"}\n'


def test_a_records_texts_are_masked_and_its_numbers_stay() -> None:
    status = Status("running", pid=7, waiting=('python train.py --key "correct-horse"',))
    assert masked_record(status, [SECRET]) == Status("running", pid=7, waiting=('python train.py --key "***"',))


def test_a_small_file_that_is_a_link_goes(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(SECRET)
    os.symlink(tmp_path / "outside", Path(run.path, "events.jsonl"))
    masked(run)
    assert not os.path.lexists(run.events)
    assert (tmp_path / "outside").read_text() == SECRET
