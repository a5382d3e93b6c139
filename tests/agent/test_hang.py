"""When a run is looked at."""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from ci_tasks.agent import hang, processes
from ci_tasks.agent.__main__ import main
from ci_tasks.agent.codec import to_json
from ci_tasks.agent.hang import HangFacts, HangWatcher, NoLook, ProcessFacts, wait_for_look
from ci_tasks.agent.records import Plan, Status
from ci_tasks.agent.run_directory import RunDir, read_record, write_record
from tests.agent.conftest import wait_until

AGENT = """import sys
open(sys.argv[2] + "/looked", "a").write(" ".join(sys.argv[3:]) + "|")
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run whose agent only notes that it looked."""
    run = RunDir(str(tmp_path / "runs/b/01"))
    Path(run.bin).mkdir(parents=True)
    with zipfile.ZipFile(run.agent, "w") as archive:
        archive.writestr("__main__.py", AGENT)
    write_record(run.status, Status("running", "running"))
    write_record(run.plan, Plan())
    return run


def polled(watcher: HangWatcher, silent: float, left: float) -> bool:
    """Whether a look begins, and then its end."""
    watcher.poll(silent, left)
    begins = watcher.is_looking
    wait_until(lambda: watcher.poll(silent, left) or not watcher.is_looking)  # type: ignore[func-returns-value]
    return begins


def looked(run: RunDir) -> list[str]:
    return Path(run.path, "looked").read_text().split("|")[:-1]


def test_a_request_is_answered_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "_PAUSE", -1)
    watcher = HangWatcher(run, 600, 7200)
    Path(run.hang_request).write_text("abc")
    assert [polled(watcher, 0, 3600) for _ in range(3)] == [True, False, False]
    assert looked(run) == ["request abc"]


@pytest.mark.parametrize("text", ["", "../x", "a b", "a" * 101, "\0", "é"])
def test_what_is_no_request_is_not_answered(run: RunDir, text: str) -> None:
    Path(run.hang_request).write_text(text)
    assert not polled(HangWatcher(run, 600, 7200), 0, 3600)


def test_before_the_timeout_there_is_one_look_if_there_is_time_for_it(run: RunDir) -> None:
    assert not polled(HangWatcher(run, 600, 60), 0, 1)
    watcher = HangWatcher(run, 600, 7200)
    assert [polled(watcher, 0, left) for left in (3600, 1, 1)] == [False, True, False]
    assert looked(run) == ["timeout "]


def test_a_silence_is_looked_at_again_after_twice_the_time(run: RunDir) -> None:
    watcher = HangWatcher(run, 600, 72000)
    silences = (599, 600, 1199, 1200, 1201, 2400, 5, 600)
    assert [silent for silent in silences if polled(watcher, silent, 3600)] == [600, 1200, 2400, 600]
    assert looked(run) == ["stall "] * 4


def test_a_look_that_hangs_is_ended(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(run.agent, "w") as archive:
        archive.writestr("__main__.py", "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(hang, "MAX_SECONDS", 0.0)
    assert polled(HangWatcher(run, 600, 7200), 600, 3600)
    assert "inspecting the processes: failed: no end within 0 s" in Path(run.agent_log).read_text()


def test_a_look_that_fails_says_so_itself(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(processes, "own_session", True)
    monkeypatch.setattr(hang, "collect", fail)
    assert main(["hang", run.path, "stall", ""]) == 0
    assert "RuntimeError: a bug" in Path(run.agent_log).read_text()
    assert not processes.own_session, "what it starts is the agent's, not the job's"


@pytest.mark.parametrize(("status", "why"), [(Status(), "has not started"), (Status("ended", "ended"), "has ended")])
def test_a_run_that_does_not_run_is_not_asked(run: RunDir, status: Status, why: str) -> None:
    write_record(run.status, status)
    with pytest.raises(NoLook, match=why):
        wait_for_look(run.path, "abc")


def test_the_answer_to_a_request_is_waited_for(run: RunDir) -> None:
    def agent() -> None:
        wait_until(Path(run.hang_request).exists)
        Path(run.hang).parent.mkdir()
        Path(run.hang).write_text(to_json(HangFacts(request="abc", seconds=7.0)))

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    assert wait_for_look(run.path, "abc").seconds == 7.0
    thread.join(10)
    assert wait_for_look(run.path, "abc").seconds == 7.0, "a request that is repeated gets the same answer"


def test_a_link_in_the_place_of_the_directory_leads_nowhere(run: RunDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(run.path, "hang").symlink_to(elsewhere)
    hang.collect(run.path, "request", "abc")
    assert list(elsewhere.iterdir()) == []
    facts = read_record(HangFacts, run.hang)
    assert facts is not None
    assert (facts.request, facts.reason) == ("abc", "request")
    assert Path(run.hang_stacks).read_text().count("could not: ") == len(facts.could_not)
    seen = ProcessFacts(7, 1, place="c", argv=("python", "x"), state="R", stacks="main", env={"RANK": "3"})
    hang._write(run, HangFacts(processes=(seen,)))
    assert Path(run.hang_stacks).read_text() == "=== rank, container: 3 c, pid 7, state R: python x\nmain\n"


def test_a_look_shows_the_process_that_was_asked_for_or_says_why_not() -> None:
    assert [seen.pid for seen in hang.look([sys.executable], [os.getpid()]).processes] == [os.getpid()]
    failed = hang.look(["sh", "-c", "cat; echo no interpreter >&2; exit 1"], None)
    assert (failed.processes, failed.could_not) == ((), ("no interpreter",))


def test_more_processes_than_fit_into_a_command_line_do_not_end_the_look() -> None:
    pids = [os.getpid(), *range(1 << 22, (1 << 22) + 60_000)]
    seen = hang.look([sys.executable], pids)
    assert [process.pid for process in seen.processes] == [os.getpid()]
    assert "58001 of 60001 processes are not inspected" in seen.could_not
