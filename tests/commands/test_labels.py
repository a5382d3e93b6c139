"""`run` and `remote` refuse what has no meaning before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from ci_tasks.commands.labels import remote, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [run, remote])
@pytest.mark.parametrize("number", ["many", "0", "-3", "2.5", "²", " "])
def test_a_number_of_repetitions_is_a_whole_one(
    command: Any, number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(command, {"repeat": number}, tmp_path, monkeypatch, capsys)
    assert f"--repeat is a number of repetitions, not {number!r}\nsuch as --repeat 20\n" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"repeat": "3", "detach": True}, "--repeat and --detach exclude each other"),
        ({"until_fail": True, "detach": True}, "--until-fail and --detach exclude each other"),
        ({"repeat": "3", "keep": True}, "with --until-fail, those of the first failure are kept"),
    ],
)
def test_flags_that_exclude_each_other_say_what_to_do_instead(
    flags: Mapping[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refused(remote, flags, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "flags",
    [{"repeat": "3"}, {"until_fail": True}, {"until_fail": True, "repeat": "3"}, {"until_fail": True, "keep": True}],
)
def test_the_others_go_on_to_the_label(
    flags: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no label 'nosuch'" in refused(remote, flags, tmp_path, monkeypatch, capsys)


def refused(
    command: Any,
    flags: Mapping[str, Any],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the command says on stderr when it leaves with exit code 2, without a run."""
    for name, value in {"HOME": home, "REPO": ROOT / "examples/tiny-slime", "HOSTS": ROOT / "hosts.yaml"}.items():
        monkeypatch.setenv(f"CI_TASKS_{name}", str(value))
    host = {"host": "sim"} if command is remote else {}
    with pytest.raises(Exit) as left:
        command.body(Context(), "nosuch", **host, **flags)
    assert left.value.code == 2
    assert not (home / "runs").exists()
    return capsys.readouterr().err
