"""The copy of a run keeps no secret that its host did not mask, and is still the host's log, byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from ci_tasks.agent import protocol
from ci_tasks.agent.protocol import RunUpdate
from ci_tasks.agent.records import Plan, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.hosts.connection import Receiver
from ci_tasks.hosts.runs import RunMirror

SECRET = "correct-horse"
LOG = f"one\nit is {SECRET}.\nlast correct-ho".encode()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("PLAIN_NAME", SECRET)
    run = RunDir(str(tmp_path / "run"))
    os.makedirs(run.artifacts)
    write_record(run.plan, Plan(secrets=("PLAIN_NAME",)))
    return run


def end(mirror: RunMirror, log: bytes = LOG) -> None:
    status = Status("ended", end="exit", exit_code=0, log_sha256=hashlib.sha256(log).hexdigest())
    mirror.update_status(RunUpdate(status, over=True))


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_log_that_came_unmasked_is_masked_and_complete(run: RunDir, size: int) -> None:
    mirror = RunMirror(run)
    for at in range(0, len(LOG), size):
        mirror.write_log(at, LOG[at : at + size])
        assert SECRET.encode() not in Path(run.log).read_bytes()
    end(mirror)
    assert mirror.is_complete()
    assert Path(run.log).read_bytes() == LOG.replace(SECRET.encode(), b"*" * len(SECRET))


def test_a_link_in_place_of_the_log_is_not_written_through(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    os.symlink(tmp_path / "precious", run.log)
    mirror = RunMirror(run)
    mirror.write_log(0, LOG)
    assert mirror.ended.is_set() and run.log in mirror.error
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_mirror_that_begins_in_the_middle_of_a_secret_goes_on_where_it_began(run: RunDir) -> None:
    """What was held back was not written, so it is asked for again."""
    text = f"it is {SECRET}.\n".encode()
    first = RunMirror(run)
    first.write_log(0, text[:10])
    first.close()
    second = RunMirror(run)
    assert second.offset == 6
    second.write_log(6, text[6:])
    end(second, text)
    assert second.is_complete()
    assert Path(run.log).read_bytes() == b"it is *************.\n"


def test_texts_of_a_status_are_masked(run: RunDir) -> None:
    RunMirror(run).update_status(RunUpdate(Status("running", error=f"no {SECRET}", waiting=(SECRET,))))
    status = read_status(run)
    assert (status.error, status.waiting) == ("no ***", ("***",))


def test_a_log_that_was_masked_here_and_then_resumed_is_fetched_again(run: RunDir) -> None:
    first = RunMirror(run)
    first.write_log(0, LOG[:25])
    first.close()
    second = RunMirror(run)
    second.write_log(25, LOG[25:])
    end(second)
    assert not second.is_complete()
    second.follow_again(log=True)
    second.write_log(0, LOG)
    end(second)
    assert second.is_complete()


def fetch(run: RunDir, there: RunDir) -> None:
    files = Receiver(run.path)
    for kind, payload in protocol.pack(there.path):
        files.take(kind, 0, payload)
    files.close()
    RunMirror(run).mask_artifacts()


def test_old_artifacts_that_cannot_be_removed_are_an_error(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has masked them."""

    def refuse(path: str) -> None:
        raise OSError(f"{path} is in use")

    os.makedirs(run.artifacts, exist_ok=True)
    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(OSError, match="is in use"):
        RunMirror(run).mask_artifacts()


def test_artifacts_and_small_files_are_masked_by_content_and_name(run: RunDir, tmp_path: Path) -> None:
    host = RunDir(str(tmp_path / "host"))
    os.makedirs(host.artifacts)
    Path(host.artifacts, f"{SECRET}.txt").write_text(SECRET)
    Path(host.events).write_text(f"{SECRET}\n")
    fetch(run, host)
    assert (Path(run.events).read_text(), Path(run.artifacts, "***.txt").read_text()) == ("***\n", "***")
    assert not [path for path in Path(run.path).rglob("*") if SECRET in path.name]


@pytest.mark.parametrize("secrets", [[], ["TOKEN"], ["UNSET"]])
def test_archives_are_withheld_only_if_the_run_has_secrets(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secrets: list[str]
) -> None:
    """This client has one, in any case."""
    monkeypatch.setenv("TOKEN", SECRET)
    write_record(run.plan, Plan(secrets=tuple(secrets)))
    there = RunDir(str(tmp_path / "there"))
    os.makedirs(there.artifacts)
    Path(there.artifacts, "a.gz").write_bytes(gzip.compress(b""))
    fetch(run, there)
    assert os.listdir(run.artifacts) == (["left-out.json"] if secrets == ["TOKEN"] else ["a.gz"])
