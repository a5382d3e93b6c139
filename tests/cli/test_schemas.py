"""`--json` and `--events` as a program reads them: what a command prints is what its published schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.cli.options import options_of
from docs import generate
from tests.parts.commands import COMMANDS, options_of_command
from tests.published import check, check_events

ROOT = Path(__file__).resolve().parents[2]
# What they print is a log, a shell's output or a protocol.
WITHOUT_JSON = {"logs", "shell", "mcp"}
RUN = ("remote", "--host", "sim", "ckpt", "--only", "async")
ROW = "print('step 0:', {'x': 1})\n"
# They need what a test of their own starts: a failed job's log with its commit, two checkouts, a package index, a hub,
# a kept run. What a command of any test prints for programs is checked by tests/fixtures.py.
TESTED_ELSEWHERE = {"diff", "numbers", "reproduce", "hang", "compare", "bisect", "verl", "setup", "prefetch", "retry"}


@pytest.fixture
def person(person: Any) -> Any:
    """Their row does no more than one that passed."""
    person.write("tests/test_tiny_ckpt.py", ROW)
    return person


def test_the_published_schemas_are_those_of_the_records() -> None:
    expected = {name: generate.text(schema) for name, schema in generate.schemas()}
    files = {path.stem: path.read_text() for path in (ROOT / "docs/schemas").glob("*.json")}
    assert files == expected, "`python docs/generate.py` writes them"


def test_every_command_has_json_with_a_schema() -> None:
    described = {command.name for command in COMMANDS.values() if command.json}
    with_option = {name for name in COMMANDS if "json" in options_of(options_of_command(name))}
    assert described == with_option == set(COMMANDS) - WITHOUT_JSON


@pytest.mark.smoke
@pytest.mark.timeout(300)
def test_what_a_command_prints_is_what_its_schema_says(person: Any, tmp_path: Path) -> None:
    log = tmp_path / "failed.log"
    log.write_text("Traceback (most recent call last):\nAssertionError: the loss is 2.0\n##[error]exit code 1\n")
    run = person.ci_tasks(*RUN, "--json")
    assert run.code == 0
    assert "passed  tiny_ckpt[async-save]" in run.err  # the table, for people
    together = check("remote", run.json)
    assert (together["status"], together["exit_code"]) == ("passed", 0)
    assert [row["row"] for row in together["runs"]] == ["tiny_ckpt[async-save]"]
    lines = {
        "jobs": ["jobs"],
        "plan": ["plan", "ckpt", "--only", "async", "--host", "sim"],
        "run": ["run", "ckpt", "--only", "async"],  # blocked: no GPU here
        "runs": ["runs"],
        "attach": ["attach", together["id"]],
        "fetch": ["fetch", "last"],
        "cancel": ["cancel", "last"],
        "report": ["report", "last"],
        "hosts": ["hosts"],
        "triage": ["triage", str(log)],
        "lint": ["lint"],
        "coverage": ["coverage"],
        "doctor": ["doctor", "--host", "local"],
        "clean": ["clean", "--days", "0.0000001"],
    }
    printed = {name: check(name, person.ci_tasks(*line, "--json").json) for name, line in lines.items()}
    assert all(value for name, value in printed.items() if name != "cancel")  # of each list an entry was checked
    assert check("runs", person.ci_tasks("runs", "--flakes", "--json").json)
    assert check("coverage", person.ci_tasks("coverage", "--diff", "HEAD", "--json").json)
    assert {"remote", *lines} == {command.name for command in COMMANDS.values() if command.json} - TESTED_ELSEWHERE


def test_events_tell_a_program_everything_from_the_plan_to_the_exit_code(person: Any) -> None:
    done = person.ci_tasks(*RUN, "--events", "-")
    lines = check_events(done.out)
    named = [line["event"] for line in lines if line["event"] not in ("row_waiting", "message")]
    assert named[:3] == ["run_prepared", "row_placed", "row_started"]
    assert named[-3:] == ["row_ended", "run_ended", "command_ended"]
    assert set(named[3:-3]) == {"row_step"}
    ended = next(line for line in lines if line["event"] == "row_ended")
    assert (ended["row"], ended["status"]) == ("tiny_ckpt[async-save]", "passed")
    assert (lines[-2]["status"], lines[-1]["exit_code"], done.code) == ("passed", 0, 0)
    assert "passed" in done.err  # the table, for people


def test_an_error_is_the_last_event(person: Any) -> None:
    done = person.ci_tasks("run", "ckpt", "--only", "nowhere", "--events", "events.jsonl")
    (line,) = check_events((person.checkout / "events.jsonl").read_text())
    assert (line["event"], line["exit_code"], done.code) == ("command_ended", 2, 2)
    assert "nowhere" in line["error"]


def test_a_reader_of_events_that_goes_away_ends_them_and_not_the_run(person: Any) -> None:
    started = person.start(*RUN, "--events", "-")
    started.stdout.close()
    _, err = started.communicate(timeout=120)
    assert started.returncode == 0
    assert err.count("no more events: Broken pipe; the run continues") == 1
    assert [record["status"] for record in person.records()] == ["passed"]
    assert "Traceback" not in err and "a bug" not in err


def test_a_secret_is_masked_in_events(person: Any) -> None:
    person.env["MY_API_KEY"] = "tiny_ckpt"  # the row's name is one, to be seen in every kind of line
    done = person.ci_tasks(*RUN, "--events", "-")
    assert "***" in done.out and "tiny_ckpt" not in done.out
