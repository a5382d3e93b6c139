"""`runs` and `report` as a person types them: filters, wrong ones refused with what is valid, and what is printed or
written (`ci_tasks.run.report_runs`)."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.cli.commands.labels import RemoteOptions, RunOptions
from ci_tasks.cli.list_runs import _age, parse_time
from ci_tasks.cli.options import options_of
from ci_tasks.records import RunRecord
from ci_tasks.results import index, store
from ci_tasks.results.runs import record_not_started
from ci_tasks.run.clean import CleanedRun
from tests.parts.cases import named
from tests.parts.commands import run_command
from tests.parts.json_files import read_json, write_json

Output = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    index._warned.clear()
    yield tmp_path
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Output:
    def say(**flags: Any) -> str:
        run_command("runs", **flags)
        return capsys.readouterr().out

    return say


def _keep(home: Path, number: int, status: str, **fields: Any) -> None:
    run = RunDir(str(home / "runs" / "20260101-120000-ckpt" / f"{number:02d}"))
    Path(run.path).mkdir(parents=True)
    plan = {"id": f"20260101-120000-ckpt.{number:02d}", "label": "ckpt", "row": f"row-{number}", "host": "h100a"}
    write_json(run.plan, {**plan, **{key: value or "" for key, value in fields.items()}})
    record_not_started(run, status, "why\nof it")


def test_hosts_lists_pools_with_their_members(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "hosts.yaml").write_text("hosts: {a: {kind: ssh, address: a, runtime: none}}\npools: {both: [a, sim]}\n")
    monkeypatch.setenv("CI_TASKS_HOSTS", str(home / "hosts.yaml"))
    run_command("hosts")
    assert "\npool both: a, sim\n" in capsys.readouterr().out


WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    "a status": ({"status": "failed,pased"}, "unknown status 'pased'; did you mean 'passed'?", "blocked, cancelled"),
    "a date": ({"since": "yesterday"}, "--since is no date: 'yesterday'", "2026-11-01T18:30"),
    "a day that never was": ({"until": "2026-02-30"}, "--until is no date: '2026-02-30'", "12h"),
    "a span that ends before it begins": ({"since": "3d", "until": "2w"}, "--since 3d is not before --until 2w", "30m"),
    "no commit": ({"commit": "main"}, "--commit is the beginning of a commit's hash, not 'main'", "25740fd8"),
    "a while of nothing": ({"since": "d"}, "--since is no date: 'd'", "3d"),
    "no number": ({"limit": "many"}, "--limit takes a whole number of runs, not 'many'", "for example --limit 4"),
    "no run": ({"limit": "0"}, "--limit takes a whole number of runs, not '0'", "for example --limit 4"),
    "a superscript": ({"limit": "²"}, "--limit takes a whole number of runs, not '²'", "for example --limit 4"),
    "what has no meaning": ({"flakes": "yes", "limit": "3"}, "--flakes and --limit cannot be combined", "use one"),
}


@named(("flags", "message", "hint"), WRONG)
def test_an_invalid_filter_exits_with_2_and_lists_valid_values(
    flags: dict[str, Any], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("runs", **flags) == 2
    output = capsys.readouterr().err
    assert message in output
    assert hint in output.splitlines()[-1]


NOW = 1_800_000_000.0
MOMENTS = {
    ("since", "2026-11-01"): datetime(2026, 11, 1),
    ("until", "2026-11-01"): datetime(2026, 11, 2),  # a day of 25 hours there
    ("until", "2026-11-01T18:30"): datetime(2026, 11, 1, 18, 30),
    ("since", "2026-11-01 18:30:05"): datetime(2026, 11, 1, 18, 30, 5),
    ("since", " 90m "): NOW - 5400,
    ("until", "12h"): NOW - 43200,
    ("since", "3d"): NOW - 259200,
    ("since", "2w"): NOW - 1209600,
}


@pytest.mark.parametrize(("values", "meant"), MOMENTS.items(), ids=map(" ".join, MOMENTS))
def test_dates_are_local_and_until_includes_the_whole_day(values: tuple[str, str], meant: datetime | float) -> None:
    assert parse_time(*values, NOW) == (meant.timestamp() if isinstance(meant, datetime) else meant)


def test_runs_are_listed_newest_first_with_filters(home: Path, show: Output) -> None:
    _keep(home, 1, "blocked")
    _keep(home, 2, "cancelled", row="two\nlines")
    _keep(home, 3, "blocked", host="")
    head, *lines = show().splitlines()
    assert head.split() == ["RUN", "STATUS", "HOST", "AGE", "ROW", "REASON"]
    assert [re.sub(r"\d+ d", "N d", line) for line in lines] == [
        "20260101-120000-ckpt.03  blocked    -      N d  row-3      why of it",
        "20260101-120000-ckpt.02  cancelled  h100a  N d  two lines  why of it",
        "20260101-120000-ckpt.01  blocked    h100a  N d  row-1      why of it",
    ]
    assert [line.split()[0][-2:] for line in show(row="two, 1").splitlines()[1:]] == ["02", "01"]
    assert [line.split()[0][-2:] for line in show(status="blocked", limit="1").splitlines()[1:]] == ["03"]


@pytest.mark.parametrize(("seconds", "age"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (2e5, "2 d")])
def test_the_age_of_a_run_counts_from_its_start(seconds: float, age: str) -> None:
    record = RunRecord("b.01", "ckpt", "row", None, "running", started_at="2026-01-01T17:00:00.000+00:00")
    now = datetime(2026, 1, 1, 17, tzinfo=timezone.utc).timestamp() + seconds
    assert _age(record, now) == age


def test_the_age_of_a_run_that_has_not_begun_counts_from_its_command() -> None:
    record = RunRecord("20260101-120000-ckpt.01", "ckpt", "row", None, "installing")
    assert _age(record, datetime(2026, 1, 1, 12, 2, tzinfo=timezone.utc).timestamp()) == "2 min"


def test_json_has_whole_records_also_of_removed_runs(home: Path, show: Output) -> None:
    for number in (1, 2):
        _keep(home, number, "blocked")
    assert len(show().splitlines()) == 3
    shutil.rmtree(home / "runs" / "20260101-120000-ckpt" / "01")
    whole, left = json.loads(show(json=True))
    assert whole == json.loads((home / "runs/20260101-120000-ckpt/02/record.json").read_text())
    assert (left["id"], left["status"], left["files_gone"]) == ("20260101-120000-ckpt.01", "blocked", True)
    assert " ".join(show().split()).endswith("why of it; its files were removed")


def test_the_default_limit_is_twenty(home: Path, show: Output) -> None:
    for number in range(1, 26):
        _keep(home, number, "blocked")
    assert show().splitlines()[21:] == ["the newest 20; `--limit N` lists more"]
    assert len(json.loads(show(limit="23", json=True))) == 23


def test_no_match_is_said(home: Path, show: Output) -> None:
    assert (show(), show(json=True)) == ("no runs yet\n", "[]\n")
    _keep(home, 1, "blocked")
    assert show(label="ckpt", status="passed") == "no matching run\n"
    assert show(flakes=True, host="local") == "no matching run\n"


@pytest.mark.parametrize("flags", [{}, {"json": True}, {"flakes": True}])
def test_a_label_without_runs_is_an_error_that_lists_those_that_have_some(
    flags: dict[str, bool], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keep(home, 1, "blocked")
    assert run_command("runs", label="ckp", **flags) == 2
    assert (
        capsys.readouterr().err == "ci-tasks: unknown label 'ckp' in the history; did you mean 'ckpt'?\nvalid: ckpt\n"
    )


def test_flakes_are_counted_by_row_and_host(home: Path, show: Output) -> None:
    for number, status in enumerate(["passed", "failed", "lost", "blocked"], 1):
        _keep(home, number, status, row="r", checkout={"path": "/c", "commit": "c", "tree": "t"})
    head, line = show(flakes=True).splitlines()
    assert head.split() == [
        "LABEL", "ROW", "HOST", "PASSED", "FAILED", "BLOCKED", "OTHER", "FAILURE", "RATE", "(95", "%)",
    ]  # fmt: skip
    assert line.split() == ["ckpt", "r", "h100a", "1", "1", "1", "1", "50", "%", "(1–99", "%),", "flaky"]
    (tally,) = json.loads(show(flakes=True, json=True))
    assert tally["counts"] == {"passed": 1, "failed": 1, "lost": 1, "blocked": 1}
    assert show(flakes=True, label="ckpt", status="passed").splitlines()[1].split()[3:5] == ["1", "0"]


def test_shell_is_opened_by_the_runs_own_agent_and_ends_with_its_exit_code(home: Path) -> None:
    _keep(home, 1, "failed")
    run = RunDir(str(home / "runs/20260101-120000-ckpt/01"))
    Path(run.bin).mkdir()
    Path(run.agent).write_text(f"import sys; sys.exit(7 if sys.argv[1:] == ['shell', {run.path!r}] else 1)")
    assert run_command("shell", run="last") == 7


@pytest.fixture
def two_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of one batch."""
    monkeypatch.setenv("HOME", str(home))
    _keep(home, 1, "blocked")
    _keep(home, 2, "blocked")
    return home


