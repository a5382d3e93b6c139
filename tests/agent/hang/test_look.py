"""When a run is looked at."""

from __future__ import annotations

import os
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.codec import to_json
from ci_tasks.agent.hang import collect
from ci_tasks.agent.hang import look as looking
from ci_tasks.agent.hang.facts import HangFacts, ProcessFacts, Reason
from ci_tasks.agent.hang.look import HangWatcher, NoLook, wait_for_look
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


def wait(hang: HangWatcher) -> None:
    wait_until(lambda: hang.poll() or not hang.is_looking)  # type: ignore[func-returns-value]


def looked(run: RunDir) -> list[str]:
    return Path(run.path, "looked").read_text().split("|")[:-1]


def test_a_request_is_answered_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_PAUSE", -1)
    hang = HangWatcher(run, pytest.fail)
    Path(run.hang_request).write_text("abc")
    for _ in range(3):
        hang.poll()
        wait(hang)
    assert looked(run) == ["request abc"]


@pytest.mark.parametrize("text", ["", "../x", "a b", "a" * 101, "\0", "é"])
def test_what_is_no_request_is_not_answered(run: RunDir, text: str) -> None:
    Path(run.hang_request).write_text(text)
    hang = HangWatcher(run, pytest.fail)
    hang.poll()
    assert not hang.is_looking


def test_before_the_timeout_there_is_one_look(run: RunDir) -> None:
    hang = HangWatcher(run, pytest.fail)
    hang.look_before(time.monotonic() + 3600, 7200)
    hang.look_before(time.monotonic() + 1, 60)
    assert not hang.is_looking, "a short timeout leaves no time for a look"
    for _ in range(2):
        hang.look_before(time.monotonic() + 1, 7200)
        wait(hang)
    assert looked(run) == ["timeout "]


def test_a_silence_is_looked_at_again_after_twice_the_time(run: RunDir) -> None:
    hang = HangWatcher(run, pytest.fail)
    for began, seconds in ((1, 299), (1, 300), (1, 599), (1, 600), (1, 601), (1, 1200), (1201, 5), (1201, 300)):
        hang.look_at_silence(began, seconds, 600)
        wait(hang)
    first, second = "stall silence1000", "stall silence1201000"
    assert looked(run) == [first, first, first, second]


@pytest.mark.parametrize(
    ("reason", "request_", "busy", "asked"),
    [("stall", "silence1", 0.1, True), ("stall", "silence2", None, False), ("request", "silence1", None, True)],
)
def test_a_later_look_at_the_same_silence_compares_and_asks_torch(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, reason: Reason, request_: str, busy: float | None, asked: bool
) -> None:
    """torch writes into the job's log, so it is not asked when the silence has just begun."""
    process = ProcessFacts(7, 1, start=5, cpu_seconds=60.0)
    Path(run.hang).parent.mkdir()
    write_record(run.hang, HangFacts(taken_at=100.0, reason="stall", request="silence1", processes=(process,)))
    now = (replace(process, cpu_seconds=90.0), replace(process, start=6))
    calls: list[int] = []

    def collectives(envs: list[object], seconds: float) -> tuple[tuple[()], list[str]]:
        calls.append(len(envs))
        return (), []

    monkeypatch.setattr(collect, "look", lambda *_: HangFacts(processes=now))
    monkeypatch.setattr(collect, "recorded_collectives", collectives)
    monkeypatch.setattr(time, "time", lambda: 400.0)
    facts = collect.collect(run.path, reason, request_)
    assert [item.busy_since for item in facts.processes] == [busy, None]
    assert calls == [2 if asked else 0]


def test_a_look_that_hangs_is_ended(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(run.agent, "w") as archive:
        archive.writestr("__main__.py", "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(looking, "MAX_SECONDS", 0.0)
    lines: list[str] = []
    hang = HangWatcher(run, lines.append)
    assert hang.look("stall")
    wait(hang)
    assert lines == ["a look at the processes failed: no end within 0 s"]


@pytest.mark.parametrize(("status", "why"), [(Status(), "has not started"), (Status("ended", "ended"), "has ended")])
def test_a_run_that_does_not_run_is_not_asked(run: RunDir, status: Status, why: str) -> None:
    write_record(run.status, status)
    with pytest.raises(NoLook, match=why):
        wait_for_look(run.path, "abc")


def test_the_answer_to_a_request_is_waited_for(run: RunDir) -> None:
    def agent() -> None:
        wait_until(Path(run.hang_request).exists)
        Path(run.hang).parent.mkdir()
        Path(run.hang).write_text(to_json(HangFacts(request="abc", machine="x")))

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    assert wait_for_look(run.path, "abc").machine == "x"
    thread.join(10)
    assert wait_for_look(run.path, "abc").machine == "x", "a request that is repeated gets the same answer"


def test_a_link_in_the_place_of_the_directory_leads_nowhere(run: RunDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(run.path, "hang").symlink_to(elsewhere)
    collect.collect(run.path, "request", "abc")
    assert list(elsewhere.iterdir()) == []
    facts = read_record(HangFacts, run.hang)
    assert facts is not None
    assert (facts.request, facts.reason) == ("abc", "request")
    assert Path(run.hang_stacks).read_text().count("could not: ") == len(facts.could_not)


def test_a_look_shows_the_process_that_was_asked_for_or_says_why_not() -> None:
    assert [seen.pid for seen in collect.look([sys.executable], [os.getpid()]).processes] == [os.getpid()]
    failed = collect.look(["sh", "-c", "echo no interpreter >&2; exit 1"], None)
    assert (failed.processes, failed.could_not) == ((), ("no interpreter",))
