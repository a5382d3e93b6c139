"""The options of `run` and `remote`: which go together, and what stops a run before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.cli.commands.labels import RemoteOptions, RunOptions
from ci_tasks.cli.options import options_of
from tests.parts.commands import run_command

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
    assert "with --until-fail, those of the first failure are kept" in refused("remote", {"repeat": "3", "keep": True})


def test_run_has_the_options_of_remote_and_a_host_of_its_own() -> None:
    run, remote = options_of(RunOptions), options_of(RemoteOptions)
    assert sorted(run) == sorted(remote)
    assert [name for name in run if run[name] != remote[name]] == ["host"]
