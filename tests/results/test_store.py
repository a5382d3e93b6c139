"""Where runs are, what they are called, and what a person's short name means."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.records import RunRecord
from ci_tasks.results import store
from ci_tasks.results.load import RUNS, choose
from ci_tasks.results.runs import pending_phase
from ci_tasks.results.store import BatchState, Phase, read_state_if_readable, write_phase


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-120000")


def _batch(label: str, rows: int = 1, at: int = 1) -> store.Batch:
    """A batch whose rows were planned at `at`."""
    batch = store.new_batch(label)
    for number in range(1, rows + 1):
        run = batch.run_dir(number)
        os.makedirs(run.path)
        Path(run.plan).write_text("{}")
        os.utime(run.plan, (at, at))
    return batch


def _ids(name: str) -> list[str]:
    return [id for id, _ in store.find(name)]


@pytest.mark.usefixtures("one_second")
def test_names_mean_ids_batches_beginnings_and_the_newest() -> None:
    _batch("cpu", rows=2, at=1)
    _batch("ckpt", rows=101, at=2)
    assert _ids("20260101-120000-cpu.02") == ["20260101-120000-cpu.02"]
    assert _ids("20260101-120000-cpu") == ["20260101-120000-cpu.01", "20260101-120000-cpu.02"]
    assert _ids("20260101-120000-cp") == _ids("20260101-120000-cpu")
    assert _ids("last") == [f"20260101-120000-ckpt.{number:02d}" for number in range(1, 102)]
    assert len(_ids("2026")) == 103


@pytest.mark.usefixtures("one_second")
def test_a_number_is_a_row_and_not_the_beginning_of_another() -> None:
    _batch("ckpt", rows=11)
    _batch("cpu")
    assert _ids("20260101-120000-ckpt.1") == ["20260101-120000-ckpt.01"]
    assert _ids("20260101-120000-ckpt.0") == [f"20260101-120000-ckpt.{number:02d}" for number in range(1, 10)]
    with pytest.raises(UnknownName) as caught:
        store.find("20260101-120000-ckpt.12")
    assert "ckpt.11" in caught.value.hint and "cpu" not in caught.value.hint


@pytest.mark.usefixtures("one_second")
def test_batches_of_one_second_are_apart_and_in_their_order() -> None:
    batches = [_batch("zeta" if number % 2 else "alpha", at=number) for number in range(1, 24)]
    assert len({batch.path for batch in batches}) == 23
    assert _ids("last") == [batches[-1].run_id(1)]
    assert [id for id, _ in store.run_dirs()] == [batch.run_id(1) for batch in reversed(batches)]
    assert _ids("20260101-120000-zeta") == ["20260101-120000-zeta.01"]  # not its twins, whose names begin with it


@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize("name", ["nothing", "", "/", ".."])
def test_an_unknown_name_lists_the_newest(name: str) -> None:
    for number in range(12):
        _batch(f"label-{number:02d}", at=number)
    with pytest.raises(UnknownName) as caught:
        store.find(name)
    assert "label-11.01" in caught.value.hint and "label-01.01" not in caught.value.hint


def _state(batch: store.Batch, kind: str) -> None:
    """`kind`: planned, killed, lives, began, over, or ours, which the same command began as others."""
    if kind != "planned":
        write_phase(batch.path, "installing" if kind in ("killed", "lives") else "ended")
    if kind in ("killed", "began"):
        state = read_state_if_readable(batch.path)
        assert state is not None
        write_record(str(batch.path / "state.json"), replace(state, boot_id=f"of {batch.id}"))
    if kind in ("began", "ours"):
        Path(batch.run_dir(1).status).write_text("{}")


@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize(
    ("kinds", "newest"),
    [
        (["began", "killed", "planned"], [0]),
        (["began", "lives", "planned"], [1]),
        (["lives", "began"], [1]),
        (["planned", "killed", "planned"], [2]),
        (["began", "over"], [0]),
        (["ours", "began", "ours", "ours"], [2, 3]),
    ],
)
def test_last_is_the_newest_command_of_which_there_is_something_to_show(kinds: list[str], newest: list[int]) -> None:
    """Not what was killed before it began, nor what was only planned; but a command that lives."""
    batches = [_batch(f"b{at}", at=at) for at, _ in enumerate(kinds)]
    for batch, kind in zip(batches, kinds, strict=True):
        _state(batch, kind)
    assert _ids("last") == [batches[at].run_id(1) for at in newest]


LABELS = ["../../etc", "a/b", "ppo grpo", "", "...", "-rf", "ü", "new\nline", "x" * 500, "v1.02", "$(x)"]


@pytest.mark.parametrize("label", LABELS, ids=[repr(label)[:20] for label in LABELS])
def test_any_label_gives_a_directory_below_home_that_is_found_again(label: str, home: Path) -> None:
    batch = _batch(label)
    assert batch.path.parent == home / "runs"
    assert _ids(batch.run_id(1)) == _ids(batch.id) == _ids("last") == [batch.run_id(1)]


def test_two_hosts_that_need_a_new_client_id_at_once_get_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, ids = os.link, list[str]()

    def link_after_another(*paths: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        other = threading.Thread(target=lambda: ids.append(store.client_id()))
        other.start()
        other.join()
        link(*paths)

    monkeypatch.setattr(os, "link", link_after_another)
    assert [store.client_id()] == ids


def test_a_home_keeps_its_client_id(home: Path) -> None:
    first = store.client_id()
    assert re.fullmatch("[0-9a-f]{6}", first)
    assert store.client_id() == first
    assert [path.name for path in home.iterdir()] == ["client-id"]


def test_another_directory_has_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for path in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(UsageError, match="is not"):
            store.new_batch("cpu", path)
    batch = store.new_batch("cpu", tmp_path / "new" / "one")
    assert batch.path.is_dir()
    assert batch.environments == batch.path / "environments"


def test_what_is_no_run_is_not_listed(home: Path) -> None:
    batch = _batch("cpu")
    (home / "runs" / "file").touch()
    (batch.path / "source").mkdir()
    assert [id for id, _ in store.run_dirs()] == [batch.run_id(1)]


def test_nobody_else_may_enter_a_home_that_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "new/home"))
    store.new_batch("cpu")
    assert (tmp_path / "new/home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/dev/null", "/dev/null/x", "/proc/nope"])
def test_a_home_that_can_be_no_directory_is_the_persons_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, path)
    with pytest.raises(UsageError, match=f"{path} cannot be the directory for runs: ") as caught:
        store.new_batch("ckpt")
    assert store.HOME_ENV in caught.value.hint


def own(phase: Phase = "running") -> BatchState:
    me = processes.identity()
    return BatchState(phase, me.pid, me.pid_start, me.boot_id, platform.node(), time.time())


def gone() -> BatchState:
    """Of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(own(), pid=ended.pid, pid_start="1")


