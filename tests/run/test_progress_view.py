"""What a person sees while rows run, with a terminal and without, and what ends a run besides its table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Deviation, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.records import BatchResult, RunRecord, together
from ci_tasks.report.live import RUNNING, WAITING, HostProgress, RowProgress
from ci_tasks.report.results import batch_result, statuses
from ci_tasks.results.runs import last_line
from ci_tasks.run import progress
from ci_tasks.run.events import EventView, Message
from tests.parts.json_files import write_json

Lines = Callable[[], list[str]]
TWO = (HostProgress("h100a", 8), HostProgress("h100b", 8))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return a_run(tmp_path, "run", b"first\nlast\n")


def a_run(path: Path, name: str, log: bytes, **status: Any) -> RunDir:
    directory = RunDir(str(path / name))
    os.makedirs(directory.path)
    write_json(directory.plan, {"stall_minutes": 15, "runtime": "podman"})
    write_json(directory.status, status)
    Path(directory.log).write_bytes(log)
    return directory


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Lines:
    """The lines since the last call, without the time in front."""
    return lambda: [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]


def test_on_one_host_plain_lines_say_no_host(printed: Lines) -> None:
    view = EventView(progress.PlainView())
    view.update([RowProgress("a", RUNNING, 1.0, "step 1", "h100a"), RowProgress("b", WAITING, note="GPU 3")])
    view.update([RowProgress("a", "failed", 2.04, "KeyError", "h100a"), RowProgress("b", RUNNING, 0.0, "", "h100a")])
    assert printed() == ["running   a", "failed    a after 2.0 s: KeyError", "running   b"]


def test_a_reason_that_is_the_last_one_again_is_not_repeated(printed: Lines) -> None:
    view = EventView(progress.PlainView())
    view.update([RowProgress("a", "blocked", None, "disk full"), RowProgress("b", "blocked", None, "disk full")])
    assert printed() == ["blocked   a: disk full", "blocked   b: as above"]


def test_on_several_hosts_they_say_where_and_which_attempt(printed: Lines) -> None:
    view = EventView(progress.PlainView())
    unreached = (HostProgress("h100a", None, note="connecting"), HostProgress("h100b", None, note="connecting"))
    for lane, hosts in [
        (RowProgress("a", WAITING), unreached),
        (RowProgress("a", RUNNING, 1.0, "", "h100a"), TWO),
        (RowProgress("a", RUNNING, 2.0, "step 1", "h100a"), TWO),
        (RowProgress("a", "blocked", 3.0, "disk full", "h100a"), TWO),
        (RowProgress("a", WAITING, attempt=2), TWO),
        (RowProgress("a", RUNNING, 1.0, "", "h100b", attempt=2), TWO),
        (RowProgress("a", RUNNING, 1.0, "", "h100a", attempt=3), TWO),  # it was lost between two looks
        (RowProgress("a", "passed", 9.0, "", "h100a", attempt=3), TWO),
    ]:
        view.update([lane], hosts)
    assert printed() == [
        "host h100a is connected, 8 GPUs",
        "host h100b is connected, 8 GPUs",
        "running   a on h100a",
        "blocked   a on h100a after 3.0 s: disk full",
        "waiting   a, attempt 2",
        "running   a on h100b, attempt 2",
        "running   a on h100a, attempt 3",
        "passed    a on h100a, attempt 3 after 9.0 s",
    ]


def test_a_host_that_goes_and_comes_is_said_once_each(printed: Lines) -> None:
    view = EventView(progress.PlainView())
    away = [HostProgress("h100a", 8, up=False, note=f"the link is down for {seconds} s") for seconds in (12, 13)]
    for host in (TWO[0], TWO[0], *away, TWO[0], TWO[0]):
        view.update([], (host, HostProgress("h100b", 1)))
    assert printed() == [
        "host h100a is connected, 8 GPUs",
        "host h100b is connected, 1 GPU",
        "host h100a: the link is down for 12 s",
        "host h100a is reachable again",
    ]


def test_of_rows_that_are_left_only_what_they_wait_for_is_said(printed: Lines) -> None:
    view = EventView(progress.open_view("title", [], detach=True))
    view.update([RowProgress("a", RUNNING, 1.0, "step 1"), RowProgress("b", RUNNING)])
    view.update([RowProgress("b", WAITING, note="GPU 3")])
    assert printed() == ["waiting   b: GPU 3"]


def test_after_a_silence_plain_lines_say_what_runs_and_waits(printed: Lines) -> None:
    view = EventView(plain := progress.PlainView())
    lanes = [RowProgress("a", RUNNING, host="h100b"), RowProgress("c", WAITING)]
    lanes += [RowProgress(name, WAITING, note="GPU 3") for name in "bd"]
    view.update(lanes, TWO)
    printed()
    plain._last_line_at -= 61
    view.update(lanes, TWO)
    assert printed() == ["still running: a; 3 waiting", "still waiting: b, d: GPU 3"]


def test_one_row_is_its_log_without_scripts(run: RunDir, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    stream = progress.open_view("title", [run])
    assert isinstance(stream, progress.StreamView)
    for state in (WAITING, WAITING, RUNNING):
        stream.update([RowProgress("a", state, 1.0, "GPU 3" if state == WAITING else "", "h100a")], TWO)
    for part in (b"##[group]Run a\nset -e\n", b"a\n##[endgroup]\n##[group]Run b\n\x1b[31m\xff\0 no end\x1b[2"):
        stream.update([RowProgress("a", RUNNING, 1.0, "", "h100a")], TWO)
        with open(run.log, "ab") as log:
            log.write(part)
    stream.close()  # the last part comes with it
    shown = b"first\nlast\nRun a  (its script: %s)\n##[group]Run b\n\x1b[31m\\xff\\x00 no end\\x1b[2"
    assert capfdbinary.readouterr() == (shown % run.log.encode(), b"ci-tasks: waiting, GPU 3\n")


def test_a_second_attempt_of_one_row_is_shown_from_its_start(
    run: RunDir, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stream = progress.StreamView(run)
    stream.update([progress.running_row_progress("a", run, 1.0, "", host="h100a")])
    other = a_run(tmp_path, "other", b"again\n")
    stream.update([replace(progress.running_row_progress("a", other, 1.0, "", host="h100b"), attempt=2)])
    stream.update([RowProgress("a", "passed")])
    stream.close()
    assert capfdbinary.readouterr() == (b"first\nlast\nagain\n", b"ci-tasks: on h100b, attempt 2\n")


def test_a_pipe_in_the_place_of_a_log_blocks_nobody(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    Path(run.log).unlink(missing_ok=True)
    os.mkfifo(run.log)
    progress.GrowingLog(run.log).copy()
    assert (capfd.readouterr().out, last_line(run)) == ("", "")


def test_on_a_terminal_hosts_are_drawn_and_nothing_that_is_shown_controls_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)  # the first is rich's own word for: this is a terminal
    hostile = "\x1b]52;c;eA==\x07\x9d0;title\x9c\x1b[2J"
    live = progress.LiveView("title")
    live.write(Message("now", f"a{hostile}"))
    print(f"b{hostile}")
    print(f"c{hostile}", file=sys.stderr)
    live.update([RowProgress("ppo", RUNNING, 1.0, f"d{hostile}", "h100b", 2, (0, 1))], TWO)
    live.close()
    out, err = capsys.readouterr()
    assert "52;c;eA==" in out and "\x1b[" in out
    assert "2 ours, 6 free; 1 row" in out
    assert not any(control in out + err for control in ("\x1b]", "\x07", "\x9d", "\x9c", "\x1b[2J"))


@pytest.mark.parametrize(
    ("status", "note", "state", "shown"),
    [
        ({}, "", RUNNING, "last"),
        ({}, "sending the code", RUNNING, "sending the code"),
        ({"phase": "collecting"}, "", RUNNING, "collecting results"),
        ({"stalled": True}, "", "stalled", "no output for 15 min"),
        ({"waiting": ["GPU 3", "GPU 4"], "stalled": True}, "", WAITING, "GPU 3; GPU 4"),
    ],
)
def test_how_a_started_row_stands(tmp_path: Path, status: dict[str, Any], note: str, state: str, shown: str) -> None:
    run = a_run(tmp_path, "run", b"first\nlast\n", gpu_ids=[4, 5], **status)
    lane = progress.running_row_progress("a", run, 2.0, note, host="h")
    assert lane == RowProgress("a", state, 2.0, shown, "h", gpu_ids=(4, 5), log=run.log)


def test_of_a_long_log_the_last_line_of_metrics_is_whole(run: RunDir) -> None:
    metrics = b", ".join(b"'train/m_%d': 0.5" % number for number in range(190))
    Path(run.log).write_bytes(b"x\n" * 100_000 + b"step 12: {" + metrics + b", 'rollout/raw_reward': 0.43}\n\n")
    assert len(metrics) > 3000 and last_line(run) == "step 12, raw_reward 0.43"


KEPT = {"workspace": "/w"}


def _kept_run(directory: Path, id: str, kept: dict[str, str] | None) -> tuple[str, str]:
    directory.mkdir()
    run = RunDir(str(directory))
    write_json(run.status, {"state": "ended", "kept": kept})
    return id, run.path


@pytest.mark.parametrize(("kind", "retries"), [("", True), ("ssh", True), ("slurm", False)])
def test_kept_rows_have_their_next_commands(tmp_path: Path, kind: str, retries: bool) -> None:
    kept = {"1": None, "2": KEPT, "3": KEPT}
    runs = [_kept_run(tmp_path / number, f"b.0{number}", what) for number, what in kept.items()]
    if kind:
        write_record(RunDir(str(tmp_path / "2")).remote, RemoteLocation(host="h", kind=kind, directory="/d"))
    assert progress.kept_lines(BatchResult("b", "failed", directories=dict(runs[:1]))) == [], "none was kept"
    lines = progress.kept_lines(BatchResult("b", "failed", directories=dict(runs)))
    assert lines[0] == "kept: 2 rows; `ci-tasks shell b.02` opens bash there"
    assert lines[1:] == (
        ["after an edit in your checkout, `ci-tasks retry b.02` runs the failed step again"] if retries else []
    )


def test_what_differed_from_ci_in_the_labels_last_run_is_counted_and_the_command_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    same, new = (Deviation(what, "merge", "tree", "yours") for what in ("code", "image"))
    ran = RunRecord("", "ckpt", "r", "sim", "passed", started_at="2026-01-01T12:00:00+00:00")
    for batch in ("20251231-120000-ckpt", "20260101-120000-ckpt", "20260101-130000-other", "20260102-120000-ckpt"):
        run = RunDir(str(tmp_path / "runs" / batch / "01"))
        Path(run.path).mkdir(parents=True)
        write_record(run.record, replace(ran, id=f"{batch}.01", deviations=(same,) if "0101-12" in batch else (new,)))
    now = replace(ran, id="20260102-120000-ckpt.01", deviations=(same, new))
    command = "ci-tasks report 20260102-120000-ckpt --deviations"
    for all_deviations in (False, True):
        progress.print_results(batch_result("b", [now], {}), all_deviations=all_deviations)
        shown = capsys.readouterr().out
        assert "image:  merge → tree" in shown
        assert ("code:" in shown, command in shown) == (all_deviations, not all_deviations)


def test_rows_that_another_ones_failure_ended_say_nothing_of_their_own() -> None:
    failed, cancelled, passed = (RunRecord("1", "l", "r", "a", word) for word in ("failed", "cancelled", "passed"))
    assert statuses([failed, replace(cancelled, stopped=True)]) == ["failed"]
    assert statuses([replace(passed, stopped=True), failed]) == ["passed", "failed"]
    assert statuses([cancelled, failed]) == ["cancelled", "failed"]


def test_of_several_results_the_worst_speaks_for_all_and_none_is_vacuous() -> None:
    blocked, passed, failed = (
        BatchResult(word, word, None, (), {word: "/"}) for word in ("blocked", "passed", "failed")
    )
    assert together("l", []) == BatchResult("l", "vacuous", 1)
    assert together("l", [passed, blocked]).exit_code == 125
    assert together("l", [blocked, failed]) == BatchResult("l", "failed", 1, (), {"blocked": "/", "failed": "/"})


def test_a_failure_that_ci_goes_on_after_does_not_fail_the_whole() -> None:
    failed, lost, passed = (RunRecord("b.01", "l", "r", "a", status) for status in ("failed", "lost", "passed"))
    assert statuses([replace(failed, may_fail=True), passed]) == ["passed", "passed"]
    assert statuses([replace(lost, may_fail=True), failed]) == ["lost", "failed"]