def report_of(**options: Any) -> int:
    return run_command("report", **options)


def test_a_report_names_the_rows_that_were_asked_for(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_of(run="20260101-120000-ckpt.02, 20260101-120000-ckpt.01,")
    out = capsys.readouterr().out
    assert out.index("row-2") < out.index("row-1")
    report_of(run="20260101-120000-ckpt.02")
    assert "row-1" not in capsys.readouterr().out


def test_each_output_option_writes_its_own_format(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_of(run="20260101-120000-ckpt", html="~/page.html", junit="~/rows.xml", markdown=True)
    assert "<html" in (two_runs / "page.html").read_text()
    assert "<testsuite" in (two_runs / "rows.xml").read_text()
    out, err = capsys.readouterr()
    assert "blocked | row-1 | h100a |" in out
    assert "page.html" not in out, "standard output is the markdown"
    assert "page.html: " in err
    report_of(run="20260101-120000-ckpt", html="~/page.html")
    assert "page.html: " in capsys.readouterr().out


def test_called_workflows_are_named_without_their_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = {"what": "called workflow", "ci": "o/r/c.yml@v1", "here": "/data/anna/templates", "why": "--workflow-dir"}
    _keep(home, 1, "failed", deviations=[called])
    record = str(home / "runs/20260101-120000-ckpt/01/record.json")
    write_json(record, {**read_json(record), "started_at": "2026-01-01T12:00:00Z"})
    report_of(run="last", markdown=True)
    assert "| templates | --workflow-dir |" in capsys.readouterr().out


@pytest.mark.parametrize("names", ["", " , "])
def test_a_report_of_no_run_is_an_error_with_the_valid_forms(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_of(run=names) == 2
    message = capsys.readouterr().err
    assert "report: RUN is empty" in message and len(message.splitlines()) == 2


def test_a_command_without_rows_is_listed_as_long_as_it_lives_and_if_it_was_killed(home: Path, show: Output) -> None:
    _keep(home, 1, "passed")
    batches = [store.Batch(name, home / "runs" / name) for name in ("20260102-1-ckpt", "20260103-1-ckpt")]
    for batch in batches:
        batch.path.mkdir()
        store.write_phase(batch.path, "preparing")
    state = store.read_state_if_readable(batches[0].path)
    assert state is not None
    write_record(str(batches[0].path / "state.json"), replace(state, pid=2**22 + 1))
    runs = [(run["id"], run["status"], run["reason"]) for run in json.loads(show(json=True))]
    killed = "the client was killed before its rows were prepared"
    assert runs[:2] == [("20260103-1-ckpt", "preparing", ""), ("20260102-1-ckpt", "lost", killed)]
    store.write_phase(batches[1].path, "ended")
    assert len(json.loads(show(json=True))) == 2


# -- the options of `run` and `remote`: which go together, and what stops a run before it begins -----------------------


ROOT = Path(__file__).resolve().parents[3]
Refused = Any


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """What a command prints on stderr when it ends with exit code 2, without a run."""
    for name, value in {"HOME": tmp_path, "REPO": ROOT / "examples/tiny-slime", "HOSTS": ROOT / "hosts.yaml"}.items():
        monkeypatch.setenv(f"CI_TASKS_{name}", str(value))

    def message(command: str, options: Mapping[str, Any]) -> str:
        host = {"host": "sim"} if command == "remote" else {}
        assert run_command(command, label="nosuch", **{**host, **options}) == 2
        assert not (tmp_path / "runs").exists()
        return capsys.readouterr().err

    return message


EXCLUDED = [(name, other) for name, option in options_of(RemoteOptions).items() for other in option.excludes]


@pytest.mark.parametrize(("one", "other"), EXCLUDED)
def test_excluded_options_are_an_error_with_a_next_step(one: str, other: str, refused: Refused) -> None:
    declared = options_of(RemoteOptions)
    values = {name: True if declared[name].kind is bool else "3" for name in (one, other)}
    first, hint = refused("remote", values).splitlines()
    flags = [f"--{name.rstrip('_').replace('_', '-')}" for name in (one, other)]
    assert first.startswith(f"ci-tasks: {flags[0]} and {flags[1]} cannot be combined")
    assert hint.startswith("use ")


def test_each_exclusion_is_declared_once() -> None:
    assert len(EXCLUDED) == len({frozenset(pair) for pair in EXCLUDED}) > 10


def test_repetitions_keep_only_the_first_failure(refused: Refused) -> None:
    assert "--until-fail keeps those of the first failure" in refused("remote", {"repeat": "3", "keep": True})


def test_run_has_the_options_of_remote_and_a_host_of_its_own() -> None:
    run, remote = options_of(RunOptions), options_of(RemoteOptions)
    assert sorted(run) == sorted(remote)
    assert [name for name in run if run[name] != remote[name]] == ["host"]


@pytest.mark.parametrize(("left", "code"), [((), 0), (("a file of root's",), 125)])
def test_clean_ends_with_125_if_something_is_left(monkeypatch: pytest.MonkeyPatch, left: Any, code: int) -> None:
    monkeypatch.setattr("ci_tasks.run.clean.clean", lambda *_, **more: [CleanedRun("b.01: removed", left)])
    assert run_command("clean", json=True) == code