CASES: list[tuple[str, BatchState, bool, bool]] = [
    ("a living process", own(), True, False),
    ("a command that is over", own("ended"), False, False),
    ("a process that has ended", gone(), False, True),
    ("another process with that number", replace(own(), pid_start="1"), False, True),
    ("a process before the machine restarted", replace(own(), boot_id="another boot"), False, True),
    ("another machine, a minute ago", replace(own(), machine="other", pid=1, written_at=time.time() - 60), True, False),
    ("another machine, two days ago", replace(own(), machine="other", written_at=time.time() - 2 * 86400), False, True),
    ("another machine's that is over", replace(own("ended"), machine="other"), False, False),
]


@pytest.mark.parametrize(("state", "active", "killed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_whether_a_command_works_on_its_rows_or_was_killed(state: BatchState, active: bool, killed: bool) -> None:
    assert (state.is_active, state.was_killed) == (active, killed)


REASONS = [
    (own("preparing"), "the client was killed before its rows were prepared"),
    (own("installing"), "the client was killed during the install steps"),
    (own("running"), "the client was killed before the row started"),
    (replace(own("installing"), boot_id="another boot"), "the machine restarted during the install steps"),
    (replace(own("installing"), boot_id=None), "the client was killed during the install steps"),
    (own("ended"), "the command ended before the row started"),
]


@pytest.mark.parametrize(("state", "reason"), REASONS)
def test_why_a_row_has_not_begun(state: BatchState, reason: str) -> None:
    assert state.why_not_started == reason


def test_a_phase_is_read_as_it_was_written_with_this_process_as_the_owner(tmp_path: Path) -> None:
    for phase in ("preparing", "installing", "running", "ended"):
        write_phase(tmp_path, phase)
        state = read_state_if_readable(tmp_path)
        assert state is not None
        assert (state.phase, state.pid, state.is_here) == (phase, os.getpid(), True)
        assert state.is_active == (phase != "ended")
        assert pending_phase(RunDir(str(tmp_path / "01"))) == ("" if phase == "ended" else phase)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "sleeping"}', '{"phase": "running", "pid": "1"}'])
def test_a_damaged_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / store._STATE).write_text(text)
    assert read_state_if_readable(tmp_path) is None


def test_only_the_end_may_stay_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full: that the process is gone says the same."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_record", full)
    write_phase(tmp_path, "ended")
    with pytest.raises(OSError, match="No space"):
        write_phase(tmp_path, "running")


# -- a command for one row: what `last` means after a command with several ---------------------------------------------


def _records(*statuses: str) -> dict[str, RunRecord]:
    ids = {f"b.{number:02d}": status for number, status in enumerate(statuses, 1)}
    return {id: RunRecord(id, "l", f"row{int(id[2:])}", "sim", status) for id, status in ids.items()}


@pytest.mark.parametrize(
    ("statuses", "listed"), [("passed passed", [1, 2]), ("passed running", [1, 2]), ("passed failed blocked", [2, 3])]
)
def test_otherwise_those_that_may_be_meant_are_listed(statuses: str, listed: list[int]) -> None:
    names = statuses.split()
    with pytest.raises(UsageError) as caught:
        choose("last", _records(*names))
    assert caught.value.message == f"'last' has {len(names)} rows; pick one"
    shown = [line.strip() for line in caught.value.hint.splitlines()]
    assert shown == [f"ci-tasks COMMAND b.{number:02d}  {names[number - 1]}  row{number}" for number in listed]


def test_of_repeated_runs_of_a_row_the_newest_is_meant() -> None:
    assert choose("last", {id: replace(one, row="r") for id, one in _records(*["failed"] * 3).items()}) == "b.03"


def test_a_hang_is_looked_for_in_the_only_run_that_runs() -> None:
    assert choose("last", _records("failed", "running", "passed"), RUNS) == "b.02"


def test_of_many_the_first_are_listed() -> None:
    with pytest.raises(UsageError) as caught:
        choose("last", _records(*["failed"] * 20))
    assert caught.value.hint.splitlines()[-1] == "  and 8 more: `ci-tasks runs`"
