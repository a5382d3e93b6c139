"""`report` as a person types it: which runs, and where the report goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import store
from ci_tasks.results.runs import record_not_started
from tests.parts.commands import run_command
from tests.parts.json_files import write_json

BATCH = "20260101-120000-ckpt"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of one batch."""
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in ("01", "02"):
        run = RunDir(str(tmp_path / "runs" / BATCH / number))
        Path(run.path).mkdir(parents=True)
        write_json(run.plan, {"id": f"{BATCH}.{number}", "label": "ckpt", "row": f"row-{number}", "host": "h100a"})
        record_not_started(run, "blocked", "no GPU")
    return tmp_path


def report(**options: Any) -> int:
    return run_command("report", **options)


def test_a_report_on_the_terminal_names_the_rows_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report(run=f"{BATCH}.02, {BATCH}.01,")
    out = capsys.readouterr().out
    assert out.index("row-02") < out.index("row-01")
    report(run=f"{BATCH}.02")
    assert "row-01" not in capsys.readouterr().out


def test_each_output_option_writes_its_own_format(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(run=BATCH, html="~/page.html", junit="~/rows.xml", markdown=True)
    assert "<html" in (home / "page.html").read_text()
    assert "<testsuite" in (home / "rows.xml").read_text()
    out, err = capsys.readouterr()
    assert "blocked | row-01 | h100a |" in out
    assert "page.html" not in out, "standard output is the markdown"
    assert "page.html: " in err
    report(run=BATCH, html="~/page.html")
    assert "page.html: " in capsys.readouterr().out


@pytest.mark.parametrize("names", ["", " , "])
def test_a_report_of_no_run_is_an_error_with_the_valid_forms(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(run=names) == 2
    message = capsys.readouterr().err
    assert "report: RUN is empty" in message and len(message.splitlines()) == 2
