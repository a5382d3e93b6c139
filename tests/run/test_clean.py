"""Why `clean` leaves a run where it is, and what `ci_tasks.agent.slurm` and its `workspace` remove of one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.protocol import Answer, RunSummary
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.serve import list_runs
from ci_tasks.results import store
from ci_tasks.results.history import RunQuery, search
from ci_tasks.results.runs import record_not_started
from ci_tasks.results.store import Phase, write_phase
from ci_tasks.run.clean import _clean_here, _cleaned_here, _containers_and_images, _stays_there
from tests.parts.json_files import write_json


@pytest.fixture(autouse=True)
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CI_TASKS_HOME", str(home))
    return home


ROW, HERE, INSTALL = "01", "02", "environments/abc"
PLANNED = "it was only planned; --all removes it"


@pytest.mark.parametrize(
    ("run", "alive", "kept", "phase", "why"),
    [
        (ROW, True, False, "running", "it runs"),
        (ROW, True, False, "ended", "it runs"),  # a row goes on without its command
        (ROW, False, False, "ended", ""),
        (HERE, False, False, "ended", PLANNED),
        (ROW, False, True, "ended", "it was kept for `shell`; --all removes it"),
        (INSTALL, True, False, "running", "it runs"),
        (INSTALL, False, False, "running", "its command is still running"),
        # install steps that no command waits for any more
        (INSTALL, True, False, "ended", ""),
        (INSTALL, True, False, None, ""),
    ],
)
def test_what_runs_or_is_kept_stays(
    run: str, alive: bool, kept: bool, phase: Phase | None, why: str, home: Path
) -> None:
    if phase:
        (home / "runs/b" / HERE).mkdir(parents=True)  # a copy that a command has begun, and no more
        write_phase(home / "runs/b", phase)
    summary = RunSummary(f"/runs/b-{store.client_id()}/{run}", alive=alive, kept=kept)
    assert _stays_there(summary, is_old=False, everything=False) == why


def test_runs_of_other_clients_stay_while_they_are_young_or_run() -> None:
    theirs = RunSummary(f"/runs/b-other/{ROW}")
    assert "younger than --days" in _stays_there(theirs, is_old=False, everything=True)
    assert _stays_there(theirs, is_old=True, everything=False) == ""
    assert _stays_there(RunSummary(f"/runs/b-other/{INSTALL}", alive=True), is_old=True, everything=False) == "it runs"


def test_what_was_kept_stays_however_old_it_is(home: Path) -> None:
    run = home / "runs/b/01"
    run.mkdir(parents=True)
    write_json(str(run / "plan.json"), {"id": "b.01"})
    info = RunSummary(str(run), "ended", kept=True, ended_at=1.0)
    kept = "stays, it was kept for `shell`; --all removes it"
    assert [_cleaned_here(info, False, 0.0, everything)[0] for everything in (False, True)] == [kept, "removed"]


def test_the_venv_of_install_steps_goes_once_no_command_uses_it(home: Path) -> None:
    setup = home / "runs/b/environments/abc"
    (setup / "venv").mkdir(parents=True)
    write_json(str(setup / "plan.json"), {"id": "b.abc"})
    info = RunSummary(str(setup), "ended", ended_at=1.0)
    assert [_cleaned_here(info, used, None, False)[0] for used in (True, False)] == ["", "its venv was removed"]
    assert not (setup / "venv").exists() and (setup / "plan.json").exists()


def test_a_run_whose_plan_cannot_be_read_is_named(home: Path) -> None:
    (home / "runs/b/01/workspace").mkdir(parents=True)
    (home / "runs/b/01/plan.json").write_text("no JSON")
    host: Any = SimpleNamespace(request=lambda _: Answer(runs=tuple(list_runs(str(home)))))
    (cleaned,) = _clean_here(host, None, everything=False)
    assert "plan.json" in cleaned.text and cleaned.left


def test_a_python_without_sqlite_cleans_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    for name in ("history", "index"):
        monkeypatch.delitem(sys.modules, f"ci_tasks.results.{name}")
        monkeypatch.delattr(f"ci_tasks.results.{name}")
    host: Any = SimpleNamespace(request=lambda _: Answer())
    assert list(_clean_here(host, None, everything=False)) == []


def test_a_run_that_is_removed_stays_in_the_history(home: Path) -> None:
    run = RunDir(str(home / "runs/20260101-120000-l/01"))
    Path(run.path).mkdir(parents=True)
    write_json(run.plan, {"id": "20260101-120000-l.01", "label": "l", "row": "r"})
    record_not_started(run, "blocked", "no GPU")
    host: Any = SimpleNamespace(request=lambda _: Answer(runs=tuple(list_runs(str(home)))))
    assert [cleaned.text for cleaned in _clean_here(host, 0.0, everything=False)] == ["20260101-120000-l.01: removed"]
    assert [(record.row, record.files_gone) for record in search(RunQuery())] == [("r", True)]


def test_plans_on_this_machine_are_removed_by_their_age_once_their_command_is_over(person: Any) -> None:
    planned = person.ci_tasks("plan", "ckpt", "--host", "sim", "--only", "async", "--json").json
    directory = Path(planned[0]["run_dir"])
    phases: list[tuple[Phase, str, bool]] = [("running", "0", True), ("ended", "1", True), ("ended", "0", False)]
    for phase, days, stays in phases:
        write_phase(directory.parent, phase)
        out = person.ci_tasks("clean", "--days", days).out
        assert (directory.exists(), "nothing to remove; " in out) == (stays, stays), (phase, days)


def test_containers_and_images_of_this_home_have_readable_sizes() -> None:
    out = "/h/runs/b/01 container /x, 12345678 bytes\n/other/runs/b/01 container /y, 1 bytes\n"
    out += "/h/runs/b/02 image i:1, 0 bytes\n"
    connection: Any = SimpleNamespace(
        hello=lambda: SimpleNamespace(home="/h"), run_queries=lambda *_: {"sh": SimpleNamespace(out=out)}
    )
    spec: Any = SimpleNamespace(runtime="docker")
    lines = ["containers and images of runs:", "  container x, 12.3 MB", "  image i:1, 0.0 kB"]
    assert _containers_and_images(connection, spec) == lines
