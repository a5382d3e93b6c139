"""What nox's words after `--` mean for a session."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import nox
import pytest

from ci_tasks.cli import sessions
from ci_tasks.cli.commands import labels
from ci_tasks.cli.commands.labels import RemoteOptions
from ci_tasks.cli.sessions import parse_posargs
from ci_tasks.errors import UsageError
from ci_tasks.registry import Session
from ci_tasks.run.checkout_source import CheckoutSource, RunRequest
from ci_tasks.workflow.model import Workflow

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tiny-slime"


Sessions = list[tuple[str, Callable[[object], None]]]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """nox's sessions, as they are registered: names and functions."""
    made: Sessions = []

    def record(*, name: str, **_: object) -> Callable[[Callable[[object], None]], None]:
        return lambda function: made.append((name, function))

    monkeypatch.setattr(nox, "session", record)
    monkeypatch.setattr(sessions, "registry", SimpleNamespace(features=tuple))  # theirs are not of the workflow
    return made


def test_each_label_is_one_session(registered: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_REPO", str(SAMPLE))
    sessions.register()
    names = [name for name, _ in registered]
    assert len(names) == len(set(names))
    assert {"ckpt", "changed"} <= set(names)
    assert names[-1] == "changed"


@pytest.mark.parametrize(("chosen", "error"), [(1, SystemExit), (2, RuntimeError)])
def test_a_sessions_exit_code_is_noxs_if_it_is_the_only_one_and_fails_it_otherwise(
    registered: Sessions, monkeypatch: pytest.MonkeyPatch, chosen: int, error: type[BaseException]
) -> None:
    """`git bisect run nox -s LABEL` sees 125."""

    def fail(text: str) -> None:
        raise RuntimeError(text)

    feature = SimpleNamespace(name="f", nox_sessions=[Session("lint", "", ("lint",))])
    monkeypatch.setattr(sessions, "registry", SimpleNamespace(features=lambda: [feature]))
    monkeypatch.setenv("CI_TASKS_REPO", str(SAMPLE))
    monkeypatch.setattr(labels, "run_label", lambda options: 125)
    monkeypatch.setattr(subprocess, "call", lambda words: 125)
    sessions.register()
    for name in ("ckpt", "lint"):
        of_nox = SimpleNamespace(posargs=[], error=fail, _runner=SimpleNamespace(manifest=range(chosen)))
        with pytest.raises(error, match="125"):
            dict(registered)[name](of_nox)


MEANT = {
    "": RemoteOptions(label="ckpt", host="local"),
    "async save": RemoteOptions(label="ckpt", host="local", only="async,save"),
    "async --host h100a,h100b --jobs 2": RemoteOptions(label="ckpt", host="h100a,h100b", only="async", jobs=2),
    "--base main --keep async": RemoteOptions(label="ckpt", host="local", only="async", base="main", keep=True),
    "--var A=1 --input b=2 --output c.d=3 --github-event e": RemoteOptions(
        label="ckpt", host="local", var=("A=1",), input=("b=2",), output=("c.d=3",), github_event="e"
    ),
}


@pytest.mark.parametrize("line", MEANT)
def test_posargs_are_parts_of_row_names_and_options_of_remote(line: str) -> None:
    assert parse_posargs("ckpt", line.split()) == MEANT[line]


POSARGS = [
    ("--hots x", "unknown option --hots; did you mean '--host'?", "`nox -s ckpt -- --help`"),
    ("--repo x", "unknown option --repo", "`nox -s ckpt -- --help`"),
    ("--jobs many", "--jobs takes a whole number of rows, not 'many'", "--jobs 4"),
    ("--last-failed a", "--last-failed and --only cannot be combined", "use one"),
]


@pytest.mark.parametrize(("line", "message", "hint"), POSARGS)
def test_an_error_in_posargs_names_the_session_and_the_next_step(line: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_posargs("ckpt", line.split())
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_help_lists_the_options_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_posargs("ckpt", ["-h"]) is None
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: nox -s ckpt -- [ROWS] [OPTIONS]")
    assert " ".join(re.findall("^  --([a-z-]+)", shown, re.MULTILINE)) == (
        "host jobs fresh-env keep detach image repeat until-fail fail-fast last-failed retry-failed resume prefetch "
        "base give-up gpus no-probe no-persist with test var input output github-event outputs-from workflow-dir"
    )


def test_last_failed_takes_the_rows_of_each_label(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {"a": {"r1": "failed", "r2": "passed", "r3": "lost"}, "b": {"s1": "passed"}}
    monkeypatch.setattr("ci_tasks.results.history.latest", lambda label, _: known.get(label, {}))
    source = CheckoutSource(tmp_path, "given", Workflow("w.yml", "W", {}))
    parts = [RunRequest("a", rows=("r1", "r2")), RunRequest("b", rows=("s1",)), RunRequest("c")]
    assert labels._last_failed("changed", source, parts) == [RunRequest("a", rows=("r1",))]
    assert labels._last_failed("a", source, [RunRequest("a")]) == [RunRequest("a", rows=("r1", "r3"))]
